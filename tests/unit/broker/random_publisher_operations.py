"""Random operations of publishers with strengths and leases, and of retention."""

from __future__ import annotations

import msgspec

from rostra.broker.broker import RETENTION
from rostra.broker.groups.maintenance import GROUPS_TIMER
from rostra.broker.publish.ownership import LEASES
from rostra.fabric.api import TimerFired
from rostra.safeguards import ALL_ON, Without
from rostra.wire.messages import (
    PUBLISHER_LEASE_MS,
    Agreed,
    AlterTopic,
    DescribeTopic,
    Ping,
    PublisherRegistered,
    PublisherState,
    Register,
    TopicAltered,
    TopicDescribed,
    Unregister,
)
from tests.unit.broker.random_operations import OPERATOR, SEGMENT_BYTES, TopicPartition, operation
from tests.unit.broker.random_topic_operations import RandomTopicOperations
from tests.unit.broker.reference_broker import Publisher

CHECKPOINT_BYTES = 4096
"""More than any checkpoint of these runs has."""
STEP_MS = 100
LEASE_TIMERS = (LEASES, GROUPS_TIMER)
ALTERED: tuple[tuple[str, int], ...] = (
    ("retention_ms", 0),
    ("retention_ms", 3000),
    ("retention_bytes", 0),
    ("retention_bytes", 9000),
    ("compaction", 0),
    ("compaction", 1),
    ("tombstone_ms", 0),
    ("tombstone_ms", 2000),
    ("history_depth", 0),
    ("history_depth", 3),
)


