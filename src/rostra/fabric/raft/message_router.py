"""Routes peer messages to the group or part that they concern."""

from __future__ import annotations

from typing import Any, get_args

from rostra.errors import PeerViolation
from rostra.fabric.api import PeerReceived
from rostra.fabric.cluster.cluster_description import ClusterDescription
from rostra.fabric.cluster.messages import (
    AlterTopicRequest,
    ClusterStateReply,
    ClusterStateRequest,
    CreateTopicRequest,
    DropTopicRequest,
    JoinReply,
    JoinRequest,
    RemovedNotice,
    RemoveNodeRequest,
    RequestReply,
)
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.cluster.removal import Removal
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.consensus.messages import GroupMessage, RequestVote
from rostra.fabric.links.messages import NodeHeartbeat, NodeHeartbeatReply
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.leader_transfer import LeaderTransfer
from rostra.fabric.raft.messages import ReassignmentReport, TransferLeadership
from rostra.fabric.raft.placement import ReplicaPlacement
from rostra.fabric.raft.replica_assignments import ReplicaAssignments
from rostra.model.ids import NodeId

EARLY_MAX = 1024
GROUP_MESSAGES = frozenset(get_args(GroupMessage))
"""Messages within one group."""


class MessageRouter:
    def __init__(
        self,
        context: NodeContext,
        groups: GroupSet,
        metadata: MetadataGroup[ReplicaAssignments],
        peers: PeerSet,
        placement: ReplicaPlacement,
        transfers: LeaderTransfer,
        description: ClusterDescription,
        removal: Removal,
    ) -> None:
        self._context = context
        self._groups = groups
        self._metadata = metadata
        self._peers = peers
        self._placement = placement
        self._transfers = transfers
        self._description = description
        self._removal = removal
        self._early_votes: list[tuple[NodeId, GroupMessage, bytearray | None]] = []
        """Vote requests of groups that this node does not know yet."""

    def receive(self, given: PeerReceived) -> None:
        peer = given.peer
        message: Any = given.message
        if not self._metadata.loaded:
            return
        removed = self._metadata.state.removed
        if removed and peer in removed and not isinstance(message, RemovedNotice):
            self._peers.notify_removed(peer, message.peer_address if isinstance(message, JoinRequest) else "")
            return
        if type(message) in GROUP_MESSAGES:
            group = self._groups.replicas.get(message.partition)
            if group is None:
                self._hold_early(peer, message, given.payload)
            else:
                group.receive(self._context.now, peer, message, given.payload)
                self._groups.collect(group)
        elif isinstance(message, NodeHeartbeat):
            self._peers.heartbeat_received(peer, message)
        elif isinstance(message, NodeHeartbeatReply):
            self._peers.heartbeat_answered(peer, message)
        else:
            self._receive_cluster_message(peer, message)

    def _receive_cluster_message(self, peer: NodeId, message: object) -> None:
        match message:
            case CreateTopicRequest() | DropTopicRequest() | AlterTopicRequest() | RemoveNodeRequest():
                self._context.out += self._metadata.request_received(message)
                self._groups.collect(self._metadata.group)
            case RequestReply():
                if not self._transfers.reply_received(message):
                    self._context.out += self._metadata.request_refused(message)
            case JoinRequest():
                self._context.out += self._metadata.join_requested(message)
                self._groups.collect(self._metadata.group)
            case JoinReply():
                self._peers.add_contact(message.leader, message.leader_address)
            case ReassignmentReport():
                self._placement.reassignment_reported(message)
                self._groups.collect(self._metadata.group)
            case TransferLeadership():
                self._transfers.request_received(message)
            case ClusterStateRequest():
                self._description.request_received(peer, message)
            case ClusterStateReply():
                self._description.reply_received(peer, message)
            case RemovedNotice():
                self._removal.notice_received(peer, message)
            case _:
                raise PeerViolation("message", f"{type(message).__name__} is not a message of the Raft fabric")

    def _hold_early(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        """Holds a vote request: the peer may have applied a new topic earlier."""
        if len(self._early_votes) < EARLY_MAX and isinstance(message, RequestVote):
            self._early_votes.append((peer, message, payload))

    def deliver_early(self) -> None:
        """Delivers held vote requests after a group was created."""
        early, self._early_votes = self._early_votes, []
        for peer, message, payload in early:
            self.receive(PeerReceived(peer, message, payload))
