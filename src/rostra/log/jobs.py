"""Blocking work on stable storage: begun and finished on the thread of the store, run on any thread in between."""

from __future__ import annotations

from collections.abc import Callable

from rostra.log.facts import Durable


class SyncJob:
    """`calls` may run in any order and in parallel, each once; `finish` follows when all have returned.

    A call may raise `DiskUntrusted`; the store then refuses all further work, and `finish` is not called.
    """

    __slots__ = ("_finish", "calls")

    def __init__(self, calls: list[Callable[[], None]], finish: Callable[[], list[Durable]]) -> None:
        self.calls = calls
        self._finish = finish

    def run(self) -> None:
        for call in self.calls:
            call()

    def finish(self) -> list[Durable]:
        """What is durable now: all that was written when the job began."""
        return self._finish()


class CompactJob:
    """One compaction: `calls` run one after the other on any thread; then `finish` returns how many bytes were saved.

    If the disk refuses a call the log stays as it was, and `finish` returns 0.
    """

    __slots__ = ("_finish", "calls")

    def __init__(self, calls: list[Callable[[], None]], finish: Callable[[], int]) -> None:
        self.calls = calls
        self._finish = finish

    def run(self) -> None:
        for call in self.calls:
            call()

    def finish(self) -> int:
        return self._finish()


class PersistJob:
    """Like `SyncJob`, for one write of hard state."""

    __slots__ = ("_finish", "calls")

    def __init__(self, calls: list[Callable[[], None]], finish: Callable[[], None]) -> None:
        self.calls = calls
        self._finish = finish

    def run(self) -> None:
        for call in self.calls:
            call()

    def finish(self) -> None:
        self._finish()
