"""The status of a Raft node: its members and groups, and why it cannot serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.metadata.metadata_state import METADATA_PARTITION
from rostra.fabric.status import ClusterStatus, FollowerStatus, GroupStatus, MemberStatus
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft


def status_of(raft: Raft) -> ClusterStatus:
    voters = raft.metadata.group.config.voters
    known = [raft.metadata.state.members.get(raft.node, raft.own), *raft.peers.members()]
    members = tuple(
        MemberStatus(
            member.node,
            member.address,
            member.peer_address,
            member.node == raft.node or raft.peers.liveness.is_alive(member.node),
            member.node in voters,
        )
        for member in sorted(known, key=lambda member: member.node)
    )
    groups = tuple(group_status(raft.groups[partition]) for partition in sorted(raft.groups))
    return ClusterStatus(raft.node, raft.boot, members, groups)


def group_status(group: RaftGroup) -> GroupStatus:
    log = group.log
    followers = tuple(
        FollowerStatus(peer, str(progress.state), progress.match, progress.next, progress.in_flight_bytes)
        for peer, progress in sorted(group.replication.progress.items())
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


def problem_of(raft: Raft) -> str:
    """Why the node cannot serve with its cluster at the moment; empty if it can."""
    if raft.removed:
        return "this node was removed from its cluster; to join again, start it with an empty data directory"
    if not raft.metadata_loaded:
        return "the metadata is not loaded yet"
    if raft.metadata.group.leader is not None:
        return ""
    members = raft.peers.members()
    alive = 1 + sum(raft.peers.is_alive(member.node) for member in members)
    return f"no leader is elected: {alive} of {1 + len(members)} members are up"
