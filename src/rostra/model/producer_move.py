"""A producer's move to another node, as it stands in the log of the partition that it came to.

Only where every node has partitions of its own: there a producer's records lie in one partition after the other.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ProducerMove(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """From here on the producer is here, by its `number`th move, beginning with the sequence `expected`.

    All below that was stored elsewhere, the last of it in the partition `after` below `after_offset`: whoever lacks
    that waits for it, so that a producer's records keep their order. `at` is where the move stands, once it stands.
    """

    producer: int
    epoch: int
    expected: int
    number: int
    after: int = 0
    after_offset: int = 0
    at: int = -1
    known: int = 0
    """The latest of its other moves that was known here: what those between it and this one brought was not."""


_moves = msgspec.msgpack.Decoder(ProducerMove)


def moves_in(values: Iterable[bytes | None]) -> list[ProducerMove]:
    """Those among the entries of a control batch."""
    found: list[ProducerMove] = []
    for value in values:
        try:
            found.append(_moves.decode(value or b""))
        except msgspec.DecodeError:
            continue
    return found
