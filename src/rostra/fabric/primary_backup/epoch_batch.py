"""The batch that begins every primary epoch. Members cut what contradicts it."""

from __future__ import annotations

import msgspec

from rostra.model.encode import encode


class EpochBegins(msgspec.Struct, frozen=True, array_like=True, tag="epoch"):
    primary_epoch: int


def epoch_batch(primary_epoch: int, wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(EpochBegins(primary_epoch))], timestamp_us=wall_us, control=True)
