"""Wherever partitions move and links break, acknowledged records are stored and delivered once and in order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rostra.client.core.events import MayDuplicate
from rostra.client.core.links.node_links import LINKS_MAX
from rostra.client.core.options import Options, ProducerSettings
from rostra.wire.messages import TopicSettings
from tests.unit.client.cluster_harness import ClusterHarness, HarnessConnection
from tests.unit.client.model_cluster import ModelCluster

ADDRESSES = ("a:1", "b:2", "c:3")
FEW = st.integers(min_value=1, max_value=4)
ANY = st.integers(min_value=0, max_value=11)
NODES = st.sampled_from(ADDRESSES)


class AnyMove(RuleBasedStateMachine):
    """One producer, one subscriber, three nodes. Owners change, are unknown or not yet announced; links break at any
    moment; the next owner may cut what is not committed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ModelCluster(*ADDRESSES)
        forever_ms = 1_000_000_000
        options = Options(ADDRESSES, call_timeout_ms=forever_ms, delivery_timeout_ms=forever_ms, backoff_ms_max=100)
        self.harness = ClusterHarness(self.cluster, options)
        self.given = 0

    @initialize(partitions=st.integers(min_value=1, max_value=3), commits=st.booleans())
    def connect(self, partitions: int, commits: bool) -> None:
        harness = self.harness
        self.cluster.create("t", TopicSettings(partitions))
        self.cluster.commits = commits
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

    # --- the network ---------------------------------------------------------------------------------

    def connection(self, which: int) -> HarnessConnection | None:
        connections = list(self.harness.connections.values())
        return connections[which % len(connections)] if connections else None

    @rule(which=ANY, count=FEW)
    def forward_to_node(self, which: int, count: int) -> None:
        connection = self.connection(which)
        if connection is not None and connection.open:
            self.harness.forward_to_node(connection, count)

    @rule(which=ANY)
    def node_says(self, which: int) -> None:
        connection = self.connection(which)
        if connection is not None and connection.open:
            self.harness.forward_pushes(connection)

    @rule(which=ANY, count=FEW)
    def forward_to_client(self, which: int, count: int) -> None:
        connection = self.connection(which)
        if connection is not None:
            self.harness.forward_to_client(connection, count)

    @rule(which=ANY)
    def link_breaks_or_is_refused(self, which: int) -> None:
        connection = self.connection(which)
        if connection is not None:
            self.harness.cut(connection)

    @rule(which=ANY)
    def link_opens(self, which: int) -> None:
        connection = self.connection(which)
        if connection is not None and not connection.open:
            self.harness.open_connection(connection)

    @rule()
    def all_gets_through(self) -> None:
        self.harness.settle()

    @rule(ms=st.integers(min_value=1, max_value=500))
    def time_passes(self, ms: int) -> None:
        self.harness.tick_only(ms * 1000)

    # --- the cluster ---------------------------------------------------------------------------------

    @rule(partition=ANY, address=st.sampled_from(("", *ADDRESSES)), cut=st.booleans(), told=st.booleans())
    def partition_moves(self, partition: int, address: str, cut: bool, told: bool) -> None:
        self.cluster.move("t", partition % self.partitions, address, cut=cut, told=told)

    @rule(address=NODES)
    def node_hears_of_the_owners(self, address: str) -> None:
        self.cluster.tell(address)

    @rule(partition=ANY)
    def owner_commits(self, partition: int) -> None:
        self.cluster.commit(self.cluster.topics["t"].topic, partition % self.partitions)

    # --- promises ------------------------------------------------------------------------------------

    def stored(self) -> list[list[int]]:
        parts = range(self.partitions) if "t" in self.cluster.topics else ()
        return [[int(value or b"") for value in self.cluster.values("t", partition)] for partition in parts]

    def delivered(self) -> list[list[int]]:
        seen: list[list[int]] = [[] for _ in self.stored()]
        for batch in self.harness.delivered.get(self.subscription.number, []) if seen else []:
            seen[batch.partition] += [int(value or b"") for value in batch.values()]
        return seen

    @invariant()
    def stored_once_and_in_order(self) -> None:
        for partition in self.stored():
            assert partition == sorted(set(partition))

    @invariant()
    def acknowledged_is_committed(self) -> None:
        for ack in self.harness.acknowledged:
            topic = self.cluster.topics["t"].topic
            assert ack.offset + ack.count <= self.cluster.logs[topic, ack.partition].commit
        places = Counter((ack.partition, ack.offset) for ack in self.harness.acknowledged if ack.offset >= 0)
        assert max(places.values(), default=1) == 1

    @invariant()
    def delivered_is_what_is_stored(self) -> None:
        for partition, seen in zip(self.stored(), self.delivered(), strict=True):
            assert seen == partition[: len(seen)]

    @invariant()
    def what_all_have_under_way_is_the_sum_of_what_each_has(self) -> None:
        producers = self.harness.core._producers
        assert producers._window.bytes == sum(one.unacknowledged_bytes for one in producers._all.values())

    @invariant()
    def nothing_may_be_twice_and_nothing_ends(self) -> None:
        assert not [event for event in self.harness.events if isinstance(event, MayDuplicate)]
        assert self.harness.finished == {}
        assert self.harness.errors == {}
        assert len(self.harness.connections) <= LINKS_MAX

    def teardown(self) -> None:
        """After recovery everything sent is stored, acknowledged and delivered."""
        harness = self.harness
        if "t" not in self.cluster.topics:
            return
        for partition in range(self.partitions):
            self.cluster.move("t", partition, ADDRESSES[partition])
        self.cluster.tell()
        self.cluster.commits = True
        for topic, partition in self.cluster.logs:
            self.cluster.commit(topic, partition)
        call = harness.call()
        self.producer.flush(harness.now_us, call)
        harness.run()
        for _ in range(100):
            harness.settle()
            harness.pass_time(200_000)
            self.take(1000)
            if call in harness.results and sum(map(len, self.delivered())) == self.given:
                break
        self.stored_once_and_in_order()
        self.delivered_is_what_is_stored()
        self.nothing_may_be_twice_and_nothing_ends()
        assert self.producer.acked == self.given == sum(map(len, self.stored())) == sum(map(len, self.delivered()))


AnyMove.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestAnyMove = pytest.mark.requirement("CM-5:numbered", "CM-10:resubscribes", "CM-10:resends")(AnyMove.TestCase)
