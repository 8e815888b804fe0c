"""The header of a record batch: reading it, and what its owner writes into it.

The byte table is in docs/formats/batch.md. Encoding is in `encode`, decoding in `decode`,
what a broker checks in `check`.
"""

from enum import IntEnum, IntFlag, StrEnum
from functools import lru_cache
from struct import Struct

import msgspec
from crc32c import crc32c

from rostra.model.ids import (
    OFFSET_MAX,
    Epoch,
    Offset,
    Partition,
    ProducerEpoch,
    ProducerId,
    Sequence,
)

Buffer = bytes | bytearray | memoryview

MAGIC = b"RST1"
HEADER_BYTES = 88
PLACEMENT_CRC_AT = 32
BODY_CRC_AT = 36
CHECKED_FROM = 40
"""The body CRC covers everything from here to the end of the batch."""


class Flag(IntFlag):
    CONTROL = 1
    TIMESTAMPS = 2
    KEYS = 4
    KEY_NULLS = 8
    VALUE_NULLS = 16
    HEADERS = 32
    OFFSET_DELTAS = 64


class OwnerFlag(IntFlag):
    SUPPRESSED = 1
    CHECKPOINT = 2
    BROKER_STATE = 4
    REPEATED = 8


SUPPRESSED = int(OwnerFlag.SUPPRESSED)
CHECKPOINT = int(OwnerFlag.CHECKPOINT)
BROKER_STATE = int(OwnerFlag.BROKER_STATE)
"""As plain integers: on the hot path the operators of an enumeration are too slow."""


class Codec(IntEnum):
    NONE = 0
    LZ4 = 1
    ZSTD = 2


class Reason(StrEnum):
    """Every reason for which a batch is rejected."""

    TRUNCATED = "truncated"
    MAGIC = "magic"
    LENGTH = "length"
    EMPTY = "empty"
    TOO_MANY_RECORDS = "too-many-records"
    TOO_LARGE = "too-large"
    FLAGS = "flags"
    CODEC = "codec"
    RESERVED = "reserved"
    PRODUCER = "producer"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    BODY_LAYOUT = "body-layout"
    COMPRESSION = "compression"
    BODY_CRC = "body-crc"
    PLACEMENT_CRC = "placement-crc"


FIELDS: tuple[tuple[str, str], ...] = (
    ("magic", "4s"),
    ("length", "I"),
    ("base_offset", "Q"),
    ("owner_epoch", "Q"),
    ("last_offset_delta", "I"),
    ("owner_flags", "H"),
    ("reserved_30", "H"),
    ("placement_crc", "I"),
    ("body_crc", "I"),
    ("producer", "Q"),
    ("producer_epoch", "I"),
    ("sequence", "I"),
    ("count", "I"),
    ("flags", "H"),
    ("codec", "B"),
    ("reserved_63", "B"),
    ("base_timestamp_us", "q"),
    ("max_timestamp_us", "q"),
    ("raw_body_bytes", "I"),
    ("reserved_84", "I"),
)
"""Every field of the header in order, with its `struct` format."""

HEADER = Struct("<" + "".join(form for _, form in FIELDS))
assert HEADER.size == HEADER_BYTES

_UINT32 = Struct("<I")
_UINT64 = Struct("<Q")
_EXTENT = Struct("<Q8xI")
PLACED = Struct("<QQIH10xQII")
"""From byte 8 on: base offset, owner epoch, last offset delta, owner flags, then the producer's stamp. How many records
the producer had sent follows from the delta: compaction may have left fewer."""
ARRIVED = Struct("<QQI32xH")
"""From byte 8 on: base offset, owner epoch, last offset delta, then the flags."""
_PRODUCER = Struct("<QIII")
_OWNER = Struct("<QQIHH")
_PLACE = Struct("<QI")
SEEDS_KEPT = 1 << 14
"""Partitions that may be written to at the same time without computing their seed again."""


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a batch; fields in the order of `FIELDS`, reserved ones included."""

    magic: bytes
    length: int
    base_offset: Offset
    owner_epoch: Epoch
    last_offset_delta: int
    owner_flags: int
    reserved_30: int
    placement_crc: int
    body_crc: int
    producer: ProducerId
    producer_epoch: ProducerEpoch
    sequence: Sequence
    count: int
    flags: int
    codec: int
    reserved_63: int
    base_timestamp_us: int
    max_timestamp_us: int
    raw_body_bytes: int
    reserved_84: int

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def is_control(self) -> bool:
        return bool(self.flags & Flag.CONTROL)


def read_header(buffer: Buffer, at: int = 0) -> Header:
    """The fields as they stand, unchecked; the buffer must hold 88 bytes from `at` on."""
    return Header(*HEADER.unpack_from(buffer, at))


def batch_length(buffer: Buffer, at: int = 0) -> int:
    length: int = _UINT32.unpack_from(buffer, at + 4)[0]
    return length


def base_offset(buffer: Buffer, at: int = 0) -> Offset:
    return Offset(_UINT64.unpack_from(buffer, at + 8)[0])


def last_offset(buffer: Buffer, at: int = 0) -> Offset:
    base, delta = _EXTENT.unpack_from(buffer, at + 8)
    return Offset(base + delta)


def owner_epoch(buffer: Buffer, at: int = 0) -> Epoch:
    return Epoch(_UINT64.unpack_from(buffer, at + 16)[0])


def producer_stamp(buffer: Buffer, at: int = 0) -> tuple[ProducerId, ProducerEpoch, Sequence, int]:
    """(producer id, producer epoch, base sequence, record count)."""
    stamp_fields: tuple[ProducerId, ProducerEpoch, Sequence, int] = _PRODUCER.unpack_from(buffer, at + 40)
    return stamp_fields


@lru_cache(SEEDS_KEPT)
def placement_seed(topic: int, index: int) -> int:
    """Initial value of the placement CRC, so that a batch is valid in its own partition only."""
    return crc32c(_PLACE.pack(topic, index))


def placement_crc(buffer: Buffer, at: int, partition: Partition) -> int:
    start = crc32c(buffer[at : at + PLACEMENT_CRC_AT], placement_seed(partition.topic, partition.index))
    return crc32c(buffer[at + BODY_CRC_AT : at + CHECKED_FROM], start)


def body_crc(buffer: Buffer, at: int, length: int) -> int:
    return crc32c(memoryview(buffer)[at + CHECKED_FROM : at + length])


def stamp(
    batch: bytearray,
    *,
    partition: Partition,
    base_offset: int,
    owner_epoch: int,
    owner_flags: int = 0,
    last_offset_delta: int | None = None,
) -> int:
    """Write the owner's fields in place and return the last offset; only a compacted batch names its delta."""
    if last_offset_delta is None:
        (count,) = _UINT32.unpack_from(batch, 56)
        last_offset_delta = count - 1
    assert 0 <= base_offset <= OFFSET_MAX - last_offset_delta - 1
    _OWNER.pack_into(batch, 8, base_offset, owner_epoch, last_offset_delta, owner_flags, 0)
    # `placement_crc`, inlined: this runs for every batch.
    crc = crc32c(batch[:PLACEMENT_CRC_AT], placement_seed(partition.topic, partition.index))
    _UINT32.pack_into(batch, PLACEMENT_CRC_AT, crc32c(batch[BODY_CRC_AT:CHECKED_FROM], crc))
    return base_offset + last_offset_delta
