"""What the other nodes say, given to whom it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

from rostra.errors import PeerViolation
from rostra.fabric.api import PeerReceived
from rostra.fabric.raft.messages import (
    AlterTopicRequest,
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
    RequestRefused,
    RequestVote,
    TransferLeadership,
)
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

EARLY_MAX = 1024
OF_GROUPS = frozenset(get_args(GroupMessage))
"""What is said within one group."""


class MessageRouter:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._early: list[tuple[NodeId, GroupMessage, bytearray | None]] = []
        """For groups that this node has not heard of yet."""

    def receive(self, given: PeerReceived) -> None:
        raft = self._raft
        peer, message = given.peer, given.message
        if not raft.takes_part:
            return
        removed = raft.meta.catalogue.removed
        if removed and peer in removed and not isinstance(message, RemovedNotice):
            raft.peers.tell_removed(peer, message.peer_address if isinstance(message, JoinRequest) else "")
            return
        if type(message) in OF_GROUPS:
            said = cast(GroupMessage, message)
            group = raft.groups.get(said.partition)
            if group is None:
                self._keep(peer, said, given.payload)
            else:
                group.receive(raft.now, peer, said, given.payload)
                raft.touch(group)
        elif isinstance(message, NodeHeartbeat):
            raft.peers.heartbeat(peer, message)
        elif isinstance(message, NodeHeartbeatReply):
            self._answered(peer, message)
        else:
            self._about_the_cluster(peer, message)

    def _about_the_cluster(self, peer: NodeId, message: object) -> None:
        raft = self._raft
        match message:
            case CreateTopicRequest() | DropTopicRequest() | AlterTopicRequest() | RemoveNodeRequest():
                raft.out += raft.meta.asked(message)
                raft.touch(raft.meta.group)
            case RequestRefused():
                if not raft.leaving.answered(message):
                    raft.out += raft.meta.refused(message)
            case JoinRequest():
                raft.out += raft.meta.joining(message)
                raft.touch(raft.meta.group)
            case JoinReply():
                raft.peers.get_to_know(message.leader, message.leader_address)
            case ReassignmentReport():
                raft.placing.arranged(message)
                raft.touch(raft.meta.group)
            case TransferLeadership():
                raft.leaving.asked(message)
            case ClusterStateRequest():
                raft.describing.asked(peer, message)
            case ClusterStateReply():
                raft.describing.told(peer, message)
            case RemovedNotice():
                raft.expulsion.told(peer, message)
            case _:
                raise PeerViolation("message", f"{type(message).__name__} is none of a Raft peer's")

    def _answered(self, peer: NodeId, message: NodeHeartbeatReply) -> None:
        raft = self._raft
        raft.peers.heard(peer, message)
        for reply in message.beats:
            group = raft.groups.get(reply.partition)
            if group is not None:
                group.answered(raft.now, peer, reply)
                raft.touch(group)

    def _keep(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        """The peer may have applied a new topic before us."""
        if len(self._early) < EARLY_MAX and isinstance(message, RequestVote):
            self._early.append((peer, message, payload))

    def give_early(self) -> None:
        """A group was made: perhaps somebody has asked it something."""
        early, self._early = self._early, []
        for peer, message, payload in early:
            self.receive(PeerReceived(peer, message, payload))
