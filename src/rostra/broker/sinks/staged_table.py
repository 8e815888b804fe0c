"""What sinks have staged in a partition and not published yet; derived from the partition's log.

A staged batch is the payload of a control batch in the log of its target partition: it is replicated with the
partition, moves with it and is deleted with it, and readers skip it as they skip every control batch. To publish it,
the owner appends a copy of the payload as an ordinary batch whose producer is the handle. The table notices the copy,
so each owner knows what is published, whichever owner appended it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import assert_never

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap
from rostra.model.batch import BODY_CRC_AT

_CRC = Struct("<I")


class BatchStaged(msgspec.Struct, frozen=True, array_like=True, tag="staged", gc=False):
    """A batch of a sink's task, stored but not visible."""

    query: str
    batch: int
    task: int
    attempt: int
    handle: int
    records: int
    staged: memoryview
    """The batch as its producer encoded it."""


class HandlesPinned(msgspec.Struct, frozen=True, array_like=True, tag="staged-pinned", gc=False):
    """A commit has begun: the handles do not expire until it has published or dropped them."""

    commit: int
    handles: tuple[int, ...]


class HandlesDropped(msgspec.Struct, frozen=True, array_like=True, tag="staged-dropped", gc=False):
    """The handles will never be published, or are already: see `BatchPublished`."""

    handles: tuple[int, ...]


class BatchPublished(msgspec.Struct, frozen=True, array_like=True, tag="staged-published", gc=False):
    """All that the query wrote to this partition in this batch is published: late requests about it have no effect."""

    query: str
    batch: int


class StagedHandle(msgspec.Struct, frozen=True, array_like=True, tag="staged-handle", gc=False):
    """One row of the table, which is its entry in a checkpoint, too."""

    query: str
    batch: int
    task: int
    attempt: int
    handle: int
    offset: int
    """Of the control batch that holds the staged one."""
    records: int
    bytes: int
    checksum: int
    commit: int = 0
    """The commit that has pinned it; 0 if none has."""
    published: bool = False
    """Whether its copy is in the log."""


StagedEntry = BatchStaged | HandlesPinned | HandlesDropped | BatchPublished | StagedHandle

QUERIES_MAX = 1000
"""Queries per partition whose last published batch is kept; the one that published first is dropped. A late request
about a dropped one finds no staged handle, unless that was late as well."""


class StagedTable:
    """The handles of one partition, as of the end of its log."""

    __slots__ = ("_published", "_rows")

    def __init__(self) -> None:
        self._published: UndoableMap[str, int] | None = None
        self._rows: UndoableMap[int, StagedHandle] | None = None
        """None until something is staged: most partitions are never written to by a sink."""

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def get(self, handle: int) -> StagedHandle | None:
        return None if self._rows is None else self._rows.get(handle)

    def rows(self) -> list[StagedHandle]:
        return [] if self._rows is None else [row for _, row in self._rows.items()]

    def last_published(self, query: str) -> int:
        """The last batch of the query that was published here, -1 if none is known."""
        last = None if self._published is None else self._published.get(query)
        return -1 if last is None else last

    def first_offset(self) -> int | None:
        """Retention must not delete the log from here on."""
        return min((row.offset for row in self.rows()), default=None)

    def apply(self, base: int, entry: StagedEntry) -> None:
        """This entry is in the batch at `base`, now at the log's end."""
        if self._rows is None:
            self._rows = UndoableMap()
        match entry:
            case BatchStaged():
                row = StagedHandle(
                    entry.query,
                    entry.batch,
                    entry.task,
                    entry.attempt,
                    entry.handle,
                    base,
                    entry.records,
                    len(entry.staged),
                    _CRC.unpack_from(entry.staged, BODY_CRC_AT)[0],
                )
                self._rows.put(base, entry.handle, row)
            case HandlesPinned():
                self._replace(base, entry.handles, commit=entry.commit)
            case HandlesDropped():
                for handle in entry.handles:
                    self._rows.put(base, handle, None)
            case BatchPublished():
                if self._published is None:
                    self._published = UndoableMap()
                self._published.put(base, entry.query, entry.batch)
                if len(self._published) > QUERIES_MAX:
                    oldest, _ = next(self._published.items())
                    self._published.put(base, oldest, None)
            case StagedHandle():
                self._rows.put(base, entry.handle, entry)
            case _:
                assert_never(entry)

    def _replace(self, base: int, handles: Iterable[int], **changes: int) -> None:
        assert self._rows is not None
        for handle in handles:
            row = self._rows.get(handle)
            if row is not None:
                self._rows.put(base, handle, msgspec.structs.replace(row, **changes))

    def appended(self, base: int, producer: int) -> bool:
        """An ordinary batch of this producer is now at the log's end. True if it is a copy of a staged one."""
        row = self.get(producer)
        if row is None:
            return False
        self._replace(base, (producer,), published=True)
        return True

    # --- following the log ---

    def commit(self, offset: int) -> None:
        for table in (self._rows, self._published):
            if table is not None:
                table.commit(offset)

    def truncate(self, offset: int) -> None:
        for table in (self._rows, self._published):
            if table is not None:
                table.truncate(offset)

    def to_entries(self) -> Iterator[StagedEntry]:
        """The entries that rebuild this table from an empty one."""
        yield from self.rows()
        if self._published is not None:
            yield from (BatchPublished(query, batch) for query, batch in self._published.items())

    def restore(self, rows: list[StagedEntry]) -> None:
        """Replaces the table; this cannot be undone."""
        self._rows = self._published = None
        for row in rows:
            self.apply(-1, row)
