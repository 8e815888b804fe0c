"""Encodes records into a batch: many at once, or a single value on a fast path."""

import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from struct import Struct, pack

from crc32c import crc32c

from rostra.errors import BatchRejected
from rostra.model.batch import (
    BODY_CRC_AT,
    CHECKED_FROM,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    Buffer,
    Codec,
    Reason,
    body_crc,
)
from rostra.model.codec import compress
from rostra.model.layout import (
    CONTROL,
    HEADERS,
    KEY_NULLS,
    KEYS,
    OFFSET_DELTAS,
    TIMESTAMPS,
    VALUE_NULLS,
    even_offsets,
)

Headers = Sequence[tuple[str, bytes]]
"""The headers of one record, in order; a name may occur twice."""

_UINT32 = Struct("<I")
_UNPLACED = Struct(f"<4sI{BODY_CRC_AT - 8}xI")
"""The header before the part that the body CRC covers; the fields of the owner are left zero."""
_ALONE = Struct("<QIII4xqqI8xi")
"""The rest of the header and the two offsets of a single value, without flags and codec; the first offset is 0."""
_ALONE_BYTES = CHECKED_FROM + _ALONE.size
ALONE_BYTES_MORE_MAX = _ALONE_BYTES + 7
"""A batch of one plain value is larger than the value by at most this much."""
_pack_unplaced = _UNPLACED.pack
_pack_alone = _ALONE.pack
_PADDING = tuple(bytes(-size % 8) for size in range(8))


def padding(size: int) -> bytes:
    """The zeros that follow a buffer of this size."""
    return _PADDING[size & 7]


def encode(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    timestamp_us: int,
    timestamps_us: Sequence[int] | None = None,
    producer: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
    codec: Codec = Codec.NONE,
    control: bool = False,
    offset_deltas: Sequence[int] | None = None,
) -> bytearray:
    """Encodes all values as one batch; None is a tombstone.

    `timestamps_us`, if given, replace `timestamp_us`. Offset deltas are for compaction only, which may also leave a
    batch without records. Columns without content (no keys, no headers, equal timestamps) are omitted, so equal records
    give equal bytes.
    """
    count = len(values)
    flags = CONTROL if control else 0
    parts: list[Buffer] = []
    base_us = max_us = timestamp_us
    if offset_deltas is not None:
        _same_length("offset deltas", len(offset_deltas), count)
        flags |= OFFSET_DELTAS
        parts += _padded(_numbers("i", offset_deltas))
    elif count == 0:
        raise BatchRejected(Reason.EMPTY, "a batch holds at least one record")
    if timestamps_us is not None and count:
        _same_length("timestamps", len(timestamps_us), count)
        base_us, max_us = min(timestamps_us), max(timestamps_us)
        if base_us != max_us:
            flags |= TIMESTAMPS
            parts.append(_numbers("q", timestamps_us))
    if keys is not None:
        _same_length("keys", len(keys), count)
        if keys.count(None) != count:
            flags |= KEYS | _column(keys, parts, KEY_NULLS)
    flags |= _column(values, parts, VALUE_NULLS)
    if headers is not None:
        _same_length("headers", len(headers), count)
        if any(headers):
            flags |= HEADERS
            _header_columns(headers, parts)
    return assemble(
        parts,
        count=count,
        flags=flags,
        base_us=base_us,
        max_us=max_us,
        producer=producer,
        producer_epoch=producer_epoch,
        sequence=sequence,
        codec=codec,
    )


def encode_alone(value: bytes, timestamp_us: int, producer: int, producer_epoch: int, sequence: int) -> bytes:
    """Encodes one plain value to the bytes of `encode`, in fewer steps: a publisher of single records waits for it."""
    size = len(value)
    padded = size + 7 & -8
    fields = _pack_alone(producer, producer_epoch, sequence, 1, timestamp_us, timestamp_us, 8 + padded, size)
    checked = fields + value + _PADDING[size & 7]
    return _pack_unplaced(MAGIC, _ALONE_BYTES + padded, crc32c(checked)) + checked


