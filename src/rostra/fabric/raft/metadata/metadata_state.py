"""The replicated state of the metadata group: members, topics, and the replicas of each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from rostra.errors import BatchRejected, RostraError, TopicExists, UnknownMember, UnknownTopic
from rostra.fabric.api import Buffer, EpochStart, TopicSpec
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId, text
from rostra.model.layout import CONTROL

METADATA_PARTITION = Partition(TopicId(0), PartitionIndex(0))
"""The partition of the metadata log."""

Text = Annotated[str, Meta(max_length=1024)]


class ClusterMember(msgspec.Struct, frozen=True, array_like=True):
    """`address` is for clients, `peer_address` for other nodes; `name` is empty unless the operator chose one."""

    node: NodeId
    address: Text
    peer_address: Text
    name: Text = ""


class Requester(msgspec.Struct, frozen=True, array_like=True):
    """The request that an entry answers: node, boot number and token."""

    node: NodeId
    boot: int
    token: int


class TopicAdded(msgspec.Struct, frozen=True, array_like=True, tag="made"):
    """`replicas` per partition at creation, the preferred leader first; `replication_factor` 0 is the default."""

    spec: TopicSpec
    segment_bytes: int
    replicas: tuple[tuple[NodeId, ...], ...]
    requester: Requester
    replication_factor: int = 0


class TopicRemoved(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    topic: TopicId
    requester: Requester


class TopicSettingsChanged(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """Replaces the topic's settings."""

    topic: TopicId
    settings: bytes
    segment_bytes: int
    requester: Requester


