"""Work on stable storage that blocks: begun and finished by the owner of the store, run anywhere in between."""

from __future__ import annotations

from collections.abc import Callable

from rostra.log.facts import Durable


class SyncJob:
    """`calls` may run in any order and in parallel, each once; `finish` follows when all have returned.

    A call raises `DiskUntrusted`; the store then vouches for nothing any more, and there is nothing to finish.
    """

    __slots__ = ("_finish", "calls")

    def __init__(self, calls: list[Callable[[], None]], finish: Callable[[], list[Durable]]) -> None:
        self.calls = calls
        self._finish = finish

    def run(self) -> None:
        for call in self.calls:
            call()

    def finish(self) -> list[Durable]:
        """What is durable now: as far as was written when the job began."""
        return self._finish()


class CompactJob:
    """One run of compaction: `calls` one after the other, anywhere; then `finish`, whose answer is how many bytes went.

    A call that the disk refuses leaves the log as it was, and `finish` gives nothing.
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
