"""Replies that wait: for the owners of a new topic, for a commit offset that is not known yet."""

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
from tests.unit.broker.broker_driver import BrokerDriver, partition_id
from tests.unit.broker.test_ownership_changes import HERE, TOPIC, ScriptedFabric, desk_with, emit


class Electing(ScriptedFabric):
    """Creates a topic at once, and announces its owner later."""

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        if isinstance(given, ProposeTopic):
            self.heard.append(given)
            places = [partition_id(given.spec.topic, index) for index in range(given.spec.partitions)]
            return [TopicOpened(given.token, given.spec), *(Open(place, 1 << 20) for place in places)]
        return super().step(now, given)


def make_topic(driver: BrokerDriver) -> TopicId:
    driver.send(1, CreateTopic(7, "new", TopicSettings(2)))
    assert isinstance(driver.broker.fabric, ScriptedFabric)
    return driver.broker.fabric.last(ProposeTopic).spec.topic


def test_a_creation_is_answered_when_every_partition_has_an_owner() -> None:
    driver = desk_with(Electing())
    topic = make_topic(driver)
    emit(driver, Serving(partition_id(topic, 0), 1, True, 0, 0, 0))
    assert driver.received(1, TopicCreated) == []
    emit(driver, ServedElsewhere(partition_id(topic, 1), 1, "other:1"))
    assert [made.topic.name for made in driver.received(1, TopicCreated)] == ["new"]


def test_a_creation_does_not_wait_for_ever() -> None:
    driver = desk_with(Electing())
    make_topic(driver)
    driver.advance_ms(10_000)
    driver.step(TimerFired("scripted"))
    assert len(driver.received(1, TopicCreated)) == 1


def test_a_topic_has_the_requested_number_of_replicas_or_the_nodes_default() -> None:
    driver = desk_with(Electing())
    make_topic(driver)
    driver.send(1, CreateTopic(8, "two", TopicSettings(replicas=2)))
    fabric = driver.broker.fabric
    assert isinstance(fabric, ScriptedFabric)
    proposed = [given for given in fabric.heard if isinstance(given, ProposeTopic)]
    assert [given.replicas for given in proposed] == [3, 2]
    assert [msgspec.msgpack.decode(one.spec.settings, type=TopicSettings).replicas for one in proposed] == [3, 2]


class Returning(ScriptedFabric):
    """Recovers a log of two records, and does not know yet how much of it is committed."""

    def __init__(self) -> None:
        super().__init__(Delivers.REPLICA)

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        if isinstance(given, Started) and given.partitions:
            spec = TopicSpec(TopicId(TOPIC), "t", 1, msgspec.msgpack.encode(TopicSettings()))
            return [TopicOpened(None, spec), Serving(HERE, 2, False, 0, 2, 0, "other:1"), Ready()]
        return super().step(now, given)


def returned() -> BrokerDriver:
    before = desk_with(Returning())
    for value in (b"old", b"older"):
        before.publish(1, TopicId(TOPIC), value)
    before.settle()
    driver = BrokerDriver(fabric=Returning(), logs=before.logs).start()
    driver.connect(1)
    return driver


def test_a_start_at_the_end_is_refused_until_the_commit_is_known() -> None:
    driver = returned()
    for number, start in enumerate(("latest", "last")):
        driver.send(1, Subscribe(10 + number, number, TOPIC, 0, start, 1, 1000))  # type: ignore[arg-type]
        assert isinstance(driver.error(1), Unavailable)
    emit(driver, Committed(HERE, 2))
    driver.send(1, Subscribe(20, 5, TOPIC, 0, "latest", 0, 1000))
    assert [answer.next for answer in driver.received(1, Subscribed)] == [2]


def test_a_start_at_an_offset_does_not_need_the_commit() -> None:
    driver = returned()
    driver.send(1, Subscribe(10, 0, TOPIC, 0, "offset", 1, 1000))
    assert [answer.next for answer in driver.received(1, Subscribed)] == [1]
    emit(driver, Committed(HERE, 2))
    driver.settle()
    assert driver.pushed(1) == [b"older"]
