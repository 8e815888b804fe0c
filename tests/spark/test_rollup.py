"""`rostra pipeline rollup`: windows of the records' own time, equal to what is counted without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from rostra.errors import InvalidSetting
from rostra.spark.pipelines.progress import follow
from rostra.spark.pipelines.rollup import rollup, rollup_to_lake
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import STAMP_US, fill, read, read_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_US = 1_000_000


def counted(table: pa.Table) -> dict[tuple[int, bytes], dict[str, float]]:
    """By window and key, without Spark."""
    starts = pa.array([moment.value // WINDOW_US * WINDOW_US for moment in table["timestamp"]], pa.int64())
    lengths = pc.binary_length(table["value"])
    found: dict[tuple[int, bytes], dict[str, float]] = {}
    for start, key in {(start.as_py(), key.as_py()) for start, key in zip(starts, table["key"], strict=True)}:
        chosen = pc.and_(pc.equal(starts, start), pc.equal(table["key"], key))
        own = pc.filter(lengths, chosen)
        shares = pc.quantile(own, [0.5, 0.95, 0.99]).to_pylist()
        found[start, key] = {
            "records": len(own),
            "per_second": len(own) / (WINDOW_US / 1e6),
            "bytes": pc.sum(own).as_py(),
            "p50": shares[0],
            "p95": shares[1],
            "p99": shares[2],
            "keys": 1,
        }
    return found


@pytest.mark.requirement("PL-11:figures", "PL-16:rollup")
def test_windows_by_key_equal_a_count_without_spark(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders", partitions=2)
        fill(client, "orders", 3_000)
    frame = read(spark, rostra_node.address, subscribe="orders")
    rows = rollup(frame, window="1 second", by=("topic", "key"), exact=True).collect()
    ours = {
        (round(row.start.replace(tzinfo=row.start.tzinfo or UTC).timestamp() * 1e6), bytes(row.key)): {
            name: row[name] for name in ("records", "per_second", "bytes", "p50", "p95", "p99", "keys")
        }
        for row in rows
    }
    table = frame.select("timestamp", "key", "value").toArrow()
    assert ours == counted(table)
    every = rollup(frame, window="1 hour", by=()).collect()
    assert [(row.records, row["keys"]) for row in every] == [(3_000, 7)]


@pytest.mark.requirement("PL-11:lake", "PL-11:late")
def test_a_window_is_written_once_when_it_is_over_and_late_records_are_counted(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "figures"
    late: list[int] = []
    with rostra_node.client() as client:
        client.create_topic("orders")
        frame = read_stream(spark, rostra_node.address, subscribe="orders", startingOffsets="earliest")
        rolled = rollup(frame, window="1 second", watermark="1 second", by=("topic",))

        def run() -> None:
            follow(rollup_to_lake(rolled, str(lake), once=True), lambda progress: late.append(progress.late))

        fill(client, "orders", 5_000)
        run()
        # Seconds later by their own time, then one that belongs to a window written long ago.
        client.publish("orders", b"x", timestamp=STAMP_US + 20_000_000)
        run()
        client.publish("orders", b"too late", timestamp=STAMP_US)
        run()
    table = ds.dataset(lake, format="parquet", partitioning="hive").to_table().sort_by("start")
    assert table["records"].to_pylist() == [1000] * 5
    assert table["start"].to_pylist()[0].astimezone(UTC) == datetime.fromtimestamp(STAMP_US / 1e6, UTC)
    assert sum(late) == 1


def test_a_group_that_does_not_exist_is_refused(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
    with pytest.raises(InvalidSetting, match="colour is none of topic, key"):
        rollup(read(spark, rostra_node.address, subscribe="orders"), by=("colour",))
