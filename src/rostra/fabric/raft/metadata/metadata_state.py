"""What the metadata group agrees on: members, topics, and which nodes hold each partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from rostra.errors import BatchRejected, RostraError, TopicExists, UnknownMember, UnknownTopic
from rostra.fabric.api import Buffer, EpochStart, TopicSpec
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.model.layout import CONTROL

META = Partition(TopicId(0), PartitionIndex(0))
"""The catalogue is a log like any other."""

Text = Annotated[str, Meta(max_length=1024)]


class ClusterMember(msgspec.Struct, frozen=True, array_like=True):
    """`address` is for clients, `peer_address` for other nodes."""

    node: NodeId
    address: Text
    peer_address: Text


class Requester(msgspec.Struct, frozen=True, array_like=True):
    """Who waits for an entry: a node since its last start, under a token of its own."""

    node: NodeId
    boot: int
    token: int


class TopicAdded(msgspec.Struct, frozen=True, array_like=True, tag="made"):
    """`replicas` per partition as at first, the preferred leader in front; `wanted` copies, 0 for the default."""

    spec: TopicSpec
    segment_bytes: int
    replicas: tuple[tuple[NodeId, ...], ...]
    asker: Requester
    wanted: int = 0


class TopicRemoved(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    topic: TopicId
    asker: Requester


class TopicSettingsChanged(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """The topic's settings are these from now on."""

    topic: TopicId
    settings: bytes
    segment_bytes: int
    asker: Requester


