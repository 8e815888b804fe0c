"""Splits Arrow record batches by topic and partition, and encodes them as batches of records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rostra.client.core.producer.partitioner import partition_of
from rostra.errors import InvalidSetting, RecordTooLarge, UnknownPartition
from rostra.model.arrow import encode_arrow, headers_type
from rostra.spark.sink.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow

BATCH_BYTES = 1 << 20
"""About how many bytes of Arrow columns go into one staged batch."""
ENCODED_BYTES_MAX = 4 << 20
"""Nodes accept no larger batch unless they are told to."""

Target = tuple[str, int]
PartitionCount = Callable[[str], int]


class PartitionedBatches:
    """Collects the rows of a task by their target; yields a batch whenever one is large enough."""

    def __init__(self, options: WriteOptions, partitions: PartitionCount, first: int) -> None:
        """`partitions` gives the number of partitions of a topic. Rows without a key go to one after the other,
        beginning with `first`, so that tasks begin with different ones."""
        self._options = options
        self._partitions = partitions
        self._turn = first
        self._pending: dict[Target, list[pyarrow.Table]] = {}
        self._bytes: dict[Target, int] = {}

    def all_of(self, rows: Iterator[pyarrow.RecordBatch]) -> Iterator[tuple[Target, bytearray]]:
        """The batches of all rows of a task."""
        for received in rows:
            yield from self._add(received)
        for target in list(self._pending):
            yield from self._take(target)

    def _add(self, rows: pyarrow.RecordBatch) -> Iterator[tuple[Target, bytearray]]:
        if not rows.num_rows:
            return
        table = _as_table(rows)
        for target, chosen in self._split(rows):
            part = table if len(chosen) == rows.num_rows else table.take(chosen)
            self._pending.setdefault(target, []).append(part)
            self._bytes[target] = self._bytes.get(target, 0) + part.nbytes
            if self._bytes[target] >= BATCH_BYTES:
                yield from self._take(target)

    def _take(self, target: Target) -> Iterator[tuple[Target, bytearray]]:
        import pyarrow as pa

        table = pa.concat_tables(self._pending.pop(target)).combine_chunks()
        del self._bytes[target]
        yield from ((target, batch) for batch in _encoded(table))

    def _split(self, rows: pyarrow.RecordBatch) -> list[tuple[Target, list[int]]]:
        """The targets, and the rows that go to each."""
        count = rows.num_rows
        names = rows.schema.names
        topics = [self._options.topic] * count
        if "topic" in names and not self._options.topic:
            topics = rows.column("topic").to_pylist()
            if None in topics:
                raise InvalidSetting("topic", "a row has no topic")
        chosen = rows.column("partition").to_pylist() if self._options.partitioner == "column" else [None] * count
        keys: list[bytes | None] = [None] * count
        if "key" in names:
            keys = [key.encode() if isinstance(key, str) else key for key in rows.column("key").to_pylist()]
        self._turn += 1
        found: dict[Target, list[int]] = {}
        for row, (topic, partition, key) in enumerate(zip(topics, chosen, keys, strict=True)):
            found.setdefault((topic, self._partition(topic, partition, key)), []).append(row)
        return list(found.items())

    def _partition(self, topic: str, partition: int | None, key: bytes | None) -> int:
        count = self._partitions(topic)
        if partition is not None:
            if not 0 <= partition < count:
                raise UnknownPartition(topic, partition)
            return partition
        return self._turn % count if key is None else partition_of(key, count)


def _as_table(rows: pyarrow.RecordBatch) -> pyarrow.Table:
    """The columns of a record, with a time for every row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: dict[str, Any] = {"value": rows.column("value").cast(pa.binary())}
    if "key" in rows.schema.names:
        columns["key"] = rows.column("key").cast(pa.binary())
    now = pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC"))
    if "timestamp" in rows.schema.names:
        moments = rows.column("timestamp").cast(pa.timestamp("us", "UTC"))
        columns["timestamp"] = pc.fill_null(moments, now)
    else:
        columns["timestamp"] = pa.repeat(now, rows.num_rows)
    if "headers" in rows.schema.names:
        pairs = [
            [{"name": pair["key"], "value": pair["value"] or b""} for pair in headers or ()]
            for headers in rows.column("headers").to_pylist()
        ]
        columns["headers"] = pa.array(pairs, headers_type())
    return pa.table(columns)


def _encoded(table: pyarrow.Table) -> Iterator[bytearray]:
    """One batch, or several if the rows are too large for one."""
    batch = encode_arrow(table)
    if len(batch) <= ENCODED_BYTES_MAX:
        yield batch
    elif table.num_rows == 1:
        raise RecordTooLarge(len(batch), ENCODED_BYTES_MAX)
    else:
        half = table.num_rows // 2
        yield from _encoded(table.slice(0, half).combine_chunks())
        yield from _encoded(table.slice(half).combine_chunks())
