"""The moves of producers to one partition, where every node has a partition of its own.

A producer numbers its moves. When it moves, it resends what was not acknowledged. Batches that it stored in an earlier
partition under a sequence that a later move begins with are therefore duplicates: they may arrive late, are stored, but
not delivered. The same holds for batches of a move that a later move did not know of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from rostra.broker.partition.undoable_map import UndoableMap
from rostra.broker.publish.producer_table import SEQUENCES
from rostra.model.producer_move import ProducerMove

MOVES_PER_PRODUCER = 16
"""How many of one producer's moves to one partition are kept, the latest ones."""


class MigrationTable(UndoableMap[int, tuple[ProducerMove, ...]]):
    """By producer, its moves to this partition in order."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[ProducerMove] = deque()
        """Moves whose preceding batches, in another partition, may not be committed here yet."""

    def apply(self, base: int, entry: ProducerMove) -> None:
        move = entry if entry.at >= 0 else msgspec.structs.replace(entry, at=base)
        before = self.get(move.producer) or ()
        self.put(base, move.producer, (*before, move)[-MOVES_PER_PRODUCER:])
        if move.after:
            self.waiting.append(move)

    def truncate(self, offset: int) -> None:
        super().truncate(offset)
        while self.waiting and self.waiting[-1].at >= offset:
            self.waiting.pop()

    def restore(self, rows: list[tuple[int, tuple[ProducerMove, ...]]]) -> None:
        super().restore(rows)
        self.waiting.clear()

    def to_entries(self) -> list[ProducerMove]:
        return sorted((move for _, moves in self.items() for move in moves), key=lambda move: move.at)

    def move_at(self, producer: int, offset: int) -> int:
        """The number of the move after which the producer wrote at this offset; 0: it started here."""
        moves = self.get(producer) or ()
        return max((move.number for move in moves if move.at <= offset), default=0)

    def latest_move(self, producer: int) -> int:
        moves = self.get(producer)
        return moves[-1].number if moves else 0


def is_superseded(moves: Iterable[ProducerMove], number: int, epoch: int, sequence: int) -> bool:
    """Whether a batch sent after the producer's move `number` was sent again after a later move.

    Follows the chain of known moves back from the last one; moves that no later one knew of do not count. Sequences of
    other producer epochs are not comparable.
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
