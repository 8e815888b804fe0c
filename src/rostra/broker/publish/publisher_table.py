"""Who publishes to a partition, and how strongly, as its log says.

The rules are those of exclusive ownership in DDS: the records of the strongest publisher alive are delivered; of
equals, those of the lowest id. A publisher lives from its registration until it departs, because it left or was not
heard for its lease.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap
from rostra.wire.messages import PublisherState

NOBODY = 0
"""In place of a publisher; no producer has this id."""


class PublisherJoined(msgspec.Struct, frozen=True, array_like=True, tag="registered"):
    """From here on it publishes to the partition with this strength, whatever it had before."""

    publisher: int
    strength: int
    lease_ms: int


class PublisherLeft(msgspec.Struct, frozen=True, array_like=True, tag="departed"):
    """From here on it is none of the partition's publishers; its records stay."""

    publisher: int
    reason: str


class RegisteredPublisher(msgspec.Struct, frozen=True, array_like=True, gc=False):
    strength: int
    lease_ms: int


class PublisherTable(UndoableMap[int, RegisteredPublisher]):
    """The publishers of one partition. Whoever has the log up to an offset has the same book there, and so the same
    strongest publisher.
    """

    def __init__(self) -> None:
        super().__init__()
        self._strongest: int | None = NOBODY
        """None: to be looked for again."""

    @property
    def strongest(self) -> int:
        """Looked for when the book has changed, which is rare, and not at every batch."""
        if self._strongest is None:
            ranked = [(-enrolled.strength, publisher) for publisher, enrolled in self.items()]
            self._strongest = min(ranked)[1] if ranked else NOBODY
        return self._strongest

    def apply(self, base: int, entry: PublisherJoined | PublisherLeft) -> None:
        """The log has this entry now, in the batch at `base`."""
        enrolled = RegisteredPublisher(entry.strength, entry.lease_ms) if isinstance(entry, PublisherJoined) else None
        self.put(base, entry.publisher, enrolled)
        self._strongest = None

    def truncate(self, offset: int) -> None:
        super().truncate(offset)
        self._strongest = None

    def restore(self, rows: list[tuple[int, RegisteredPublisher]]) -> None:
        super().restore(rows)
        self._strongest = None

    def entries(self) -> Iterable[PublisherJoined]:
        """Entered into an empty book, these make this one."""
        return (PublisherJoined(publisher, one.strength, one.lease_ms) for publisher, one in self.items())

    def shown(self, count_max: int) -> tuple[PublisherState, ...]:
        """The strongest first, at most so many."""
        ranked = sorted(self.items(), key=lambda row: (-row[1].strength, row[0]))
        return tuple(PublisherState(publisher, one.strength, one.lease_ms) for publisher, one in ranked[:count_max])
