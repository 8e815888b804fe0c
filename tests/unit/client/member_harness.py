"""A group member in a harness that advances time and delivers messages."""

from __future__ import annotations

from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import MemberSettings, ProducerSettings
from rostra.wire.features import GROUPS
from rostra.wire.groups import Position
from rostra.wire.messages import TopicSettings
from tests.unit.client.core_harness import CoreHarness
from tests.unit.client.model_coordinator import GroupMessage, ModelGroup

LEASE_MS = 4_000


class MemberDriver:
    """Takes records and settles them."""

    def __init__(self, harness: CoreHarness, name: str = "billing", **settings: object) -> None:
        self.harness = harness
        chosen = MemberSettings(**{"patterns": ("t",), "start": "earliest", "lease_ms": LEASE_MS, **settings})  # type: ignore[arg-type]
        self.joined = harness.call()
        self.membership = harness.core.join(harness.now_us, self.joined, name, chosen, self)
        harness.run()

    def ack(self, record: GroupRecord) -> None:
        self.membership.dispatcher.ack(self.harness.now_us, record)
        self.harness.run()

    def retry(self, record: GroupRecord) -> None:
        self.membership.dispatcher.retry(self.harness.now_us, record)
        self.harness.run()

    def give_back(self, record: GroupRecord) -> None:
        self.membership.dispatcher.give_back(self.harness.now_us, record)
        self.harness.run()

    def take(self) -> GroupRecord:
        record = self.membership.dispatcher.take(self.harness.now_us)
        self.harness.run()
        assert record is not None
        return record

    def take_all(self) -> list[GroupRecord]:
        taken: list[GroupRecord] = []
        while (record := self.membership.dispatcher.take(self.harness.now_us)) is not None:
            taken.append(record)
        self.harness.run()
        return taken

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.take_all()]

    def leave(self) -> int:
        call = self.harness.call()
        self.harness.core.leave(self.harness.now_us, call, self.membership)
        self.harness.run()
        return call


def group_harness(*, partitions: int = 1, topic: str = "t") -> CoreHarness:
    """A client connected to a node that coordinates groups, with one topic."""
    harness = CoreHarness()
    harness.node.features = (GROUPS,)
    harness.connect()
    harness.core.create_topic(harness.now_us, harness.call(), topic, TopicSettings(partitions))
    harness.run()
    advance(harness)
    return harness


def advance(harness: CoreHarness, ms: int = 0) -> None:
    """Let time pass, run all timers that are due, and deliver all messages."""
    end_us = harness.now_us + ms * 1000
    while True:
        if harness.link is not None:
            harness.settle()
        due_us = harness.core.deadline_us()
        if due_us is None or due_us > end_us:
            break
        harness.pass_time(max(due_us - harness.now_us, 0))
    harness.now_us = end_us


def publish(harness: CoreHarness, *values: bytes, topic: str = "t", partition: int | None = None) -> None:
    """Publish each value in a batch of its own."""
    for value in values:
        harness.core.publish(harness.now_us, harness.call(), topic, value, partition=partition)
        harness.run()
        advance(harness)


def publish_batch(harness: CoreHarness, *values: bytes, topic: str = "t") -> None:
    producer = harness.core.open_producer(harness.now_us, harness.call(), topic, ProducerSettings())
    harness.run()
    advance(harness)
    for value in values:
        producer.add(harness.now_us, value)
    producer.flush(harness.now_us, harness.call())
    harness.run()
    advance(harness)


def model_group(harness: CoreHarness, name: str = "billing") -> ModelGroup:
    return harness.node.coordinator.groups[name]


def position(
    harness: CoreHarness, partition: int = 0, *, topic: str = "t", name: str = "billing"
) -> tuple[int, int] | None:
    """The offset and the tries that the coordinator has stored."""
    kept: Position | None = model_group(harness, name).positions.get((harness.node.topics[topic].topic, partition))
    return None if kept is None else (kept.offset, kept.tries)


def messages_of(harness: CoreHarness, kind: type[GroupMessage]) -> list[GroupMessage]:
    return [message for message in harness.node.coordinator.heard if isinstance(message, kind)]
