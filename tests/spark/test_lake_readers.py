"""What others find in a lake that is being written: all that was committed before they looked, and nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest

from rostra.spark.lake.formats import lake_of
from rostra.spark.lake.lake import Lake
from rostra.spark.pipelines.archive import archive_topics
from rostra.spark.pipelines.progress import stop
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "orders"
READINGS = 4
"""By each reader."""

Reader = Callable[["SparkSession", str], list[int]]


def _numbers(values: list[Any]) -> list[int]:
    return [int(bytes(value)) for value in values]


def with_arrow(spark: SparkSession, lake: str) -> list[int]:
    return _numbers(ds.dataset(lake, format="parquet").to_table(["value"])["value"].to_pylist())


def with_duckdb(spark: SparkSession, lake: str) -> list[int]:
    found = duckdb.read_parquet(f"{lake}/**/*.parquet").select("value").fetchall()
    return _numbers([value for (value,) in found])


def with_polars(spark: SparkSession, lake: str) -> list[int]:
    return _numbers(pl.scan_parquet(lake).select("value").collect()["value"].to_list())


def with_spark(spark: SparkSession, lake: str) -> list[int]:
    return _numbers([row.value for row in spark.read.parquet(lake).select("value").collect()])


def table_with_arrow(spark: SparkSession, lake: str) -> list[int]:
    dataset = deltalake.DeltaTable(lake).to_pyarrow_dataset()
    return _numbers(dataset.to_table(["value"])["value"].to_pylist())


def table_with_duckdb(spark: SparkSession, lake: str) -> list[int]:
    """Without its extension, which it downloads: over the files of the table."""
    table = deltalake.DeltaTable(lake).to_pyarrow_dataset()
    return _numbers([value for (value,) in duckdb.from_arrow(table).select("value").fetchall()])


def table_with_polars(spark: SparkSession, lake: str) -> list[int]:
    return _numbers(pl.scan_delta(lake).select("value").collect()["value"].to_list())


def table_with_spark(spark: SparkSession, lake: str) -> list[int]:
    return _numbers([row.value for row in lake_of(spark, lake).read(spark).select("value").collect()])


READERS: dict[str, tuple[Reader, ...]] = {
    "parquet": (with_arrow, with_duckdb, with_polars, with_spark),
    "delta": (table_with_arrow, table_with_duckdb, table_with_polars, table_with_spark),
}


class Commits:
    """How many records were in the lake after each batch, and how many it was about to have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = [0]
        self.ended = [0]
        plain_begin, plain_end = Lake.adopt, Lake._end_batch

        def adopt(lake: Lake, rows: list[Any], query: str, number: int) -> None:
            self.begun.append(self.begun[-1] + sum(row.records for row in rows))
            plain_begin(lake, rows, query, number)

        def end(lake: Lake) -> None:
            self.ended.append(self.begun[-1])
            plain_end(lake)

        monkeypatch.setattr(Lake, "adopt", adopt)
        monkeypatch.setattr(Lake, "_end_batch", end)


@contextmanager
def published(node: EmbeddedNode) -> Iterator[None]:
    """Records without a pause, numbered from 0 on."""
    over = threading.Event()

    def publish() -> None:
        with node.client() as client:
            sent = 0
            while not over.wait(0.02):
                fill(client, TOPIC, 20, first=sent)
                sent += 20

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("format", READERS)
def test_every_reading_lies_between_what_was_committed_before_it_began_and_after_it_ended(
    format: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    commits = Commits(monkeypatch)
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        fill(client, TOPIC, 0)
    options = {"nodes": rostra_node.address, "subscribe": TOPIC, "startingOffsets": "earliest"}
    with published(rostra_node):
        query = archive_topics(spark, options, lake, format=format, trigger_ms=100, compact_every=2)
        try:
            while len(commits.ended) < 2:
                assert query.isActive, query.exception()
                query.awaitTermination(1)
            for _ in range(READINGS):
                for reader in READERS[format]:
                    before = commits.ended[-1]
                    found = reader(spark, lake)
                    after = commits.begun[-1]
                    assert len(set(found)) == len(found), f"{reader.__name__} found records twice"
                    assert set(range(before)) <= set(found) <= set(range(after)), reader.__name__
                    if format == "delta":
                        assert len(found) in commits.begun, "a batch is there as a whole"
            assert query.isActive, query.exception()
        finally:
            stop(query)
    assert len(commits.ended) > READINGS


def test_a_stream_over_the_files_of_a_lake_finds_each_record_once(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = str(tmp_path / "lake")
    options = {"nodes": rostra_node.address, "subscribe": TOPIC, "startingOffsets": "earliest"}
    found: list[int] = []
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        for turn in range(3):
            fill(client, TOPIC, 20, first=20 * turn)
            few = {**options, "maxOffsetsPerTrigger": "7"}
            archive_topics(spark, few, lake, once=True, compact_every=1).awaitTermination(180)
            files = spark.readStream.schema("value binary, topic string, date date").parquet(lake)
            stream = files.writeStream.foreachBatch(lambda batch, _: found.extend(_numbers_of(batch)))
            stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            assert stream.start().awaitTermination(180)
    assert sorted(found) == list(range(60))


def _numbers_of(batch: Any) -> list[int]:
    return _numbers([row.value for row in batch.select("value").collect()])
