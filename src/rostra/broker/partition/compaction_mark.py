"""How far a compacted topic may be compacted: decided by the owner, logged, carried out by each copy."""

from __future__ import annotations

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap


class CompactBelow(msgspec.Struct, frozen=True, array_like=True, tag="compact"):
    """In whole segments below `offset`, records that later ones below it replace may be removed.

    So may tombstones older than `tombstones_us`. Every copy holds everything below `offset`, so none will be sent it
    again in batches that differ from its own.
    """

    offset: int
    tombstones_us: int


class CompactionMark(UndoableMap[None, CompactBelow]):
    """The owner's latest decision: one row or none."""

    def apply(self, base: int, entry: CompactBelow) -> None:
        self.put(base, None, entry)

    def to_entries(self) -> list[CompactBelow]:
        return [entry for _, entry in self.items()]
