"""Leadership transfer: of one partition at an operator's request, or of all when the node stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rostra.errors import NotAReplica, RostraError, TransferTimedOut, Unavailable, UnknownPartition, from_wire
from rostra.fabric.api import LogLine, OperationDone, Refused, Send, StopPrepared, TransferOwnership
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import RequestReply, TransferLeadership
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

REQUEST_TIMEOUTS = 4


class PendingTransfer(NamedTuple):
    """A transfer from this node that is in progress, and its requester."""

    requester: NodeId
    token: int
    partition: Partition
    target: NodeId


class RequestedTransfer(NamedTuple):
    """A transfer that another node was asked for."""

    token: int
    partition: Partition
    until_us: int


class LeaderTransfer:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.stop_deadline_us: int | None = None
        """While the node stops: how long it waits for its transfers."""
        self._pending: list[PendingTransfer] = []
        self._requested: dict[int, RequestedTransfer] = {}

    # --- one partition ---

    def transfer(self, given: TransferOwnership) -> None:
        """Transfers leadership if this node leads the partition; otherwise forwards the request."""
        raft = self._raft
        group = raft.groups.get(given.partition)
        leader = group.leader if group is not None else self._alive_replica(given.partition)
        if group is not None and group.role is Role.LEADER:
            self._start_transfer(raft.node, given.token, given.partition, given.peer)
        elif leader is None or not given.token:
            self._reply(raft.node, given.token, given.partition, self._unavailable(given.partition))
        else:
            until_us = raft.now.mono_us + REQUEST_TIMEOUTS * raft.settings.election_min_us
            token = raft.boot_token(given.token)
            self._requested[token] = RequestedTransfer(given.token, given.partition, until_us)
            raft.out.append(Send(leader, TransferLeadership(raft.node, token, given.partition, given.peer)))

    def _alive_replica(self, partition: Partition) -> NodeId | None:
        raft = self._raft
        if partition.topic not in raft.metadata.state.topics:
            return None
        replicas = raft.metadata.state.replica_assignment(partition).replicas
        return next((node for node in replicas if node != raft.node and raft.peers.is_alive(node)), None)

    def request_received(self, message: TransferLeadership) -> None:
        raft = self._raft
        group = raft.groups.get(message.partition)
        if group is not None and group.role is Role.LEADER:
            self._start_transfer(message.origin, message.token, message.partition, message.target)
        elif group is not None and group.leader is not None and not message.forwarded:
            raft.out.append(Send(group.leader, msgspec.structs.replace(message, forwarded=True)))
        else:
            self._reply(message.origin, message.token, message.partition, self._unavailable(message.partition))

    def _start_transfer(self, requester: NodeId, token: int, partition: Partition, target: NodeId) -> None:
        raft = self._raft
        group = raft.groups[partition]
        error: RostraError | None = None
        if target == raft.node:
            self._reply(requester, token, partition, None)
            return
        if target not in group.config.voters:
            error = NotAReplica(raft.peers.name_of(target), group.name, partition.index)
        elif not raft.peers.is_alive(target):
            error = TransferTimedOut(raft.peers.name_of(target), group.name, partition.index)
        else:
            error = group.transfer_leadership(raft.now, target)
        raft.collect(group)
        if error is None:
            self._pending.append(PendingTransfer(requester, token, partition, target))
        else:
            self._reply(requester, token, partition, error)

    def reply_received(self, message: RequestReply) -> bool:
        """The partition's leader has replied; returns False if no request here waits for it."""
        requested = self._requested.pop(message.token, None)
        if requested is None:
            return False
        error = from_wire(message.code, dict(message.carried)) if message.code else None
        self._reply(self._raft.node, requested.token, requested.partition, error)
        return True

    def _reply(self, requester: NodeId, token: int, partition: Partition, error: RostraError | None) -> None:
        raft = self._raft
        if requester != raft.node:
            code = type(error).__name__ if error is not None else ""
            raft.out.append(Send(requester, RequestReply(token, code, error.carried() if error is not None else {})))
        elif token:
            raft.out.append(OperationDone(token) if error is None else Refused(token, error))
        elif error is not None:
            about: dict[str, int | str] = {"partition": str(partition), "error": str(error)}
            raft.out.append(LogLine("warning", "leadership transfer refused", about))

    def _unavailable(self, partition: Partition) -> RostraError:
        error = self._raft.replicas.no_replica_error(partition)
        if isinstance(error, UnknownPartition):
            return error
        made = self._raft.replicas.topics[partition.topic]
        return Unavailable(made.spec.name, partition.index, "its leader is not known, or is changing")

    def tick(self) -> None:
        """Answers transfers that have ended or timed out."""
        raft = self._raft
        pending, self._pending = self._pending, []
        for transfer in pending:
            group = raft.groups.get(transfer.partition)
            if group is not None and group.transfer_to is not None:
                self._pending.append(transfer)
            elif group is not None and group.role is Role.LEADER:
                target = raft.peers.name_of(transfer.target)
                error = TransferTimedOut(target, group.name, transfer.partition.index)
                self._reply(transfer.requester, transfer.token, transfer.partition, error)
            else:
                self._reply(transfer.requester, transfer.token, transfer.partition, None)
        for token, requested in list(self._requested.items()):
            if raft.now.mono_us >= requested.until_us:
                del self._requested[token]
                self._reply(raft.node, requested.token, requested.partition, self._unavailable(requested.partition))

    # --- stopping ---

    def transferee_of(self, group: RaftGroup) -> NodeId | None:
        """The voter that is alive, not leaving, and has most of the log."""
        raft = self._raft
        candidates = [
            (progress.match, peer)
            for peer, progress in group.replication.progress.items()
            if peer in group.config.voters and raft.peers.is_alive(peer) and peer not in raft.metadata.state.leaving
        ]
        return max(candidates)[1] if candidates else None

    def prepare_stop(self) -> None:
        raft = self._raft
        self.stop_deadline_us = raft.now.mono_us + 2 * raft.settings.election_min_us
        for group in list(raft.groups.values()):
            target = self.transferee_of(group) if group.role is Role.LEADER else None
            if target is not None:
                group.transfer_leadership(raft.now, target)
                raft.collect(group)

    def finish_stop(self) -> None:
        raft = self._raft
        until_us = self.stop_deadline_us
        if until_us is None:
            return
        pending = any(group.transfer_to is not None for group in raft.groups.values())
        if not pending or raft.now.mono_us >= until_us:
            self.stop_deadline_us = 1 << 62
            if until_us < 1 << 62:
                raft.out.append(StopPrepared())
