"""The right to write to a lake, which one process has at a time."""

from __future__ import annotations

import fcntl
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from rostra.errors import LakeChanged, LakeInUse
from rostra.spark.lake.files import LakeFiles

HOLDER_BYTES_MAX = 512


class Lease(Protocol):
    def check(self) -> None:
        """LakeChanged if it is held no longer."""
        ...

    def release(self) -> None: ...


class LockedFile:
    """On a disk: a lock that the system takes back when the process ends, however it ends."""

    def __init__(self, path: str, lake: str) -> None:
        self._path = path
        self._lake = lake
        self._closing = threading.Lock()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, HOLDER_BYTES_MAX).decode(errors="replace").strip()
            os.close(self._file)
            raise LakeInUse(lake, holder or "another process") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, _holder().encode(), 0)

    def check(self) -> None:
        """The lock is on the file; who removed it and made another may have given away the right a second time."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            raise LakeChanged(self._lake, f"{self._path} was removed") from None
        held = os.fstat(self._file)
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            raise LakeChanged(self._lake, f"{self._path} was made anew")

    def release(self) -> None:
        with self._closing:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1


class CreatedFile:
    """Elsewhere: a file that one process creates, and removes when it is done. After a crash somebody has to."""

    def __init__(self, files: LakeFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._written = f"{_holder()} {os.urandom(8).hex()}".encode()
        self._closing = threading.Lock()
        self._released = False
        try:
            files.create(path, self._written)
        except FileExistsError:
            holder = files.read(path).decode(errors="replace").rpartition(" ")[0]
            raise LakeInUse(files.root, f"{holder}; if that has ended, remove {path}") from None

    def check(self) -> None:
        if self._files.size(self._path) is None or self._files.read(self._path) != self._written:
            raise LakeChanged(self._files.root, f"{self._path} was removed")

    def release(self) -> None:
        # The end of a query and the next writer of this process may both release it.
        with self._closing:
            if self._released:
                return
            if self._files.size(self._path) is not None and self._files.read(self._path) == self._written:
                self._files.delete(self._path)
            self._released = True


def _holder() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


# --- within this process ---------------------------------------------------------------------------------------------

_held: dict[str, tuple[Lease, Callable[[], bool]]] = {}
"""By the path of the lock, with whether its writer is done. Nobody tells the lease when a query ends."""


def acquire(files: LakeFiles, path: str, is_over: Callable[[], bool]) -> Lease:
    """LakeInUse if another writer has it. One of this process that is over makes place."""
    before = _held.get(path)
    if before is not None and before[1]():
        before[0].release()
    on_disk = files.on_disk(path)
    lease: Lease = CreatedFile(files, path) if on_disk is None else LockedFile(on_disk, files.root)
    _held[path] = (lease, is_over)
    return lease
