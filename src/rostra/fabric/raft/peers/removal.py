"""Being removed: a node that is no member any more stops for good, disturbs nobody, and says so to whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from rostra.errors import MemberRemoved
from rostra.fabric.api import (
    AwaitCoverage,
    Confirm,
    Describe,
    DiskBroke,
    Echo,
    FabricEffect,
    FabricInput,
    LogLine,
    PassOn,
    PeerLost,
    PeerMet,
    PeerReceived,
    Persist,
    PrepareStop,
    Propose,
    ProposeDrop,
    ProposeSettings,
    ProposeStart,
    ProposeTopic,
    QueryHeldByAll,
    ReadDone,
    Readers,
    ReadFailed,
    Ready,
    Refused,
    RemoveNode,
    Send,
    SetTimer,
    Settled,
    Started,
    StopPrepared,
    Synced,
    TimerFired,
    TransferOwnership,
    WriteFailed,
)
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import RemovedNotice
from rostra.fabric.raft.metadata.metadata_state import META
from rostra.fabric.raft.settings import BEAT, WAKE
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

REMOVED = "raft/removed"


class Removal:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft

    def is_remembered(self) -> bool:
        """Whether an earlier start of this node was told."""
        raft = self._raft
        if REMOVED not in raft.hard:
            return False
        raft.removed = True
        raft.out += [self._note(), Ready()]
        return True

    def told(self, peer: NodeId, message: RemovedNotice) -> None:
        """Only a member's word counts; to a node that was never told of any, everybody may be one."""
        raft = self._raft
        members = raft.peers.members()
        if message.node != raft.node or (members and all(peer != member.node for member in members)):
            return
        raft.out.append(self._note())
        raft.out += raft.meta.give_up(MemberRemoved(raft.node))
        for partition, group in raft.groups.items():
            group.expelled = True
            group.leave_way()
            if group.role is Role.LEADER:
                group.step_down("this node was removed")
            effects = [effect for effect in group.take() if not isinstance(effect, Send)]
            raft.out += effects if partition != META else []
        raft.hosting.turn_all_away()
        raft.out += [SetTimer(BEAT, None), SetTimer(WAKE, None), Persist(REMOVED, b"1")]
        raft.removed = True

    def _note(self) -> LogLine:
        return LogLine("error", "this node was removed from its cluster", {"node": self._raft.node})

    def refuse(self, given: FabricInput) -> list[FabricEffect]:
        """Whoever waits for an answer gets it; clients go to where the partitions are."""
        raft = self._raft
        match given:
            case Propose():
                return [Refused(given.token, raft.hosting.nowhere(given.partition))]
            case ProposeTopic() | ProposeDrop() | ProposeSettings() | Confirm() | RemoveNode() | Describe():
                return [Refused(given.token, MemberRemoved(raft.node))]
            case TransferOwnership():
                return [Refused(given.token, MemberRemoved(raft.node))] if given.token else []
            case PrepareStop():
                return [StopPrepared()]
            case (
                Started()
                | ProposeStart()
                | QueryHeldByAll()
                | Readers()
                | PeerReceived()
                | PeerMet()
                | PeerLost()
                | TimerFired()
                | Synced()
                | WriteFailed()
                | ReadDone()
                | ReadFailed()
                | PassOn()
                | Settled()
                | AwaitCoverage()
                | DiskBroke()
                | Echo()
            ):
                return []
            case _:
                assert_never(given)
