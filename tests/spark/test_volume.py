"""An audit of a hundred million rows, within the memory of a laptop."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rostra.spark.pipelines.audit import audit, read_traces
from rostra.traces.events import COLUMNS, TraceEvent, TraceRole
from rostra.traces.recorder import schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = int(os.environ.get("AUDIT_ROWS", "100000000"))
PER_FILE = 1_000_000
SUBSCRIBERS = 4
BYTES_MAX = 8 << 30
RECORDS = 3
"""In each batch."""


def rows_of(event: TraceEvent, who: int, partition: int, count: int) -> pa.Table:
    """Batch after batch of one partition, as one writer notes them."""
    number = pa.array(range(count), pa.int64())
    constant: dict[str, Any] = {
        "event": event.value,
        "who": who,
        "topic": "orders",
        "partition": partition,
        "subscription": 1 if event is TraceEvent.DELIVERED else 0,
        "records": RECORDS,
        "bytes": 400,
        "epoch": 1,
        "producer": 9,
        "hops": 0,
    }
    first = pc.multiply(number, RECORDS)
    varying = {
        "number": number,
        "time_us": pc.add(number, 1_700_000_000_000_000),
        "first": first,
        "end": pc.add(first, RECORDS),
        "sequence": first,
        "born_us": pc.add(number, 1_699_999_999_990_000),
    }
    kinds = schema(TraceRole.CLIENT)
    columns = [
        varying[name] if name in varying else pa.repeat(pa.scalar(constant[name], kinds.field(name).type), count)
        for name in COLUMNS
    ]
    return pa.table(columns, schema=kinds)


def write(place: Path, rows: int) -> tuple[int, int]:
    """So many rows; how many records were sent, and how many deliveries were left out."""
    place.mkdir()
    partitions = max(rows // PER_FILE // (1 + SUBSCRIBERS), 1)
    count = rows // partitions // (1 + SUBSCRIBERS)
    begun = []
    lost = 0
    for partition in range(partitions):
        published = rows_of(TraceEvent.PUBLISHED, 1, partition, count)
        pq.write_table(published, place / f"published-{partition}.parquet", compression="zstd")
        delivered = rows_of(TraceEvent.DELIVERED, 2, partition, count)
        for subscriber in range(SUBSCRIBERS):
            who = pa.repeat(pa.scalar(10 + subscriber, pa.int64()), len(delivered))
            own = delivered.set_column(COLUMNS.index("who"), schema(TraceRole.CLIENT).field("who"), who)
            if subscriber == 2:
                own = own.slice(1)
                lost += RECORDS
            pq.write_table(own, place / f"delivered-{partition}-{subscriber}.parquet", compression="zstd")
            begun.append(rows_of(TraceEvent.SUBSCRIBED, 10 + subscriber, partition, 1))
    together = pa.concat_tables(begun)
    one = pa.repeat(pa.scalar(1, pa.int64()), len(together))
    at = COLUMNS.index("subscription")
    pq.write_table(together.set_column(at, schema(TraceRole.CLIENT).field(at), one), place / "subscribed.parquet")
    return partitions * count * RECORDS, lost


def peak_bytes(spark: SparkSession) -> int:
    """Of the Java process, which does all the work."""
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.soak
def test_a_hundred_million_rows_are_audited_within_8_gib(spark: SparkSession, tmp_path: Path) -> None:
    sent, lost = write(tmp_path / "traces", ROWS)
    begun = time.monotonic()
    found = audit(read_traces(spark, str(tmp_path / "traces")))
    took_s = time.monotonic() - begun
    peak = peak_bytes(spark)
    print(f"{ROWS:,} rows in {took_s:.0f} s, {peak / (1 << 30):.1f} GiB at the most")
    total = found.total
    assert (total.sent, total.expected, total.lost) == (sent, SUBSCRIBERS * sent, lost)
    assert (total.duplicated, total.out_of_order, total.unexplained) == (0, 0, 0)
    assert peak < BYTES_MAX
