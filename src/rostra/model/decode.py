"""Decodes a batch into records, columns, or Arrow arrays over the received bytes."""

import sys
from collections.abc import Iterator
from itertools import pairwise, repeat
from operator import lt
from struct import Struct, unpack_from
from typing import TYPE_CHECKING, Any

import msgspec
from crc32c import crc32c

from rostra.errors import BatchRejected
from rostra.model import arrow
from rostra.model.batch import (
    BODY_CRC_AT,
    CHECKED_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PLACEMENT_CRC_AT,
    Buffer,
    Codec,
    Header,
    Reason,
    read_header,
)
from rostra.model.check import KNOWN_FLAGS, RAW_BODY_BYTES_MAX, check_stored
from rostra.model.codec import inflate
from rostra.model.ids import OFFSET_MAX, Offset, Partition
from rostra.model.layout import CONTROL, KEY_NULLS, KEYS, Column, Layout, even_offsets, lay_out

if TYPE_CHECKING:
    import pyarrow

RecordHeaders = tuple[tuple[str, bytes], ...]

ARROW_COUNT_MIN = 32
"""Below this many records, setting up Arrow arrays costs more than it saves."""

_CODEC_NONE = int(Codec.NONE)
_BASE_OFFSET_SAFE = OFFSET_MAX - (1 << 32)
"""With a base offset up to this, no count and no delta exceeds the largest offset."""
_MEANINGFUL_FLAGS = frozenset(flags for flags in range(KNOWN_FLAGS + 1) if flags & (KEYS | KEY_NULLS) != KEY_NULLS)
_PLACEMENT = Struct(f"<{PLACEMENT_CRC_AT}s4x{CHECKED_FROM - BODY_CRC_AT}s")
"""What the placement CRC covers: all bytes before it, and the body CRC after it."""
_TWO_OFFSETS = Struct("<II")
_ONE_VALUE_AT = HEADER_BYTES + _TWO_OFFSETS.size
_unpack_header = HEADER.unpack_from
_unpack_placement = _PLACEMENT.unpack_from
_unpack_two_offsets = _TWO_OFFSETS.unpack_from

# Casting a memoryview reads numbers in the byte order of the machine, and Arrow uses the bytes unchanged.
assert sys.byteorder == "little", "a batch is little-endian, and so must be the machine that decodes it"


