"""The registry of fabrics by name: their factory, guarantees, peer messages and status.

The only module that names fabrics; brokers, clients and drivers take a fabric from here.
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
    """A node's id, its addresses for clients and peers, and how it enters its cluster."""

    node: NodeId
    address: str
    peer_address: str
    random: Random
    bootstrap: bool = True
    """Whether it founds the cluster; otherwise it joins through `join`."""
    join: tuple[str, ...] = ()
    """Peer addresses of members to join through."""
    without: Without = ALL_ON
    both_ways: bool = False
    """Whether a ring forwards records in both directions."""
    name: str = ""
    """What the operator calls the node."""


class FabricKind(msgspec.Struct, frozen=True):
    name: str
    guarantees: Guarantees
    make: Callable[[NodeSetup], Fabric]
    peer_kinds: tuple[type, ...]
    """The closed set of messages between its nodes; a driver builds its codec from it."""
    status: Callable[[Fabric], ClusterStatus | None]
    problem: Callable[[Fabric], str]
    """Why the node cannot serve with its cluster at the moment; empty if it can."""


REMOVED = "this node was removed from its cluster; to join again, start it with an empty data directory"


def _raft(setup: NodeSetup) -> Fabric:
    assert setup.bootstrap or setup.join, "a node that founds no cluster needs an address to join"
    return Raft(
        setup.node,
        setup.address,
        setup.peer_address,
        founders=(ClusterMember(setup.node, setup.address, setup.peer_address, setup.name),) if setup.bootstrap else (),
        join=setup.join,
        random=setup.random,
        without=setup.without,
        name=setup.name,
    )


def _flood(setup: NodeSetup) -> Fabric:
    return Flood(
        setup.node,
        setup.address,
        setup.peer_address,
        joins=setup.join,
        random=setup.random,
        settings=FloodSettings(both_ways=setup.both_ways),
        without=setup.without,
        name=setup.name,
    )


def _raft_status(fabric: Fabric) -> ClusterStatus | None:
    assert isinstance(fabric, Raft)
    return fabric.status() if fabric.metadata_loaded else None


def _raft_problem(fabric: Fabric) -> str:
    assert isinstance(fabric, Raft)
    if fabric.removed:
        return REMOVED
    if not fabric.metadata_loaded:
        return "the metadata is not loaded yet"
    if fabric.metadata.group.leader is not None:
        return ""
    members = fabric.peers.members()
    alive = 1 + sum(fabric.peers.is_alive(member.node) for member in members)
    return f"no leader is elected: {alive} of {1 + len(members)} members are up"


def _flood_problem(fabric: Fabric) -> str:
    assert isinstance(fabric, Flood)
    if fabric.ring.is_removed:
        return REMOVED
    return "" if fabric.ready else "the node has not joined the ring yet"


def _flood_status(fabric: Fabric) -> ClusterStatus | None:
    """A ring has no voters; every member counts."""
    assert isinstance(fabric, Flood)
    ring = fabric.ring
    members = tuple(
        MemberStatus(member.node, member.address, member.peer_address, ring.is_alive(member.node), True)
        for _, member in sorted(ring.members.items())
    )
    return ClusterStatus(fabric.node, fabric.boot, members, ()) if fabric.ready else None


FABRICS = {
    "raft": FabricKind("raft", Raft.guarantees, _raft, tuple(PEER_KINDS.values()), _raft_status, _raft_problem),
    "flood": FabricKind(
        "flood",
        Flood.guarantees,
        _flood,
        tuple(FLOOD_KINDS.values()),
        _flood_status,
        _flood_problem,
    ),
}


def fabric_by_name(name: str) -> FabricKind:
    kind = FABRICS.get(name)
    if kind is None:
        raise InvalidSetting("fabric", f"{name!r} is none of {', '.join(FABRICS)}")
    return kind
