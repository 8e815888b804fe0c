"""The publishers of a partition and their strengths, derived from its log.

The rules are those of exclusive ownership in DDS: the records of the strongest publisher alive are delivered; of
equals, those of the lowest id. A publisher is alive from its registration until it resigns or its lease expires.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap
from rostra.wire.messages import PublisherState

NO_PUBLISHER = 0
"""Means no publisher; no producer has this id."""


class PublisherJoined(msgspec.Struct, frozen=True, array_like=True, tag="registered"):
    """From here on it publishes to the partition with this strength, which replaces any earlier one."""

    publisher: int
    strength: int
    lease_ms: int


class PublisherLeft(msgspec.Struct, frozen=True, array_like=True, tag="departed"):
    """From here on it does not publish to the partition; its records stay."""

    publisher: int
    reason: str


class RegisteredPublisher(msgspec.Struct, frozen=True, array_like=True, gc=False):
    strength: int
    lease_ms: int


class PublisherTable(UndoableMap[int, RegisteredPublisher]):
    """The publishers of one partition. All copies that hold the log up to an offset agree on the strongest there."""

    def __init__(self) -> None:
        super().__init__()
        self._strongest: int | None = NO_PUBLISHER
        """None: to be computed again."""

    @property
    def strongest(self) -> int:
        """Computed after a change of the table, which is rare, and not for every batch."""
        if self._strongest is None:
            rows = [(-registered.strength, publisher) for publisher, registered in self.items()]
            self._strongest = min(rows)[1] if rows else NO_PUBLISHER
        return self._strongest

    def apply(self, base: int, entry: PublisherJoined | PublisherLeft) -> None:
        """The batch at `base`, now in the log, holds this entry."""
        registered = RegisteredPublisher(entry.strength, entry.lease_ms) if isinstance(entry, PublisherJoined) else None
        self.put(base, entry.publisher, registered)
        self._strongest = None

    def truncate(self, offset: int) -> None:
        super().truncate(offset)
        self._strongest = None

    def restore(self, rows: list[tuple[int, RegisteredPublisher]]) -> None:
        super().restore(rows)
        self._strongest = None

    def to_entries(self) -> Iterable[PublisherJoined]:
        """The entries that rebuild this table from an empty one."""
        return (PublisherJoined(publisher, one.strength, one.lease_ms) for publisher, one in self.items())

    def ranked(self, count_max: int) -> tuple[PublisherState, ...]:
        """The strongest first, at most `count_max`."""
        rows = sorted(self.items(), key=lambda row: (-row[1].strength, row[0]))
        return tuple(PublisherState(publisher, one.strength, one.lease_ms) for publisher, one in rows[:count_max])
