"""Every fabric by name: how a node of it is made, what its nodes say to each other, and what it can tell of itself.

The only place that names them: brokers, clients and drivers take a fabric as they find it here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from rostra.errors import InvalidSetting
from rostra.fabric.api import Fabric, Guarantees
from rostra.fabric.flood.machine import Flood
from rostra.fabric.flood.messages import PEER_KINDS as FLOOD_KINDS
from rostra.fabric.flood.settings import FloodSettings
from rostra.fabric.raft.machine import Raft
from rostra.fabric.raft.messages import PEER_KINDS
from rostra.fabric.raft.metadata.metadata_state import ClusterMember
from rostra.fabric.raft.status import ClusterStatus, MemberStatus
from rostra.model.ids import NodeId
from rostra.safeguards import ALL_ON, Without

DEFAULT = "raft"


class NodeSetup(msgspec.Struct, frozen=True):
    """Where a node sits: its id, where clients and peers find it, and how it came into its cluster."""

    node: NodeId
    address: str
    peer_address: str
    random: Random
    bootstrap: bool = True
    """Whether it began the cluster; else it was let in through `join`."""
    join: tuple[str, ...] = ()
    """Peer addresses of nodes that may know the others."""
    without: Without = ALL_ON
    both_ways: bool = False
    """Whether a ring passes records in both directions."""


class FabricKind(msgspec.Struct, frozen=True):
    name: str
    guarantees: Guarantees
    make: Callable[[NodeSetup], Fabric]
    peer_kinds: tuple[type, ...]
    """The closed set of messages between its nodes; a driver makes its codec from it."""
    status: Callable[[Fabric], ClusterStatus | None]


def _raft(seat: NodeSetup) -> Fabric:
    assert seat.bootstrap or seat.join, "who founds nothing joins somebody"
    return Raft(
        seat.node,
        seat.address,
        seat.peer_address,
        founders=(ClusterMember(seat.node, seat.address, seat.peer_address),) if seat.bootstrap else (),
        join=seat.join,
        random=seat.random,
        without=seat.without,
    )


def _flood(seat: NodeSetup) -> Fabric:
    return Flood(
        seat.node,
        seat.address,
        seat.peer_address,
        joins=seat.join,
        random=seat.random,
        settings=FloodSettings(both_ways=seat.both_ways),
        without=seat.without,
    )


def _raft_status(fabric: Fabric) -> ClusterStatus | None:
    assert isinstance(fabric, Raft)
    return fabric.status() if fabric.metadata_loaded else None


def _flood_status(fabric: Fabric) -> ClusterStatus | None:
    """Of the ring there is nothing to vote on; everybody counts."""
    assert isinstance(fabric, Flood)
    ring = fabric.ring
    members = tuple(
        MemberStatus(member.node, member.address, member.peer_address, ring.is_alive(member.node), True)
        for _, member in sorted(ring.members.items())
    )
    return ClusterStatus(fabric.node, fabric.boot, members, ()) if fabric.ready else None


FABRICS = {
    "raft": FabricKind("raft", Raft.guarantees, _raft, tuple(PEER_KINDS.values()), _raft_status),
    "flood": FabricKind("flood", Flood.guarantees, _flood, tuple(FLOOD_KINDS.values()), _flood_status),
}


def fabric_by_name(name: str) -> FabricKind:
    kind = FABRICS.get(name)
    if kind is None:
        raise InvalidSetting("fabric", f"{name!r} is none of {', '.join(FABRICS)}")
    return kind
