"""Writes the records of a task directly to Parquet files for a lake, without rows of Spark.

Spark gets one row for each file, with the offsets that its task read; a task without records returns a row without a
file. Spark decides which attempt of a task counts; files of other attempts are in no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rostra.spark.source.columns import schema_of
from rostra.spark.source.plan import Span

DAY_US = 86_400_000_000
GROUP_BYTES = 32 << 20
"""Of a row group, before it is compressed; a task holds as much in memory for each day that its records are of."""
DAYS_OPEN_MAX = 4
MANIFEST = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("topic_id", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("first", pa.int64(), nullable=False),
        pa.field("end", pa.int64(), nullable=False),
    ]
)
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{[]^") | frozenset(map(chr, range(1, 32)))
"""What Spark writes with a percent sign in the names of directories."""


def escaped(value: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in value)


def stage(batches: Iterable[pa.RecordBatch], span: Span, root: str, columns: tuple[str, ...]) -> Iterator[Any]:
    """Writes the records of a span below the directory, by day; then yields the row of each file."""
    kept = tuple(name for name in columns if name != "topic")
    folder = Path(root) / f"topic={escaped(span.topic)}"
    open_files: dict[int, DayFile] = {}
    done: list[DayFile] = []
    try:
        for batch in batches:
            for day, records in by_day(batch.select(kept)):
                if day not in open_files:
                    if len(open_files) >= DAYS_OPEN_MAX:
                        done.append(_closed(open_files.pop(next(iter(open_files)))))
                    open_files[day] = DayFile(folder, day, kept)
                open_files[day].add(records)
    finally:
        # Also of an attempt that fails: nothing is left open in a worker that Spark uses again.
        done += [_closed(file) for file in open_files.values()]
    files = [(str(file.path.relative_to(root)), file.records) for file in done] or [("", 0)]
    read = (span.topic, span.topic_id, span.partition, span.first, span.end)
    rows = [dict(zip(MANIFEST.names, (*file, *read), strict=True)) for file in files]
    yield pa.RecordBatch.from_pylist(rows, schema=MANIFEST)


def by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Splits records by day in UTC, keeping their order; most batches have one day."""
    moments = batch.column("timestamp").cast(pa.int64())
    span = pc.min_max(moments)
    first, last = (_day_of(span[edge].as_py()) for edge in ("min", "max"))
    if first == last:
        yield first, batch
        return
    for day in range(first, last + 1):
        after = pc.greater_equal(moments, pa.scalar(day * DAY_US))
        chosen = batch.filter(pc.and_(after, pc.less(moments, pa.scalar((day + 1) * DAY_US))))
        if len(chosen):
            yield day, chosen


def _day_of(moment_us: int) -> int:
    return moment_us // DAY_US


class DayFile:
    """A file of one task and one day, written a row group at a time."""

    def __init__(self, folder: Path, day: int, columns: tuple[str, ...]) -> None:
        date = datetime.fromtimestamp(day * DAY_US // 1_000_000, UTC).date()
        self.path = folder / f"date={date.isoformat()}" / f"{uuid4().hex}.parquet"
        self.records = 0
        self._columns = columns
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        self.records += len(batch)
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes
        if self._gathered_bytes >= GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = _writer(self.path, self._columns)
        self._writer.write_table(pa.Table.from_batches(self._gathered))
        self._gathered, self._gathered_bytes = [], 0

    def close(self) -> None:
        if self._gathered:
            self._write()
        if self._writer is not None:
            self._writer.close()


def _closed(file: DayFile) -> DayFile:
    file.close()
    return file


def _writer(path: Path, columns: tuple[str, ...]) -> Any:
    """Opens a file with encodings for rising offsets and times, repeated keys, and distinct values."""
    steps = [name for name in ("offset", "timestamp") if name in columns]
    return pq.ParquetWriter(
        path,
        schema_of(columns),
        compression="snappy",
        use_dictionary=[name for name in ("key", "partition") if name in columns],
        column_encoding=dict.fromkeys(steps, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in ("partition", *steps) if name in columns],
    )
