"""A broker on a Raft group of one: what a node that stands alone promises, it keeps on this fabric too."""

from __future__ import annotations

import random

from rostra.broker.api import BrokerEffect, Stop
from rostra.errors import DiskFull
from rostra.fabric.api import TimerFired
from rostra.fabric.raft.machine import Raft
from rostra.model.ids import NodeId, Partition
from rostra.wire.messages import Failed, Published
from tests.unit.broker.desk import Desk
from tests.unit.broker.listlog import ListLog


class RaftDesk(Desk):
    """Timers of the fabric that are due go off by themselves."""

    def __init__(self, logs: dict[Partition, ListLog] | None = None, hard: dict[str, bytes] | None = None) -> None:
        super().__init__(fabric=Raft(NodeId(2), "here:1", random=random.Random(1)), logs=logs, hard=hard)

    def settle(self) -> list[BrokerEffect]:
        effects = super().settle()
        while due := [name for name, at in self.timers.items() if name.startswith("raft/") and at <= self.now.mono_us]:
            for name in due:
                del self.timers[name]
                effects += self.step(TimerFired(name))
            effects += super().settle()
        return effects

    def again(self) -> RaftDesk:
        for log in self.logs.values():
            log.generation = 0
        desk = RaftDesk(self.logs, self.hard)
        desk.now = self.now
        desk.start()
        return desk


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
        assert desk.heard(1, Published) == [], "not before it is synced"
        desk.settle()
        assert len(desk.heard(1, Published)) == 1
    assert desk.pushed(1) == [b"a", b"b"]


def test_records_topics_and_producers_survive_a_restart() -> None:
    desk = started()
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a", producer=9)
    desk.settle()
    (first,) = desk.heard(1, Published)
    again = desk.again()
    again.connect(1)
    again.publish(1, topic, b"a", producer=9)
    again.settle()
    (repeated,) = again.heard(1, Published)
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
    assert [failed.code for failed in desk.heard(1, Failed)] == [DiskFull.__name__]
    desk.full = False
    desk.publish(1, topic, b"kept")
    desk.settle()
    assert len(desk.heard(1, Published)) == 1


def test_a_node_that_stops_has_nobody_to_wait_for() -> None:
    desk = started()
    desk.make_topic(1)
    desk.step(Stop())
    desk.settle()
    assert desk.stopped