class NodeJoined(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """Or is found at another address from now on."""

    member: ClusterMember


class NodeLeaving(msgspec.Struct, frozen=True, array_like=True, tag="leaving"):
    """Its copies are to be moved away; it leaves when it has none."""

    node: NodeId
    asker: Requester


class NodeLeft(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    """It holds no copy and is in no group any more, and never comes back under this id."""

    node: NodeId


class ReassignmentStarted(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """The partition's copies are to be at these nodes; its group takes the steps."""

    partition: Partition
    replicas: tuple[NodeId, ...]


class ReassignmentDone(msgspec.Struct, frozen=True, array_like=True, tag="moved"):
    """The partition's group consists of these nodes: who else has a copy may drop it."""

    partition: Partition
    replicas: tuple[NodeId, ...]


class ReplicaAssignment(msgspec.Struct, frozen=True, array_like=True):
    """Where a partition's copies are to be, the preferred leader first; `former` had them when a move began."""

    replicas: tuple[NodeId, ...]
    former: tuple[NodeId, ...] = ()

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """Everybody who may have a copy."""
        return tuple(dict.fromkeys((*self.replicas, *self.former)))


class MetadataSnapshot(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The whole catalogue as of the offset it is written at, so that the log before it can go.

    A checkpoint like a partition's: `epochs` are the rows of the log so far, and whoever recovers a log reads these.
    """

    producers: tuple[()]
    epochs: tuple[EpochStart, ...]
    members: tuple[ClusterMember, ...]
    leaving: tuple[NodeId, ...]
    removed: tuple[ClusterMember, ...]
    topics: tuple[TopicAdded, ...]
    placed: tuple[tuple[Partition, ReplicaAssignment], ...]


Entry = (
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
_decoder = msgspec.msgpack.Decoder(Entry)

REMOVED_MAX = 1024
"""Removed members whose ids are remembered, so that they can be told."""
REPLICAS = 3
"""Of a partition, where nobody says otherwise."""


def entry_batch(entry: Entry, wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(entry)], timestamp_us=wall_us, control=True)


def read_metadata_entry(batch: Buffer) -> Entry | None:
    """None for what the group wrote for itself."""
    flags = int.from_bytes(batch[60:62], "little")
    if not flags & CONTROL:
        return None
    try:
        (value,) = Batch(batch).values()[:1]
        entry: Entry = _decoder.decode(value or b"")
        return entry
    except (BatchRejected, msgspec.DecodeError, UnicodeDecodeError):
        return None


class MetadataState:
    """The same at every node that has applied the same entries."""

    def __init__(self) -> None:
        self.members: dict[NodeId, ClusterMember] = {}
        self.leaving: dict[NodeId, None] = {}
        self.removed: dict[NodeId, ClusterMember] = {}
        self.topics: dict[TopicId, TopicAdded] = {}
        self.names: dict[str, TopicId] = {}
        self.placed: dict[Partition, ReplicaAssignment] = {}
        """Partitions whose copies are not, or no more, where they were made."""
        self.moving: dict[Partition, None] = {}
        self._leads: dict[NodeId, int] = {}
        """How many partitions each node should lead, and of how many it should hold a copy: every new topic asks."""
        self._holds: dict[NodeId, int] = {}

    def apply(self, entry: Entry) -> RostraError | None:
        """Why the entry changes nothing, if it does not: it was written before another one was applied."""
        match entry:
            case TopicAdded(spec=spec):
                if spec.topic in self.topics:
                    # Said twice, as after a change of leaders.
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
                    return UnknownMember(node)
            case NodeLeft(node=node):
                self._remove(node)
            case ReassignmentStarted(partition=partition):
                if partition.topic in self.topics:
                    self._place(partition, ReplicaAssignment(entry.replicas, self.placement(partition).holders))
                    self.moving[partition] = None
            case ReassignmentDone(partition=partition):
                if partition in self.moving and self.placed[partition].replicas == entry.replicas:
                    self.placed[partition] = ReplicaAssignment(entry.replicas)
                    del self.moving[partition]
            case MetadataSnapshot():
                self._restore(entry)
            case _:
                assert_never(entry)
        return None

    def _add(self, made: TopicAdded) -> None:
        self.topics[made.spec.topic] = made
        self.names[made.spec.name] = made.spec.topic
        for replicas in made.replicas:
            self._tally(replicas, 1)

    def _place(self, partition: Partition, placed: ReplicaAssignment) -> None:
        self._tally(self.placement(partition).replicas, -1)
        self.placed[partition] = placed
        self._tally(placed.replicas, 1)

    def _tally(self, replicas: tuple[NodeId, ...], by: int) -> None:
        for node in replicas[:1]:
            self._leads[node] = self._leads.get(node, 0) + by
        for node in replicas:
            self._holds[node] = self._holds.get(node, 0) + by

    def _drop(self, topic: TopicId) -> RostraError | None:
        made = self.topics.get(topic)
        if made is None:
            return UnknownTopic(str(topic))
        for partition in partitions_of(made):
            self._tally(self.placement(partition).replicas, -1)
            self.placed.pop(partition, None)
            self.moving.pop(partition, None)
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

    # --- as a whole ---

    def snapshot(self, epochs: tuple[EpochStart, ...]) -> MetadataSnapshot:
        return MetadataSnapshot(
            (),
            epochs,
            tuple(self.members.values()),
            tuple(self.leaving),
            tuple(self.removed.values()),
            tuple(self.topics.values()),
            tuple(self.placed.items()),
        )

    def _restore(self, snapshot: MetadataSnapshot) -> None:
        self.members = {member.node: member for member in snapshot.members}
        self.leaving = dict.fromkeys(snapshot.leaving)
        self.removed = {member.node: member for member in snapshot.removed}
        self.topics, self.names, self.placed = {}, {}, {}
        self._leads, self._holds = {}, {}
        for made in snapshot.topics:
            self._add(made)
        for partition, placed in snapshot.placed:
            self._place(partition, placed)
        self.moving = {partition: None for partition, placed in self.placed.items() if placed.former}

    # --- where things are ---

    @property
    def staying(self) -> list[NodeId]:
        """Members that may be given something to hold."""
        return [node for node in sorted(self.members) if node not in self.leaving]

    def placement(self, partition: Partition) -> ReplicaAssignment:
        placed = self.placed.get(partition)
        return (
            placed if placed is not None else ReplicaAssignment(self.topics[partition.topic].replicas[partition.index])
        )

    def partitions(self) -> Iterator[Partition]:
        for made in self.topics.values():
            yield from partitions_of(made)

    def held(self) -> tuple[dict[NodeId, int], dict[NodeId, int]]:
        """How many partitions each member should lead, and of how many it holds a copy."""
        staying = self.staying
        leads = {node: self._leads.get(node, 0) for node in staying}
        return leads, {node: self._holds.get(node, 0) for node in staying}

    def place(self, partitions: int, replicas: int, away: tuple[NodeId, ...] = ()) -> tuple[tuple[NodeId, ...], ...]:
        """Where a new topic goes: to the nodes that lead least, its copies to those that hold least.

        To nodes that are away only if there are no others: with most of its copies there, nobody could publish to it.
        """
        leads, holds = self.held()
        placement: list[tuple[NodeId, ...]] = []
        for _ in range(partitions):
            first = min(leads, key=lambda node: (node in away, leads[node], holds[node], node))
            rest = (node for node in holds if node != first)
            others = sorted(rest, key=lambda node: (node in away, holds[node], node))
            chosen = (first, *others[: replicas - 1])
            count(chosen, leads, holds)
            placement.append(chosen)
        return tuple(placement)


def partitions_of(made: TopicAdded) -> list[Partition]:
    return [Partition(made.spec.topic, PartitionIndex(index)) for index in range(made.spec.partitions)]


def count(nodes: tuple[NodeId, ...], leads: dict[NodeId, int], holds: dict[NodeId, int], by: int = 1) -> None:
    if nodes and nodes[0] in leads:
        leads[nodes[0]] += by
    for node in nodes:
        if node in holds:
            holds[node] += by
