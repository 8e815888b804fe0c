"""Retention, compaction and altered settings of a topic."""

from __future__ import annotations

import pytest

from rostra.client.core.options import Offset
from rostra.errors import InvalidSetting, Moved, OffsetOutOfRange, Unavailable
from rostra.model.encode import encode
from rostra.wire.messages import Failed, Publish, Published
from tests.contract.facade import Cluster, NodeReply
from tests.contract.guarantees import ONE_SET_OF_TOPICS, ORDERS_PARTITIONS, proves

PRODUCER = 99


def first_of(cluster: Cluster, topic: str) -> int:
    placed = cluster.placed(topic, at=cluster.running[0])
    return 0 if placed is None else placed.first


def fill(cluster: Cluster, topic: str, beyond: int) -> None:
    """Publishes until retention has removed everything below an offset."""
    producer = cluster.producer(topic, at=cluster.running[0])

    def trimmed() -> bool:
        if producer.settled:
            producer.send(*(bytes(300) + b"%d" % (len(producer.sent) + at) for at in range(20)))
        return first_of(cluster, topic) > beyond

    cluster.run_until(trimmed, f"retention to pass {beyond}")
    cluster.run_until(lambda: producer.settled, "all of it to be settled")


def repeated(cluster: Cluster, topic: int, sequence: int) -> NodeReply:
    """The owner's reply to a record that may have been sent before; retried while ownership moves."""
    batch = bytes(encode([b"once"], timestamp_us=1, producer=PRODUCER, producer_epoch=1, sequence=sequence))
    answers: list[NodeReply] = []

    def settled() -> bool:
        answers.append(cluster.request_node(cluster.owner("t"), Publish(7, topic, 0, "all"), batch))
        return not isinstance(answers[-1], Failed) or answers[-1].code not in (Unavailable.__name__, Moved.__name__)

    cluster.run_until(settled, "an owner to answer")
    return answers[-1]


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-5:stored-once")
def test_retention_of_all_but_the_last_segment_loses_no_producer_sequence(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", retention_bytes=1, segment_bytes=4096)
    producer = cluster.producer("t", at=cluster.running[0])
    producer.send(b"early")
    cluster.run_until(lambda: producer.settled, "the first record")
    stored = [repeated(cluster, topic.topic, sequence) for sequence in range(2)]
    assert all(isinstance(answer, Published) for answer in stored), stored
    fill(cluster, "t", beyond=10)
    cluster.cut_power()
    cluster.restart(*range(cluster.count))
    again = repeated(cluster, topic.topic, 1)
    assert isinstance(again, Published) and isinstance(stored[1], Published), again
    assert again.offset in (stored[1].offset, -1), "a record stored long ago is not stored again"
    producer.send(b"late")
    cluster.run_until(lambda: producer.settled, "the last record")
    assert not producer.failed and not producer.warnings, "its client does not notice"


@proves(ONE_SET_OF_TOPICS)
@pytest.mark.requirement("CM-3:retention-size")
def test_altered_settings_are_visible_at_all_nodes_and_apply_to_stored_records(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2, segment_bytes=4096)
    nodes = cluster.running
    for _ in range(6):
        cluster.publish("t", *(bytes(600) for _ in range(6)), at=nodes[0], partition=0)
    with pytest.raises(InvalidSetting):
        cluster.alter_topic("t", at=nodes[-1], partitions=3)
    altered = cluster.alter_topic("t", at=nodes[-1], retention_bytes=5_000)
    assert (altered.settings.retention_bytes, altered.settings.partitions) == (5_000, 2)
    assert [cluster.settings("t", at=node) for node in nodes] == [altered.settings] * len(nodes)
    cluster.run_until(lambda: first_of(cluster, "t") > 0, "retention to begin")
    cluster.publish("t", b"last", at=nodes[0], partition=0)


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-1:gaps", "CM-3:compaction")
def test_of_a_compacted_topic_the_latest_record_of_each_key_stays_at_its_offset(cluster: Cluster) -> None:
    cluster.create_topic("t", segment_bytes=4096, compaction=True)
    node = cluster.running[0]
    places: dict[bytes, tuple[int, bytes]] = {}
    (gone,) = cluster.publish("t", b"begun", at=node, key=b"deleted")
    for number in range(12):
        for key in (b"a", b"b", b"c"):
            value = bytes(400) + b"%b-%d" % (key, number)
            (ack,) = cluster.publish("t", value, at=node, key=key)
            places[key] = ack.offset, value
    (deleted,) = cluster.publish("t", None, at=node, key=b"deleted")

    def compacted() -> bool:
        # Publishing goes on, so that the records end up in closed segments.
        cluster.publish("t", bytes(1500), at=node, key=b"last")
        return cluster.read_from("t", at=node)[0].offset >= places[b"a"][0]

    cluster.run_until(compacted, "what was replaced to go")
    for other in cluster.running:
        got = cluster.read_from("t", at=other)
        table = {record.offset: record.value for record in got}
        assert all(table[offset] == value for offset, value in places.values())
        assert table.get(deleted.offset, b"") is None, "a tombstone is kept for a day"
        offsets = [record.offset for record in got]
        assert offsets == sorted(set(offsets)), "a reader only sees gaps"
    assert gone.offset not in {record.offset for record in cluster.read_from("t", at=node)}
    cluster.cut_power()
    cluster.restart(*range(cluster.count))
    node = cluster.running[0]
    table = {record.offset: record.value for record in cluster.read_from("t", at=node)}
    assert all(table[offset] == value for offset, value in places.values())
    cluster.await_equal_copies("t", count=cluster.copies_by_default)


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-1:gaps")
def test_a_start_below_the_log_start_is_refused_with_the_log_start(cluster: Cluster) -> None:
    cluster.create_topic("t", retention_bytes=1, segment_bytes=4096)
    fill(cluster, "t", beyond=10)
    node = cluster.running[0]
    with pytest.raises(OffsetOutOfRange) as refused:
        cluster.subscribe("t", at=node, start=Offset(3))
    assert refused.value.offset == 3
    assert 10 < refused.value.first <= first_of(cluster, "t")


@proves(ORDERS_PARTITIONS)
def test_a_slow_reader_may_continue_at_the_log_start(cluster: Cluster) -> None:
    cluster.create_topic("t", retention_bytes=1, segment_bytes=4096)
    fill(cluster, "t", beyond=10)
    node = cluster.running[0]
    subscription = cluster.subscribe("t", at=node, start=Offset(3), below_start="earliest")
    cluster.publish("t", b"last", at=node)
    cluster.run_until(lambda: b"last" in subscription.values, "the last record")
    assert subscription.ended is None and subscription.records[0].offset > 10
