"""The queries of exactly-once sinks in a partition of `_sinks`: what each decided last, and its commit in progress.

Derived from the partition's log; the decisions are made by the sink coordinator. A commit passes through these phases,
each entered by an entry in the log, so that every copy knows them and the next owner continues where this one stopped:

    idle ── CommitBegun ──▶ pinning ── CommitDecided ──▶ publishing ── CommitDone ──▶ idle
                               └────── CommitRefused ──▶ dropping ──── CommitDone ──▶ idle
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, assert_never

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap
from rostra.wire.sinks import StagedPart

Phase = Literal["idle", "pinning", "publishing", "dropping"]

PART_BYTES = 48
"""Maximum size of a staged part in a checkpoint."""
QUERY_BYTES = 128
"""About the size of a query without its strings and parts."""

UNDECIDED = -1


class CommitBegun(msgspec.Struct, frozen=True, array_like=True, tag="sink-begun", gc=False):
    """A commit of the batch has begun: its parts are being pinned. `commit` is a random number that names it."""

    query: str
    writer: str
    batch: int
    commit: int
    parts: tuple[StagedPart, ...]
    once: bool
    at_us: int


class CommitDecided(msgspec.Struct, frozen=True, array_like=True, tag="sink-decided", gc=False):
    """The decision: the batch will be published, all of it."""

    query: str


class CommitRefused(msgspec.Struct, frozen=True, array_like=True, tag="sink-refused", gc=False):
    """A part is missing: nothing of this commit will be published."""

    query: str


class CommitDone(msgspec.Struct, frozen=True, array_like=True, tag="sink-done", gc=False):
    """All parts are published, or dropped."""

    query: str
    at_us: int


class SinkForgotten(msgspec.Struct, frozen=True, array_like=True, tag="sink-forgotten", gc=False):
    query: str


class SinkQuery(msgspec.Struct, frozen=True, array_like=True, tag="sink-query", gc=False):
    """One row of the table, which is its entry in a checkpoint, too."""

    query: str
    writer: str = ""
    """Who decided the last batch."""
    decided: int = UNDECIDED
    phase: Phase = "idle"
    batch: int = UNDECIDED
    """Of the commit in progress."""
    commit: int = 0
    parts: tuple[StagedPart, ...] = ()
    by: str = ""
    """The writer of the commit in progress."""
    once: bool = False
    at_us: int = 0
    """When it was last used, by the owner's clock."""


SinkEntry = CommitBegun | CommitDecided | CommitRefused | CommitDone | SinkForgotten | SinkQuery


class SinkTable:
    """The queries of one partition, as of the end of its log."""

    __slots__ = ("_rows", "bytes")

    def __init__(self) -> None:
        self._rows: UndoableMap[str, SinkQuery] | None = None
        """None in every partition but those of `_sinks`."""
        self.bytes = 0
        """Upper estimate of the table's size in a checkpoint."""

    def __len__(self) -> int:
        return 0 if self._rows is None else len(self._rows)

    def get(self, query: str) -> SinkQuery | None:
        return None if self._rows is None else self._rows.get(query)

    def rows(self) -> list[SinkQuery]:
        return [] if self._rows is None else [row for _, row in self._rows.items()]

    def apply(self, base: int, entry: SinkEntry) -> None:
        """This entry is in the batch at `base`, now at the log's end."""
        row = self.get(entry.query)
        after: SinkQuery | None
        match entry:
            case SinkQuery():
                after = entry
            case CommitBegun():
                after = SinkQuery(
                    entry.query,
                    "" if row is None else row.writer,
                    UNDECIDED if row is None else row.decided,
                    "pinning",
                    entry.batch,
                    entry.commit,
                    entry.parts,
                    entry.writer,
                    entry.once,
                    entry.at_us,
                )
            case SinkForgotten():
                after = None
            case CommitDecided() | CommitRefused() | CommitDone():
                after = None if row is None else _advanced(row, entry)
            case _:
                assert_never(entry)
        self._put(base, entry.query, row, after)

    def _put(self, base: int, query: str, before: SinkQuery | None, after: SinkQuery | None) -> None:
        if self._rows is None:
            self._rows = UndoableMap()
        self.bytes += (0 if after is None else row_bytes(after)) - (0 if before is None else row_bytes(before))
        self._rows.put(base, query, after)

    # --- following the log ---

    def commit(self, offset: int) -> None:
        if self._rows is not None:
            self._rows.commit(offset)

    def truncate(self, offset: int) -> None:
        if self._rows is not None:
            self._rows.truncate(offset)
            self.bytes = sum(map(row_bytes, self.rows()))

    def to_entries(self) -> Iterator[SinkQuery]:
        """The entries that rebuild this table from an empty one."""
        yield from self.rows()

    def restore(self, rows: list[SinkQuery]) -> None:
        """Replaces the table; this cannot be undone."""
        self._rows = None
        self.bytes = 0
        for row in rows:
            self.apply(-1, row)


def _advanced(row: SinkQuery, entry: CommitDecided | CommitRefused | CommitDone) -> SinkQuery | None:
    match entry:
        case CommitDecided():
            return msgspec.structs.replace(row, phase="publishing", decided=row.batch, writer=row.by)
        case CommitRefused():
            return msgspec.structs.replace(row, phase="dropping")
        case CommitDone():
            if row.decided == UNDECIDED:
                # Its only commit was refused: nothing of it is worth remembering.
                return None
            return msgspec.structs.replace(row, phase="idle", batch=UNDECIDED, commit=0, parts=(), at_us=entry.at_us)
        case _:
            assert_never(entry)


def row_bytes(row: SinkQuery) -> int:
    return QUERY_BYTES + 4 * (len(row.query) + len(row.writer) + len(row.by)) + PART_BYTES * len(row.parts)
