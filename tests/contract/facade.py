"""The cluster façade of the contract tests: one interface for every fabric, simulated or on real sockets.

Theory of operation. A contract test is plain synchronous code against a `Cluster`. Time passes only inside these
calls: a call returns when its reply has arrived, and `run_until` when its condition holds; both fail at a deadline, and
neither sleeps. `SimulatedCluster` runs its event loop on virtual time, `SocketCluster` runs real nodes on threads and
turns an asyncio loop for the clients. `Cluster` itself implements all that goes through clients; a driver adds clients,
raw connections, crashes, splits and access to the log files.

A client is *at* a node: it connects to that node first, and in a split it is on that node's side. Clients consist of
the production client core (`tests.contract.clients`); for messages that no core sends there are raw connections. The
checkers of the simulator run after every simulated test.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from rostra.client.core.effects import Ack, Result, SinkDecision, SubscriptionDescription, TopicDescription
from rostra.client.core.options import BelowStart, MemberSettings, Start
from rostra.client.core.producer.partitioner import partition_of
from rostra.client.core.sink_requests import SinkTask
from rostra.errors import RostraError, TopicExists, Unavailable, UnknownTopic
from rostra.fabric.api import Guarantees
from rostra.model.cluster import ClusterState, NodeState, PlacedPartition
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.simulator.history import StoredBatch
from rostra.simulator.world.fabric_observer import batches_in, committed_batches
from rostra.wire.groups import FindCoordinator
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
from rostra.wire.sinks import StagedPart
from tests.contract.clients import CoreCall, CoreClient, Producer, ReceivedRecord, Subscription
from tests.contract.group_members import GroupMember
from tests.contract.guarantees import TOPICS_OF_EACH_NODE
from tests.contract.raw_connections import RawConnection

Node = int
"""The index of a node, in the order in which they joined."""

TIMEOUT_S = 60.0
"""How long a condition may take to come true."""
SHORT_TIMEOUT_MS = 1_500
"""Timeout of calls that are expected to fail."""
LONG_TIMEOUT_MS = 25_000
LEASE_MS = 2_000
"""Lease of group members, after which crashed ones are removed."""
CONNECT_TIMEOUT_MS = 2_000
"""Timeout of one attempt to connect, because a host without power does not answer."""


REPLICAS_BY_DEFAULT = 3

NodeRequest = Publish | Subscribe | DescribeTopic | FindCoordinator
NodeReply = Published | Subscribed | TopicDescribed | Failed
"""The replies to these."""


def is_fully_committed(placed: PlacedPartition) -> bool:
    """Whether the owner has committed its whole log; other nodes may know less, or another owner.

    A partition without an owner is complete when all replicas are equal.
    """
    known = {copy.node: copy.match for copy in placed.copies}
    if not placed.owner:
        return all(match == placed.end for match in known.values())
    return placed.commit == placed.end == known.get(placed.owner, -1)


class ConditionTimeout(AssertionError):
    """A condition did not come true in time."""


class Cluster(ABC):
    """A running cluster. The abstract methods at the end are what a driver implements."""

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
        replicas: int = 0,
    ) -> Topic:
        """Creates a topic; where each node has topics of its own, at every running node."""
        settings = TopicSettings(
            partitions,
            retention_bytes=retention_bytes,
            segment_bytes=segment_bytes,
            compaction=compaction,
            ownership=ownership,
            history_depth=history_depth,
            replicas=replicas,
        )
        created = self.create_topic_at(at, name, settings)
        if TOPICS_OF_EACH_NODE.holds(self.guarantees):
            for node in self.others(at):
                self.create_topic_at(node, name, settings)
        return created

    def create_topic_at(self, at: Node, name: str, settings: TopicSettings | None = None) -> Topic:
        wanted = settings or TopicSettings()
        call_core: CoreCall = lambda core, now, call: core.create_topic(now, call, name, wanted)  # noqa: E731
        created = self._call_until_done(at, f"create {name}", call_core, TopicExists)
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
        """The state of a node, as another one reports it."""
        known = self.state(at=at).nodes
        return next((state for state in known if state.address == self.address(node)), None)

    def placed(self, topic: str, partition: int = 0, *, at: Node = 0) -> PlacedPartition | None:
        for placed in self.state(at=at).partitions:
            if (placed.topic, placed.partition) == (topic, partition):
                return placed
        return None

    def owner(self, topic: str, partition: int = 0, *, at: Node | None = None) -> Node:
        """The running node that owns a partition, once there is one."""
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

    def holders(self, topic: str, *, besides: Node) -> list[Node]:
        """The running nodes that have a copy of a topic's first partition, but for one."""
        state = self.state(at=self.running[0])
        placed = next(placed for placed in state.partitions if placed.topic == topic)
        ids = {copy.node for copy in placed.copies}
        addresses = {node.address for node in state.nodes if node.node in ids}
        return [node for node in self.others(besides) if self.address(node) in addresses]

    def minority_with(self, owner: Node, topic: str) -> list[Node]:
        """The largest minority of the nodes in which no other node than the owner has a copy of the topic."""
        holders = self.holders(topic, besides=owner)
        without = [node for node in self.others(owner) if node not in holders]
        return [owner, *without][: (self.count - 1) // 2]

    @property
    def copies_by_default(self) -> int:
        return min(REPLICAS_BY_DEFAULT, self.count)

    def await_members(self, count: int) -> None:
        """Waits until every running node reports exactly so many members, all alive and voting."""

        def all_there() -> bool:
            for node in self.running:
                nodes = self.state(at=node).nodes
                if len(nodes) != count or not all(member.alive and member.votes for member in nodes):
                    return False
            return True

        self.run_until(all_there, f"{count} live members")

    def transfer(self, topic: str, node: Node, partition: int = 0) -> None:
        """Transfers a partition as an operator would; returns when the node owns it."""
        state = self.node_state(node, at=node)
        assert state is not None
        call_core: CoreCall = lambda core, now, call: core.transfer_partition(now, call, topic, partition, state.node)  # noqa: E731
        self._call(self.owner(topic, partition), "transfer", call_core)

    def leave(self, node: Node) -> None:
        """Removes a node as an operator would; returns when the others report it gone, and crashes it."""
        rest = self.others(node)
        state = self.node_state(node, at=rest[0])
        assert state is not None
        self._call(rest[0], "remove", lambda core, now, call: core.remove_member(now, call, state.node))
        self.run_until(
            lambda: all(self.node_state(node, at=other) is None for other in rest), f"node {node} to be removed"
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
        """Publishes each value with `acks=all` and waits for the acknowledgements; raises the first error."""
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
        """An idempotent producer, which survives failures of nodes."""
        producer = Producer(self.client(at, LONG_TIMEOUT_MS), topic)
        self.run_until(lambda: producer.opened, f"a producer on {topic}")
        return producer

    def publisher(self, topic: str, strength: int, *, at: Node = 0, lease_ms: int = PUBLISHER_LEASE_MS) -> Producer:
        """A registered producer with a strength and a client of its own."""
        producer = Producer(self.new_client(at), topic, strength, lease_ms)
        self.run_until(lambda: producer.opened, f"a publisher on {topic}")
        return producer

    def publish_with(self, producer: Producer, *values: bytes) -> None:
        """Publishes the values, each in a batch of its own, and waits for the acknowledgements."""
        for value in values:
            producer.send(value)
            self.run_until(lambda: producer.settled, f"{value!r} to be settled")
        assert not producer.failed, producer.failed

    def set_strength(self, producer: Producer, strength: int) -> None:
        """Changes the strength of a publisher; returns when the change is acknowledged."""
        producer.set_strength(strength)
        self.run_until(lambda: producer.strength == strength, f"a publisher to have the strength {strength}")

    def leave_topic(self, producer: Producer) -> None:
        producer.leave()
        self.run_until(lambda: producer.left, f"a publisher to leave {producer.topic}")

    def publishers(self, topic: str, node: Node, partition: int = 0) -> dict[int, int]:
        """The publishers of a partition with their strengths, the strongest first, as this node has them."""
        described = self.request_node(node, DescribeTopic(1, topic))
        assert isinstance(described, TopicDescribed), described
        return {one.publisher: one.strength for one in described.partitions[partition].publishers}

    def await_publishers(self, topic: str, wanted: dict[int, int]) -> None:
        """Waits until every running node has exactly these publishers."""

        def equal() -> bool:
            return all(self.publishers(topic, node) == wanted for node in self.running)

        self.run_until(equal, f"the publishers {wanted} of {topic} at every node")

    def subscribe(
        self, *topics: str, at: Node = 0, start: Start = "earliest", below_start: BelowStart = "raise"
    ) -> Subscription:
        """Returns when the subscription is established; received records are in its `records`."""
        subscription = Subscription(self.client(at, LONG_TIMEOUT_MS), topics, start, below_start)
        what = f"a subscription to {subscription.topic}"
        self.run_until(lambda: subscription.established or subscription.ended is not None, what)
        if subscription.ended is not None:
            raise subscription.ended
        return subscription

    def pass_time(self, elapsed_ms: int, *, at: Node = 0) -> None:
        """Lets time pass, for tests that something does not happen."""
        client = self.client(at, LONG_TIMEOUT_MS)
        until_us = client.now_us + elapsed_ms * 1000
        self.run_until(lambda: client.now_us >= until_us, f"{elapsed_ms} ms to pass")

    def unsubscribe(self, subscription: Subscription) -> None:
        subscription.leave()
        self.run_until(lambda: subscription.left, f"the end of a subscription to {subscription.topic}")

    def read(self, topic: str, *, at: Node = 0) -> list[bytes | None]:
        """All committed values, partition by partition; no client may publish meanwhile."""
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

    # --- consumer groups -----------------------------------------------------------------------------

    @property
    def group_nodes(self) -> list[Node]:
        """The running nodes that share consumer groups: all of them, or one where each node has its own."""
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
        """A group member with a client of its own. Returns when it has joined; records it took are in its `taken`."""
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
        """Lets a member take and acknowledge so many further records; returns their values."""
        before = len(member.taken)

        def enough() -> bool:
            member.take(count - len(member.taken) + before, ack=True)
            return len(member.taken) - before >= count

        self.run_until(enough, f"{count} records at a member of {member.name}")
        return member.values[before:]

    def describe_group(self, name: str, *, at: Node = 0) -> SubscriptionDescription:
        described = self._call(at, "describe a group", lambda core, now, call: core.groups.describe(now, call, name))
        assert isinstance(described, SubscriptionDescription)
        return described

    def reset_group(self, name: str, start: Start, *, at: Node = 0) -> None:
        self._call(at, "reset a group", lambda core, now, call: core.groups.reset(now, call, name, start))

    def coordinator(self, name: str) -> Node:
        """The node that coordinates this group."""
        partitions = [placed for placed in self.state(at=self.running[0]).partitions if placed.topic == "_groups"]
        return self.owner("_groups", partition_of(name.encode(), len(partitions)))

    # --- exactly-once sinks --------------------------------------------------------------------------

    def stage(self, topic: str, partition: int, batch: bytearray, task: SinkTask, *, at: Node = 0) -> StagedPart:
        part = self._call(
            at, "stage a batch", lambda core, now, call: core.sinks.stage(now, call, topic, partition, batch, task)
        )
        assert isinstance(part, StagedPart)
        return part

    def commit_sink(
        self, query: str, batch: int, parts: list[StagedPart], *, writer: str = "", at: Node = 0
    ) -> SinkDecision:
        decision = self._call(
            at, "commit a sink", lambda core, now, call: core.sinks.commit(now, call, query, batch, parts, writer)
        )
        assert isinstance(decision, SinkDecision)
        return decision

    def abort_sink(self, query: str, batch: int, parts: list[StagedPart], *, at: Node = 0) -> None:
        self._call(at, "abort a sink", lambda core, now, call: core.sinks.abort(now, call, query, batch, parts))

    def sink_partition(self, query: str) -> int:
        """The partition of `_sinks` that stores this query."""
        partitions = [placed for placed in self.state(at=self.running[0]).partitions if placed.topic == "_sinks"]
        return partition_of(query.encode(), len(partitions))

    # --- copies --------------------------------------------------------------------------------------

    def copies(self, topic: str, partition: int = 0) -> list[list[StoredBatch]]:
        """The batches below the commit offset in the log files of each running replica."""
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
        """Waits until so many replicas are complete and equal below the commit offset; returns their batches."""
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
        self.run_until(lambda: bool(reply), f"a reply to {what} at node {at}")
        if isinstance(reply[0], RostraError):
            raise reply[0]
        return reply[0]

    def _call_until_done(self, at: Node, what: str, call_core: CoreCall, was_done: type[RostraError]) -> Result:
        """Retries while the outcome is unknown; None if an earlier attempt turns out to have succeeded."""
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

    # --- implemented by the drivers ------------------------------------------------------------------

    @property
    @abstractmethod
    def count(self) -> int:
        """How many nodes have been started so far."""

    @property
    @abstractmethod
    def running(self) -> list[Node]:
        """The nodes that were neither crashed nor removed; a paused one counts as running."""

    @abstractmethod
    def address(self, node: Node) -> str:
        """The address for clients."""

    @property
    @abstractmethod
    def now_us(self) -> int:
        """The time of the clients."""

    @abstractmethod
    def client(self, node: Node, timeout_ms: int) -> CoreClient:
        """The client at this node with this timeout for calls and deliveries."""

    @abstractmethod
    def new_client(self, node: Node, *, auto_create: bool = False) -> CoreClient:
        """Another client there, with connections of its own; with `auto_create` its look-ups create topics."""

    @abstractmethod
    def run_until(self, true: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        """Lets time pass until the condition holds. The condition may use the cluster."""

    @abstractmethod
    def request_node(self, node: Node, message: NodeRequest, payload: bytes | bytearray = b"") -> NodeReply:
        """This node's own reply to a request, without redirection to another node."""

    @abstractmethod
    def raw_connection(self, node: Node) -> RawConnection:
        """A raw connection to this node."""

    def log(self, node: Node, partition: Partition) -> list[StoredBatch]:
        """The batches in a node's log files of a partition."""
        found: list[StoredBatch] = []
        for content in self.segments(node, partition):
            found += batches_in(content, partition, check=True)
        return found

    @abstractmethod
    def segments(self, node: Node, partition: Partition) -> list[bytes]:
        """The contents of a node's log files of a partition."""

    @abstractmethod
    def crash(self, *nodes: Node) -> None:
        """Crashes these nodes at the same moment."""

    @abstractmethod
    def cut_power(self) -> None:
        """Crashes all nodes at the same moment; simulated disks lose what was not synced."""

    @abstractmethod
    def restart(self, *nodes: Node) -> None:
        """Restarts nodes on their disks; returns when clients can connect."""

    @abstractmethod
    def pause(self, node: Node) -> None:
        """Stops a node without closing its connections, as SIGSTOP does."""

    @abstractmethod
    def resume(self, node: Node) -> None: ...

    @abstractmethod
    def partition(self, *sides: list[Node]) -> None:
        """Splits the network: nothing passes between the sides, neither from nodes nor from clients."""

    @abstractmethod
    def heal(self) -> None: ...

    @abstractmethod
    def join(self, through: Node = 0) -> Node:
        """Adds a node; returns when it serves clients."""
