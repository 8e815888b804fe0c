"""Files of the operating system, all below one directory that one process owns."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from rostra.errors import StoreInUse
from rostra.log.files import Buffer, File

BUFFERS_PER_WRITE_MAX = 1024
"""IOV_MAX of Linux."""
LOCK_NAME = "lock"


class DiskFile:
    """Closed with its last reference at the latest, so that a reader on another thread never loses it underway."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: Path, *, create: bool) -> None:
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o600)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def append(self, buffers: Sequence[Buffer]) -> int:
        # Cheaper than fstat, on the way of every append; reads and writes name their positions themselves.
        position = os.lseek(self._descriptor, 0, os.SEEK_END)
        if len(buffers) > BUFFERS_PER_WRITE_MAX:
            rest = iter(buffers)
            while few := list(islice(rest, BUFFERS_PER_WRITE_MAX)):
                position = self._append_few(few, position)
            return position
        return self._append_few(buffers, position)

    def _append_few(self, buffers: Sequence[Buffer], position: int) -> int:
        end = position + sum(map(len, buffers))
        position += os.pwritev(self._descriptor, buffers, position)
        if position < end:
            # A nearly full disk takes part of it; the next write says why.
            self.write_at(position, b"".join(buffers)[position - end :])
        return end

    def write_at(self, position: int, buffer: Buffer) -> None:
        rest = memoryview(buffer)
        while rest:
            count = os.pwrite(self._descriptor, rest, position)
            position += count
            rest = rest[count:]

    def read(self, position: int, count: int) -> bytes:
        buffer = os.pread(self._descriptor, count, position)
        while len(buffer) < count:
            more = os.pread(self._descriptor, count - len(buffer), position + len(buffer))
            if not more:
                break
            buffer += more
        return buffer

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def begin_sync(self) -> Callable[[], None]:
        # Bound to this object: the descriptor stays open until the call is gone.
        return self._sync

    def _sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class DiskFiles:
    """The port's real side. Holding the lock file says that this process owns the directory."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._lock = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreInUse(str(root)) from None

    def open(self, path: str, *, create: bool = False) -> File:
        return DiskFile(self._at(path), create=create)

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        self._at(path).mkdir(parents=True, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(self._at(old), self._at(new))

    def remove(self, path: str) -> None:
        os.unlink(self._at(path))

    def remove_directory(self, path: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._at(path))

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Give the directory up."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _at(self, path: str) -> Path:
        if path.startswith("/") or ".." in path.split("/"):
            raise PermissionError(f"{path!r} leads out of the data directory")
        return self._root / path
