"""Removal of this node from the cluster: it stops its groups for good and refuses every request."""

from __future__ import annotations

from typing import Any, Protocol, assert_never

from rostra.errors import MemberRemoved, RostraError
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
    SetTimer,
    Started,
    StopPrepared,
    Synced,
    TimerFired,
    TransferOwnership,
    WriteFailed,
)
from rostra.fabric.cluster.messages import RemovedNotice
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.links.node_context import NodeContext
from rostra.model.ids import NodeId, Partition

REMOVED = "raft/removed"


class Redirects(Protocol):
    """Where clients of a removed node find the partitions."""

    def redirect_all(self) -> None: ...

    def no_replica_error(self, partition: Partition) -> RostraError: ...


class Removal:
    """`timers` are those of the fabric, which a removed node no longer needs."""

    def __init__(
        self,
        context: NodeContext,
        groups: GroupSet,
        metadata: MetadataGroup[Any],
        peers: PeerSet,
        redirects: Redirects,
        timers: tuple[str, ...],
    ) -> None:
        self._context = context
        self._groups = groups
        self._metadata = metadata
        self._peers = peers
        self._redirects = redirects
        self._timers = timers
        self.removed = False
        """This node was removed from the cluster and refuses every request."""

    def was_removed_before(self) -> bool:
        """Whether an earlier run of this node received the notice."""
        if REMOVED not in self._groups.hard_states:
            return False
        self.removed = True
        self._context.out += [self._log_line(), Ready()]
        return True

    def notice_received(self, peer: NodeId, message: RemovedNotice) -> None:
        """Stops all groups. Ignores notices from nodes that are no members, if the members are known."""
        members = self._peers.members()
        if message.node != self._context.node or (members and all(peer != member.node for member in members)):
            return
        self._context.out.append(self._log_line())
        self._context.out += self._metadata.refuse_all(self._error())
        for partition, group in self._groups.replicas.items():
            group.removed = True
            if group.is_owner:
                group.step_down("this node was removed")
            effects = [effect for effect in group.take_effects() if not isinstance(effect, Send)]
            self._context.out += effects if partition != METADATA_PARTITION else []
        self._redirects.redirect_all()
        self._context.out += [SetTimer(timer, None) for timer in self._timers]
        self._context.out.append(Persist(REMOVED, b"1"))
        self.removed = True

    def _log_line(self) -> LogLine:
        return LogLine("error", "this node was removed from its cluster", {"node": self._context.node})

    def _error(self) -> MemberRemoved:
        return MemberRemoved(self._peers.name_of(self._context.node))

    def refuse(self, given: FabricInput) -> list[FabricEffect]:
        """Refuses a request; redirects publishes to the nodes that have the partitions."""
        match given:
            case ProposeTopic() | ProposeDrop() | ProposeSettings() | Confirm() | RemoveNode() | Describe():
                return [Refused(given.token, self._error())]
            case TransferOwnership():
                return [Refused(given.token, self._error())] if given.token else []
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
                | DiskUnusable()
                | Echo()
            ):
                return []
            case _:
                assert_never(given)
