"""Producers that came to this partition from another one, where every node has a partition of its own.

A producer counts its moves. What it stored at an earlier place under a sequence that a later place has begun with, it
has sent again: that surfaces late, is stored like everything, and shown to nobody. Nor is anything of a place that a
later one did not know of: what the producer was not told is stored there it has sent again, to others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap
from rostra.broker.publish.producer_table import SEQUENCES
from rostra.model.producer_move import ProducerMove

REMEMBERED = 16
"""Of one producer's moves to one partition, the latest."""


class MigrationTable(UndoableMap[int, tuple[ProducerMove, ...]]):
    """By producer, its moves to this partition in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[ProducerMove] = deque()
        """Those of which it is not known that what came before them is here."""

    def apply(self, base: int, entry: ProducerMove) -> None:
        move = entry if entry.at >= 0 else msgspec.structs.replace(entry, at=base)
        before = self.get(move.producer) or ()
        self.put(base, move.producer, (*before, move)[-REMEMBERED:])
        if move.after:
            self.waiting.append(move)

    def truncate(self, offset: int) -> None:
        super().truncate(offset)
        while self.waiting and self.waiting[-1].at >= offset:
            self.waiting.pop()

    def restore(self, rows: list[tuple[int, tuple[ProducerMove, ...]]]) -> None:
        super().restore(rows)
        self.waiting.clear()

    def entries(self) -> list[ProducerMove]:
        return sorted((move for _, moves in self.items() for move in moves), key=lambda move: move.at)

    def number_at(self, producer: int, offset: int) -> int:
        """By which of its moves the producer wrote what stands at this offset; 0: it began here."""
        moves = self.get(producer) or ()
        return max((move.number for move in moves if move.at <= offset), default=0)

    def number(self, producer: int) -> int:
        moves = self.get(producer)
        return moves[-1].number if moves else 0


def is_hidden(moves: Iterable[ProducerMove], number: int, epoch: int, sequence: int) -> bool:
    """Whether what a producer sent after its `number`th move it has sent again later, given all moves that are known.

    From the last move back, each to the one that it knew of: those that none of them knew never counted. Another epoch
    of the producer has sequences of its own, and says nothing of these.
    """
    later = sorted(
        (move for move in moves if move.number > number and move.epoch == epoch), key=lambda move: move.number
    )
    at = later[-1].number if later else 0
    for move in reversed(later):
        if move.number > at:
            continue
        if move.known < number or _reaches(sequence, move.expected):
            return True
        at = move.known
    return False


def _reaches(sequence: int, expected: int) -> bool:
    return (sequence - expected) % SEQUENCES < SEQUENCES >> 1
