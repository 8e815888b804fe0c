"""Routes peer messages to the group or part that they concern."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

from rostra.errors import PeerViolation
from rostra.fabric.api import BrokerMessage, PeerReceived
from rostra.fabric.raft.messages import (
    AlterTopicRequest,
    BrokerToBroker,
    ClusterStateReply,
    ClusterStateRequest,
    CreateTopicRequest,
    DropTopicRequest,
    GroupMessage,
    JoinReply,
    JoinRequest,
    NodeHeartbeat,
    NodeHeartbeatReply,
    ReassignmentReport,
    RemovedNotice,
    RemoveNodeRequest,
    RequestReply,
    RequestVote,
    TransferLeadership,
)
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

EARLY_MAX = 1024
GROUP_MESSAGES = frozenset(get_args(GroupMessage))
"""Messages within one group."""


class MessageRouter:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._early_votes: list[tuple[NodeId, GroupMessage, bytearray | None]] = []
        """Vote requests of groups that this node does not know yet."""

    def receive(self, given: PeerReceived) -> None:
        raft = self._raft
        peer, message = given.peer, given.message
        if not raft.metadata_loaded:
            return
        removed = raft.metadata.state.removed
        if removed and peer in removed and not isinstance(message, RemovedNotice):
            raft.peers.notify_removed(peer, message.peer_address if isinstance(message, JoinRequest) else "")
            return
        if type(message) in GROUP_MESSAGES:
            group_message = cast(GroupMessage, message)
            group = raft.groups.get(group_message.partition)
            if group is None:
                self._hold_early(peer, group_message, given.payload)
            else:
                group.receive(raft.now, peer, group_message, given.payload)
                raft.collect(group)
        elif isinstance(message, NodeHeartbeat):
            raft.peers.heartbeat_received(peer, message)
        elif isinstance(message, NodeHeartbeatReply):
            self._heartbeat_answered(peer, message)
        else:
            self._receive_cluster_message(peer, message)

    def _receive_cluster_message(self, peer: NodeId, message: object) -> None:
        raft = self._raft
        match message:
            case CreateTopicRequest() | DropTopicRequest() | AlterTopicRequest() | RemoveNodeRequest():
                raft.out += raft.metadata.request_received(message)
                raft.collect(raft.metadata.group)
            case RequestReply():
                if not raft.transfers.reply_received(message):
                    raft.out += raft.metadata.request_refused(message)
            case JoinRequest():
                raft.out += raft.metadata.join_requested(message)
                raft.collect(raft.metadata.group)
            case JoinReply():
                raft.peers.add_contact(message.leader, message.leader_address)
            case ReassignmentReport():
                raft.placement.reassignment_reported(message)
                raft.collect(raft.metadata.group)
            case TransferLeadership():
                raft.transfers.request_received(message)
            case ClusterStateRequest():
                raft.description.request_received(peer, message)
            case ClusterStateReply():
                raft.description.reply_received(peer, message)
            case BrokerToBroker():
                raft.out.append(BrokerMessage(message.body))
            case RemovedNotice():
                raft.removal.notice_received(peer, message)
            case _:
                raise PeerViolation("message", f"{type(message).__name__} is not a message of the Raft fabric")

    def _heartbeat_answered(self, peer: NodeId, message: NodeHeartbeatReply) -> None:
        raft = self._raft
        raft.peers.heard(peer, message)
        for reply in message.groups:
            group = raft.groups.get(reply.partition)
            if group is not None:
                group.heartbeat_answered(raft.now, peer, reply)
                raft.collect(group)

    def _hold_early(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        """Holds a vote request: the peer may have applied a new topic earlier."""
        if len(self._early_votes) < EARLY_MAX and isinstance(message, RequestVote):
            self._early_votes.append((peer, message, payload))

    def deliver_early(self) -> None:
        """Delivers held vote requests after a group was created."""
        early, self._early_votes = self._early_votes, []
        for peer, message, payload in early:
            self.receive(PeerReceived(peer, message, payload))
