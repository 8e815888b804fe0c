"""Builds the Arrow columns of a read: those of a batch, and those that are equal for all its records."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.model.batch import Flag
from rostra.spark.source.options import COLUMNS, NEVER_NULL

_HEADERS = int(Flag.HEADERS)

# Exactly what Spark makes of its own types: it compares the two and takes no other.
HEADER_FIELDS = (pa.field("key", pa.string()), pa.field("value", pa.binary()))
HEADERS = pa.list_(pa.field("element", pa.struct(list(HEADER_FIELDS))))
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS,
}


@cache
def schema_of(columns: tuple[str, ...] = COLUMNS, nullable: tuple[str, ...] = ()) -> Any:
    return pa.schema(
        [pa.field(name, TYPES[name], nullable=name in nullable or name not in NEVER_NULL) for name in columns]
    )


def rows_of(
    delivered: DeliveredBatch, end: int, columns: tuple[str, ...], nullable: tuple[str, ...] = ()
) -> pa.RecordBatch:
    """Rows of the records of a batch below `end`; keys, values and timestamps use the received bytes without a copy."""
    batch = delivered.to_arrow()
    if delivered.next_offset > end:
        batch = batch.slice(0, _count_below(batch.column("offset"), end))
    made = [_column(name, delivered, batch) for name in columns]
    return pa.RecordBatch.from_arrays(made, schema=schema_of(columns, nullable))


def _count_below(offsets: Any, end: int) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(pc.less(offsets, pa.scalar(end, pa.int64()))).as_py() or 0)


def _column(name: str, delivered: DeliveredBatch, batch: pa.RecordBatch) -> Any:
    match name:
        case "topic":
            return _same(delivered.topic, pa.string(), len(batch))
        case "partition":
            return _same(delivered.partition, pa.int32(), len(batch))
        case "headers":
            return _headers(batch.column("headers"), bool(delivered.header.flags & _HEADERS))
        case _:
            return batch.column(name)


def _same(value: object, kind: Any, count: int) -> Any:
    return _repeated(value, kind, 1 << max(count - 1, 0).bit_length()).slice(0, count)


@lru_cache(maxsize=256)
def _repeated(value: object, kind: Any, count: int) -> Any:
    return pa.repeat(pa.scalar(value, kind), count)


def _headers(lists: Any, some: bool) -> Any:
    """Headers with the field names of Spark's Kafka source; null where a record has none."""
    import pyarrow.compute as pc

    count = len(lists)
    if not some:
        return _none(1 << max(count - 1, 0).bit_length()).slice(0, count)
    pairs = lists.values
    named = pa.StructArray.from_arrays([pairs.field(0), pairs.field(1)], fields=list(HEADER_FIELDS))
    # As a copy: Arrow takes no mask with offsets that are a part of others.
    offsets = pa.concat_arrays([lists.offsets])
    return pa.ListArray.from_arrays(offsets, named, type=HEADERS, mask=pc.equal(pc.list_value_length(lists), 0))


@cache
def _none(count: int) -> Any:
    return pa.nulls(count, HEADERS)
