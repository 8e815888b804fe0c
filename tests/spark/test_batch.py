"""`spark.read.format("rostra")`: found without registration, every column, every way to say from where to where."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

from rostra.spark.environment.session import PUSH_DOWN
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import STAMP_US, fill, read, values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.requirement("PL-1:columns")
def test_a_topic_is_read_with_all_its_columns(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        client.publish("orders", b"one", key=b"k", headers=[("h", b"1")], timestamp=STAMP_US)
        client.publish("orders", None, timestamp=STAMP_US + 1)
    frame = read(spark, rostra_node.address, subscribe="orders")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "headers"]
    one, two = frame.orderBy("offset").collect()
    assert (bytes(one.key), bytes(one.value), one.topic, one.partition, one.offset) == (b"k", b"one", "orders", 0, 1)
    assert one.timestamp.astimezone(UTC) == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert [(header.key, bytes(header.value)) for header in one.headers] == [("h", b"1")]
    assert (two.key, two.value, two.headers) == (None, None, None)


@pytest.mark.requirement("PL-1:bounds")
def test_a_read_begins_and_ends_where_it_is_told(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        fill(client, "orders", 100)

    def found(**options: str) -> list[int]:
        return values(read(spark, rostra_node.address, subscribe="orders", **options))

    assert found() == list(range(100))
    # Offset 0 holds no record: it is where the first term began.
    assert found(startingOffsets='{"orders":{"0":11}}', endingOffsets='{"orders":{"0":21}}') == list(range(10, 20))
    assert found(startingOffsets='{"orders":{"0":-2}}', endingOffsets='{"orders":{"0":-1}}') == list(range(100))
    start_ms = STAMP_US // 1000
    assert found(startingTimestamp=str(start_ms + 90)) == list(range(90, 100))
    by_partition = f'{{"orders":{{"0":{start_ms + 5}}}}}'
    assert found(endingOffsetsByTimestamp=by_partition) == list(range(5))


@pytest.mark.requirement("PL-1:topics")
def test_topics_are_chosen_by_names_pattern_or_partitions(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        for at, (topic, partitions) in enumerate([("plant/a", 2), ("plant/b", 1), ("orders", 1)]):
            client.create_topic(topic, partitions=partitions)
            for partition in range(partitions):
                fill(client, topic, 10, first=100 * at + 10 * partition, partition=partition)

    def found(**chosen: str) -> list[int]:
        return values(read(spark, rostra_node.address, columns="value", **chosen))

    assert found(subscribe="orders,plant/b") == [*range(100, 110), *range(200, 210)]
    assert found(subscribePattern="plant/#") == [*range(20), *range(100, 110)]
    assert found(assign='{"plant/a":[1]}') == list(range(10, 20))


@pytest.mark.requirement("PL-3:parallel")
def test_partitions_are_read_in_parallel_and_large_ranges_are_split(
    spark: SparkSession, rostra_node: EmbeddedNode
) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders", partitions=2)
        fill(client, "orders", 900, partition=0)
        fill(client, "orders", 100, first=900, partition=1)

    def tasks(**options: str) -> int:
        return read(spark, rostra_node.address, subscribe="orders", **options).rdd.getNumPartitions()

    assert tasks() == 2
    assert tasks(maxRecordsPerPartition="300") == 5
    frame = read(spark, rostra_node.address, subscribe="orders", minPartitions="10")
    rows = frame.select("value", F.spark_partition_id().alias("task")).collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(1000))
    assert {row.task for row in rows} == set(range(10))


@pytest.mark.requirement("PL-3:pushed-down")
def test_filters_are_pushed_down_and_find_the_same_without(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders", partitions=4)
        for partition in range(4):
            fill(client, "orders", 50, first=50 * partition, partition=partition)
    since = datetime.fromtimestamp(STAMP_US / 1e6, UTC) + timedelta(milliseconds=110)
    below = (F.col("offset") < 31) & (F.col("timestamp") >= since)
    frame = read(spark, rostra_node.address, subscribe="orders").where(
        (F.col("topic") == "orders") & F.col("partition").isin(1, 2) & below
    )

    def tasks() -> int:
        return frame.rdd.getNumPartitions()

    wanted = [*range(110, 130)]
    assert (values(frame), tasks()) == (wanted, 1)
    spark.conf.set(PUSH_DOWN, "false")
    try:
        whole = read(spark, rostra_node.address, subscribe="orders").where(F.col("partition").isin(1, 2))
        assert values(whole.where(below)) == wanted
        assert whole.rdd.getNumPartitions() == 4
    finally:
        spark.conf.set(PUSH_DOWN, "true")


def test_a_filter_that_lets_nothing_in_reads_nothing(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        fill(client, "orders", 5)
    assert values(read(spark, rostra_node.address, subscribe="orders").where("topic = 'others'")) == []


@pytest.mark.requirement("PL-5:discovers")
def test_any_node_tells_where_the_others_are_and_the_death_of_the_one_named_is_survived(
    spark: SparkSession, rostra_cluster: Cluster[EmbeddedNode]
) -> None:
    with rostra_cluster[0].client() as client:
        client.create_topic("orders", partitions=3)
        fill(client, "orders", 300)
    assert values(read(spark, rostra_cluster[2].address, subscribe="orders")) == list(range(300))
    rostra_cluster.owner("orders").kill()
    addresses = ",".join(node.address for node in rostra_cluster)
    assert values(read(spark, addresses, subscribe="orders")) == list(range(300))


# --- errors ---


def refusal(spark: SparkSession, address: str, **options: str) -> str:
    with pytest.raises(Exception) as told:
        read(spark, address, **options).collect()
    return str(told.value)


def test_a_wrong_option_is_refused_by_name(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    assert "the setting startingoffset is wrong: there is no such option" in refusal(
        spark, rostra_node.address, subscribe="a", startingOffset="1"
    )
    assert "exactly one of subscribe, subscribePattern and assign" in refusal(spark, rostra_node.address)


def test_a_topic_that_is_not_there_is_named_and_not_made(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    assert "there is no topic 'nothing'" in refusal(spark, rostra_node.address, subscribe="nothing")
    with rostra_node.client() as client:
        assert client.list_topics() == ()


def test_an_unreachable_broker_is_told_with_its_address(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    address = rostra_node.address
    rostra_node.stop()
    told = refusal(spark, address, subscribe="orders", connectTimeoutMs="300")
    assert f"no node answers at {address}" in told
    assert "rostra serve" in told


@pytest.mark.requirement("PL-6:fails")
def test_offsets_that_retention_removed_are_missed_aloud(spark: SparkSession, hasty_node: EmbeddedNode) -> None:
    from tests.spark.topics import expire

    with hasty_node.client() as client:
        last = expire(client, "orders")
    asked = {"subscribe": "orders", "startingOffsets": '{"orders":{"0":0}}'}
    assert "retention removed offsets" in refusal(spark, hasty_node.address, **asked)
    found = values(read(spark, hasty_node.address, failOnDataLoss="false", **asked))
    assert found == list(range(found[0], last + 1))
    assert found[0] > 0


def test_records_with_headers_are_found_by_a_filter(spark: SparkSession, rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        client.publish("orders", b"1", headers=[("h", b"1")])
        client.publish("orders", b"2")
    assert values(read(spark, rostra_node.address, subscribe="orders").filter("headers is not null")) == [1]


@pytest.mark.requirement("PL-1:columns")
def test_a_declared_schema_chooses_columns_and_is_refused_where_it_differs(
    spark: SparkSession, rostra_node: EmbeddedNode
) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        fill(client, "orders", 3)
    reader = spark.read.format("rostra").options(nodes=rostra_node.address, subscribe="orders")
    found = reader.schema("offset bigint, value binary").load()
    assert found.columns == ["offset", "value"] and values(found) == [0, 1, 2]
    for schema, told in (("value string", "column value is binary, not string"), ("price int", "no column price")):
        with pytest.raises(Exception, match=told):
            reader.schema(schema).load().collect()
