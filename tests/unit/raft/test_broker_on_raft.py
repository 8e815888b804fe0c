"""A broker on a Raft group of one: what a node that stands alone promises, it keeps on this fabric too."""

from __future__ import annotations

from random import Random

from rostra.broker.api import Stop
from rostra.errors import DiskFull
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.raft.machine import Raft
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId
from rostra.wire.messages import Failed, Published, Unsubscribe
from tests.unit.broker.broker_driver import partition_id
from tests.unit.raft.broker_cluster import RaftBroker


def started() -> RaftBroker:
    broker = RaftBroker()
    broker.start()
    broker.connect(1)
    return broker


def test_records_are_acknowledged_and_delivered() -> None:
    broker = started()
    topic = broker.make_topic(1)
    broker.subscribe(1, topic)
    broker.settle()
    for value in (b"a", b"b"):
        broker.publish(1, topic, value)
        assert broker.received(1, Published) == [], "not before it is synced"
        broker.settle()
        assert len(broker.received(1, Published)) == 1
    assert broker.pushed(1) == [b"a", b"b"]


def test_records_topics_and_producers_survive_a_restart() -> None:
    broker = started()
    topic = broker.make_topic(1)
    broker.publish(1, topic, b"a", producer=9)
    broker.settle()
    (first,) = broker.received(1, Published)
    again = broker.again()
    again.connect(1)
    again.publish(1, topic, b"a", producer=9)
    again.settle()
    (repeated,) = again.received(1, Published)
    assert repeated.offset == first.offset, "a retry is stored once"
    again.publish(1, topic, b"b", producer=9, sequence=1)
    again.settle()
    again.subscribe(1, topic)
    again.settle()
    assert again.pushed(1) == [b"a", b"b"]


def test_a_full_disk_refuses_and_goes_on_when_there_is_room() -> None:
    broker = started()
    topic = broker.make_topic(1)
    broker.full = True
    broker.publish(1, topic, b"lost")
    broker.settle()
    assert [failed.code for failed in broker.received(1, Failed)] == [DiskFull.__name__]
    broker.full = False
    broker.publish(1, topic, b"kept")
    broker.settle()
    assert len(broker.received(1, Published)) == 1


def test_topics_survive_a_restart_even_if_the_metadata_log_was_trimmed() -> None:
    broker = RaftBroker(Raft(NodeId(2), "here:1", random=Random(1), settings=RaftSettings(metadata_log_bytes=1_000)))
    broker.start()
    broker.connect(1)
    for number in range(12):
        broker.make_topic(1, f"t{number}")
        broker.advance_ms(100)
        broker.settle()
    assert broker.logs[METADATA_PARTITION].first > 0
    again = broker.again()
    assert all(again.broker.topic_table.by_name(f"t{number}") is not None for number in range(12))
    again.connect(1)
    topic = again.broker.topic_table.by_name("t3")
    assert topic is not None
    again.publish(1, topic.topic.topic, b"x")
    again.settle()
    assert len(again.received(1, Published)) == 1


def test_a_node_that_stops_has_nobody_to_wait_for() -> None:
    broker = started()
    broker.make_topic(1)
    broker.step(Stop())
    broker.settle()
    assert broker.stopped


def test_a_copy_is_read_from_the_first_subscription_to_the_last() -> None:
    broker = started()
    broker.connect(2)
    topic = broker.make_topic(1)
    group = broker.raft.groups[partition_id(topic)]
    assert not group.has_readers
    broker.subscribe(1, topic)
    broker.subscribe(2, topic)
    assert group.has_readers
    broker.disconnect(1)
    assert group.has_readers
    broker.send(2, Unsubscribe(broker.request(), 0))
    assert not group.has_readers
