"""The status of the cluster and of the partitions at one node, for metrics: the same types for every fabric."""

from __future__ import annotations

import msgspec

from rostra.model.ids import NodeId, Partition


class MemberStatus(msgspec.Struct, frozen=True, array_like=True):
    """`alive` is what this node observes; always true of itself."""

    node: NodeId
    address: str
    peer_address: str
    alive: bool
    voter: bool
    """Whether it counts where the cluster decides about itself; always true where nobody votes."""


class FollowerStatus(msgspec.Struct, frozen=True, array_like=True):
    node: NodeId
    state: str
    match: int
    next: int
    in_flight_bytes: int


class GroupStatus(msgspec.Struct, frozen=True, array_like=True):
    """One partition as the copy here knows it; `followers` only at its owner. Leader 0: unknown."""

    partition: Partition
    topic: str
    role: str
    """In the fabric's own words."""
    owner: bool
    """Whether this node orders it."""
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
    """What the cluster keeps about itself comes first."""
