"""The closed set of messages between the nodes of a Raft cluster: those of the shared cores, and its own."""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

from msgspec import Meta

from rostra.fabric.cluster.messages import ClusterMessage
from rostra.fabric.consensus.messages import GroupMessage
from rostra.fabric.links.messages import Count, Node, NodeHeartbeat, NodeHeartbeatReply, PeerMessage
from rostra.model.ids import Partition


class ReassignmentReport(PeerMessage, frozen=True, array_like=True):
    """To the metadata leader: the partition's group has the assigned members."""

    kind: ClassVar[int] = 151
    partition: Partition
    replicas: Annotated[tuple[Node, ...], Meta(max_length=64)]


class TransferLeadership(PeerMessage, frozen=True, array_like=True):
    """Asks the leader of a partition to transfer leadership to `target`; another replica forwards it once.

    `origin` is answered by `RequestReply`, with an empty code on success.
    """

    kind: ClassVar[int] = 152
    origin: Node
    token: Count
    partition: Partition
    target: Node
    forwarded: bool = False


RaftMessage = (
    NodeHeartbeat | NodeHeartbeatReply | GroupMessage | ClusterMessage | ReassignmentReport | TransferLeadership
)

PEER_KINDS: dict[int, type[RaftMessage]] = {kind.kind: kind for kind in get_args(RaftMessage)}
"""Message types by frame kind, for the codec."""
