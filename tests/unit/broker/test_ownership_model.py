"""Random publishers, compared with a model of the ownership rules."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rostra.errors import NotRegistered
from rostra.wire.messages import PUBLISHER_LEASE_MS, Failed, Ping, PublisherState
from tests.unit.broker.exclusive_topic_driver import ExclusiveTopicDriver

PUBLISHERS = st.integers(1, 4)
STEP_MS = 10


class AlivePublisher(NamedTuple):
    strength: int
    lease_ms: int
    heard_us: int


class OwnershipRules(RuleBasedStateMachine):
    """Each publisher has its own connection, which it may lose and replace."""

    @initialize()
    def begin(self) -> None:
        self.driver = ExclusiveTopicDriver().begin()
        self.alive: dict[int, AlivePublisher] = {}
        self.conns: dict[int, int] = {}
        self.explicit: set[int] = set()
        """Publishers that registered explicitly on their current connection."""
        self.bound: set[int] = set()
        """Publishers that registered or wrote on their current connection, which renews their lease."""
        self.epochs: dict[int, int] = {}
        self.written: list[str] = []
        self.numbers = 100

    def _now_us(self) -> int:
        return self.driver.now.mono_us

    def _conn(self, publisher: int) -> int:
        if publisher not in self.conns:
            self.numbers += 1
            self.conns[publisher] = self.driver.connect(self.numbers)
        return self.conns[publisher]

    def _heard(self, publisher: int) -> None:
        if publisher in self.alive:
            self.alive[publisher] = self.alive[publisher]._replace(heard_us=self._now_us())

    def _strongest(self) -> int:
        best = max(one.strength for one in self.alive.values())
        return min(publisher for publisher, one in self.alive.items() if one.strength == best)

    # --- publishers ---

    @rule(publisher=PUBLISHERS, strength=st.integers(0, 3), lease_ms=st.sampled_from((60, 200, 5_000)))
    def register(self, publisher: int, strength: int, lease_ms: int) -> None:
        self.driver.register(self._conn(publisher), publisher, strength, lease_ms)
        self.explicit.add(publisher)
        self.bound.add(publisher)
        self.alive[publisher] = AlivePublisher(strength, lease_ms, self._now_us())

    @rule(publisher=PUBLISHERS)
    def resign(self, publisher: int) -> None:
        self.driver.resign(self._conn(publisher), publisher)
        self.explicit.discard(publisher)
        self.bound.discard(publisher)
        self.alive.pop(publisher, None)

    @rule(publisher=PUBLISHERS)
    def write(self, publisher: int) -> None:
        conn = self._conn(publisher)
        value = f"{publisher} writes {len(self.written)}"
        # Each write begins a new producer epoch: sequences are tested elsewhere.
        epoch = self.epochs[publisher] = self.epochs.get(publisher, 0) + 1
        self.driver.publish(conn, self.driver.topic, value.encode(), producer=publisher, producer_epoch=epoch)
        self.driver.settle()
        if publisher not in self.alive and publisher in self.explicit:
            (failed,) = self.driver.received(conn, Failed)
            assert failed.code == NotRegistered.__name__
            return
        self.bound.add(publisher)
        self.alive.setdefault(publisher, AlivePublisher(0, PUBLISHER_LEASE_MS, 0))
        self._heard(publisher)
        self.written.append(f"{'+' if self._strongest() == publisher else '-'}{value}")

    @rule(publisher=PUBLISHERS)
    def heartbeat(self, publisher: int) -> None:
        if publisher in self.conns:
            self.driver.send(self.conns[publisher], Ping(1))
            if publisher in self.bound:
                self._heard(publisher)

    @rule(publisher=PUBLISHERS)
    def lose_connection(self, publisher: int) -> None:
        conn = self.conns.pop(publisher, None)
        if conn is not None:
            self.driver.disconnect(conn)
            self.explicit.discard(publisher)
            self.bound.discard(publisher)

    # --- the node ---

    @rule(steps=st.integers(1, 30))
    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.pass_ms(STEP_MS)
            gone = [
                publisher
                for publisher, one in self.alive.items()
                if one.heard_us + one.lease_ms * 1000 <= self._now_us()
            ]
            for publisher in gone:
                del self.alive[publisher]
            self.the_node_knows_who_is_alive()

    @rule()
    def restart(self) -> None:
        again = ExclusiveTopicDriver(logs=self.driver.logs, hard=self.driver.hard)
        again.now, again.topic, again.sequences = self.driver.now, self.driver.topic, {}
        for log in again.logs.values():
            log.generation = 0
        again.start()
        self.driver = again
        self.conns.clear()
        self.explicit.clear()
        self.bound.clear()
        self.alive = {publisher: one._replace(heard_us=self._now_us()) for publisher, one in self.alive.items()}

    # --- invariants ---

    @invariant()
    def the_log_marks_what_the_rules_suppress(self) -> None:
        if hasattr(self, "driver"):
            assert [line for line in self.driver.story() if line[0] in "+-"] == self.written

    @invariant()
    def the_node_knows_who_is_alive(self) -> None:
        if hasattr(self, "driver"):
            (known,) = self.driver.broker.topic_table.partitions()
            ranked = sorted(self.alive.items(), key=lambda item: (-item[1].strength, item[0]))
            wanted = tuple(PublisherState(publisher, one.strength, one.lease_ms) for publisher, one in ranked)
            assert known.publishers.ranked(16) == wanted


OwnershipRules.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestRules = pytest.mark.requirement("HR-12")(OwnershipRules.TestCase)
