"""Whatever the network does, acknowledged records are stored once and in order, and delivered once and in order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rostra.client.core.events import MayDuplicate
from rostra.client.core.options import Options, ProducerSettings
from rostra.errors import DiskFull
from rostra.wire.messages import TopicSettings
from tests.unit.client.core_harness import CoreHarness

FEW = st.integers(min_value=1, max_value=4)


class AnyLoss(RuleBasedStateMachine):
    """One producer, one subscriber, one node; hypothesis breaks connections and refuses batches."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = CoreHarness(Options(delivery_timeout_ms=1_000_000_000, backoff_ms_max=100))
        self.given = 0

    @initialize(partitions=st.integers(min_value=1, max_value=3))
    def connect(self, partitions: int) -> None:
        harness = self.harness
        harness.node._create("t", TopicSettings(partitions))
        harness.node.heartbeat_ms = 60_000
        harness.connect()
        self.partitions = partitions
        self.producer = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings())
        self.subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest", None, 1000)
        self.taken = 0
        harness.run()
        harness.settle()

    # --- the application -----------------------------------------------------------------------------

    @rule(count=FEW, leave=st.booleans())
    def send(self, count: int, leave: bool) -> None:
        for _ in range(count):
            self.producer.add(self.harness.now_us, b"%d" % self.given)
            self.given += 1
        if leave:
            self.producer.close(self.harness.now_us)
        else:
            self.producer.end_turn(self.harness.now_us)
        self.harness.run()

    @rule(count=FEW)
    def take(self, count: int) -> None:
        queued = self.harness.delivered.get(self.subscription.number, [])
        for batch in queued[self.taken : self.taken + count]:
            self.taken += 1
            self.harness.core.consumed(self.subscription, batch.partition, batch.bytes)
        self.harness.run()

    # --- the world -----------------------------------------------------------------------------------

    @rule(count=FEW)
    def deliver_to_node(self, count: int) -> None:
        self.harness.deliver_to_node(count)

    @rule()
    def push_from_node(self) -> None:
        self.harness.push_from_node()

    @rule(count=FEW)
    def deliver_to_client(self, count: int) -> None:
        self.harness.deliver_to_client(count)

    @rule()
    def answers_overtake(self) -> None:
        published = [entry for entry in self.harness.to_client if type(entry[0]).__name__ == "Published"]
        others = [entry for entry in self.harness.to_client if type(entry[0]).__name__ != "Published"]
        self.harness.to_client.clear()
        self.harness.to_client.extend(others + published[::-1])

    @precondition(lambda self: self.harness.link is not None)
    @rule()
    def connection_breaks(self) -> None:
        self.harness.disconnect()

    @precondition(lambda self: self.harness.link is not None and not self.harness.core.link.up)
    @rule()
    def connection_opens(self) -> None:
        self.harness.open()

    @rule(ms=st.integers(min_value=1, max_value=500))
    def time_passes(self, ms: int) -> None:
        self.harness.pass_time(ms * 1000)

    @rule()
    def disk_fills(self) -> None:
        self.harness.node.refuse = DiskFull()

    @rule()
    def disk_is_freed(self) -> None:
        self.harness.node.refuse = None

    # --- promises ------------------------------------------------------------------------------------

    def stored(self) -> list[list[int]]:
        return [
            [int(value or b"") for value in self.harness.node.log("t", partition).values()]
            for partition in range(self.partitions)
        ]

    def delivered(self) -> list[list[int]]:
        seen: list[list[int]] = [[] for _ in range(self.partitions)]
        for batch in self.harness.delivered.get(self.subscription.number, []):
            seen[batch.partition] += [int(value or b"") for value in batch.values()]
        return seen

    @invariant()
    def stored_once_and_in_order(self) -> None:
        if "t" in self.harness.node.topics:
            for partition in self.stored():
                assert partition == sorted(set(partition))

    @invariant()
    def acknowledged_is_stored(self) -> None:
        if "t" in self.harness.node.topics:
            stored = self.stored()
            for ack in self.harness.acknowledged:
                assert ack.offset + ack.count <= len(stored[ack.partition])
            assert sum(ack.count for ack in self.harness.acknowledged) <= sum(map(len, stored))
            assert (
                max(Counter((ack.partition, ack.offset) for ack in self.harness.acknowledged).values(), default=1) == 1
            )

    @invariant()
    def delivered_is_what_is_stored(self) -> None:
        if "t" in self.harness.node.topics:
            for partition, seen in zip(self.stored(), self.delivered(), strict=True):
                assert seen == partition[: len(seen)]

    @invariant()
    def what_all_have_under_way_is_the_sum_of_what_each_has(self) -> None:
        producers = self.harness.core._producers
        assert producers._window.bytes == sum(one.unacknowledged_bytes for one in producers._all.values())

    @invariant()
    def nothing_may_be_twice(self) -> None:
        assert not [event for event in self.harness.events if isinstance(event, MayDuplicate)]

    def teardown(self) -> None:
        """After recovery everything sent is stored, acknowledged and delivered."""
        harness = self.harness
        if "t" not in harness.node.topics:
            return
        harness.node.refuse = None
        call = harness.call()
        self.producer.flush(harness.now_us, call)
        harness.run()
        for _ in range(100):
            harness.reconnect()
            harness.pass_time(200_000)
            self.take(1000)
            harness.settle()
            if call in harness.results and sum(map(len, self.delivered())) == self.given:
                break
        self.stored_once_and_in_order()
        self.delivered_is_what_is_stored()
        self.nothing_may_be_twice()
        assert self.producer.acked == self.given == sum(map(len, self.stored())) == sum(map(len, self.delivered()))


AnyLoss.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyLoss = pytest.mark.requirement("CM-5:numbered", "CM-10:resubscribes", "CM-10:resends")(AnyLoss.TestCase)
