"""Where the replicas of each partition are: Raft's part of the replicated metadata."""

from __future__ import annotations

import msgspec

from rostra.errors import RostraError
from rostra.fabric.cluster.metadata_entries import (
    EntryCodec,
    MetadataEntry,
    MetadataSnapshot,
    TopicAdded,
    partitions_of,
)
from rostra.fabric.cluster.metadata_state import MetadataState
from rostra.model.ids import NodeId, Partition

REPLICAS_DEFAULT = 3
"""Replicas of a partition, unless the topic says otherwise."""


class ReassignmentStarted(MetadataEntry, frozen=True, array_like=True, tag="move"):
    """The partition's replicas are to be at these nodes; its leader changes the group step by step."""

    partition: Partition
    replicas: tuple[NodeId, ...]


class ReassignmentDone(MetadataEntry, frozen=True, array_like=True, tag="moved"):
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


Assignments = tuple[tuple[Partition, ReplicaAssignment], ...]
_assignments = msgspec.msgpack.Decoder(Assignments)


class ReplicaAssignments(MetadataState):
    """Members, topics, and the replicas of each partition."""

    codec = EntryCodec(ReassignmentStarted, ReassignmentDone)

    def __init__(self) -> None:
        super().__init__()
        self.assignments: dict[Partition, ReplicaAssignment] = {}
        """Partitions that were reassigned since their creation."""
        self.reassigning: dict[Partition, None] = {}
        self._leader_counts: dict[NodeId, int] = {}
        """Per node, how many partitions it should lead, and of how many it is a replica."""
        self._replica_counts: dict[NodeId, int] = {}

    def replicas_of(self, partition: Partition) -> tuple[NodeId, ...]:
        return self.replica_assignment(partition).replicas

    def is_moving(self, partition: Partition) -> bool:
        return partition in self.reassigning

    def apply_placement(self, entry: MetadataEntry) -> RostraError | None:
        match entry:
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
            case _:
                raise AssertionError(f"no entry of this fabric: {entry}")
        return None

    def topic_added(self, made: TopicAdded) -> None:
        for replicas in made.replicas:
            self._count(replicas, 1)

    def topic_removed(self, made: TopicAdded) -> None:
        for partition in partitions_of(made):
            self._count(self.replica_assignment(partition).replicas, -1)
            self.assignments.pop(partition, None)
            self.reassigning.pop(partition, None)

    def pack_placement(self) -> msgspec.Raw:
        return msgspec.Raw(msgspec.msgpack.encode(tuple(self.assignments.items())))

    def restore_placement(self, snapshot: MetadataSnapshot) -> None:
        self.assignments = {}
        self._leader_counts, self._replica_counts = {}, {}
        for made in snapshot.topics:
            self.add_topic(made)
        for partition, assignment in _assignments.decode(snapshot.placement):
            self._assign(partition, assignment)
        self.reassigning = {
            partition: None for partition, assignment in self.assignments.items() if assignment.previous
        }

    def _assign(self, partition: Partition, assignment: ReplicaAssignment) -> None:
        self._count(self.replica_assignment(partition).replicas, -1)
        self.assignments[partition] = assignment
        self._count(assignment.replicas, 1)

    def _count(self, replicas: tuple[NodeId, ...], by: int) -> None:
        for node in replicas[:1]:
            self._leader_counts[node] = self._leader_counts.get(node, 0) + by
        for node in replicas:
            self._replica_counts[node] = self._replica_counts.get(node, 0) + by

    def replica_assignment(self, partition: Partition) -> ReplicaAssignment:
        assignment = self.assignments.get(partition)
        return (
            assignment
            if assignment is not None
            else ReplicaAssignment(self.topics[partition.topic].replicas[partition.index])
        )

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


def count_replicas(
    nodes: tuple[NodeId, ...], leads: dict[NodeId, int], replicas_of: dict[NodeId, int], by: int = 1
) -> None:
    if nodes and nodes[0] in leads:
        leads[nodes[0]] += by
    for node in nodes:
        if node in replicas_of:
            replicas_of[node] += by
