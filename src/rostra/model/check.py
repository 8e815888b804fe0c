"""Validation of batches: when a producer sends them, and whenever they are read from storage."""

from struct import Struct

import msgspec
from crc32c import crc32c

from rostra.errors import BatchRejected
from rostra.model.batch import (
    BODY_CRC_AT,
    CHECKED_FROM,
    HEADER_BYTES,
    MAGIC,
    PLACEMENT_CRC_AT,
    Buffer,
    Codec,
    Flag,
    Reason,
    body_crc,
    placement_crc,
)
from rostra.model.ids import ID_MAX, Partition, ProducerEpoch, ProducerId, Sequence
from rostra.model.layout import CONTROL, KEY_NULLS, KEYS, OFFSET_DELTAS, lay_out

KNOWN_FLAGS = sum(Flag)
OWNERS_FLAGS = CONTROL | OFFSET_DELTAS
"""Control batches and compacted ones are made inside the cluster, never sent to it."""
CODEC_NONE = int(Codec.NONE)
CODEC_LAST = int(Codec.ZSTD)

RAW_BODY_BYTES_MAX = 64 << 20
"""Default bound of what a reader decompresses."""

_PRODUCED = Struct("<4sI28xIQIIIHBBqqII")
_STORED = Struct("<4sI24xII")
_INTACT = Struct("<4sIQQI4xII20xH")
_UINT32 = Struct("<I")


class BatchLimits(msgspec.Struct, frozen=True):
    """Bounds of what a broker accepts from a producer."""

    batch_bytes_max: int = 4 << 20
    raw_body_bytes_max: int = 16 << 20
    records_max: int = 1 << 20
    timestamp_ahead_us_max: int = 3_600_000_000


Produced = tuple[ProducerId, ProducerEpoch, Sequence, int]
"""Producer id, producer epoch, base sequence and record count."""


def check_produced(batch: Buffer, *, limits: BatchLimits, now_us: int) -> Produced:
    """Checks a batch from a producer. Fields of the owner are ignored, since the owner overwrites them.

    One function without calls, because it runs for every batch.
    """
    size = len(batch)
    if size < HEADER_BYTES:
        raise BatchRejected(Reason.TRUNCATED, f"{size} bytes cannot hold a batch header")
    (
        magic,
        length,
        crc,
        producer,
        epoch,
        sequence,
        count,
        flags,
        codec,
        reserved_63,
        base_us,
        max_us,
        raw_bytes,
        reserved_84,
    ) = _PRODUCED.unpack_from(batch)
    if magic != MAGIC:
        raise BatchRejected(Reason.MAGIC, f"begins with {magic!r}, not {MAGIC!r}")
    if length != size:
        raise BatchRejected(Reason.LENGTH, f"claims {length} bytes, has {size}")
    if size > limits.batch_bytes_max or raw_bytes > limits.raw_body_bytes_max:
        raise _too_large(size, raw_bytes, limits)
    if not 0 < count <= limits.records_max:
        raise _bad_count(count, limits)
    if flags & ~KNOWN_FLAGS or flags & OWNERS_FLAGS or flags & (KEYS | KEY_NULLS) == KEY_NULLS:
        raise BatchRejected(Reason.FLAGS, f"a producer may not send flags {flags:#06x}")
    if reserved_63 or reserved_84:
        raise BatchRejected(Reason.RESERVED, "bytes 63 and 84-88 must be zero")
    if producer > ID_MAX:
        raise BatchRejected(Reason.PRODUCER, "a producer id has 63 bits")
    if base_us > max_us or max_us > now_us + limits.timestamp_ahead_us_max:
        raise _bad_timestamps(base_us, max_us, now_us, limits)
    if crc != crc32c(memoryview(batch)[CHECKED_FROM:]):
        raise BatchRejected(Reason.BODY_CRC, "the body was damaged in transit; send it again")
    if flags or codec or raw_bytes != size - HEADER_BYTES:
        check_body(batch, size, count, flags, codec, raw_bytes)
    else:
        _check_plain(batch, size, count)
    return producer, epoch, sequence, count


