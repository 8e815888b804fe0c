"""Messages between two nodes that say who is alive, and the base of all messages between nodes.

Like client messages they are arrays on the wire: a newer node may append fields with defaults. Kinds start at 128, so
that no peer message can be mistaken for a client's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from rostra.model.ids import ID_MAX, NodeId, Partition

TEXT_MAX = 1024
PARTITIONS_MAX = 1 << 16
"""Partitions in one message."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Node = Annotated[NodeId, Meta(ge=0, le=ID_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]


class PeerMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame's typed part. `payload` says whether raw batches may follow it."""

    kind: ClassVar[int] = 0
    payload: ClassVar[bool] = False


class PartitionHeartbeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An owner's heartbeat to one follower. `quiescent`: the follower is up to date and gets no further ones."""

    partition: Partition
    epoch: Count
    commit: Count
    round: Count
    quiescent: bool = False


class PartitionHeartbeatReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`agreed` is how far the follower's log agrees with the owner's, `match` how far that is on stable storage.

    `snapshots` counts installed snapshots: replies from before the last one may arrive late.
    """

    partition: Partition
    epoch: Count
    round: Count
    agreed: Count
    match: Count
    commit: Count
    quiescent: bool = False
    snapshots: Count = 0


class NodeHeartbeat(PeerMessage, frozen=True, array_like=True):
    """A node's heartbeat to another, with those of all partitions that it owns and that are replicated there.

    `boot` increases with every start: an owner that restarted within a timeout no longer owns. `peer_address` is the
    sender's, which a node that was down may not know. `step_downs` increases whenever the sender stops owning a
    partition, which a quiescent one would not notice otherwise.
    """

    kind: ClassVar[int] = 128
    boot: Count
    partitions: Annotated[tuple[PartitionHeartbeat, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    peer_address: Text = ""
    step_downs: Count = 0


class NodeHeartbeatReply(PeerMessage, frozen=True, array_like=True):
    """Also proves that the sender is alive: with `step_downs` it replaces an idle heartbeat."""

    kind: ClassVar[int] = 129
    boot: Count
    partitions: Annotated[tuple[PartitionHeartbeatReply, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    step_downs: Count = 0
