"""`df.write.format("rostra")` and `writeStream`: every row once, however tasks, drivers and nodes fail."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

import rostra.testing
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import fill, read, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def written(frame: DataFrame, address: str, **options: str) -> None:
    frame.write.format("rostra").mode("append").options(nodes=address, **options).save()


def stream(frame: DataFrame, address: str, place: Path, **options: str) -> Any:
    query = (
        frame.writeStream.format("rostra")
        .options(nodes=address, checkpointLocation=str(place), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300), "the query did not end"
    return query


def stored(spark: SparkSession, address: str, topic: str) -> Counter[bytes]:
    rows = read(spark, address, subscribe=topic).select("value").collect()
    return Counter(bytes(row.value) for row in rows)


def numbers(count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(count))


@pytest.mark.requirement("PL-4:batch")
def test_a_batch_write_appears_once_with_its_columns(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    address = rostra_node.address
    with rostra_node.client() as client:
        client.create_topic("out", partitions=3)
    frame = spark.range(1000).select(
        f.col("id").cast("string").alias("value"),
        (f.col("id") % 7).cast("string").cast("binary").alias("key"),
        f.timestamp_micros(f.col("id") + 1_700_000_000_000_000).alias("timestamp"),
        f.array(f.struct(f.lit("n").alias("key"), f.col("id").cast("string").cast("binary").alias("value"))).alias(
            "headers"
        ),
    )
    written(frame, address, topic="out")
    assert stored(spark, address, "out") == numbers(1000)
    rows = read(spark, address, subscribe="out").collect()
    partitions: dict[bytes, set[int]] = {}
    for row in rows:
        number = int(bytes(row.value))
        assert (bytes(row.key), row.headers[0].key, bytes(row.headers[0].value)) == (
            b"%d" % (number % 7),
            "n",
            b"%d" % number,
        )
        assert row.timestamp.microsecond == number
        partitions.setdefault(bytes(row.key), set()).add(row.partition)
    assert all(len(found) == 1 for found in partitions.values())


@pytest.mark.requirement("PL-4:batch")
def test_a_rerun_with_the_same_txn_id_and_version_writes_nothing(
    spark: SparkSession, rostra_node: EmbeddedNode
) -> None:
    address = rostra_node.address
    with rostra_node.client() as client:
        client.create_topic("out", partitions=2)
    frame = spark.range(50).select(
        f.col("id").cast("string").alias("value"), f.lit("out").alias("topic"), f.lit(1).alias("partition")
    )
    for _ in range(2):
        written(frame, address, txnId="nightly", txnVersion="3")
    assert stored(spark, address, "out") == numbers(50)
    assert {row.partition for row in read(spark, address, subscribe="out").collect()} == {1}
    written(frame, address, txnId="nightly", txnVersion="4")
    assert sum(stored(spark, address, "out").values()) == 100


@pytest.mark.requirement("PL-4:stream")
def test_a_stream_writes_each_record_once_across_restarts(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    """Also pins the properties by which a task learns its query and batch: without them every write fails."""
    address = rostra_node.address
    with rostra_node.client() as client:
        client.create_topic("in", partitions=2)
        client.create_topic("out", partitions=2)
        for rounds in (1, 2):
            fill(client, "in", 500, first=500 * (rounds - 1))
            frame = read_stream(
                spark, address, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger="200"
            ).select("key", "value")
            stream(frame, address, tmp_path / "checkpoint", topic="out")
            assert stored(spark, address, "out") == numbers(500 * rounds)


@pytest.mark.requirement("PL-4:faults")
def test_a_worker_that_is_killed_while_it_writes_leaves_no_duplicate(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    address, mark = rostra_node.address, tmp_path / "killed"
    with rostra_node.client() as client:
        client.create_topic("in")
        client.create_topic("out", partitions=2)
        fill(client, "in", 400)
    frame = read_stream(spark, address, subscribe="in", startingOffsets="earliest").select("value")
    with pytest.raises(PySparkException):
        stream(frame.select(killing(mark)("value").alias("value")), address, tmp_path / "checkpoint", topic="out")
    assert mark.exists()
    stream(frame, address, tmp_path / "checkpoint", topic="out")
    assert stored(spark, address, "out") == numbers(400)


def killing(mark: Path) -> Any:
    """A function of values that kills its worker once, in the middle of the rows."""

    def kill(value: bytes) -> bytes:
        if bytes(value) == b"300" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(value)

    return f.udf(kill, "binary")


@pytest.mark.requirement("PL-4:faults")
def test_a_driver_that_dies_around_its_commit_writes_the_batch_once(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = rostra_node.address
    with rostra_node.client() as client:
        client.create_topic("in")
        client.create_topic("out", partitions=2)
        fill(client, "in", 300)
    frame = read_stream(spark, address, subscribe="in", startingOffsets="earliest").select("value")
    checkpoint = tmp_path / "checkpoint"
    stream(frame, address, checkpoint, topic="out")
    # As if the driver had died after the decision, before it could note it: the batch is written and committed again.
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for trace in (commits[-1], checkpoint / "commits" / f".{commits[-1].name}.crc"):
        trace.unlink(missing_ok=True)
    stream(frame, address, checkpoint, topic="out")
    assert stored(spark, address, "out") == numbers(300)


@pytest.mark.requirement("PL-4:stream")
def test_a_new_checkpoint_under_an_old_txn_id_is_refused(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    address = rostra_node.address
    with rostra_node.client() as client:
        client.create_topic("in")
        client.create_topic("out")
        fill(client, "in", 20)
    frame = read_stream(spark, address, subscribe="in", startingOffsets="earliest").select("value")
    stream(frame, address, tmp_path / "old", topic="out", txnId="orders")
    with pytest.raises(PySparkException, match="txnId"):
        stream(frame, address, tmp_path / "new", topic="out", txnId="orders")
    assert stored(spark, address, "out") == numbers(20)


@pytest.mark.requirement("PL-4:refuses")
def test_a_fabric_without_exactly_once_refuses_unless_at_least_once_is_asked_for(spark: SparkSession) -> None:
    frame = spark.range(30).select(f.col("id").cast("string").alias("value"))
    with rostra.testing.node(fabric="flood", fsync="never") as node:
        with node.client() as client:
            client.create_topic("out")
            client.publish("out", b"first")
        with pytest.raises(PySparkException, match="atLeastOnce"):
            written(frame, node.address, topic="out")
        written(frame, node.address, topic="out", atLeastOnce="true")
        assert stored(spark, node.address, "out") == numbers(30) + Counter([b"first"])
