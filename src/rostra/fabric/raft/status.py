"""The status of a Raft node: its members and groups, and why it cannot serve."""

from __future__ import annotations

from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.cluster.removal import Removal
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.replica_assignments import ReplicaAssignments
from rostra.fabric.status import REMOVED, ClusterStatus, FollowerStatus, GroupStatus, MemberStatus
from rostra.model.cluster import CopyState, PlacedPartition
from rostra.model.ids import NodeId


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
        group.leader == group.node,
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


def problem_of(removal: Removal, metadata: MetadataGroup[ReplicaAssignments], peers: PeerSet) -> str:
    """Why the node cannot serve with its cluster at the moment; empty if it can."""
    if removal.removed:
        return REMOVED
    if not metadata.loaded:
        return "the metadata is not loaded yet"
    if metadata.group.leader is not None:
        return ""
    members = peers.members()
    alive = 1 + sum(peers.is_alive(member.node) for member in members)
    return f"no leader is elected: {alive} of {1 + len(members)} members are up"


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
