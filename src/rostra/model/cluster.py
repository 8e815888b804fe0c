"""The state of a cluster, for any fabric: its nodes, and the owner and the replicas of each partition."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from rostra.model.ids import ID_MAX, NodeId

TEXT_MAX = 1024
COPIES_MAX = 1024
NODES_MAX = 1 << 16
PARTITIONS_MAX = 1 << 20

Node = Annotated[NodeId, Meta(ge=0, le=ID_MAX)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]


class NodeState(msgspec.Struct, frozen=True, array_like=True):
    """A member of the cluster. `alive` as the node that was asked sees it; `owns` and `copies` count partitions."""

    node: Node
    address: Text
    peer_address: Text
    alive: bool
    votes: bool
    """Whether it is a voter of the metadata."""
    leaving: bool
    owns: Count
    copies: Count
    name: Text = ""
    """The name that the operator gave it, else its address."""


class CopyState(msgspec.Struct, frozen=True, array_like=True):
    """A replica of a partition. It has all records below `match` on stable storage; -1 if that is not known."""

    node: Node
    match: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    votes: bool
    """Whether it counts in the majority of a commit."""


class PlacedPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition as its owner reports it, or else the best informed node that answered. Owner 0: none is known."""

    topic: Text
    """Empty for the metadata."""
    partition: Annotated[int, Meta(ge=0, le=ID_MAX)]
    """Its index, or its id where each node has a partition of its own."""
    owner: Node
    epoch: Count
    first: Count
    end: Count
    commit: Count
    copies: Annotated[tuple[CopyState, ...], Meta(max_length=COPIES_MAX)]
    moving: bool = False
    """Whether its replicas are being reassigned."""


class RingState(msgspec.Struct, frozen=True, array_like=True):
    """The position of a node in a ring, as it reports itself. Next and previous are 0 if it is alone."""

    node: Node
    next: Node
    previous: Node
    view: Count
    """Number of the view: counts the changes of `members`, the nodes connected to it in both directions."""
    members: Annotated[tuple[Node, ...], Meta(max_length=COPIES_MAX)]
    round_trip_us: Count
    """How long the last ack mark that began here took around the ring."""
    backlog: Count
    """Records that the next node has not confirmed."""


class ClusterState(msgspec.Struct, frozen=True, array_like=True):
    """The members and partitions of a cluster. `answered` lists the nodes that reported; the first is the one asked."""

    fabric: Text
    nodes: Annotated[tuple[NodeState, ...], Meta(max_length=NODES_MAX)]
    partitions: Annotated[tuple[PlacedPartition, ...], Meta(max_length=PARTITIONS_MAX)]
    answered: Annotated[tuple[Node, ...], Meta(max_length=NODES_MAX)] = ()
    ring: Annotated[tuple[RingState, ...], Meta(max_length=COPIES_MAX)] = ()
