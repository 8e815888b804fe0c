"""What a partition's log says beside its records, as of the log's end: the same at every copy, owner or not.

A table is made of one `UndoableMap` or more, or follows the log by itself. To add one: a file with its entries and the
table (`apply`, `entries`, `commit`, `truncate`, `restore`), its entries in `Booked` (`partition/control_batch.py`), and
here a line in `__init__` and a case in `_enter`. Retention takes nothing from it: the checkpoint carries the entries
that make it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, Protocol, assert_never

from rostra.broker.groups.group_table import (
    AssignmentChanged,
    GroupConfigured,
    GroupDeleted,
    GroupTable,
    MemberJoined,
    MemberLeft,
    PositionsCommitted,
)
from rostra.broker.partition.compaction_mark import CompactBelow, CompactionMark
from rostra.broker.partition.control_batch import Booked, Checkpoint, decode_entries, encode_entries, read_control
from rostra.broker.publish.migration_table import MigrationTable
from rostra.broker.publish.producer_table import ProducerTable
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft, PublisherTable
from rostra.model.batch import Buffer
from rostra.model.producer_move import ProducerMove
from rostra.safeguards import ALL_ON, Safeguard, Without

EMPTY = Checkpoint([])


class DerivedTable(Protocol):
    """What follows the log by entries."""

    def commit(self, offset: int) -> None: ...

    def truncate(self, offset: int) -> None: ...

    def restore(self, rows: list[Any], /) -> None: ...


class LogDerivedState:
    __slots__ = ("_carries", "_kept", "_newest", "compaction", "groups", "moves", "producers", "publishers")

    def __init__(self, producers: ProducerTable, without: Without = ALL_ON) -> None:
        self.producers = producers
        self.compaction = CompactionMark()
        self.publishers = PublisherTable()
        self.groups = GroupTable()
        self.moves = MigrationTable()
        self._kept: tuple[DerivedTable, ...] = (self.compaction, self.publishers, self.groups, self.moves)
        """All but the producers': those that change by entries."""
        self._newest = -1
        """Where the last entries stand, while they may be cut."""
        self._carries = Safeguard.CHECKPOINT_BATCH not in without

    def apply(self, base: int, batch: Buffer) -> None:
        """The log has this control batch now, at its end."""
        self._newest = base
        for entry in read_control(batch):
            self._enter(base, entry)

    def _enter(self, base: int, entry: Booked) -> None:
        match entry:
            case CompactBelow():
                self.compaction.apply(base, entry)
            case PublisherJoined() | PublisherLeft():
                self.publishers.apply(base, entry)
            case (
                GroupConfigured()
                | MemberJoined()
                | MemberLeft()
                | AssignmentChanged()
                | PositionsCommitted()
                | GroupDeleted()
            ):
                self.groups.apply(base, entry)
            case ProducerMove():
                self.moves.apply(base, entry)
                if base >= 0:
                    self.producers.adopt(base, entry.producer, entry.epoch, entry.expected)
            case _:
                assert_never(entry)

    def commit(self, offset: int) -> None:
        """Below this offset nothing is undone any more."""
        self.producers.commit(offset)
        if self._newest >= 0:
            for book in self._kept:
                book.commit(offset)
            if self._newest < offset:
                self._newest = -1

    def truncate(self, offset: int) -> None:
        """The log was cut to end at `offset`."""
        self.producers.truncate(offset)
        if self._newest >= offset:
            for book in self._kept:
                book.truncate(offset)

    # --- as a whole ---

    def checkpoint(self, epochs: list[tuple[int, int]]) -> Checkpoint:
        if not self._carries:
            return Checkpoint([], epochs)
        producers = self.producers
        return Checkpoint(producers.snapshot(), epochs, encode_entries(self._entries()), producers.forgot)

    def _entries(self) -> Iterable[Booked]:
        """Entered into empty books, these make them what they are."""
        kept = self.compaction.entries(), self.publishers.entries(), self.groups.entries(), self.moves.entries()
        return chain(*kept)

    def restore(self, found: Checkpoint) -> None:
        """As of the checkpoint; nothing of it can be undone."""
        self.producers.restore(found.producers, found.forgot)
        for book in self._kept:
            book.restore([])
        for entry in decode_entries(found.entries):
            self._enter(-1, entry)
        for book in self._kept:
            book.commit(0)
        self._newest = -1
