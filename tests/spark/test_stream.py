"""`spark.readStream.format("rostra")`: each record in one batch, the same batches after a restart, losses aloud."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from rostra.spark.source.options import parse_options
from rostra.spark.source.stream_reader import RostraStreamReader
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import fill, read_stream, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches = dict[int, list[int]]


def run(frame: DataFrame, place: Path, take: Callable[[DataFrame, int], None], *, patience_s: int = 180) -> Any:
    """All that is there now, from the checkpoint of that place on."""
    query = (
        frame.writeStream.foreachBatch(take).option("checkpointLocation", str(place)).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(patience_s), "the query did not end"
    return query


def into(batches: Batches) -> Callable[[DataFrame, int], None]:
    def take(frame: DataFrame, number: int) -> None:
        batches[number] = values(frame)

    return take


@pytest.mark.requirement("PL-2:sized")
def test_what_is_there_is_read_in_batches_of_the_size_that_was_asked_for_and_once(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders", partitions=2)
        fill(client, "orders", 1000)
        frame = read_stream(
            spark, rostra_node.address, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="300"
        )
        batches: Batches = {}
        query = run(frame, tmp_path / "checkpoint", into(batches))
        assert sorted(n for found in batches.values() for n in found) == list(range(1000))
        # Two of the offsets are no records: each partition begins with a term.
        assert [len(found) for found in batches.values()][1:3] == [300, 300]
        assert max(len(found) for found in batches.values()) <= 300
        assert query.lastProgress.sources[0].latestOffset is not None

        fill(client, "orders", 50, first=1000)
        more: Batches = {}
        run(frame, tmp_path / "checkpoint", into(more))
        assert [n for found in more.values() for n in found] == list(range(1000, 1050))
        assert min(more) == max(batches) + 1


class Broken(Exception):
    """Something that goes wrong in the middle of a query."""


@pytest.mark.requirement("PL-2:repeats")
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_batch_that_failed_is_read_again_as_it_was_though_more_has_come(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path, starting: str
) -> None:
    """The very first batch too, for which Spark asks anew where `latest` is."""
    with rostra_node.client() as client:
        client.create_topic("orders")
        fill(client, "orders", 100)
        frame = read_stream(spark, rostra_node.address, subscribe="orders", startingOffsets=starting)
        first: Batches = {}

        def fails(batch: DataFrame, number: int) -> None:
            first[number] = values(batch)
            # At the latest there may be nothing yet: that batch is done, and the next one fails.
            if first[number]:
                raise Broken

        query = (
            frame.writeStream.foreachBatch(fails)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        publisher = threading.Thread(target=lambda: _keep_filling(client, query))
        publisher.start()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(180)
        publisher.join()
        second: Batches = {}
        run(frame, tmp_path / "checkpoint", into(second))
    failed = max(first)
    assert first[failed] and second[failed] == first[failed]
    rest = [n for number, found in second.items() if number > failed for n in found]
    assert rest == list(range(first[failed][-1] + 1, rest[-1] + 1))


def _keep_filling(client: Any, query: Any) -> None:
    sent = 100
    while query.isActive:
        fill(client, "orders", 10, first=sent)
        sent += 10


@pytest.mark.requirement("PL-5:discovers", "PL-5:survives")
def test_the_death_of_an_owner_during_a_query_costs_no_record(
    spark: SparkSession, rostra_cluster: Cluster[EmbeddedNode], tmp_path: Path
) -> None:
    with rostra_cluster[0].client() as client:
        client.create_topic("orders", partitions=2)
        fill(client, "orders", 600)
    frame = read_stream(
        spark, rostra_cluster[1].address, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="200"
    )
    batches: Batches = {}
    killed: list[str] = []

    def take(batch: DataFrame, number: int) -> None:
        if number == 1:
            owner = rostra_cluster.owner("orders")
            killed.append(owner.address)
            owner.kill()
        batches[number] = values(batch)

    run(frame, tmp_path / "checkpoint", take)
    assert killed
    assert sorted(n for found in batches.values() for n in found) == list(range(600))


def test_topics_that_are_made_during_a_query_are_picked_up(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    with rostra_node.client() as client:
        client.create_topic("plant/a")
        fill(client, "plant/a", 10)
        frame = read_stream(spark, rostra_node.address, subscribePattern="plant/+", startingOffsets="earliest")
        batches: Batches = {}
        run(frame, tmp_path / "checkpoint", into(batches))
        client.create_topic("plant/b", partitions=2)
        fill(client, "plant/b", 10, first=100)
        run(frame, tmp_path / "checkpoint", into(batches))
    assert list(batches.values()) == [list(range(10)), list(range(100, 110))]


# --- losses ---


def failure(frame: DataFrame, place: Path) -> str:
    with pytest.raises(StreamingQueryException) as told:
        run(frame, place, into({}))
    return str(told.value)


def test_a_topic_that_was_deleted_or_made_again_ends_the_query_unless_loss_is_allowed(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    with rostra_node.client() as client:
        for topic in ("plant/a", "plant/b"):
            client.create_topic(topic)
            fill(client, topic, 10)
        chosen = {"subscribePattern": "plant/+", "startingOffsets": "earliest"}
        frame = read_stream(spark, rostra_node.address, **chosen)
        run(frame, tmp_path / "checkpoint", into({}))
        client.delete_topic("plant/a")
        assert "topic 'plant/a' was deleted" in failure(frame, tmp_path / "checkpoint")
        client.create_topic("plant/a")
        fill(client, "plant/a", 5, first=70)
        assert "topic 'plant/a' was deleted and created again" in failure(frame, tmp_path / "checkpoint")
        batches: Batches = {}
        tolerant = read_stream(spark, rostra_node.address, failOnDataLoss="false", **chosen)
        run(tolerant, tmp_path / "checkpoint", into(batches))
    assert list(batches.values()) == [list(range(70, 75))]


@pytest.mark.requirement("PL-2:loss", "PL-6:fails")
def test_records_that_expire_before_they_are_read_end_the_query_unless_loss_is_allowed(
    spark: SparkSession, hasty_node: EmbeddedNode, tmp_path: Path
) -> None:
    chosen = {"subscribe": "orders", "startingOffsets": "earliest"}
    with hasty_node.client() as client:
        client.create_topic("orders", retention_bytes=4_096, segment_bytes=4_096)
        fill(client, "orders", 10)
        frame = read_stream(spark, hasty_node.address, **chosen)
        run(frame, tmp_path / "checkpoint", into({}))
        reached, sent = 10, 10
        while client.describe_topic("orders").partitions[0].first <= reached + 20:
            fill(client, "orders", 200, first=sent)
            sent += 200
        assert "retention removed offsets" in failure(frame, tmp_path / "checkpoint")
        batches: Batches = {}
        tolerant = read_stream(spark, hasty_node.address, failOnDataLoss="false", **chosen)
        run(tolerant, tmp_path / "checkpoint", into(batches))
    found = [n for batch in batches.values() for n in batch]
    assert found == list(range(found[0], sent))
    assert found[0] > 10


@pytest.mark.requirement("PL-6:fails")
def test_more_partitions_than_at_the_checkpoint_are_read_from_their_first_record_or_missed_aloud(
    spark: SparkSession, hasty_node: EmbeddedNode, tmp_path: Path
) -> None:
    def partitions(*numbers: int) -> DataFrame:
        chosen = json.dumps({"orders": numbers})
        return read_stream(spark, hasty_node.address, assign=chosen, startingOffsets="earliest")

    with hasty_node.client() as client:
        client.create_topic("orders", partitions=3, retention_bytes=4_096, segment_bytes=4_096)
        fill(client, "orders", 10, partition=0)
        batches: Batches = {}
        run(partitions(0), tmp_path / "checkpoint", into(batches))
        fill(client, "orders", 10, first=100, partition=1)
        run(partitions(0, 1), tmp_path / "checkpoint", into(batches))
        assert list(batches.values()) == [list(range(10)), list(range(100, 110))]
        sent = 200
        while not client.describe_topic("orders").partitions[2].first:
            fill(client, "orders", 200, first=sent, partition=2)
            sent += 200
        told = failure(partitions(0, 1, 2), tmp_path / "checkpoint")
    assert "orders/2" in told and "retention removed offsets" in told


def test_a_wrong_option_and_an_unreachable_broker_are_told(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    ending = read_stream(spark, rostra_node.address, subscribe="orders", endingOffsets="latest")
    assert "a stream has no end" in failure(ending, tmp_path / "one")
    address = rostra_node.address
    rostra_node.stop()
    away = read_stream(spark, address, subscribe="orders", connectTimeoutMs="300")
    assert f"no node answers at {address}" in failure(away, tmp_path / "two")


def test_a_batch_waits_for_a_number_of_offsets_but_not_longer_than_it_may(rostra_node: EmbeddedNode) -> None:
    def reader(delay: str) -> RostraStreamReader:
        options = {"nodes": rostra_node.address, "subscribe": "orders", "startingOffsets": "earliest"}
        waiting = {"minOffsetsPerTrigger": "50", "maxTriggerDelay": delay}
        return RostraStreamReader(parse_options({**options, **waiting}, streaming=True))

    patient, hasty = reader("1h"), reader("0ms")
    with rostra_node.client() as client:
        client.create_topic("orders")
        fill(client, "orders", 10)
        first = patient.latestOffset(patient.initialOffset(), ReadAllAvailable())
        assert first != patient.initialOffset(), "the first batch waits for nothing"
        fill(client, "orders", 10, first=10)
        assert patient.latestOffset(first, ReadAllAvailable()) == first
        assert hasty.latestOffset(hasty.latestOffset(first, ReadAllAvailable()), ReadAllAvailable()) != first
        fill(client, "orders", 40, first=20)
        second = patient.latestOffset(first, ReadAllAvailable())
        assert second != first
        fill(client, "orders", 1, first=60)
        assert patient.latestOffset(second, ReadAllAvailable()) == second
        patient.prepareForTriggerAvailableNow()
        assert patient.latestOffset(second, ReadAllAvailable()) != second, "what is to end does not wait"
    patient.stop()
    hasty.stop()
