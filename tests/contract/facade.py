"""A cluster as a promise sees it, whatever its fabric and whatever drives it.

Promises are plain synchronous code. Time passes inside these calls only: a call returns when it is answered, and
`run_until` when something has come true; neither sleeps, and both give up at a deadline. A client is *at* a node: it
knows that node first, and in a split it is on that node's side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rostra.client.core.effects import Ack, Result, SubscriptionDescription, TopicDescription
from rostra.client.core.options import BelowStart, MemberSettings, Start
from rostra.client.core.producer.partitioner import partition_of
from rostra.errors import RostraError, TopicExists, Unavailable, UnknownTopic
from rostra.fabric.api import Guarantees, TopicScope
from rostra.model.cluster import ClusterState, NodeState, PlacedPartition
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.simulator.history import StoredBatch
from rostra.simulator.world.fabric_observer import batches_in, committed_batches
from rostra.wire.groups import FindGroup
from rostra.wire.messages import (
    PUBLISHER_LEASE_MS,
    DescribeTopic,
    Failed,
    Ownership,
    Publish,
    Published,
    Subscribe,
    Subscribed,
    Topic,
    TopicDescribed,
    TopicSettings,
)
from tests.contract.clients import CoreCall, CoreClient, Producer, ReceivedRecord, Subscription
from tests.contract.group_members import GroupMember
from tests.contract.raw_connections import RawConnection

Node = int
"""Nodes are counted in the order in which they came."""

TIMEOUT_S = 60.0
"""Of whoever waits for something that must come."""
SHORT_TIMEOUT_MS = 1_500
"""Of whoever expects to be refused."""
LONG_TIMEOUT_MS = 25_000
LEASE_MS = 2_000
"""Of members: those that die are noticed after it."""
CONNECT_TIMEOUT_MS = 2_000
"""For one attempt to connect: a host that is gone answers nothing."""


NodeRequest = Publish | Subscribe | DescribeTopic | FindGroup
NodeReply = Published | Subscribed | TopicDescribed | Failed
"""What a node says to these."""


def is_fully_committed(placed: PlacedPartition) -> bool:
    """Whether its owner itself says that all of it is committed: others may know less, or of a former owner.

    What its owner will never order anything in again is whole when all have the same of it.
    """
    known = {copy.node: copy.match for copy in placed.copies}
    if not placed.owner:
        return all(match == placed.end for match in known.values())
    return placed.commit == placed.end == known.get(placed.owner, -1)


class ConditionTimeout(AssertionError):
    """What a promise waited for did not come true."""


class Cluster(ABC):
    """Below the line the two drivers differ; above it they do not."""

    guarantees: Guarantees
    _member_count = 0

    # --- topics --------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        at: Node = 0,
        retention_bytes: int = 0,
        segment_bytes: int = 1 << 26,
        compaction: bool = False,
        ownership: Ownership = "shared",
        history_depth: int = 0,
    ) -> Topic:
        """Where each node has topics of its own, at every node that runs."""
        settings = TopicSettings(
            partitions,
            retention_bytes=retention_bytes,
            segment_bytes=segment_bytes,
            compaction=compaction,
            ownership=ownership,
            history_depth=history_depth,
        )
        created = self.create_topic_at(at, name, settings)
        if self.guarantees.topics is TopicScope.EACH:
            for node in self.others(at):
                self.create_topic_at(node, name, settings)
        return created

    def create_topic_at(self, at: Node, name: str, settings: TopicSettings | None = None) -> Topic:
        wanted = settings or TopicSettings()
        call_core: CoreCall = lambda core, now, call: core.create_topic(now, call, name, wanted)  # noqa: E731
        created = self._call_until_done(at, f"make {name}", call_core, TopicExists)
        assert created is None or isinstance(created, Topic)
        return created or Topic(self.topics(at=at)[name], name, wanted)

    def alter_topic(self, name: str, *, at: Node = 0, **changes: int) -> Topic:
        call_core: CoreCall = lambda core, now, call: core.alter_topic(now, call, name, dict(changes))  # noqa: E731
        altered = self._call_until_done(at, f"alter {name}", call_core, UnknownTopic)
        assert isinstance(altered, Topic)
        return altered

    def settings(self, name: str, *, at: Node = 0) -> TopicSettings:
        described = self._call(at, "describe", lambda core, now, call: core.describe_topic(now, call, name))
        assert isinstance(described, TopicDescription)
        return described.settings

    def delete_topic(self, name: str, *, at: Node = 0) -> None:
        call_core: CoreCall = lambda core, now, call: core.delete_topic(now, call, name)  # noqa: E731
        self._call_until_done(at, f"delete {name}", call_core, UnknownTopic)

    def topics(self, *, at: Node = 0, timeout_ms: int = LONG_TIMEOUT_MS) -> dict[str, TopicId]:
        listed = self._call(at, "list", lambda core, now, call: core.list_topics(now, call), timeout_ms)
        assert isinstance(listed, tuple)
        return {topic.name: TopicId(topic.topic) for topic in listed}

    def describe(self, topic: str, *, at: Node = 0) -> TopicDescription:
        described = self._call(at, "describe", lambda core, now, call: core.describe_topic(now, call, topic))
        assert isinstance(described, TopicDescription)
        return described

    # --- the cluster ---------------------------------------------------------------------------------

    def state(self, *, at: Node = 0) -> ClusterState:
        state = self._call(at, "describe", lambda core, now, call: core.describe_cluster(now, call))
        assert isinstance(state, ClusterState)
        return state

    def node_state(self, node: Node, *, at: Node) -> NodeState | None:
        """What one node says of another."""
        known = self.state(at=at).nodes
        return next((state for state in known if state.address == self.address(node)), None)

    def placed(self, topic: str, partition: int = 0, *, at: Node = 0) -> PlacedPartition | None:
        for placed in self.state(at=at).partitions:
            if (placed.topic, placed.partition) == (topic, partition):
                return placed
        return None

    def owner(self, topic: str, partition: int = 0, *, at: Node | None = None) -> Node:
        """Who orders a partition, once somebody does who is running."""
        found: list[Node] = []

        def known() -> bool:
            asked = self.running[0] if at is None else at
            state = self.state(at=asked)
            ids = {node.node: node.address for node in state.nodes}
            owners = {ids.get(placed.owner) for placed in state.partitions if (placed.topic, placed.partition) == key}
            found[:] = [node for node in self.running if self.address(node) in owners]
            return len(found) == 1

        key = topic, partition
        self.run_until(known, f"one owner of {topic}/{partition}")
        return found[0]

    def others(self, *nodes: Node) -> list[Node]:
        return [node for node in self.running if node not in nodes]

    def await_members(self, count: int) -> None:
        """Until every running node sees so many members that are there and vote, and no others."""

        def all_there() -> bool:
            for node in self.running:
                nodes = self.state(at=node).nodes
                if len(nodes) != count or not all(member.there and member.votes for member in nodes):
                    return False
            return True

        self.run_until(all_there, f"{count} members there")

    def transfer(self, topic: str, node: Node, partition: int = 0) -> None:
        """By an operator's word; returns when the node orders the partition."""
        state = self.node_state(node, at=node)
        assert state is not None
        call_core: CoreCall = lambda core, now, call: core.transfer_partition(now, call, topic, partition, state.node)  # noqa: E731
        self._call(self.owner(topic, partition), "transfer", call_core)

    def leave(self, node: Node) -> None:
        """By an operator's word; returns when the others know, and the node is switched off."""
        rest = self.others(node)
        state = self.node_state(node, at=rest[0])
        assert state is not None
        self._call(rest[0], "remove", lambda core, now, call: core.remove_member(now, call, state.node))
        self.run_until(
            lambda: all(self.node_state(node, at=other) is None for other in rest), f"node {node} to be none"
        )
        self.crash(node)

    # --- records -------------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        *values: bytes | None,
        at: Node = 0,
        partition: int | None = None,
        key: bytes | None = None,
        timeout_ms: int = LONG_TIMEOUT_MS,
        timestamp_us: int | None = None,
    ) -> list[Ack]:
        """Each record by itself, acknowledged by all that must; raises why one was not."""
        client = self.client(at, timeout_ms)
        replies: list[list[Result | RostraError]] = [[] for _ in values]
        for value, reply in zip(values, replies, strict=True):
            call = client.call(f"publish {value!r}", reply.append)
            client.core.publish(
                client.now_us, call, topic, value, partition=partition, key=key, timestamp_us=timestamp_us
            )
        client.core.end_turn(client.now_us)
        client.run_effects()
        self.run_until(lambda: all(replies), f"{len(values)} records to be settled")
        acks: list[Ack] = []
        for (result,) in replies:
            if isinstance(result, RostraError):
                raise result
            assert isinstance(result, Ack)
            acks.append(result)
        return acks

    def producer(self, topic: str, *, at: Node = 0) -> Producer:
        """An idempotent one, which goes on by itself whatever happens to nodes."""
        producer = Producer(self.client(at, LONG_TIMEOUT_MS), topic)
        self.run_until(lambda: producer.opened, f"a producer on {topic}")
        return producer

    def publisher(self, topic: str, strength: int, *, at: Node = 0, lease_ms: int = PUBLISHER_LEASE_MS) -> Producer:
        """One with a strength, registered and in a program of its own."""
        producer = Producer(self.new_client(at), topic, strength, lease_ms)
        self.run_until(lambda: producer.opened, f"a publisher on {topic}")
        return producer

    def publish_with(self, producer: Producer, *values: bytes) -> None:
        """One batch for each value, acknowledged before this returns."""
        for value in values:
            producer.send(value)
            self.run_until(lambda: producer.settled, f"{value!r} to be settled")
        assert not producer.failed, producer.failed

    def set_strength(self, producer: Producer, strength: int) -> None:
        """Returns when all are judged by it."""
        producer.set_strength(strength)
        self.run_until(lambda: producer.strength == strength, f"a publisher to have the strength {strength}")

    def leave_topic(self, producer: Producer) -> None:
        producer.leave()
        self.run_until(lambda: producer.left, f"a publisher to leave {producer.topic}")

    def publishers(self, topic: str, node: Node, partition: int = 0) -> dict[int, int]:
        """Whom this very node has as publishers of a partition, the strongest first, with their strengths."""
        described = self.request_node(node, DescribeTopic(1, topic))
        assert isinstance(described, TopicDescribed), described
        return {one.publisher: one.strength for one in described.partitions[partition].publishers}

    def await_publishers(self, topic: str, wanted: dict[int, int]) -> None:
        """Until every running node has these."""

        def equal() -> bool:
            return all(self.publishers(topic, node) == wanted for node in self.running)

        self.run_until(equal, f"the publishers {wanted} of {topic} at every node")

    def subscribe(
        self, *topics: str, at: Node = 0, start: Start = "earliest", below_start: BelowStart = "raise"
    ) -> Subscription:
        """Returns when it stands; what it gets is in its `got`."""
        subscription = Subscription(self.client(at, LONG_TIMEOUT_MS), topics, start, below_start)
        what = f"a subscription to {subscription.topic}"
        self.run_until(lambda: subscription.established or subscription.ended is not None, what)
        if subscription.ended is not None:
            raise subscription.ended
        return subscription

    def pass_time(self, elapsed_ms: int, *, at: Node = 0) -> None:
        """For what must not happen however long one waits."""
        client = self.client(at, LONG_TIMEOUT_MS)
        until_us = client.now_us + elapsed_ms * 1000
        self.run_until(lambda: client.now_us >= until_us, f"{elapsed_ms} ms to pass")

    def unsubscribe(self, subscription: Subscription) -> None:
        subscription.leave()
        self.run_until(lambda: subscription.left, f"the end of a subscription to {subscription.topic}")

    def read(self, topic: str, *, at: Node = 0) -> list[bytes | None]:
        """All that is committed, from log start on, partition by partition; nobody may publish meanwhile."""
        return [record.value for record in self.read_from(topic, at=at)]

    def read_from(self, topic: str, *, at: Node = 0) -> list[ReceivedRecord]:
        ends: dict[int, int] = {}

        def known() -> bool:
            placed = [one for one in self.state(at=at).partitions if one.topic == topic]
            ends.update({one.partition: one.end for one in placed if one.end})
            return bool(placed) and all(map(is_fully_committed, placed))

        self.run_until(known, f"every record of {topic} to be committed")
        subscription = self.subscribe(topic, at=at)
        self.run_until(lambda: subscription.has_reached(ends), f"{topic} to be read to its end")
        got = subscription.records
        self.unsubscribe(subscription)
        return sorted(got, key=lambda record: (record.partition, record.offset))

    # --- named subscriptions -------------------------------------------------------------------------

    @property
    def group_nodes(self) -> list[Node]:
        """Nodes at which a name is the same one."""
        return self.running if self.guarantees.groups_span_nodes else self.running[:1]

    def member(
        self,
        name: str,
        *topics: str,
        at: Node = 0,
        start: Start = "earliest",
        tries: int = 0,
        dead_letter: str = "",
        lease_ms: int = LEASE_MS,
    ) -> GroupMember:
        """One with a client of its own. Returns when it is known where it begins; what it takes is in its `taken`."""
        self._member_count += 1
        client = self.client(at, LONG_TIMEOUT_MS + self._member_count)
        member = GroupMember(client, name, MemberSettings(topics, start, tries, dead_letter, lease_ms))
        self.run_until(lambda: member.joined or member.ended is not None, f"a member of {name}")
        if member.ended is not None:
            raise member.ended
        return member

    def leave_group(self, member: GroupMember) -> None:
        member.leave()
        self.run_until(lambda: member.left, f"a member of {member.name} to leave")

    def handle(self, member: GroupMember, count: int) -> list[bytes | None]:
        """Let it take and acknowledge so many records more; their values."""
        before = len(member.taken)

        def enough() -> bool:
            member.take(count - len(member.taken) + before, ack=True)
            return len(member.taken) - before >= count

        self.run_until(enough, f"{count} records at a member of {member.name}")
        return member.values[before:]

    def describe_group(self, name: str, *, at: Node = 0) -> SubscriptionDescription:
        described = self._call(at, "describe a name", lambda core, now, call: core.groups.describe(now, call, name))
        assert isinstance(described, SubscriptionDescription)
        return described

    def reset_group(self, name: str, start: Start, *, at: Node = 0) -> None:
        self._call(at, "reset a name", lambda core, now, call: core.groups.reset(now, call, name, start))

    def coordinator(self, name: str) -> Node:
        """The node that decides about this name."""
        partitions = [placed for placed in self.state(at=self.running[0]).partitions if placed.topic == "_groups"]
        return self.owner("_groups", partition_of(name.encode(), len(partitions)))

    # --- copies --------------------------------------------------------------------------------------

    def copies(self, topic: str, partition: int = 0) -> list[list[StoredBatch]]:
        """What the running nodes that hold the partition have of it in their files, below its commit offset."""
        key = Partition(self.topics(at=self.running[0])[topic], PartitionIndex(partition))
        placed = self.placed(topic, partition, at=self.running[0])
        assert placed is not None
        holders = {copy.node for copy in placed.copies}
        state = self.state(at=self.running[0])
        addresses = {node.address for node in state.nodes if node.node in holders}
        found = [self.log(node, key) for node in self.running if self.address(node) in addresses]
        return [
            [batch for batch in committed_batches(batches, placed.commit) if batch.base >= placed.first]
            for batches in found
        ]

    def await_equal_copies(self, topic: str, partition: int = 0, *, count: int) -> list[StoredBatch]:
        """Until so many copies are the same below commit, and hold all of it; what they hold."""
        agreed: list[StoredBatch] = []

        def equal() -> bool:
            copies = self.copies(topic, partition)
            placed = self.placed(topic, partition, at=self.running[0])
            agreed[:] = copies[0]
            whole = (
                placed is not None and is_fully_committed(placed) and bool(agreed) and agreed[-1].end == placed.commit
            )
            return whole and len(copies) == count and all(copy == agreed for copy in copies)

        self.run_until(equal, f"{count} equal copies of {topic}/{partition}")
        return agreed

    def _call(self, at: Node, what: str, call_core: CoreCall, timeout_ms: int = LONG_TIMEOUT_MS) -> Result:
        client = self.client(at, timeout_ms)
        reply: list[Result | RostraError] = []
        call_core(client.core, client.now_us, client.call(what, reply.append))
        client.run_effects()
        self.run_until(lambda: bool(reply), f"an answer to {what} at node {at}")
        if isinstance(reply[0], RostraError):
            raise reply[0]
        return reply[0]

    def _call_until_done(self, at: Node, what: str, call_core: CoreCall, was_done: type[RostraError]) -> Result:
        """Asks again when nobody can tell what became of it; None if an earlier asking turns out to have done it."""
        again = False
        while True:
            try:
                return self._call(at, what, call_core)
            except Unavailable:
                again = True
            except was_done:
                if not again:
                    raise
                return None

    # --- what a driver does --------------------------------------------------------------------------

    @property
    @abstractmethod
    def count(self) -> int:
        """How many have come so far."""

    @property
    @abstractmethod
    def running(self) -> list[Node]:
        """Those that were neither crashed nor removed; one that is paused counts."""

    @abstractmethod
    def address(self, node: Node) -> str:
        """Where clients find it."""

    @property
    @abstractmethod
    def now_us(self) -> int:
        """The time that passes for clients."""

    @abstractmethod
    def client(self, node: Node, timeout_ms: int) -> CoreClient:
        """A client at this node, which gives up what is not answered or acknowledged in that time."""

    @abstractmethod
    def new_client(self, node: Node, *, auto_create: bool = False) -> CoreClient:
        """Another client there, with connections of its own; with `auto_create` its look-ups create topics."""

    @abstractmethod
    def run_until(self, true: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Lets time pass until this holds. It may ask questions itself."""

    @abstractmethod
    def request_node(self, node: Node, message: NodeRequest, payload: bytes | bytearray = b"") -> NodeReply:
        """This very node's answer to a request, with which no client follows to another."""

    @abstractmethod
    def raw_connection(self, node: Node) -> RawConnection:
        """A connection to this very node, to be spoken to in messages."""

    def log(self, node: Node, partition: Partition) -> list[StoredBatch]:
        """What a node has in the files of a partition, batch by batch."""
        found: list[StoredBatch] = []
        for content in self.segments(node, partition):
            found += batches_in(content, partition, check=True)
        return found

    @abstractmethod
    def segments(self, node: Node, partition: Partition) -> list[bytes]:
        """The files of a partition at a node, as they are."""

    @abstractmethod
    def crash(self, *nodes: Node) -> None:
        """All at once, in the middle of whatever they do."""

    @abstractmethod
    def cut_power(self) -> None:
        """Every node crashes at the same moment; where disks are simulated they forget what was not synced."""

    @abstractmethod
    def restart(self, *nodes: Node) -> None:
        """With what is on their disks; returns when clients can connect."""

    @abstractmethod
    def pause(self, node: Node) -> None:
        """It does nothing at all: others only see its silence."""

    @abstractmethod
    def resume(self, node: Node) -> None: ...

    @abstractmethod
    def partition(self, *sides: list[Node]) -> None:
        """Nothing passes from one side to another, be it from nodes or from clients."""

    @abstractmethod
    def heal(self) -> None: ...

    @abstractmethod
    def join(self, through: Node = 0) -> Node:
        """A new node; returns when it serves clients."""
