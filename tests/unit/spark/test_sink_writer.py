"""The sink's writers without Spark: what tasks stage, what a commit publishes, what options are refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

import rostra.testing
from rostra.client.core.producer.partitioner import partition_of
from rostra.errors import InvalidSetting, SinkInUse
from rostra.model.decode import Batch, Record
from rostra.spark.sink.options import WriteOptions, parse_options
from rostra.spark.sink.partitioned_batches import ENCODED_BYTES_MAX, PartitionedBatches
from rostra.spark.sink.writer import BATCH_ID, QUERY_ID, RostraBatchWriter, RostraStreamWriter
from rostra.spark.source.data_source import RostraSource
from rostra.testing.embedded import EmbeddedNode

NODES = ("127.0.0.1:7400",)


def rows(*values: str, keys: list[bytes | None] | None = None) -> Iterator[pa.RecordBatch]:
    columns = {"value": pa.array(values)}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return iter([pa.record_batch(columns)])


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with rostra.testing.node(fsync="never") as found:
        yield found


def stored(node: EmbeddedNode, topic: str) -> list[Record]:
    with node.client() as client:
        count = sum(state.commit for state in client.describe_topic(topic).partitions)
        found: list[Record] = []
        with client.subscribe(topic, start="earliest") as subscription:
            while sum(subscription.positions.values()) < count:
                batch = subscription.poll(5.0)
                assert batch is not None, "the topic has more"
                found += batch.records()
    return found


def values(node: EmbeddedNode, topic: str) -> list[bytes]:
    return sorted(record.value or b"" for record in stored(node, topic))


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What Spark tells a task of a stream."""
    properties = {QUERY_ID: "query", BATCH_ID: "0"}
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 5, getLocalProperty=properties.get)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    return properties


def options(node: EmbeddedNode, **more: object) -> WriteOptions:
    return WriteOptions((node.address,), **more)  # type: ignore[arg-type]


def test_rows_of_a_stream_are_visible_once_after_the_commit(node: EmbeddedNode, in_task: dict[str, str]) -> None:
    with node.client() as client:
        client.create_topic("stream", partitions=2)
    writer = RostraStreamWriter(options(node, topic="stream", txn_id="stream"))
    first = writer.write(rows("a", "b", "c", keys=[b"1", b"2", None]))
    lost = writer.write(rows("a", "b", "c", keys=[b"1", b"2", None]))
    empty = writer.write(iter([]))
    assert values(node, "stream") == []
    # Spark pickles writers and messages, and commits on a writer that was built anew.
    messages = pickle.loads(pickle.dumps([first, empty]))  # noqa: S301
    anew: RostraStreamWriter = pickle.loads(pickle.dumps(writer))  # noqa: S301
    anew.commit(messages, 0)
    assert values(node, "stream") == [b"a", b"b", b"c"]
    anew.abort(messages, 0)
    anew.commit([lost], 0)
    assert values(node, "stream") == [b"a", b"b", b"c"]
    for record in stored(node, "stream"):
        if record.key is not None:
            assert record.partition == partition_of(record.key, 2)
    in_task[BATCH_ID] = "1"
    writer.commit([writer.write(rows("d"))], 1)
    assert values(node, "stream") == [b"a", b"b", b"c", b"d"]


def test_a_batch_without_rows_counts(node: EmbeddedNode, in_task: dict[str, str]) -> None:
    with node.client() as client:
        client.create_topic("sparse")
    writer = RostraStreamWriter(options(node, topic="sparse", txn_id="sparse"))
    for batch in ("0", "1", "2"):
        in_task[BATCH_ID] = batch
        writer.commit([writer.write(rows(batch) if batch == "2" else iter([]))], int(batch))
    assert values(node, "sparse") == [b"2"]


def test_a_new_checkpoint_under_an_old_name_is_refused(node: EmbeddedNode, in_task: dict[str, str]) -> None:
    with node.client() as client:
        client.create_topic("renamed")
    writer = RostraStreamWriter(options(node, topic="renamed", txn_id="renamed"))
    writer.commit([writer.write(rows("old"))], 0)
    in_task[QUERY_ID] = "another query"
    with pytest.raises(SinkInUse, match="txnId"):
        writer.commit([writer.write(iter([]))], 0)


