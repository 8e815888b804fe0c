"""The registry of fabrics by name: their factory, guarantees, peer messages, settings and columns.

The only module that names fabrics; brokers, clients and drivers take a fabric from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import msgspec

from rostra.errors import InvalidSetting
from rostra.fabric.api import Fabric, Guarantees
from rostra.fabric.cluster.metadata_entries import ClusterMember
from rostra.fabric.consensus.messages import InstallGroupSnapshot, TimeoutNow
from rostra.fabric.flood.machine import Flood
from rostra.fabric.flood.messages import PEER_KINDS as FLOOD_KINDS
from rostra.fabric.flood.messages import Barrier, Records
from rostra.fabric.flood.settings import FloodSettings
from rostra.fabric.links.messages import NodeHeartbeat
from rostra.fabric.raft.machine import Raft
from rostra.fabric.raft.messages import PEER_KINDS
from rostra.fabric.raft.settings import RaftSettings
from rostra.fabric.replication.messages import AppendEntries
from rostra.model.ids import NodeId, Partition
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
    name: str = ""
    """What the operator calls the node."""
    settings: msgspec.Struct | None = None
    """Of the type `FabricKind.settings`; None for the defaults."""


class PartitionColumns(msgspec.Struct, frozen=True):
    """How `rostra cluster status` shows partitions of a fabric."""

    epoch: str
    """What the fabric calls the owner epoch."""
    needed: Callable[[int], int]
    """Of so many copies that count, how many must be alive for the partition to go on."""


class FabricKind(msgspec.Struct, frozen=True):
    name: str
    guarantees: Guarantees
    make: Callable[[NodeSetup], Fabric]
    peer_kinds: tuple[type, ...]
    """The closed set of messages between its nodes; a driver builds its codec from it."""
    settings: type[msgspec.Struct]
    """What an operator may set; all fields have defaults."""
    columns: PartitionColumns
    claims: Mapping[type, Callable[[Any], Iterable[tuple[Partition, int]]]] = {}
    """By type of message, the partitions that its sender claims to own, with the epochs, for checkers."""
    hops: Mapping[type, Callable[[Any], int]] = {}
    """By type of message, how many nodes it has passed."""

    def with_settings(self, given: Mapping[str, object]) -> msgspec.Struct:
        """Its settings with these values in place of the defaults."""
        known = self.settings.__struct_fields__
        for name in given:
            if name not in known:
                raise InvalidSetting(name, f"the fabric {self.name} has only the settings {', '.join(known)}")
        return msgspec.convert(dict(given), self.settings)


def _raft(setup: NodeSetup) -> Fabric:
    assert setup.bootstrap or setup.join, "a node that founds no cluster needs an address to join"
    return Raft(
        setup.node,
        setup.address,
        setup.peer_address,
        founders=(ClusterMember(setup.node, setup.address, setup.peer_address, setup.name),) if setup.bootstrap else (),
        join=setup.join,
        random=setup.random,
        settings=msgspec.convert(setup.settings or RaftSettings(), RaftSettings),
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
        settings=msgspec.convert(setup.settings or FloodSettings(), FloodSettings),
        without=setup.without,
        name=setup.name,
    )


def _claim(message: AppendEntries | InstallGroupSnapshot | TimeoutNow) -> list[tuple[Partition, int]]:
    return [(message.partition, message.epoch)]


def _majority(copies: int) -> int:
    return copies // 2 + 1


FABRICS = {
    "raft": FabricKind(
        "raft",
        Raft.guarantees,
        _raft,
        tuple(PEER_KINDS.values()),
        RaftSettings,
        PartitionColumns("term", _majority),
        claims={
            NodeHeartbeat: lambda message: [(one.partition, one.epoch) for one in message.partitions],
            AppendEntries: _claim,
            InstallGroupSnapshot: _claim,
            TimeoutNow: _claim,
        },
    ),
    "flood": FabricKind(
        "flood",
        Flood.guarantees,
        _flood,
        tuple(FLOOD_KINDS.values()),
        FloodSettings,
        PartitionColumns("incarnation", lambda copies: 1),
        hops={Records: lambda message: message.hops, Barrier: lambda message: message.hops},
    ),
}


def fabric_by_name(name: str) -> FabricKind:
    kind = FABRICS.get(name)
    if kind is None:
        raise InvalidSetting("fabric", f"{name!r} is none of {', '.join(FABRICS)}")
    return kind
