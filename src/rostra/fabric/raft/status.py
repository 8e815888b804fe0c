"""The status of the cluster and of the groups at one node, for the command line and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.raft.metadata.metadata_state import METADATA_PARTITION
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft


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
