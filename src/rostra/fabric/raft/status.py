"""The status of the cluster and of the groups at one node, for the command line and metrics."""

from __future__ import annotations

import msgspec

from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.replica_assignments import ReplicaAssignments
from rostra.model.cluster import CopyState, PlacedPartition
from rostra.model.ids import NodeId, Partition


class MemberStatus(msgspec.Struct, frozen=True, array_like=True):
    """`alive` is what this node observes; always true of itself."""

    node: NodeId
    address: str
    peer_address: str
    alive: bool
    voter: bool
    """In the metadata group."""


class FollowerStatus(msgspec.Struct, frozen=True, array_like=True):
    node: NodeId
    state: str
    match: int
    next: int
    in_flight_bytes: int


class GroupStatus(msgspec.Struct, frozen=True, array_like=True):
    """One group as its member here knows it; `followers` only on the leader. Leader 0: unknown."""

    partition: Partition
    topic: str
    role: str
    term: int
    leader: NodeId
    first: int
    end: int
    synced: int
    commit: int
    complete: bool
    quiescent: bool
    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]
    followers: tuple[FollowerStatus, ...]


class ClusterStatus(msgspec.Struct, frozen=True, array_like=True):
    node: NodeId
    boot: int
    members: tuple[MemberStatus, ...]
    groups: tuple[GroupStatus, ...]
    """The metadata group first."""


def status_of(
    context: NodeContext, groups: GroupSet, metadata: MetadataGroup[ReplicaAssignments], peers: PeerSet
) -> ClusterStatus:
    voters = metadata.group.config.voters
    known = [metadata.state.members.get(context.node, peers.own), *peers.members()]
    members = tuple(
        MemberStatus(
            member.node,
            member.address,
            member.peer_address,
            peers.is_alive(member.node),
            member.node in voters,
        )
        for member in sorted(known, key=lambda member: member.node)
    )
    described = tuple(group_status(group) for _, group in sorted(groups.replicas.items()))
    return ClusterStatus(context.node, context.boot, members, described)


def group_status(group: RaftGroup) -> GroupStatus:
    log = group.log
    followers = tuple(
        FollowerStatus(peer, str(progress.state), progress.match, progress.next, progress.in_flight_bytes)
        for peer, progress in sorted(group.sender.progress.items())
    )
    return GroupStatus(
        group.partition,
        "" if group.partition == METADATA_PARTITION else group.name,
        str(group.role),
        group.term,
        group.leader or NodeId(0),
        log.first,
        log.end,
        log.synced,
        group.commit,
        group.complete,
        group.quiescent,
        group.config.voters,
        group.config.learners,
        followers,
    )


def local_partitions(groups: GroupSet, state: ReplicaAssignments) -> tuple[PlacedPartition, ...]:
    """The partitions that have a replica here, for operators."""
    return tuple(_placed(group, state) for _, group in sorted(groups.replicas.items()))


def _placed(group: RaftGroup, state: ReplicaAssignments) -> PlacedPartition:
    copies = tuple(
        CopyState(node, _match(group, node) if group.is_owner else -1, node in group.config.voters)
        for node in sorted(group.config.members)
    )
    log = group.log
    topic = "" if group.partition == METADATA_PARTITION else group.name
    owner = group.leader or NodeId(0)
    return PlacedPartition(
        topic,
        group.partition.index,
        owner,
        group.term,
        log.first,
        log.end,
        group.commit,
        copies,
        state.is_moving(group.partition),
    )


def _match(group: RaftGroup, node: NodeId) -> int:
    if node == group.node:
        return group.log.synced
    progress = group.sender.progress.get(node)
    return progress.match if progress is not None else -1