class NodeJoined(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """Adds a member, or changes its addresses."""

    member: ClusterMember


class NodeLeaving(msgspec.Struct, frozen=True, array_like=True, tag="leaving"):
    """The node's replicas are to be reassigned; it leaves when it has none."""

    node: NodeId
    requester: Requester


class NodeLeft(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """The node has no replica and is in no group; its id is never used again."""

    node: NodeId


class ReassignmentStarted(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """The partition's replicas are to be at these nodes; its leader changes the group step by step."""

    partition: Partition
    replicas: tuple[NodeId, ...]


class ReassignmentDone(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """The partition's group consists of these nodes; other replicas may be dropped."""

    partition: Partition
    replicas: tuple[NodeId, ...]


class ReplicaAssignment(msgspec.Struct, frozen=True, array_like=True):
    """A partition's replicas, the preferred leader first; `previous` had them when a reassignment started."""

    replicas: tuple[NodeId, ...]
    previous: tuple[NodeId, ...] = ()

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """All nodes that may have a replica."""
        return tuple(dict.fromkeys((*self.replicas, *self.previous)))


class MetadataSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The whole state as of its offset, so that the log before it can be trimmed.

    A checkpoint like a partition's: `epochs` are the rows of the log so far, which log recovery reads.
    """

    producers: tuple[()]
    epochs: tuple[EpochStart, ...]
    members: tuple[ClusterMember, ...]
    leaving: tuple[NodeId, ...]
    removed: tuple[ClusterMember, ...]
    topics: tuple[TopicAdded, ...]
    assignments: tuple[tuple[Partition, ReplicaAssignment], ...]


MetadataEntry = (
    TopicAdded
    | TopicRemoved
    | TopicSettingsChanged
    | NodeJoined
    | NodeLeaving
    | NodeLeft
    | ReassignmentStarted
    | ReassignmentDone
    | MetadataSnapshot
)
_decoder = msgspec.msgpack.Decoder(MetadataEntry)

REMOVED_MAX = 1024
"""How many removed members are remembered, so that they can be notified."""
REPLICAS_DEFAULT = 3
"""Replicas of a partition, unless the topic says otherwise."""


def entry_batch(entry: MetadataEntry, wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(entry)], timestamp_us=wall_us, control=True)


def read_metadata_entry(batch: Buffer) -> MetadataEntry | None:
    """Decodes a metadata entry; None for entries of the group itself."""
    flags = int.from_bytes(batch[60:62], "little")
    if not flags & CONTROL:
        return None
    try:
        (value,) = Batch(batch).values()[:1]
        entry: MetadataEntry = _decoder.decode(value or b"")
        return entry
    except (BatchRejected, msgspec.DecodeError, UnicodeDecodeError):
        return None


class MetadataState:
    """Deterministic: equal at all nodes that have applied the same entries."""

    def __init__(self) -> None:
        self.members: dict[NodeId, ClusterMember] = {}
        self.leaving: dict[NodeId, None] = {}
        self.removed: dict[NodeId, ClusterMember] = {}
        self.topics: dict[TopicId, TopicAdded] = {}
        self.names: dict[str, TopicId] = {}
        self.assignments: dict[Partition, ReplicaAssignment] = {}
        """Partitions that were reassigned since their creation."""
        self.reassigning: dict[Partition, None] = {}
        self._leader_counts: dict[NodeId, int] = {}
        """Per node, how many partitions it should lead, and of how many it is a replica."""
        self._replica_counts: dict[NodeId, int] = {}

    def apply(self, entry: MetadataEntry) -> RostraError | None:
        """Applies an entry; returns why it had no effect, if another entry made it invalid."""
        match entry:
            case TopicAdded(spec=spec):
                if spec.topic in self.topics:
                    # A repeated entry, as after a change of leaders.
                    return None
                if spec.name in self.names:
                    return TopicExists(spec.name)
                self._add(entry)
            case TopicRemoved(topic=topic):
                return self._drop(topic)
            case TopicSettingsChanged(topic=topic):
                return self._change(topic, entry)
            case NodeJoined(member=member):
                if member.node not in self.removed:
                    self.members[member.node] = member
            case NodeLeaving(node=node):
                if node in self.members:
                    self.leaving[node] = None
                elif node not in self.removed:
                    return UnknownMember(text(node))
            case NodeLeft(node=node):
                self._remove(node)
            case ReassignmentStarted(partition=partition):
                if partition.topic in self.topics:
                    self._assign(
                        partition, ReplicaAssignment(entry.replicas, self.replica_assignment(partition).holders)
                    )
                    self.reassigning[partition] = None
            case ReassignmentDone(partition=partition):
                if partition in self.reassigning and self.assignments[partition].replicas == entry.replicas:
                    self.assignments[partition] = ReplicaAssignment(entry.replicas)
                    del self.reassigning[partition]
            case MetadataSnapshot():
                self._restore(entry)
            case _:
                assert_never(entry)
        return None

    def _add(self, made: TopicAdded) -> None:
        self.topics[made.spec.topic] = made
        self.names[made.spec.name] = made.spec.topic
        for replicas in made.replicas:
            self._count(replicas, 1)

    def _assign(self, partition: Partition, assignment: ReplicaAssignment) -> None:
        self._count(self.replica_assignment(partition).replicas, -1)
        self.assignments[partition] = assignment
        self._count(assignment.replicas, 1)

    def _count(self, replicas: tuple[NodeId, ...], by: int) -> None:
        for node in replicas[:1]:
            self._leader_counts[node] = self._leader_counts.get(node, 0) + by
        for node in replicas:
            self._replica_counts[node] = self._replica_counts.get(node, 0) + by

    def _drop(self, topic: TopicId) -> RostraError | None:
        made = self.topics.get(topic)
        if made is None:
            return UnknownTopic(str(topic))
        for partition in partitions_of(made):
            self._count(self.replica_assignment(partition).replicas, -1)
            self.assignments.pop(partition, None)
            self.reassigning.pop(partition, None)
        del self.topics[topic]
        del self.names[made.spec.name]
        return None

    def _change(self, topic: TopicId, entry: TopicSettingsChanged) -> RostraError | None:
        made = self.topics.get(topic)
        if made is None:
            return UnknownTopic(str(topic))
        spec = msgspec.structs.replace(made.spec, settings=entry.settings)
        self.topics[topic] = msgspec.structs.replace(made, spec=spec, segment_bytes=entry.segment_bytes)
        return None

    def _remove(self, node: NodeId) -> None:
        self.leaving.pop(node, None)
        member = self.members.pop(node, None)
        if member is not None:
            self.removed[node] = member
        if len(self.removed) > REMOVED_MAX:
            del self.removed[next(iter(self.removed))]

    # --- snapshots ---

    def snapshot(self, epochs: tuple[EpochStart, ...]) -> MetadataSnapshot:
        return MetadataSnapshot(
            (),
            epochs,
            tuple(self.members.values()),
            tuple(self.leaving),
            tuple(self.removed.values()),
            tuple(self.topics.values()),
            tuple(self.assignments.items()),
        )

    def _restore(self, snapshot: MetadataSnapshot) -> None:
        self.members = {member.node: member for member in snapshot.members}
        self.leaving = dict.fromkeys(snapshot.leaving)
        self.removed = {member.node: member for member in snapshot.removed}
        self.topics, self.names, self.assignments = {}, {}, {}
        self._leader_counts, self._replica_counts = {}, {}
        for made in snapshot.topics:
            self._add(made)
        for partition, assignment in snapshot.assignments:
            self._assign(partition, assignment)
        self.reassigning = {
            partition: None for partition, assignment in self.assignments.items() if assignment.previous
        }

    # --- assignments ---

    @property
    def remaining(self) -> list[NodeId]:
        """Members that are not leaving."""
        return [node for node in sorted(self.members) if node not in self.leaving]

    def replica_assignment(self, partition: Partition) -> ReplicaAssignment:
        assignment = self.assignments.get(partition)
        return (
            assignment
            if assignment is not None
            else ReplicaAssignment(self.topics[partition.topic].replicas[partition.index])
        )

    def partitions(self) -> Iterator[Partition]:
        for made in self.topics.values():
            yield from partitions_of(made)

    def replica_counts(self) -> tuple[dict[NodeId, int], dict[NodeId, int]]:
        """Per remaining member, how many partitions it should lead, and of how many it is a replica."""
        staying = self.remaining
        leads = {node: self._leader_counts.get(node, 0) for node in staying}
        return leads, {node: self._replica_counts.get(node, 0) for node in staying}

    def assign_replicas(
        self, partitions: int, replicas: int, dead: tuple[NodeId, ...] = ()
    ) -> tuple[tuple[NodeId, ...], ...]:
        """Assigns the replicas of a new topic: leaders to the nodes that lead least, the rest to those with fewest.

        Nodes that are down come last: with a majority of replicas there, the topic would be unavailable.
        """
        leads, replicas_of = self.replica_counts()
        placement: list[tuple[NodeId, ...]] = []
        for _ in range(partitions):
            first = min(leads, key=lambda node: (node in dead, leads[node], replicas_of[node], node))
            rest = (node for node in replicas_of if node != first)
            others = sorted(rest, key=lambda node: (node in dead, replicas_of[node], node))
            chosen = (first, *others[: replicas - 1])
            count_replicas(chosen, leads, replicas_of)
            placement.append(chosen)
        return tuple(placement)


def partitions_of(made: TopicAdded) -> list[Partition]:
    return [Partition(made.spec.topic, PartitionIndex(index)) for index in range(made.spec.partitions)]


def count_replicas(
    nodes: tuple[NodeId, ...], leads: dict[NodeId, int], replicas_of: dict[NodeId, int], by: int = 1
) -> None:
    if nodes and nodes[0] in leads:
        leads[nodes[0]] += by
    for node in nodes:
        if node in replicas_of:
            replicas_of[node] += by
