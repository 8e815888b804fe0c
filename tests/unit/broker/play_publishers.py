"""Moves of publishers with strengths and leases, and of what is kept for how long."""

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
    Resign,
    TopicAltered,
    TopicDescribed,
)
from tests.unit.broker.play import OPERATOR, SEGMENT_BYTES, Place, move
from tests.unit.broker.play_topics import TopicsPlay
from tests.unit.broker.reference import Publisher

CHECKPOINT_BYTES = 4096
"""More than any of these plays has."""
STEP_MS = 100
ALARMS = (LEASES, GROUPS_TIMER)
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


class PublishersPlay(TopicsPlay):
    """Publishers are the producers of the play, each on a connection of its own."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.asked: set[tuple[Place, int]] = set()
        """Who registered by itself on the connection that it has."""
        self.bound: set[tuple[Place, int]] = set()
        """Where all that is heard of a publisher says that it lives."""

    # --- publishers ---

    def judged(self, place: Place, producer: int) -> tuple[str, bool]:
        part = self.part(place)
        self.heard(producer)
        if self.reference.topics[place[0]].settings.ownership == "shared":
            return "", True
        if producer not in part.publishers:
            if (place, producer) in self.asked:
                return "NotRegistered", False
            part.publishers[producer] = Publisher(0, PUBLISHER_LEASE_MS * 1000, 0)
        self.bound.add((place, producer))
        self.heard(producer)
        return "", part.strongest() == producer

    def heard(self, producer: int) -> None:
        for place, bound in self.bound:
            if bound == producer:
                self.part(place).heard(producer, self.desk.now.mono_us)

    def forget(self, *, place: Place | None = None, producer: int | None = None) -> None:
        """What was said on connections that are gone, or about topics that are."""
        for said in (self.asked, self.bound):
            for one in sorted(said):
                if (place is None or one[0] == place) and (producer is None or one[1] == producer):
                    said.discard(one)

    @move(place=9, producer=2, strength=3, lease=2)
    def register(self, *, place: int, producer: int, strength: int, lease: int) -> None:
        where, name, lease_ms = self.place(place), producer + 1, (300, 1000, 6000)[lease]
        message = Register(self.desk.request(), self.topic_id(where), where[1], name, strength, lease_ms)
        part = self.part(where)
        part.publishers[name] = Publisher(strength, lease_ms * 1000, self.desk.now.mono_us)
        self.asked.add((where, name))
        self.bound.add((where, name))
        answer = self.ask(message, PublisherRegistered, self.conn(name))
        self.heard(name)
        assert answer.strongest == part.strongest()

    @move(place=9, producer=2)
    def resign(self, *, place: int, producer: int) -> None:
        where, name = self.place(place), producer + 1
        conn = self.conn(name)
        self.heard(name)
        self.ask(Resign(self.desk.request(), self.topic_id(where), where[1], name), Agreed, conn)
        self.part(where).publishers.pop(name, None)
        self.forget(place=where, producer=name)

    @move(producer=2)
    def lose_connection(self, *, producer: int) -> None:
        conn = self.conns.pop(producer + 1, None)
        if conn is not None:
            self.desk.lose(conn)
            self.forget(producer=producer + 1)

    def delete(self, name: str) -> None:
        for place in self.places():
            if place[0] == name:
                self.forget(place=place)
        super().delete(name)

    def restarted(self) -> None:
        self.forget()
        for place in self.places():
            for publisher in sorted(self.part(place).publishers):
                self.part(place).heard(publisher, self.desk.now.mono_us)

    # --- time ---

    @move(elapsed=2, silent=7)
    def pass_time(self, *, elapsed: int, silent: int) -> None:
        """Some of the publishers are silent meanwhile."""
        self.pass_ms((200, 1200, 4000)[elapsed], silent)
        for place in self.places():
            self.publishers_are_known(place)

    def pass_ms(self, elapsed_ms: int, silent: int) -> None:
        for _ in range(0, elapsed_ms, STEP_MS):
            self.advance(self.desk.now.mono_us + STEP_MS * 1000)
            for producer in sorted(self.conns):
                if not silent >> producer - 1 & 1:
                    self.desk.say(self.conns[producer], Ping(self.desk.request()))
                    self.heard(producer)
            self.beat()
            self.fire()
        self.replies.clear()

    def beat(self) -> None:
        """Whoever else is to be heard."""

    def advance(self, to_us: int) -> None:
        """No alarm is late: a node that slept takes nobody for dead at once."""
        while (alarm_us := min(self.desk.timers.get(name, to_us) for name in ALARMS)) < to_us:
            super().advance(alarm_us)
            self.fire()
        super().advance(to_us)
        self.fire()

    def fire(self) -> None:
        for timer in ALARMS:
            for _ in range(10):
                if self.desk.timers.get(timer, 1 << 62) > self.desk.now.mono_us:
                    break
                del self.desk.timers[timer]
                self.desk.step(TimerFired(timer))
                self.desk.settle()
        for topic in self.reference.topics.values():
            for part in topic.parts:
                part.lapse(self.desk.now.mono_us)

    def publishers_are_known(self, place: Place) -> None:
        described = self.ask(DescribeTopic(self.desk.request(), place[0]), TopicDescribed)
        ranked = sorted(self.part(place).publishers.items(), key=lambda one: (-one[1].strength, one[0]))
        expected = [PublisherState(name, one.strength, one.lease_us // 1000) for name, one in ranked]
        assert list(described.partitions[place[1]].publishers) == expected

    # --- what is kept ---

    @move(topic=2, change=len(ALTERED) - 1)
    def alter(self, *, topic: int, change: int) -> None:
        names = sorted(self.reference.topics)
        name, (setting, value) = names[topic % len(names)], ALTERED[change]
        altered = self.ask(AlterTopic(self.desk.request(), name, {setting: value}), TopicAltered)
        known = self.reference.topics[name]
        told = bool(value) if setting == "compaction" else value
        assert altered.topic.settings == msgspec.structs.replace(known.settings, **{setting: told})
        known.alter(altered.topic.settings)

    @move()
    def keep_house(self) -> None:
        """Retention and compaction, as the node does them every few seconds."""
        for _ in range(2):
            self.keep_house_once()
            self.settle()
        for place in self.places():
            before = self.part(place).first
            self.look(place)
            self._holds_as_much_as_it_should(place, self.part(place).first > before)

    def keep_house_once(self) -> None:
        self.desk.timers.pop(RETENTION, None)
        self.desk.step(TimerFired(RETENTION))
        self.desk.settle()

    def _holds_as_much_as_it_should(self, place: Place, forgot: bool) -> None:
        settings = self.reference.topics[place[0]].settings
        bound = settings.retention_bytes
        if not bound:
            return
        described = self.ask(DescribeTopic(self.desk.request(), place[0]), TopicDescribed, OPERATOR)
        held = described.partitions[place[1]].bytes
        assert held < bound + 2 * (SEGMENT_BYTES + CHECKPOINT_BYTES)
        if forgot and not settings.retention_ms and self.part(place).tombstone_us is None:
            assert held >= bound
