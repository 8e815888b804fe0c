"""State derived from a partition's log: producers, publishers, consumer groups, sinks, migrations, compaction mark.

The log is the only storage. The owner appends control batches (`control_batch.py`) beside the records; every copy,
owner or not, applies them when they are appended, so all copies with the same log have the same tables, and a new owner
needs no hand-over. Three operations keep the tables in step with the log:

- `apply` a control batch at the log's end, before it is committed. Each table remembers how to undo the change.
- `truncate` when another owner's records replace the log's end: undoes the changes above the cut.
- `commit`: changes below the commit offset are final, their undo information is dropped.

A checkpoint at the beginning of each segment holds the entries that rebuild all tables, so retention may delete older
segments and a start reads only the last one. A restored checkpoint cannot be undone: if the log is truncated below it,
`ServedPartition` reads the log again (`InspectLog`).

To add a table: a module with its entries and the table (`apply`, `to_entries`, `commit`, `truncate`, `restore`; usually
an `UndoableMap`), its entries in `DerivedEntry` (`control_batch.py`), and here a line in `__init__` and a case in
`_apply_entry`.
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
from rostra.broker.partition.control_batch import Checkpoint, DerivedEntry, decode_entries, encode_entries, read_control
from rostra.broker.publish.migration_table import MigrationTable
from rostra.broker.publish.producer_table import ProducerTable
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft, PublisherTable
from rostra.broker.sinks.sink_table import (
    CommitBegun,
    CommitDecided,
    CommitDone,
    CommitRefused,
    SinkForgotten,
    SinkQuery,
    SinkTable,
)
from rostra.broker.sinks.staged_table import (
    BatchPublished,
    BatchStaged,
    HandlesDropped,
    HandlesPinned,
    StagedHandle,
    StagedTable,
)
from rostra.model.batch import Buffer
from rostra.model.producer_move import ProducerMove
from rostra.safeguards import ALL_ON, Safeguard, Without

EMPTY = Checkpoint([])


class DerivedTable(Protocol):
    """A table that control entries change."""

    def commit(self, offset: int) -> None: ...

    def truncate(self, offset: int) -> None: ...

    def restore(self, rows: list[Any], /) -> None: ...


class LogDerivedState:
    __slots__ = (
        "_checkpoints_state",
        "_newest",
        "_tables",
        "compaction",
        "groups",
        "migrations",
        "producers",
        "publishers",
        "sinks",
        "staged",
    )

    def __init__(self, producers: ProducerTable, without: Without = ALL_ON) -> None:
        self.producers = producers
        self.compaction = CompactionMark()
        self.publishers = PublisherTable()
        self.groups = GroupTable()
        self.migrations = MigrationTable()
        self.sinks = SinkTable()
        self.staged = StagedTable()
        self._tables: tuple[DerivedTable, ...] = (
            self.compaction,
            self.publishers,
            self.groups,
            self.migrations,
            self.sinks,
            self.staged,
        )
        """All tables that change by control entries: not the producers', which changes by batch headers."""
        self._newest = -1
        """Offset of the last control batch, while it may be truncated."""
        self._checkpoints_state = Safeguard.CHECKPOINT_BATCH not in without

    def apply(self, base: int, batch: Buffer) -> None:
        """This control batch is now at the end of the log."""
        self._newest = base
        for entry in read_control(batch):
            self._apply_entry(base, entry)

    def _apply_entry(self, base: int, entry: DerivedEntry) -> None:
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
                self.migrations.apply(base, entry)
                if base >= 0:
                    self.producers.adopt(base, entry.producer, entry.epoch, entry.expected)
            case BatchStaged() | HandlesPinned() | HandlesDropped() | BatchPublished() | StagedHandle():
                self.staged.apply(base, entry)
            case CommitBegun() | CommitDecided() | CommitRefused() | CommitDone() | SinkForgotten() | SinkQuery():
                self.sinks.apply(base, entry)
            case _:
                assert_never(entry)

    def produced(self, base: int, last: int, producer: int, epoch: int, sequence: int, count: int) -> None:
        """This batch of a producer is now at the end of the log."""
        if self.staged and self.staged.appended(base, producer):
            self._newest = base
        else:
            self.producers.apply(base, last, producer, epoch, sequence, count)

    def commit(self, offset: int) -> None:
        """Changes below this offset need no undo any more."""
        self.producers.commit(offset)
        if self._newest >= 0:
            for table in self._tables:
                table.commit(offset)
            if self._newest < offset:
                self._newest = -1

    def truncate(self, offset: int) -> None:
        """Undoes the changes at or above `offset`, where the log ends now."""
        self.producers.truncate(offset)
        if self._newest >= offset:
            for table in self._tables:
                table.truncate(offset)

    # --- checkpoints ---

    def checkpoint(self, epochs: list[tuple[int, int]]) -> Checkpoint:
        if not self._checkpoints_state:
            return Checkpoint([], epochs)
        producers = self.producers
        return Checkpoint(producers.snapshot(), epochs, encode_entries(self._entries()), producers.forgot)

    def _entries(self) -> Iterable[DerivedEntry]:
        """The entries that rebuild all tables from empty ones."""
        entries = (
            self.compaction.to_entries(),
            self.publishers.to_entries(),
            self.groups.to_entries(),
            self.migrations.to_entries(),
            self.sinks.to_entries(),
            self.staged.to_entries(),
        )
        return chain(*entries)

    def restore(self, found: Checkpoint) -> None:
        """Replaces the state by that of a checkpoint; it cannot be undone."""
        self.producers.restore(found.producers, found.forgot)
        for table in self._tables:
            table.restore([])
        for entry in decode_entries(found.entries):
            self._apply_entry(-1, entry)
        for table in self._tables:
            table.commit(0)
        self._newest = -1