def assemble(
    parts: list[Buffer],
    *,
    count: int,
    flags: int,
    base_us: int,
    max_us: int,
    producer: int,
    producer_epoch: int,
    sequence: int,
    codec: Codec,
) -> bytearray:
    """Joins header and body; the body is compressed if that makes it smaller."""
    parts.insert(0, bytes(HEADER_BYTES))
    batch = bytearray().join(parts)
    raw_bytes = len(batch) - HEADER_BYTES
    if raw_bytes >= 1 << 31:
        raise BatchRejected(Reason.TOO_LARGE, "the buffers of a batch stay below 2 GiB")
    kept = Codec.NONE
    if codec is not Codec.NONE:
        compressed = compress(codec, batch[HEADER_BYTES:])
        if len(compressed) < raw_bytes:
            batch[HEADER_BYTES:] = compressed
            kept = codec
    try:
        HEADER.pack_into(
            batch, 0,
            MAGIC, len(batch), 0, 0, 0, 0, 0, 0, 0,
            producer, producer_epoch, sequence, count, flags, kept, 0,
            base_us, max_us, raw_bytes, 0,
        )  # fmt: skip
    except struct.error as error:
        raise _does_not_fit("the header", error) from None
    _UINT32.pack_into(batch, BODY_CRC_AT, body_crc(batch, 0, len(batch)))
    return batch


def _same_length(what: str, length: int, count: int) -> None:
    if length != count:
        raise ValueError(f"{length} {what} for {count} values")


def _does_not_fit(where: str, error: struct.error) -> ValueError:
    return ValueError(f"a number does not fit into {where}: {error}")


def _numbers(form: str, numbers: Sequence[int]) -> bytes:
    try:
        return pack(f"<{len(numbers)}{form}", *numbers)
    except struct.error as error:
        raise _does_not_fit("its column", error) from None


def _padded(buffer: bytes) -> tuple[bytes, bytes]:
    return buffer, _PADDING[len(buffer) & 7]


def _offsets(strings: Sequence[bytes]) -> bytes:
    if strings and len(strings[0]) == len(strings[-1]):
        size = len(strings[0])
        if len(set(map(len, strings))) == 1 and size * len(strings) < 1 << 31:
            return even_offsets(len(strings), size)
    try:
        return pack(f"<{len(strings) + 1}i", *accumulate(map(len, strings), initial=0))
    except struct.error:
        raise BatchRejected(Reason.TOO_LARGE, "a column of a batch stays below 2 GiB") from None


def _column(strings: Sequence[bytes | None], parts: list[Buffer], nulls: int) -> int:
    """Appends the buffers of a column of byte strings; returns the flag if some are None."""
    flag = 0
    try:
        # A search for None would cost more than everything else; len(None) raises at no extra cost.
        offsets = _offsets(strings)  # type: ignore[arg-type]
    except TypeError:
        parts += _padded(validity_bits(strings))
        present = [b"" if string is None else string for string in strings]
        offsets, strings = _offsets(present), present
        flag = nulls
    # The strings are not joined here, so that they are copied once. A large joined string would be allocated anew each
    # time, which costs far more than the copy.
    parts += (offsets, _PADDING[len(offsets) & 7])
    parts += strings  # type: ignore[arg-type]
    parts.append(_PADDING[offsets[-4] & 7])
    return flag


def validity_bits(strings: Sequence[object]) -> bytes:
    """One bit per element, least significant first as in Arrow, set where it is not None."""
    bits = "".join(["0" if string is None else "1" for string in reversed(strings)])
    return int(bits, 2).to_bytes((len(strings) + 7) // 8, "little")


def _header_columns(headers: Sequence[Headers | None], parts: list[Buffer]) -> None:
    present = [record_headers or () for record_headers in headers]
    pairs = list(chain.from_iterable(present))
    lists = pack(f"<{len(present) + 1}i", *accumulate(map(len, present), initial=0))
    parts += _padded(lists)
    _column([name.encode() for name, _ in pairs], parts, KEY_NULLS)
    if _column([value for _, value in pairs], parts, VALUE_NULLS):
        raise ValueError("a header has a value; leave the header out instead of giving None")
