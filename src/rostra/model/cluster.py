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
    """`there` is what the node that was asked sees. `owns` and `copies` count partitions."""

    node: Node
    address: Text
    peer_address: Text
    there: bool
    votes: bool
    """Whether it counts where the cluster decides about itself."""
    leaving: bool
    owns: Count
    copies: Count
    name: Text = ""
    """What the operator called it, else its address."""


class CopyState(msgspec.Struct, frozen=True, array_like=True):
    """`match`: below this it has on stable storage what the owner has; -1 where that is not known."""

    node: Node
    match: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    votes: bool
    """Whether it counts towards commit."""


class PlacedPartition(msgspec.Struct, frozen=True, array_like=True):
    """As its owner knows it, or the best informed of those that answered. Owner 0: none is known."""

    topic: Text
    """Empty for what the cluster keeps about itself."""
    partition: Annotated[int, Meta(ge=0, le=ID_MAX)]
    """Its index; of a part that joined its topic, the id that it was given."""
    owner: Node
    epoch: Count
    first: Count
    end: Count
    commit: Count
    copies: Annotated[tuple[CopyState, ...], Meta(max_length=COPIES_MAX)]
    moving: bool = False
    """Whether its copies are on their way to other nodes."""


class RingState(msgspec.Struct, frozen=True, array_like=True):
    """Where nodes form a ring: one of them as it says itself. Next and previous are 0 for a node that is alone."""

    node: Node
    next: Node
    previous: Node
    view: Count
    """Counts the changes of `members`, those that it hears and that hear it."""
    members: Annotated[tuple[Node, ...], Meta(max_length=COPIES_MAX)]
    circle_us: Count
    """How long the last circle took that began here."""
    lacks: Count
    """Records that the next one has not confirmed."""


class ClusterState(msgspec.Struct, frozen=True, array_like=True):
    """`answered` are the nodes that were heard for it, beginning with the one that was asked."""

    fabric: Text
    nodes: Annotated[tuple[NodeState, ...], Meta(max_length=NODES_MAX)]
    partitions: Annotated[tuple[PlacedPartition, ...], Meta(max_length=PARTITIONS_MAX)]
    answered: Annotated[tuple[Node, ...], Meta(max_length=NODES_MAX)] = ()
    ring: Annotated[tuple[RingState, ...], Meta(max_length=COPIES_MAX)] = ()
