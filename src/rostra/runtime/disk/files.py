"""Files of the operating system, all below one directory that one process owns."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import resource
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
FOR_CONNECTIONS_MIN = 512
"""Descriptors reserved for connections and other files that are no log segments."""
FILES_OPEN_MAX = 1 << 16


def claim_descriptors() -> None:
    """Raises the soft limit of descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def files_open_max() -> int:
    """Bound of open segment files. Opening one for every batch would cost as much as writing the batch."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return FILES_OPEN_MAX
    return max(min(allowed - max(FOR_CONNECTIONS_MIN, allowed * 2 // 5), FILES_OPEN_MAX), FOR_CONNECTIONS_MIN // 4)


def _find_syncfs() -> Callable[[int], int] | None:
    """syncfs reports earlier write errors since Linux 5.8; older kernels do not qualify."""
    numbers = platform.release().split(".")[:2]
    if platform.system() != "Linux" or not all(map(str.isdigit, numbers)) or tuple(map(int, numbers)) < (5, 8):
        return None
    try:
        found: Callable[[int], int] = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    return found


_syncfs = _find_syncfs()


class DiskFile:
    """Closed with its last reference at the latest, so that it stays open for readers on other threads."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: str, *, create: bool) -> None:
        self._descriptor = -1
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        self._descriptor = os.open(path, flags, 0o600)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def append(self, buffers: Sequence[Buffer], end: int = -1) -> int:
        descriptor = self._descriptor
        # Cheaper than fstat; the file position is not used otherwise.
        position = os.lseek(descriptor, 0, os.SEEK_END) if end < 0 else end
        if len(buffers) == 1:
            (buffer,) = buffers
            count = os.pwrite(descriptor, buffer, position)
            if count < len(buffer):
                self.write_at(position + count, memoryview(buffer)[count:])
            return position + len(buffer)
        if len(buffers) > BUFFERS_PER_WRITE_MAX:
            rest = iter(buffers)
            while few := list(islice(rest, BUFFERS_PER_WRITE_MAX)):
                position = self.append(few, position)
            return position
        end = position + sum(map(len, buffers))
        position += os.pwritev(descriptor, buffers, position)
        if position < end:
            # A nearly full disk writes a part; the next write raises the error.
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
        # A bound method keeps this object, and so the descriptor, alive until the call is done.
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
    """The files of a data directory. A lock on its lock file makes this process the owner."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = str(root)
        self._lock = os.open(root / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise StoreInUse(str(root)) from None
        # syncfs reports write errors since this descriptor was opened.
        self._whole = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open(self, path: str, *, create: bool = False) -> File:
        return DiskFile(self._at(path), create=create)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._at(path))

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(self._at(directory)))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        os.makedirs(self._at(path), exist_ok=True)

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

    def begin_sync_all(self) -> Callable[[], None] | None:
        return self._sync_all if _syncfs is not None else None

    def _sync_all(self) -> None:
        assert _syncfs is not None
        if _syncfs(self._whole) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Releases the directory."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(self._whole)
            os.close(lock)

    def _at(self, path: str) -> str:
        # A str, since a start opens thousands of files and a Path takes longer to build than most of them to open.
        if path.startswith("/") or ".." in path.split("/"):
            raise PermissionError(f"{path!r} leads out of the data directory")
        return f"{self._root}/{path}" if path else self._root