def test_without_the_properties_of_spark_a_task_fails(node: EmbeddedNode, in_task: dict[str, str]) -> None:
    del in_task[QUERY_ID]
    with pytest.raises(InvalidSetting):
        RostraStreamWriter(options(node, topic="any")).write(rows("a"))


def test_a_batch_write_is_a_query_of_its_own_unless_it_is_named(node: EmbeddedNode) -> None:
    with node.client() as client:
        client.create_topic("batch")
    for _ in range(2):
        writer = RostraBatchWriter(options(node, topic="batch"))
        writer.commit([writer.write(rows("each time"))])
    for _ in range(2):
        named = RostraBatchWriter(options(node, topic="batch", txn_id="nightly", txn_version=9))
        named.commit([named.write(rows("once"))])
    assert values(node, "batch") == [b"each time", b"each time", b"once"]


def test_at_least_once_publishes_in_the_task(in_task: dict[str, str]) -> None:
    with rostra.testing.node(fabric="flood", fsync="never") as node:
        with node.client() as client:
            client.create_topic("out")
        refused = RostraStreamWriter(options(node, topic="out"))
        with pytest.raises(InvalidSetting, match="atLeastOnce"):
            refused.commit([refused.write(iter([]))], 0)
        writer = RostraStreamWriter(options(node, topic="out", at_least_once=True))
        message = writer.write(rows("a", "b"))
        writer.commit([message], 0)
        assert values(node, "out") == [b"a", b"b"]


def test_columns_become_fields_of_records() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    headers = pa.array(
        [[{"key": "n", "value": b"1"}], None],
        pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    )
    given = pa.record_batch(
        {
            "value": pa.array(["a", None]),
            "key": pa.array([None, "k"]),
            "timestamp": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "headers": headers,
            "topic": pa.array(["one", "two"]),
            "partition": pa.array([2, None], pa.int32()),
        }
    )
    chosen = WriteOptions(NODES, partitioner="column")
    found = dict(PartitionedBatches(chosen, lambda _: 3, 0).all_of(iter([given])))
    assert found.keys() == {("one", 2), ("two", partition_of(b"k", 3))}
    (first,) = Batch(found["one", 2]).records("one", 2)
    assert (first.value, first.key, first.headers) == (b"a", None, (("n", b"1"),))
    assert first.timestamp_us == round(moment.timestamp() * 1_000_000)
    (second,) = Batch(found["two", partition_of(b"k", 3)]).records("two", 0)
    assert (second.value, second.key, second.headers) == (None, b"k", ())
    assert second.timestamp_us > first.timestamp_us


def test_large_rows_are_split_into_batches_that_nodes_accept() -> None:
    given = pa.record_batch({"value": pa.array([bytes(1 << 20)] * 9)})
    batches = PartitionedBatches(WriteOptions(NODES, topic="t"), lambda _: 1, 0).all_of(iter([given]))
    sizes = [(len(batch), Batch(batch).count) for _, batch in batches]
    assert max(size for size, _ in sizes) <= ENCODED_BYTES_MAX
    assert sum(count for _, count in sizes) == 9


@pytest.mark.parametrize(
    ("given", "columns", "named"),
    [
        ({"topic": "t", "speed": "1"}, ("value",), "speed"),
        ({}, ("value",), "topic"),
        ({"topic": "t"}, ("key",), "columns"),
        ({"topic": "t"}, ("value", "colour"), "columns"),
        ({"topic": "t", "partitioner": "column"}, ("value",), "partitioner"),
        ({"topic": "t", "partitioner": "dice"}, ("value",), "partitioner"),
        ({"topic": "t", "txnVersion": "1"}, ("value",), "txnVersion"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], columns: tuple[str, ...], named: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse_options(given, columns, streaming=False)
    assert refused.value.setting == named


def test_option_names_arrive_in_lower_case() -> None:
    given = {"topic": "t", "txnid": "n", "atleastonce": "true", "checkpointlocation": "/somewhere"}
    parsed = parse_options(given, ("value",), streaming=True)
    assert (parsed.txn_id, parsed.at_least_once) == ("n", True)


def test_a_topic_cannot_be_overwritten() -> None:
    schema = StructType([StructField("value", BinaryType()), StructField("topic", StringType())])
    with pytest.raises(InvalidSetting, match="append"):
        RostraSource({}).writer(schema, True)
