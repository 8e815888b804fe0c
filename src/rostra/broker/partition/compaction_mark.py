"""Keeping only the latest record of each key: what the owner decides, and every copy carries out on its own."""

from __future__ import annotations

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap


class CompactBelow(msgspec.Struct, frozen=True, array_like=True, tag="compact"):
    """Whole segments below `offset` may lose the records that later ones below it replace.

    Tombstones older than `tombstones_us` may go too. Every copy holds all below `offset`, so that none is sent it again
    in pieces that differ from those it has.
    """

    offset: int
    tombstones_us: int


class CompactionMark(UndoableMap[None, CompactBelow]):
    """The latest word of the owner: one row or none."""

    def apply(self, base: int, entry: CompactBelow) -> None:
        self.put(base, None, entry)

    def entries(self) -> list[CompactBelow]:
        return [entry for _, entry in self.items()]
