"""The log entry of a producer that moved to another node, in the partition that it moved to.

Only in fabrics where every node has partitions of its own: a producer's records then lie in several partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ProducerMove(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """From here on the producer writes to this partition: its `number`th move, first sequence `expected`.

    Earlier sequences are stored elsewhere, the last of them in the partition `after` below `after_offset`. A node
    without those waits for them, so that the order of the producer is kept. `at` is the offset of the move, once it is
    known.
    """

    producer: int
    epoch: int
    expected: int
    number: int
    after: int = 0
    after_offset: int = 0
    at: int = -1
    known: int = 0
    """The latest of its other moves that was known here; records of moves between that one and this one were not."""


_moves = msgspec.msgpack.Decoder(ProducerMove)


def moves_in(values: Iterable[bytes | None]) -> list[ProducerMove]:
    """The moves among the entries of a control batch."""
    found: list[ProducerMove] = []
    for value in values:
        try:
            found.append(_moves.decode(value or b""))
        except msgspec.DecodeError:
            continue
    return found
