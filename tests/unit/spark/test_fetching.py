"""What a task hands to Spark: the committed records of its offsets, as Arrow, from a real node."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from rostra.blocking import Client
from rostra.errors import RecordsExpired, TopicDeleted, TopicRecreated, UnknownTopic
from rostra.spark.source.cluster_connection import ClusterConnection
from rostra.spark.source.columns import schema_of
from rostra.spark.source.data_source import spark_schema
from rostra.spark.source.fetch import fetch
from rostra.spark.source.options import COLUMNS, ReadOptions, parse_options
from rostra.spark.source.plan import Span
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode

STAMP_US = 1_700_000_000_000_000


def options(node: EmbeddedNode, **further: str) -> ReadOptions:
    given = {"nodes": node.address, "subscribe": "orders", **further}
    return parse_options(given, streaming=False)


def publish(client: Client, count: int, first: int = 0, topic: str = "orders") -> None:
    with client.producer(topic, batch_bytes=2_000) as producer:
        for n in range(first, first + count):
            producer.send(b"%d" % n, key=b"k%d" % (n % 3), timestamp=STAMP_US + n)


def span_of(client: Client, topic: str = "orders", partition: int = 0) -> Span:
    described = client.describe_topic(topic)
    state = described.partitions[partition]
    return Span(topic, described.topic, partition, state.first, state.commit)


def table(client: Client, span: Span, asked: ReadOptions) -> pa.Table:
    return pa.Table.from_batches(list(fetch(client, span, asked)), schema_of(asked.columns))


def test_the_arrow_types_are_those_that_spark_demands() -> None:
    assert to_arrow_schema(spark_schema(COLUMNS), timezone="UTC").equals(schema_of())


@pytest.mark.requirement("PL-1:columns")
def test_every_column_says_what_was_published(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        client.publish("orders", b"one", key=b"k", headers=[("h", b"1"), ("g", b"2")], timestamp=STAMP_US)
        client.publish("orders", None, timestamp=STAMP_US + 1)
        client.publish("orders", b"three", headers=[("i", b"")], timestamp=STAMP_US + 2)
        rows = table(client, span_of(client), options(rostra_node)).to_pylist()
    assert [row["offset"] for row in rows] == [1, 2, 3]
    assert [(row["key"], row["value"], row["topic"], row["partition"]) for row in rows] == [
        (b"k", b"one", "orders", 0),
        (None, None, "orders", 0),
        (None, b"three", "orders", 0),
    ]
    assert [int(row["timestamp"].timestamp()) for row in rows] == [STAMP_US // 1_000_000] * 3
    assert [row["headers"] for row in rows] == [
        [{"key": "h", "value": b"1"}, {"key": "g", "value": b"2"}],
        None,
        [{"key": "i", "value": b""}],
    ]


def test_headers_are_whole_though_the_span_begins_inside_a_batch(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        with client.producer("orders") as producer:
            for n in range(20):
                producer.send(b"%d" % n, headers=[("n", b"%d" % n)] if n % 3 else ())
        whole = span_of(client)
        part = Span(whole.topic, whole.topic_id, 0, whole.end - 13, whole.end - 4)
        rows = table(client, part, options(rostra_node, columns="value,headers")).to_pylist()
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(7, 16)]
    assert [row["headers"] for row in rows] == [
        [{"key": "n", "value": b"%d" % n}] if n % 3 else None for n in range(7, 16)
    ]


def test_spans_that_cut_through_batches_give_each_record_once(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        publish(client, 1000)
        whole = span_of(client)
        cuts = [whole.first, 7, 8, 300, 999, whole.end]
        values: list[Any] = []
        for first, end in pairwise(cuts):
            part = Span(whole.topic, whole.topic_id, 0, first, end)
            found = table(client, part, options(rostra_node, columns="offset,value"))
            assert all(first <= offset < end for offset in found["offset"].to_pylist())
            values += found["value"].to_pylist()
    assert values == [b"%d" % n for n in range(1000)]


def test_small_batches_are_put_together(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        for n in range(50):
            client.publish("orders", b"%d" % n)
        batches = list(fetch(client, span_of(client), options(rostra_node)))
    assert [len(batch) for batch in batches] == [50]


def test_a_span_that_ends_with_no_record_ends(rostra_cluster: Cluster[EmbeddedNode]) -> None:
    with rostra_cluster[0].client() as client:
        client.create_topic("orders")
        publish(client, 3)
        before = span_of(client).end
    rostra_cluster.owner("orders").kill()
    node = rostra_cluster.running()[0]
    with node.client() as client:
        # A new owner begins with an entry of its own, which takes an offset and is no record.
        rostra_cluster.wait_until(lambda: span_of(client).end > before, "a new owner of orders/0 has begun")
        found = table(client, span_of(client), options(node))
    assert found["value"].to_pylist() == [b"0", b"1", b"2"]


def expire(client: Client) -> Span:
    """A topic of which retention has removed the beginning; the span of all there ever was."""
    client.create_topic("orders", retention_bytes=4_096, segment_bytes=4_096)
    asked = client.describe_topic("orders").topic
    sent = 0
    while client.describe_topic("orders").partitions[0].first == 0:
        publish(client, 200, sent)
        sent += 200
    return Span("orders", asked, 0, 0, client.describe_topic("orders").partitions[0].commit)


@pytest.fixture
def hasty_node(tmp_path: Any) -> Any:
    import rostra.testing
    from rostra.broker.settings import BrokerSettings

    limits = BrokerSettings(retention_check_ms=20)
    with rostra.testing.node(directory=tmp_path / "rostra", fsync="never", limits=limits) as node:
        yield node


@pytest.mark.requirement("PL-6:fails")
def test_records_that_retention_removed_are_missed_aloud(hasty_node: EmbeddedNode) -> None:
    with hasty_node.client() as client:
        span = expire(client)
        with pytest.raises(RecordsExpired, match="retention removed offsets"):
            table(client, span, options(hasty_node))


@pytest.mark.requirement("PL-6:counted")
def test_a_loss_that_is_allowed_is_counted_and_the_rest_is_read(
    hasty_node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    with hasty_node.client() as client:
        span = expire(client)
        found = table(client, span, options(hasty_node, failOnDataLoss="false"))
        first = client.describe_topic("orders").partitions[0].first
    values = [int(value) for value in found["value"].to_pylist()]
    assert values == list(range(values[0], values[-1] + 1))
    told = [record.getMessage() for record in caplog.records if record.name == "rostra.spark"]
    assert any(line.startswith("up to ") and "lost to retention" in line for line in told)
    assert 0 < found["offset"].to_pylist()[0] <= first + 1


def test_a_deleted_topic_and_its_namesake_are_not_what_was_planned_for(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("orders")
        publish(client, 10)
        span = span_of(client)
        client.delete_topic("orders")
        with pytest.raises(TopicDeleted):
            table(client, span, options(rostra_node))
        client.create_topic("orders")
        publish(client, 10)
        with pytest.raises(TopicRecreated):
            table(client, span, options(rostra_node))


def test_topics_are_found_by_name_pattern_and_partition_and_times_in_them(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        client.create_topic("plant/a", partitions=2)
        client.create_topic("plant/b")
        client.create_topic("orders")
        publish(client, 100)

        def places(**chosen: str) -> list[tuple[str, int]]:
            cluster = ClusterConnection(parse_options({"nodes": rostra_node.address, **chosen}, streaming=False))
            try:
                return sorted(cluster.available().extents)
            finally:
                cluster.close()

        assert places(subscribe="orders,plant/b") == [("orders", 0), ("plant/b", 0)]
        assert places(subscribePattern="plant/+") == [("plant/a", 0), ("plant/a", 1), ("plant/b", 0)]
        assert places(assign='{"plant/a":[1]}') == [("plant/a", 1)]
        with pytest.raises(UnknownTopic):
            places(subscribe="nothing")
        cluster = ClusterConnection(options(rostra_node))
        first = cluster.available().extents["orders", 0]
        assert cluster.at_time(("orders", 0), STAMP_US + 40) == 41
        assert cluster.at_time(("orders", 0), 0) == 1
        assert cluster.at_time(("orders", 0), STAMP_US + 1000) == first.end
        assert rostra_node.address in cluster.addresses()
        cluster.close()
