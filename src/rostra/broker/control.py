"""Control records: what the broker itself writes into a partition's log."""

from __future__ import annotations

import msgspec

from rostra.broker.producers import Entry
from rostra.model.encode import encode


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The state of a partition before the offset it is written at: the first batch of every segment but the first.

    `epochs` are the rows (owner epoch, its first offset) of the log so far, so that the epoch before log start is known
    however much retention has removed. Later fields (registrations, strengths, positions) go at the end.
    """

    producers: list[tuple[int, Entry]]
    epochs: list[tuple[int, int]] = []


_decoder = msgspec.msgpack.Decoder(Checkpoint)


def checkpoint_batch(producers: list[tuple[int, Entry]], epochs: list[tuple[int, int]], wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(Checkpoint(producers, epochs))], timestamp_us=wall_us, control=True)


def read_checkpoint(value: bytes) -> Checkpoint:
    return _decoder.decode(value)
