"""Removal of this node from the cluster: it stops its groups for good and refuses every request."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from rostra.errors import MemberRemoved
from rostra.fabric.api import (
    AwaitCoverage,
    Confirm,
    Describe,
    DiskUnusable,
    Echo,
    FabricEffect,
    FabricInput,
    Forward,
    ForwardDone,
    LogLine,
    PeerIdentified,
    PeerLost,
    PeerReceived,
    Persist,
    PrepareStop,
    Propose,
    ProposeDrop,
    ProposeLogStart,
    ProposeSettings,
    ProposeTopic,
    QueryHeldByAll,
    ReadDone,
    Readers,
    ReadFailed,
    Ready,
    Refused,
    RemoveNode,
    Send,
    SendToBroker,
    SetTimer,
    Started,
    StopPrepared,
    Synced,
    TimerFired,
    TransferOwnership,
    WriteFailed,
)
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import RemovedNotice
from rostra.fabric.raft.metadata.metadata_state import METADATA_PARTITION
from rostra.fabric.raft.settings import DEADLINE_TIMER, HEARTBEAT_TIMER
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

REMOVED = "raft/removed"


class Removal:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft

    def was_removed_before(self) -> bool:
        """Whether an earlier run of this node received the notice."""
        raft = self._raft
        if REMOVED not in raft.hard_states:
            return False
        raft.removed = True
        raft.out += [self._log_line(), Ready()]
        return True

    def notice_received(self, peer: NodeId, message: RemovedNotice) -> None:
        """Stops all groups. Ignores notices from nodes that are no members, if the members are known."""
        raft = self._raft
        members = raft.peers.members()
        if message.node != raft.node or (members and all(peer != member.node for member in members)):
            return
        raft.out.append(self._log_line())
        raft.out += raft.metadata.refuse_all(MemberRemoved(raft.node))
        for partition, group in raft.groups.items():
            group.removed = True
            group.leave_fast_path()
            if group.role is Role.LEADER:
                group.step_down("this node was removed")
            effects = [effect for effect in group.take_effects() if not isinstance(effect, Send)]
            raft.out += effects if partition != METADATA_PARTITION else []
        raft.replicas.redirect_all()
        raft.out += [SetTimer(HEARTBEAT_TIMER, None), SetTimer(DEADLINE_TIMER, None), Persist(REMOVED, b"1")]
        raft.removed = True

    def _log_line(self) -> LogLine:
        return LogLine("error", "this node was removed from its cluster", {"node": self._raft.node})

    def refuse(self, given: FabricInput) -> list[FabricEffect]:
        """Refuses a request; redirects publishes to the nodes that have the partitions."""
        raft = self._raft
        match given:
            case Propose():
                return [Refused(given.token, raft.replicas.no_replica_error(given.partition))]
            case ProposeTopic() | ProposeDrop() | ProposeSettings() | Confirm() | RemoveNode() | Describe():
                return [Refused(given.token, MemberRemoved(raft.node))]
            case TransferOwnership():
                return [Refused(given.token, MemberRemoved(raft.node))] if given.token else []
            case PrepareStop():
                return [StopPrepared()]
            case (
                Started()
                | ProposeLogStart()
                | QueryHeldByAll()
                | Readers()
                | PeerReceived()
                | PeerIdentified()
                | PeerLost()
                | TimerFired()
                | Synced()
                | WriteFailed()
                | ReadDone()
                | ReadFailed()
                | Forward()
                | ForwardDone()
                | AwaitCoverage()
                | SendToBroker()
                | DiskUnusable()
                | Echo()
            ):
                return []
            case _:
                assert_never(given)
