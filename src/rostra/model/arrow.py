"""Converts batches from and to Arrow arrays. pyarrow is optional and imported when first needed."""

from array import array
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from rostra.errors import BatchRejected
from rostra.model.batch import Buffer, Codec, Header, Reason
from rostra.model.encode import assemble, padding
from rostra.model.layout import (
    HEADERS,
    KEY_NULLS,
    KEYS,
    TIMESTAMPS,
    VALUE_NULLS,
    Column,
    Layout,
)

if TYPE_CHECKING:
    import pyarrow

COLUMNS = ("key", "value", "offset", "timestamp", "headers")


def pyarrow_module() -> Any:
    try:
        import pyarrow as pa
    except ImportError:
        raise ImportError("Arrow needs pyarrow; run: pip install rostra[arrow]") from None
    return pa


def strings(raw: memoryview, column: Column, count: int) -> list[bytes | None]:
    pa = pyarrow_module()
    decoded: list[bytes | None] = _binary(pa.py_buffer(raw), column, count, pa.binary()).to_pylist()
    return decoded


def record_batch(
    raw: memoryview, layout: Layout, header: Header, offsets: Callable[[], list[int]]
) -> "pyarrow.RecordBatch":
    pa = pyarrow_module()
    count = header.count
    whole = pa.py_buffer(raw)
    schema = _schema()
    binary, moment = schema.types[0], schema.types[3]
    if layout.timestamps_at < 0:
        timestamps = _int64(array("q", [header.base_timestamp_us]) * count, moment)
    else:
        places = whole.slice(layout.timestamps_at, 8 * count)
        timestamps = pa.Array.from_buffers(moment, count, [None, places])
    columns = [
        _empty_column(_rounded(count), 0).slice(0, count)
        if layout.keys is None
        else _binary(whole, layout.keys, count, binary),
        _binary(whole, layout.values, count, binary),
        _offsets(header, offsets if layout.deltas_at >= 0 else None),
        timestamps,
        _empty_column(_rounded(count), 4).slice(0, count) if layout.headers is None else _headers(whole, layout, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@cache
def _schema() -> Any:
    """The schema of every batch; cached, since building its types takes about as long as a batch."""
    pa = pyarrow_module()
    kinds = (pa.binary(), pa.binary(), pa.int64(), pa.timestamp("us", "UTC"), headers_type())
    return pa.schema(list(zip(COLUMNS, kinds, strict=True)))


def _rounded(count: int) -> int:
    """Rounds up to a power of two, so that batches of different sizes share the cached empty columns."""
    return 1 << max(count - 1, 0).bit_length()


@lru_cache(maxsize=32)
def _empty_column(count: int, column: int) -> Any:
    """A column of null keys or of empty headers, cached for batches without them."""
    pa = pyarrow_module()
    if not column:
        return pa.nulls(count, pa.binary())
    pairs = pa.array([], headers_type().value_type)
    return pa.Array.from_buffers(headers_type(), count, [None, pa.py_buffer(bytes(4 * count + 4))], children=[pairs])


def _offsets(header: Header, compacted: Callable[[], list[int]] | None) -> Any:
    pa = pyarrow_module()
    if compacted is not None:
        return _int64(array("q", compacted()), pa.int64())
    base, end = header.base_offset, header.base_offset + header.count
    if hasattr(pa, "arange"):
        return pa.arange(base, end)
    return _int64(array("q", range(base, end)), pa.int64())


def _int64(numbers: "array[int]", kind: Any) -> Any:
    pa = pyarrow_module()
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _valid(made: Any) -> Any:
    """Checks an array over received bytes, since Arrow itself trusts its buffers."""
    pa = pyarrow_module()
    try:
        made.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BatchRejected(Reason.BODY_LAYOUT, str(error)) from None
    return made


def _binary(whole: Any, column: Column, count: int, kind: Any) -> Any:
    pa = pyarrow_module()
    validity = None
    if column.validity_at >= 0:
        validity = whole.slice(column.validity_at, (count + 7) // 8)
    offsets = whole.slice(column.offsets_at, 4 * count + 4)
    content = whole.slice(column.bytes_at, column.size)
    return _valid(pa.Array.from_buffers(kind, count, [validity, offsets, content]))


@cache
def headers_type() -> Any:
    pa = pyarrow_module()
    pair = pa.struct(
        [
            pa.field("name", pa.string(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )
    return pa.list_(pa.field("item", pair, nullable=False))


def _headers(whole: Any, layout: Layout, count: int) -> Any:
    pa = pyarrow_module()
    kind = headers_type()
    columns = layout.headers
    assert columns is not None
    lists, pair_count = whole.slice(columns.lists_at, 4 * count + 4), columns.count
    names = _binary(whole, columns.names, pair_count, pa.string())
    values = _binary(whole, columns.values, pair_count, pa.binary())
    pairs = pa.Array.from_buffers(kind.value_type, pair_count, [None], children=[names, values])
    return _valid(pa.Array.from_buffers(kind, count, [None, lists], children=[pairs]))


def encode_arrow(
    source: "pyarrow.RecordBatch | pyarrow.Table | pyarrow.Array",
    *,
    timestamp_us: int = 0,
    producer: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
    codec: Codec = Codec.NONE,
) -> bytearray:
    """Encodes one batch from an array of values, or from the columns value, key, timestamp, headers.

    The bytes are those of `encode` for the same records. A column `offset` is ignored, so that batches that were read
    can be published again. Without a timestamp column all records get `timestamp_us`.
    """
    pa = pyarrow_module()
    columns = _columns(source)
    count = len(columns["value"])
    if count == 0:
        raise BatchRejected(Reason.EMPTY, "a batch holds at least one record")
    flags = 0
    parts: list[Buffer] = []
    base_us = max_us = timestamp_us
    if "timestamp" in columns:
        base_us, max_us, moments = _moments(columns["timestamp"])
        if base_us != max_us:
            flags |= TIMESTAMPS
            parts.append(moments)
    if "key" in columns and columns["key"].null_count != count:
        flags |= KEYS | _column(columns["key"], pa.binary(), parts, KEY_NULLS)
    flags |= _column(columns["value"], pa.binary(), parts, VALUE_NULLS)
    if "headers" in columns and _header_columns(columns["headers"], parts):
        flags |= HEADERS
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


def _columns(source: Any) -> dict[str, Any]:
    pa = pyarrow_module()
    if isinstance(source, pa.Array | pa.ChunkedArray):
        found = {"value": source}
    else:
        found = dict(zip(source.schema.names, source.columns, strict=True))
    unknown = sorted(found.keys() - set(COLUMNS))
    if unknown or "value" not in found:
        wrong = f"does not know {', '.join(unknown)}" if unknown else "needs a column value"
        raise ValueError(f"a batch {wrong}; its columns are {', '.join(COLUMNS)}")
    return {
        name: column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for name, column in found.items()
    }


def _moments(column: Any) -> tuple[int, int, memoryview]:
    pa = pyarrow_module()
    import pyarrow.compute as pc

    if column.null_count:
        raise ValueError("a record has a timestamp; leave the column out instead of giving nulls")
    moments = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    ends = pc.min_max(moments)
    at = 8 * moments.offset
    places = memoryview(moments.buffers()[1])[at : at + 8 * len(moments)]
    return ends["min"].as_py(), ends["max"].as_py(), places


def _column(column: Any, kind: Any, parts: list[Buffer], nulls: int) -> int:
    """Appends the buffers of a column of byte strings; returns the flag if some are null."""
    column = column.cast(kind)
    flag = 0
    if column.null_count:
        parts += _padded(_validity(column))
        flag = nulls
    offsets, first, last = _rebased(column, column.buffers()[1])
    parts += _padded(offsets)
    content = column.buffers()[2]
    parts += _padded(memoryview(content)[first:last] if content is not None else b"")
    return flag


def _validity(column: Any) -> bytes:
    """The validity bitmap from the first element on; a slice may begin in the middle of a byte."""
    count = len(column)
    start: int = column.offset
    bits = int.from_bytes(memoryview(column.buffers()[0]), "little") >> start
    return (bits & ((1 << count) - 1)).to_bytes((count + 7) // 8, "little")


def _rebased(column: Any, buffer: Any) -> tuple[Buffer, int, int]:
    """The offsets shifted to begin at zero, and the range of content that they refer to."""
    pa = pyarrow_module()
    import pyarrow.compute as pc

    size = len(column) + 1
    offsets = pa.Array.from_buffers(pa.int32(), size, [None, buffer], offset=column.offset)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if first:
        offsets = pc.subtract(offsets, pa.scalar(first, pa.int32()))
    at = 4 * offsets.offset
    return memoryview(offsets.buffers()[1])[at : at + 4 * size], first, last


def _header_columns(column: Any, parts: list[Buffer]) -> bool:
    """Appends the three columns of headers; returns False if no record has any."""
    pa = pyarrow_module()
    kind = headers_type()
    if column.null_count:
        column = pa.array([pairs or [] for pairs in column.to_pylist()], kind)
    column = column.cast(kind)
    lists, first, last = _rebased(column, column.buffers()[1])
    if first == last:
        return False
    parts += _padded(lists)
    for child in column.values.slice(first, last - first).flatten():
        if _column(child, pa.binary(), parts, VALUE_NULLS):
            raise ValueError("a header has a name and a value; neither may be null")
    return True


def _padded(buffer: Buffer) -> tuple[Buffer, bytes]:
    return buffer, padding(len(buffer))
