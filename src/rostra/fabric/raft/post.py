"""What the other nodes say, given to whom it concerns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.errors import PeerViolation
from rostra.fabric.api import PeerReceived
from rostra.fabric.raft.messages import (
    Answered,
    Arranged,
    ChangeTopic,
    DropTopic,
    Entries,
    EntriesRefused,
    EntriesReply,
    GroupMessage,
    HandOn,
    Heartbeat,
    HeartbeatReply,
    Join,
    Joined,
    MakeTopic,
    ReadAsk,
    ReadTold,
    Refill,
    Remove,
    Removed,
    StateAsk,
    StateTold,
    TimeoutNow,
    VoteAsk,
    VoteReply,
)
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

EARLY_MAX = 1024
OF_GROUPS = (EntriesReply, Entries, EntriesRefused, VoteAsk, VoteReply, ReadAsk, ReadTold, TimeoutNow, Refill)
"""What is said within one group; the most frequent first."""


class Post:
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
        if removed and peer in removed and not isinstance(message, Removed):
            raft.peers.tell_removed(peer, message.peer_address if isinstance(message, Join) else "")
            return
        # What is of none of many classes is found out slowly: the two that are not about one group go first.
        if isinstance(message, Heartbeat):
            raft.peers.heartbeat(peer, message)
        elif isinstance(message, HeartbeatReply):
            self._answered(peer, message)
        elif isinstance(message, OF_GROUPS):
            self._pass_on(peer, message, given.payload)
        else:
            self._about_the_cluster(peer, message)

    def _about_the_cluster(self, peer: NodeId, message: object) -> None:
        raft = self._raft
        match message:
            case MakeTopic() | DropTopic() | ChangeTopic() | Remove():
                raft.out += raft.meta.asked(message)
                raft.touch(raft.meta.group)
            case Answered():
                if not raft.leaving.answered(message):
                    raft.out += raft.meta.refused(message)
            case Join():
                raft.out += raft.meta.joining(message)
                raft.touch(raft.meta.group)
            case Joined():
                raft.peers.get_to_know(message.leader, message.leader_address)
            case Arranged():
                raft.placing.arranged(message)
                raft.touch(raft.meta.group)
            case HandOn():
                raft.leaving.asked(message)
            case StateAsk():
                raft.describing.asked(peer, message)
            case StateTold():
                raft.describing.told(peer, message)
            case Removed():
                raft.expulsion.told(peer, message)
            case _:
                raise PeerViolation("message", f"{type(message).__name__} is none of a Raft peer's")

    def _answered(self, peer: NodeId, message: HeartbeatReply) -> None:
        raft = self._raft
        raft.peers.heard(peer, message)
        for reply in message.beats:
            group = raft.groups.get(reply.partition)
            if group is not None:
                group.answered(raft.now, peer, reply)
                raft.touch(group)

    def _pass_on(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        raft = self._raft
        group = raft.groups.get(message.partition)
        if group is not None:
            group.receive(raft.now, peer, message, payload)
            raft.touch(group)
        elif len(self._early) < EARLY_MAX and isinstance(message, VoteAsk):
            # The peer has applied a new topic before us.
            self._early.append((peer, message, payload))

    def give_early(self) -> None:
        """A group was made: perhaps somebody has asked it something."""
        early, self._early = self._early, []
        for peer, message, payload in early:
            self._pass_on(peer, message, payload)