class RandomPublisherOperations(RandomTopicOperations):
    """Each producer is a publisher on its own connection."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.explicit: set[tuple[TopicPartition, int]] = set()
        """Publishers that registered explicitly on their current connection."""
        self.bound: set[tuple[TopicPartition, int]] = set()
        """Publishers whose lease every message on their connection renews."""

    # --- publishers ---

    def expected_outcome(self, location: TopicPartition, producer: int) -> tuple[str, bool]:
        partition = self.partition(location)
        self.heard(producer)
        if self.reference.topics[location[0]].settings.ownership == "shared":
            return "", True
        if producer not in partition.publishers:
            if (location, producer) in self.explicit:
                return "NotRegistered", False
            partition.publishers[producer] = Publisher(0, PUBLISHER_LEASE_MS * 1000, 0)
        self.bound.add((location, producer))
        self.heard(producer)
        return "", partition.strongest() == producer

    def heard(self, producer: int) -> None:
        for location, bound in self.bound:
            if bound == producer:
                self.partition(location).heard(producer, self.driver.now.mono_us)

    def forget(self, *, location: TopicPartition | None = None, producer: int | None = None) -> None:
        """Drops what belongs to lost connections or deleted topics."""
        for entries in (self.explicit, self.bound):
            for one in sorted(entries):
                if (location is None or one[0] == location) and (producer is None or one[1] == producer):
                    entries.discard(one)

    @operation(location=9, producer=2, strength=3, lease=2)
    def register(self, *, location: int, producer: int, strength: int, lease: int) -> None:
        where, name, lease_ms = self.choose_partition(location), producer + 1, (300, 1000, 6000)[lease]
        message = Register(self.driver.request(), self.topic_id(where), where[1], name, strength, lease_ms)
        partition = self.partition(where)
        partition.publishers[name] = Publisher(strength, lease_ms * 1000, self.driver.now.mono_us)
        self.explicit.add((where, name))
        self.bound.add((where, name))
        answer = self.ask(message, PublisherRegistered, self.conn(name))
        self.heard(name)
        assert answer.strongest == partition.strongest()

    @operation(location=9, producer=2)
    def resign(self, *, location: int, producer: int) -> None:
        where, name = self.choose_partition(location), producer + 1
        conn = self.conn(name)
        self.heard(name)
        self.ask(Unregister(self.driver.request(), self.topic_id(where), where[1], name), Agreed, conn)
        self.partition(where).publishers.pop(name, None)
        self.forget(location=where, producer=name)

    @operation(producer=2)
    def lose_connection(self, *, producer: int) -> None:
        conn = self.conns.pop(producer + 1, None)
        if conn is not None:
            self.driver.disconnect(conn)
            self.forget(producer=producer + 1)

    def delete(self, name: str) -> None:
        for location in self.topic_partitions():
            if location[0] == name:
                self.forget(location=location)
        super().delete(name)

    def restarted(self) -> None:
        self.forget()
        for location in self.topic_partitions():
            for publisher in sorted(self.partition(location).publishers):
                self.partition(location).heard(publisher, self.driver.now.mono_us)

    # --- time ---

    @operation(elapsed=2, silent=7)
    def pass_time(self, *, elapsed: int, silent: int) -> None:
        """Some of the publishers are silent meanwhile."""
        self.pass_ms((200, 1200, 4000)[elapsed], silent)
        for location in self.topic_partitions():
            self.check_publishers(location)

    def pass_ms(self, elapsed_ms: int, silent: int) -> None:
        for _ in range(0, elapsed_ms, STEP_MS):
            self.advance(self.driver.now.mono_us + STEP_MS * 1000)
            for producer in sorted(self.conns):
                if not silent >> producer - 1 & 1:
                    self.driver.send(self.conns[producer], Ping(self.driver.request()))
                    self.heard(producer)
            self.heartbeat()
            self.fire()
        self.replies.clear()

    def heartbeat(self) -> None:
        """Group members send heartbeats."""

    def advance(self, to_us: int) -> None:
        """Fires every timer on time: a node that was stalled would extend leases."""
        while (alarm_us := min(self.driver.timers.get(name, to_us) for name in LEASE_TIMERS)) < to_us:
            super().advance(alarm_us)
            self.fire()
        super().advance(to_us)
        self.fire()

    def fire(self) -> None:
        for timer in LEASE_TIMERS:
            for _ in range(10):
                if self.driver.timers.get(timer, 1 << 62) > self.driver.now.mono_us:
                    break
                del self.driver.timers[timer]
                self.driver.step(TimerFired(timer))
                self.driver.settle()
        for topic in self.reference.topics.values():
            for partition in topic.partitions:
                partition.expire(self.driver.now.mono_us)

    def check_publishers(self, location: TopicPartition) -> None:
        described = self.ask(DescribeTopic(self.driver.request(), location[0]), TopicDescribed)
        ranked = sorted(self.partition(location).publishers.items(), key=lambda one: (-one[1].strength, one[0]))
        expected = [PublisherState(name, one.strength, one.lease_us // 1000) for name, one in ranked]
        assert list(described.partitions[location[1]].publishers) == expected

    # --- retention ---

    @operation(topic=2, change=len(ALTERED) - 1)
    def alter(self, *, topic: int, change: int) -> None:
        names = sorted(self.reference.topics)
        name, (setting, value) = names[topic % len(names)], ALTERED[change]
        altered = self.ask(AlterTopic(self.driver.request(), name, {setting: value}), TopicAltered)
        known = self.reference.topics[name]
        expected = bool(value) if setting == "compaction" else value
        assert altered.topic.settings == msgspec.structs.replace(known.settings, **{setting: expected})
        known.alter(altered.topic.settings)

    @operation()
    def run_retention(self) -> None:
        """Retention and compaction, as the node runs them every few seconds."""
        for _ in range(2):
            self.run_retention_once()
            self.settle()
        for location in self.topic_partitions():
            before = self.partition(location).first
            self.read_all(location)
            self._check_retained_bytes(location, self.partition(location).first > before)

    def run_retention_once(self) -> None:
        self.driver.timers.pop(RETENTION, None)
        self.driver.step(TimerFired(RETENTION))
        self.driver.settle()

    def _check_retained_bytes(self, location: TopicPartition, forgot: bool) -> None:
        settings = self.reference.topics[location[0]].settings
        bound = settings.retention_bytes
        if not bound:
            return
        described = self.ask(DescribeTopic(self.driver.request(), location[0]), TopicDescribed, OPERATOR)
        held = described.partitions[location[1]].bytes
        assert held < bound + 2 * (SEGMENT_BYTES + CHECKPOINT_BYTES)
        if forgot and not settings.retention_ms and self.partition(location).tombstone_us is None:
            assert held >= bound
