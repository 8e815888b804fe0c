"""A broker on a Raft group of one: what a node that stands alone promises, it keeps on this fabric too."""

from __future__ import annotations

from random import Random

from rostra.broker.api import Stop
from rostra.errors import DiskFull
from rostra.fabric.raft.machine import Raft
from rostra.fabric.raft.metadata.metadata_state import META
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId
from rostra.wire.messages import Failed, Published, Unsubscribe
from tests.unit.broker.broker_driver import partition_id
from tests.unit.raft.desks import RaftDesk


def started() -> RaftDesk:
    desk = RaftDesk()
    desk.start()
    desk.connect(1)
    return desk


def test_records_are_acknowledged_and_delivered() -> None:
    desk = started()
    topic = desk.make_topic(1)
    desk.subscribe(1, topic)
    desk.settle()
    for value in (b"a", b"b"):
        desk.publish(1, topic, value)
        assert desk.received(1, Published) == [], "not before it is synced"
        desk.settle()
        assert len(desk.received(1, Published)) == 1
    assert desk.pushed(1) == [b"a", b"b"]


def test_records_topics_and_producers_survive_a_restart() -> None:
    desk = started()
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a", producer=9)
    desk.settle()
    (first,) = desk.received(1, Published)
    again = desk.again()
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
    desk = started()
    topic = desk.make_topic(1)
    desk.full = True
    desk.publish(1, topic, b"lost")
    desk.settle()
    assert [failed.code for failed in desk.received(1, Failed)] == [DiskFull.__name__]
    desk.full = False
    desk.publish(1, topic, b"kept")
    desk.settle()
    assert len(desk.received(1, Published)) == 1


def test_topics_survive_a_restart_also_where_the_catalogue_was_trimmed() -> None:
    desk = RaftDesk(Raft(NodeId(2), "here:1", random=Random(1), settings=RaftSettings(catalogue_bytes=1_000)))
    desk.start()
    desk.connect(1)
    for number in range(12):
        desk.make_topic(1, f"t{number}")
        desk.advance_ms(100)
        desk.settle()
    assert desk.logs[META].first > 0
    again = desk.again()
    assert all(again.broker.topic_table.by_name(f"t{number}") is not None for number in range(12))
    again.connect(1)
    topic = again.broker.topic_table.by_name("t3")
    assert topic is not None
    again.publish(1, topic.topic.topic, b"x")
    again.settle()
    assert len(again.received(1, Published)) == 1


def test_a_node_that_stops_has_nobody_to_wait_for() -> None:
    desk = started()
    desk.make_topic(1)
    desk.step(Stop())
    desk.settle()
    assert desk.stopped


def test_a_copy_is_read_from_the_first_subscription_to_the_last() -> None:
    desk = started()
    desk.connect(2)
    topic = desk.make_topic(1)
    group = desk.raft.groups[partition_id(topic)]
    assert not group.has_readers
    desk.subscribe(1, topic)
    desk.subscribe(2, topic)
    assert group.has_readers
    desk.disconnect(1)
    assert group.has_readers
    desk.send(2, Unsubscribe(desk.request(), 0))
    assert not group.has_readers
