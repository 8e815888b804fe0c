"""The port through which the log reaches files. `runtime` has the real one, `simulator` the faulty one.

Paths are relative to the node's data directory, with '/' between levels. Errors are `OSError`s, as the operating system
would give them: ENOSPC for a full disk, EIO for a failing one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class ReadableFile(Protocol):
    """What scanning a file needs."""

    def size(self) -> int: ...

    def read(self, position: int, count: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file. Safe beside an append from another thread."""
        ...


class File(ReadableFile, Protocol):
    """One open file. `append` and `write_at` may leave part of the bytes behind when they raise."""

    def append(self, buffers: Sequence[Buffer], end: int = -1) -> int:
        """Writes all buffers at the end; returns the new size. `end` is the current size, if the caller knows it."""
        ...

    def write_at(self, position: int, buffer: Buffer) -> None: ...

    def truncate(self, size: int) -> None: ...

    def begin_sync(self) -> Callable[[], None]:
        """A call that blocks until what is written by now is on stable storage; it may run on another thread."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """FileNotFoundError if absent and not `create`. A created file is durable only after `sync_directory`."""
        ...

    def exists(self, path: str) -> bool: ...

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; empty if it does not exist."""
        ...

    def make_directory(self, path: str) -> None:
        """With its parents; does nothing if it exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` atomically."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """With its content."""
        ...

    def sync_directory(self, path: str) -> None:
        """Makes creations, renames and removals in it durable."""
        ...

    def begin_sync_all(self) -> Callable[[], None] | None:
        """As `File.begin_sync`, for every file and directory at once, open or not.

        None where the system has no such call, or one that does not report earlier write errors.
        """
        ...