class Record(msgspec.Struct, frozen=True, gc=False):
    """One message as an application sees it."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders = ()


class Batch:
    """A view of an encoded batch, whose bytes are not copied; columns are decoded on request.

    Checksums are not verified here: `check_stored` does that after reads from disk or network. An inconsistent body
    raises `BatchRejected`; nothing outside the batch is ever read.
    """

    __slots__ = ("_body", "buffer", "header", "raw_body_bytes_max")

    def __init__(
        self,
        buffer: Buffer,
        at: int = 0,
        header: Header | None = None,
        *,
        raw_body_bytes_max: int = RAW_BODY_BYTES_MAX,
    ) -> None:
        """A caller that has read the header already passes it."""
        size = len(buffer)
        present = size - at
        if header is None:
            if present < HEADER_BYTES:
                raise BatchRejected(Reason.TRUNCATED, f"{present} bytes cannot hold a batch header")
            header = read_header(buffer, at)
        length = header.length
        if (
            header.magic != MAGIC
            or length < HEADER_BYTES
            or length > present
            or header.flags not in _MEANINGFUL_FLAGS
            or header.base_offset > _BASE_OFFSET_SAFE
        ):
            _check_header(header, present)
        self.header: Header = header
        self.buffer = memoryview(buffer) if length == size else memoryview(buffer)[at : at + length]
        self.raw_body_bytes_max = raw_body_bytes_max
        self._body: tuple[memoryview, Layout] | None = None

    @property
    def base_offset(self) -> Offset:
        return self.header.base_offset

    @property
    def next_offset(self) -> Offset:
        return self.header.next_offset

    @property
    def count(self) -> int:
        return self.header.count

    @property
    def is_control(self) -> bool:
        return bool(self.header.flags & CONTROL)

    def __len__(self) -> int:
        return self.header.count

    def __repr__(self) -> str:
        return f"<Batch of {self.count} records from offset {self.base_offset} on>"

    def body(self) -> tuple[memoryview, Layout]:
        """The bytes that hold the raw body, and where its buffers lie in them."""
        if self._body is None:
            header = self.header
            if header.codec == _CODEC_NONE:
                raw, start = self.buffer, HEADER_BYTES
                if header.raw_body_bytes != header.length - HEADER_BYTES:
                    raise BatchRejected(Reason.LENGTH, "the body has not the size it claims")
            else:
                raw, start = self._inflated(), 0
            self._body = raw, lay_out(raw, start, len(raw), header.count, header.flags)
        return self._body

    def _inflated(self) -> memoryview:
        header = self.header
        if header.raw_body_bytes > self.raw_body_bytes_max:
            raise BatchRejected(
                Reason.TOO_LARGE,
                f"inflates to {header.raw_body_bytes} bytes, {self.raw_body_bytes_max} allowed",
            )
        compressed = self.buffer[HEADER_BYTES:]
        return memoryview(inflate(header.codec, compressed, header.raw_body_bytes))

    def values(self) -> list[bytes | None]:
        header = self.header
        if header.count == 1 and not header.flags and not header.codec:
            # Fast path for records that are published one by one: computing the layout would take half of the time.
            end = header.length
            if header.raw_body_bytes == end - HEADER_BYTES and end >= _ONE_VALUE_AT:
                first, size = _unpack_two_offsets(self.buffer, HEADER_BYTES)
                if not first and _ONE_VALUE_AT + (size + 7 & -8) == end:
                    return [self.buffer[_ONE_VALUE_AT : _ONE_VALUE_AT + size].tobytes()]
        raw, layout = self.body()
        return self._strings(raw, layout.values)

    def keys(self) -> list[bytes | None]:
        raw, layout = self.body()
        if layout.keys is None:
            return [None] * self.header.count
        return self._strings(raw, layout.keys)

    def _strings(self, raw: memoryview, column: Column) -> list[bytes | None]:
        count = self.header.count
        # Only where the application has loaded pyarrow: importing it takes a third of a second.
        if count >= ARROW_COUNT_MIN and sys.modules.get("pyarrow") is not None:
            return arrow.strings(raw, column, count)
        return plain_strings(raw, column, count)

    def timestamps(self) -> list[int]:
        raw, layout = self.body()
        count = self.header.count
        if layout.timestamps_at < 0:
            return [self.header.base_timestamp_us] * count
        at = layout.timestamps_at
        return raw[at : at + 8 * count].cast("q").tolist()

    def offsets(self) -> list[int]:
        raw, layout = self.body()
        base, count = self.header.base_offset, self.header.count
        if layout.deltas_at < 0:
            return list(range(base, base + count))
        at = layout.deltas_at
        deltas = raw[at : at + 4 * count].cast("i").tolist()
        if count and not (
            deltas[0] >= 0 and all(map(lt, deltas, deltas[1:])) and deltas[-1] <= self.header.last_offset_delta
        ):
            raise BatchRejected(Reason.BODY_LAYOUT, "offset deltas do not rise within the batch")
        return [base + delta for delta in deltas]

    def headers(self) -> list[RecordHeaders]:
        raw, layout = self.body()
        columns = layout.headers
        if columns is None:
            return [()] * self.header.count
        bounds = rising(raw, columns.lists_at, self.header.count)
        names = plain_strings(raw, columns.names, columns.count)
        values = plain_strings(raw, columns.values, columns.count)
        try:
            pairs = tuple(zip([str(name, "utf-8") for name in names], values, strict=True))
        except UnicodeDecodeError:
            raise BatchRejected(Reason.BODY_LAYOUT, "a header name is not UTF-8") from None
        return [pairs[start:end] for start, end in pairwise(bounds)]

    def records(self, topic: str, partition: int) -> list[Record]:
        return list(
            map(
                Record,
                repeat(topic),
                repeat(partition),
                self.offsets(),
                self.timestamps(),
                self.keys(),
                self.values(),
                self.headers(),
            )
        )

    def to_arrow(self) -> "pyarrow.RecordBatch":
        """Columns key, value, offset, timestamp, headers, over the received bytes without copying.

        Only offsets, and timestamps that are all equal, take memory of their own.
        """
        raw, layout = self.body()
        return arrow.record_batch(raw, layout, self.header, self.offsets)


def _check_header(header: Header, present: int) -> None:
    if header.magic != MAGIC:
        raise BatchRejected(Reason.MAGIC, f"begins with {header.magic!r}, not {MAGIC!r}")
    if header.length < HEADER_BYTES:
        raise BatchRejected(Reason.LENGTH, f"claims {header.length} bytes, less than a header")
    if header.length > present:
        raise BatchRejected(Reason.TRUNCATED, f"{present} of {header.length} bytes present")
    if header.flags not in _MEANINGFUL_FLAGS:
        raise BatchRejected(Reason.FLAGS, f"flags {header.flags:#06x} have no meaning")
    if header.base_offset + max(header.last_offset_delta, header.count) >= OFFSET_MAX:
        raise BatchRejected(Reason.OFFSETS, "offsets beyond 63 bits")


def stored_batch(buffer: bytearray, at: int, partition: Partition, seed: int) -> Batch:
    """Checks the batch at `at` as `check_stored` does and returns it, reading its header once.

    `seed` is the checksum seed of the partition.
    """
    if len(buffer) - at >= HEADER_BYTES:
        header = Header(*_unpack_header(buffer, at))
        before, behind = _unpack_placement(buffer, at)
        if header.placement_crc == crc32c(before + behind, seed):
            batch = Batch(buffer, at, header)
            if header.body_crc == crc32c(batch.buffer[CHECKED_FROM:]):
                return batch
    # The batch is damaged; this raises the error that says how.
    check_stored(buffer, at, partition)
    raise AssertionError("a batch is intact for one check and not for the other")


def rising(raw: memoryview, at: int, count: int) -> list[int]:
    """The count+1 offsets at `at`; the layout has checked the first and the last of them."""
    offsets = raw[at : at + 4 * count + 4].cast("i").tolist()
    # Sorting a sorted list costs one comparison per element in C: the cheapest check.
    if sorted(offsets) != offsets:
        raise BatchRejected(Reason.BODY_LAYOUT, "offsets of a column fall")
    return offsets


def plain_strings(raw: memoryview, column: Column, count: int) -> list[Any]:
    strings: list[Any]
    size = column.size // count if count else 0
    # As bytes: a memoryview would compare them one by one.
    if size and bytes(raw[column.offsets_at : column.offsets_at + 4 * count + 4]) == even_offsets(count, size):
        # Records of equal size, as sensors send them, are split three times as fast, and without another copy.
        strings = list(unpack_from(f"{size}s" * count, raw, column.bytes_at))
    else:
        offsets = rising(raw, column.offsets_at, count)
        whole = bytes(raw[column.bytes_at : column.bytes_at + column.size])
        # Measured a quarter faster than pairwise.
        strings = [whole[start:end] for start, end in zip(offsets, offsets[1:], strict=False)]  # noqa: RUF007
    if column.validity_at < 0:
        return strings
    bitmap = raw[column.validity_at : column.validity_at + (count + 7) // 8]
    # A one above the highest bit keeps leading zeros; reversed, bit i stands at place i.
    bits = bin(int.from_bytes(bitmap, "little") | 1 << 8 * len(bitmap))[:2:-1]
    return [string if bit == "1" else None for string, bit in zip(strings, bits, strict=False)]


def iterate(buffer: Buffer, *, raw_body_bytes_max: int = RAW_BODY_BYTES_MAX) -> Iterator[Batch]:
    """Yields the consecutive batches of a payload."""
    whole = memoryview(buffer)
    at = 0
    while at < len(whole):
        batch = Batch(whole, at, raw_body_bytes_max=raw_body_bytes_max)
        yield batch
        at += batch.header.length
