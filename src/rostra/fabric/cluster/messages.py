"""Messages about members and topics, between the nodes of a cluster that has one metadata group."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from rostra.fabric.api import TopicSpec
from rostra.fabric.links.messages import PARTITIONS_MAX, Count, Node, PeerMessage, Text
from rostra.model.cluster import PlacedPartition
from rostra.model.ids import TopicId


class JoinRequest(PeerMessage, frozen=True, array_like=True):
    """Asks to become a member; any node forwards it to the metadata leader."""

    kind: ClassVar[int] = 144
    node: Node
    address: Text
    peer_address: Text
    name: Text = ""


class JoinReply(PeerMessage, frozen=True, array_like=True):
    """To the joining node: the metadata leader, to which it keeps a link until it has the metadata."""

    kind: ClassVar[int] = 145
    leader: Node
    leader_address: Text


class CreateTopicRequest(PeerMessage, frozen=True, array_like=True):
    """Forwarded to the metadata leader by the node that received the request."""

    kind: ClassVar[int] = 146
    origin: Node
    boot: Count
    token: Count
    spec: TopicSpec
    segment_bytes: Count
    replicas: Count


class DropTopicRequest(PeerMessage, frozen=True, array_like=True):
    kind: ClassVar[int] = 147
    origin: Node
    boot: Count
    token: Count
    topic: TopicId


class AlterTopicRequest(PeerMessage, frozen=True, array_like=True):
    kind: ClassVar[int] = 155
    origin: Node
    boot: Count
    token: Count
    topic: TopicId
    settings: bytes
    segment_bytes: Count


class RequestReply(PeerMessage, frozen=True, array_like=True):
    """The leader refused a request; an empty code means success. Metadata requests succeed by their entry."""

    kind: ClassVar[int] = 148
    token: Count
    code: Text
    carried: dict[Text, int | Text]
    boot: Count = 0
    """Of the requester: after a restart it no longer waits for this."""


class RemoveNodeRequest(PeerMessage, frozen=True, array_like=True):
    """Asks the metadata leader to remove this member."""

    kind: ClassVar[int] = 149
    origin: Node
    boot: Count
    token: Count
    node: Node


class RemovedNotice(PeerMessage, frozen=True, array_like=True):
    """To a node that was removed and does not know it."""

    kind: ClassVar[int] = 150
    node: Node


class ClusterStateRequest(PeerMessage, frozen=True, array_like=True):
    """Asks for the state of the partitions that the receiver has replicas of."""

    kind: ClassVar[int] = 153
    token: Count


class ClusterStateReply(PeerMessage, frozen=True, array_like=True):
    """One chunk of the answer; `more` is false in the last one."""

    kind: ClassVar[int] = 154
    token: Count
    partitions: Annotated[tuple[PlacedPartition, ...], Meta(max_length=PARTITIONS_MAX)]
    more: bool = False


MetadataRequest = CreateTopicRequest | DropTopicRequest | AlterTopicRequest | RemoveNodeRequest
"""Requests that the metadata leader answers by an entry, or refuses."""

ClusterMessage = (
    JoinRequest
    | JoinReply
    | CreateTopicRequest
    | DropTopicRequest
    | AlterTopicRequest
    | RequestReply
    | RemoveNodeRequest
    | RemovedNotice
    | ClusterStateRequest
    | ClusterStateReply
)
