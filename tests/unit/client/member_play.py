"""A member of a named subscription in a play: time passes and messages flow while it lives."""

from __future__ import annotations

from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import MemberSettings, ProducerSettings
from rostra.wire.features import GROUPS
from rostra.wire.groups import Position
from rostra.wire.messages import TopicSettings
from tests.unit.client.model_coordinator import GroupMessage, ModelGroup
from tests.unit.client.play import Play

LEASE_MS = 4_000


class Handler:
    """One who takes records and settles them."""

    def __init__(self, play: Play, name: str = "billing", **settings: object) -> None:
        self.play = play
        chosen = MemberSettings(**{"patterns": ("t",), "start": "earliest", "lease_ms": LEASE_MS, **settings})  # type: ignore[arg-type]
        self.joined = play.call()
        self.membership = play.core.join(play.now_us, self.joined, name, chosen, self)
        play.run()

    def ack(self, record: GroupRecord) -> None:
        self.membership.hands.ack(self.play.now_us, record)
        self.play.run()

    def retry(self, record: GroupRecord) -> None:
        self.membership.hands.retry(self.play.now_us, record)
        self.play.run()

    def give_back(self, record: GroupRecord) -> None:
        self.membership.hands.give_back(self.play.now_us, record)
        self.play.run()

    def take(self) -> GroupRecord:
        record = self.membership.hands.take(self.play.now_us)
        self.play.run()
        assert record is not None
        return record

    def take_all(self) -> list[GroupRecord]:
        taken: list[GroupRecord] = []
        while (record := self.membership.hands.take(self.play.now_us)) is not None:
            taken.append(record)
        self.play.run()
        return taken

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.take_all()]

    def leave(self) -> int:
        call = self.play.call()
        self.play.core.leave(self.play.now_us, call, self.membership)
        self.play.run()
        return call


def a_play(*, partitions: int = 1, topic: str = "t") -> Play:
    """Connected to a node that coordinates, with one topic."""
    play = Play()
    play.node.features = (GROUPS,)
    play.connect()
    play.core.create_topic(play.now_us, play.call(), topic, TopicSettings(partitions))
    play.run()
    live(play)
    return play


def live(play: Play, ms: int = 0) -> None:
    """So much time passes, with all that is due in it, and every message arrives."""
    end_us = play.now_us + ms * 1000
    while True:
        if play.link is not None:
            play.settle()
        due_us = play.core.deadline_us()
        if due_us is None or due_us > end_us:
            break
        play.pass_time(max(due_us - play.now_us, 0))
    play.now_us = end_us


def publish(play: Play, *values: bytes, topic: str = "t", partition: int | None = None) -> None:
    """Each in a batch of its own."""
    for value in values:
        play.core.publish(play.now_us, play.call(), topic, value, partition=partition)
        play.run()
        live(play)


def publish_batch(play: Play, *values: bytes, topic: str = "t") -> None:
    producing = play.core.open_producer(play.now_us, play.call(), topic, ProducerSettings())
    play.run()
    live(play)
    for value in values:
        producing.add(play.now_us, value)
    producing.flush(play.now_us, play.call())
    play.run()
    live(play)


def group(play: Play, name: str = "billing") -> ModelGroup:
    return play.node.coordinator.groups[name]


def position(play: Play, partition: int = 0, *, topic: str = "t", name: str = "billing") -> tuple[int, int] | None:
    """The offset and the tries that the coordinator has."""
    kept: Position | None = group(play, name).positions.get((play.node.topics[topic].topic, partition))
    return None if kept is None else (kept.offset, kept.tries)


def said(play: Play, kind: type[GroupMessage]) -> list[GroupMessage]:
    return [message for message in play.node.coordinator.heard if isinstance(message, kind)]
