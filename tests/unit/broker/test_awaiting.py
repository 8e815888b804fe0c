"""What a broker waits for before it answers: the owners of a new topic, and a commit that is known again."""

from __future__ import annotations

import msgspec

from rostra.errors import Unavailable
from rostra.fabric.api import (
    Committed,
    Delivers,
    FabricEffect,
    FabricInput,
    Now,
    Open,
    ProposeTopic,
    Ready,
    ServedElsewhere,
    Serving,
    Started,
    TimerFired,
    TopicOpened,
    TopicSpec,
)
from rostra.model.ids import TopicId
from rostra.wire.messages import CreateTopic, Subscribe, Subscribed, TopicCreated, TopicSettings
from tests.unit.broker.desk import Desk, part
from tests.unit.broker.test_roles import HERE, TOPIC, Scripted, desk_with, tell


class Electing(Scripted):
    """Makes a topic at once, and says who owns it later."""

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        if isinstance(given, ProposeTopic):
            self.heard.append(given)
            places = [part(given.spec.topic, index) for index in range(given.spec.partitions)]
            return [TopicOpened(given.token, given.spec), *(Open(place, 1 << 20) for place in places)]
        return super().step(now, given)


def make_topic(desk: Desk) -> TopicId:
    desk.say(1, CreateTopic(7, "new", TopicSettings(2)))
    assert isinstance(desk.broker.fabric, Scripted)
    return desk.broker.fabric.last(ProposeTopic).spec.topic


def test_a_topic_is_made_when_every_partition_has_its_owner() -> None:
    desk = desk_with(Electing())
    topic = make_topic(desk)
    tell(desk, Serving(part(topic, 0), 1, True, 0, 0, 0))
    assert desk.heard(1, TopicCreated) == []
    tell(desk, ServedElsewhere(part(topic, 1), 1, "other:1"))
    assert [made.topic.name for made in desk.heard(1, TopicCreated)] == ["new"]


def test_whoever_made_a_topic_does_not_wait_for_ever() -> None:
    desk = desk_with(Electing())
    make_topic(desk)
    desk.after_ms(10_000)
    desk.step(TimerFired("scripted"))
    assert len(desk.heard(1, TopicCreated)) == 1


def test_a_topic_has_as_many_replicas_as_asked_for_or_as_the_node_is_set_to_make() -> None:
    desk = desk_with(Electing())
    make_topic(desk)
    desk.say(1, CreateTopic(8, "two", TopicSettings(replicas=2)))
    fabric = desk.broker.fabric
    assert isinstance(fabric, Scripted)
    proposed = [given for given in fabric.heard if isinstance(given, ProposeTopic)]
    assert [given.replicas for given in proposed] == [3, 2]
    assert [msgspec.msgpack.decode(one.spec.settings, type=TopicSettings).replicas for one in proposed] == [3, 2]


class Returning(Scripted):
    """Finds a log of two records at its start, and does not know yet how much of it is committed."""

    def __init__(self) -> None:
        super().__init__(Delivers.REPLICA)

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        if isinstance(given, Started) and given.partitions:
            spec = TopicSpec(TopicId(TOPIC), "t", 1, msgspec.msgpack.encode(TopicSettings()))
            return [TopicOpened(None, spec), Serving(HERE, 2, False, 0, 2, 0, "other:1"), Ready()]
        return super().step(now, given)


def returned() -> Desk:
    before = desk_with(Returning())
    for value in (b"old", b"older"):
        before.publish(1, TopicId(TOPIC), value)
    before.settle()
    desk = Desk(fabric=Returning(), logs=before.logs).start()
    desk.connect(1)
    return desk


def test_the_end_is_not_looked_for_before_it_is_known_what_is_committed() -> None:
    desk = returned()
    for number, start in enumerate(("latest", "last")):
        desk.say(1, Subscribe(10 + number, number, TOPIC, 0, start, 1, 1000))  # type: ignore[arg-type]
        assert isinstance(desk.error(1), Unavailable)
    tell(desk, Committed(HERE, 2))
    desk.say(1, Subscribe(20, 5, TOPIC, 0, "latest", 0, 1000))
    assert [answer.next for answer in desk.heard(1, Subscribed)] == [2]


def test_a_reader_that_knows_its_place_does_not_wait_for_that() -> None:
    desk = returned()
    desk.say(1, Subscribe(10, 0, TOPIC, 0, "offset", 1, 1000))
    assert [answer.next for answer in desk.heard(1, Subscribed)] == [1]
    tell(desk, Committed(HERE, 2))
    desk.settle()
    assert desk.pushed(1) == [b"older"]