def check_body(batch: Buffer, end: int, count: int, flags: int, codec: int, raw_bytes: int) -> None:
    """Checks the body of the batch at 0..end without visiting its records."""
    if codec == CODEC_NONE:
        if raw_bytes != end - HEADER_BYTES:
            raise BatchRejected(Reason.LENGTH, f"claims a body of {raw_bytes} bytes, has {end - HEADER_BYTES}")
        if flags:
            lay_out(batch, HEADER_BYTES, end, count, flags)
        else:
            _check_plain(batch, end, count)
    elif codec > CODEC_LAST:
        raise BatchRejected(Reason.CODEC, f"codec {codec} is unknown")
    elif raw_bytes < 4 * count + 4:
        raise BatchRejected(Reason.BODY_LAYOUT, f"{raw_bytes} bytes cannot hold {count} records")


def _check_plain(batch: Buffer, end: int, count: int) -> None:
    """`lay_out` for a body of values alone, which is nearly every batch: a third of its cost."""
    values_at = HEADER_BYTES + (4 * count + 11 & ~7)
    if values_at <= end:
        (last,) = _UINT32.unpack_from(batch, HEADER_BYTES + 4 * count)
        (first,) = _UINT32.unpack_from(batch, HEADER_BYTES)
        if first == 0 and last < 1 << 31 and values_at + (last + 7 & ~7) == end:
            return
    raise BatchRejected(Reason.BODY_LAYOUT, "the value offsets do not fit the length of the body")


def check_stored(buffer: Buffer, at: int, partition: Partition) -> int:
    """The length of the intact batch at `at`, which belongs to the partition.

    TRUNCATED means that the buffer ends before the batch does and its header, where whole, is intact;
    any other reason means that bytes which are present are wrong.
    """
    present = len(buffer) - at
    if present < HEADER_BYTES:
        raise BatchRejected(Reason.TRUNCATED, f"{present} of {HEADER_BYTES} header bytes present")
    magic, length, claimed_placement_crc, claimed_body_crc = _STORED.unpack_from(buffer, at)
    if magic != MAGIC:
        raise BatchRejected(Reason.MAGIC, f"begins with {magic!r}, not {MAGIC!r}")
    # Before the length is used: a flipped bit in it would otherwise pass for a torn tail.
    if claimed_placement_crc != placement_crc(buffer, at, partition):
        raise BatchRejected(Reason.PLACEMENT_CRC, f"header damaged, or not of {partition}")
    if length < HEADER_BYTES:
        raise BatchRejected(Reason.LENGTH, f"claims {length} bytes, less than a header")
    if length > present:
        raise BatchRejected(Reason.TRUNCATED, f"{present} of {length} bytes present")
    if claimed_body_crc != body_crc(buffer, at, length):
        raise BatchRejected(Reason.BODY_CRC, "body damaged")
    return int(length)


def read_intact(batch: Buffer, seed: int) -> tuple[int, int, int, int] | None:
    """Base offset, next offset, owner epoch and flags of an intact batch of the partition with this `placement_seed`.

    None if it is not intact; `check_stored` tells why.
    """
    if len(batch) < HEADER_BYTES:
        return None
    magic, length, base, epoch, delta, claimed_placement_crc, claimed_body_crc, flags = _INTACT.unpack_from(batch)
    placed = crc32c(batch[BODY_CRC_AT:CHECKED_FROM], crc32c(batch[:PLACEMENT_CRC_AT], seed))
    if (
        magic != MAGIC
        or length != len(batch)
        or claimed_placement_crc != placed
        or claimed_body_crc != crc32c(memoryview(batch)[CHECKED_FROM:])
    ):
        return None
    return base, base + delta + 1, epoch, flags


def _too_large(size: int, raw_bytes: int, limits: BatchLimits) -> BatchRejected:
    return BatchRejected(
        Reason.TOO_LARGE,
        f"{size} bytes, {raw_bytes} decompressed; at most {limits.batch_bytes_max} and"
        f" {limits.raw_body_bytes_max} are accepted: send smaller batches",
    )


def _bad_count(count: int, limits: BatchLimits) -> BatchRejected:
    if count == 0:
        return BatchRejected(Reason.EMPTY, "a produced batch holds at least one record")
    return BatchRejected(Reason.TOO_MANY_RECORDS, f"{count} records; at most {limits.records_max} are accepted")


def _bad_timestamps(base_us: int, max_us: int, now_us: int, limits: BatchLimits) -> BatchRejected:
    if base_us > max_us:
        return BatchRejected(Reason.TIMESTAMP, f"base {base_us} is later than maximum {max_us}")
    return BatchRejected(
        Reason.TIMESTAMP,
        f"{max_us - now_us} us ahead of the broker's clock; at most"
        f" {limits.timestamp_ahead_us_max} are accepted: set the producer's clock",
    )
