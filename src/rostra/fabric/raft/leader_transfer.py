"""Leadership transfer: of one partition at an operator's request, or of all when the node stops."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rostra.errors import NotAReplica, RostraError, TransferTimedOut, Unavailable, UnknownPartition, from_wire
from rostra.fabric.api import LogLine, OperationDone, Refused, Send, StopPrepared, TransferOwnership
from rostra.fabric.cluster.messages import RequestReply
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.messages import TransferLeadership
from rostra.fabric.raft.replica_assignments import ReplicaAssignments
from rostra.fabric.raft.replicas import Replicas
from rostra.fabric.raft.settings import RaftSettings
from rostra.fabric.raft.transferee import transferee_of
from rostra.model.ids import NodeId, Partition

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
    def __init__(
        self,
        context: NodeContext,
        settings: RaftSettings,
        groups: GroupSet,
        metadata: MetadataGroup[ReplicaAssignments],
        peers: PeerSet,
        replicas: Replicas,
    ) -> None:
        self._context = context
        self._settings = settings
        self._groups = groups
        self._metadata = metadata
        self._peers = peers
        self._replicas = replicas
        self.stop_deadline_us: int | None = None
        """While the node stops: how long it waits for its transfers."""
        self._pending: list[PendingTransfer] = []
        self._requested: dict[int, RequestedTransfer] = {}

    # --- one partition ---

    def transfer(self, given: TransferOwnership) -> None:
        """Transfers leadership if this node leads the partition; otherwise forwards the request."""
        group = self._groups.replicas.get(given.partition)
        leader = group.leader if group is not None else self._alive_replica(given.partition)
        if group is not None and group.is_owner:
            self._start_transfer(self._context.node, given.token, given.partition, given.peer)
        elif leader is None or not given.token:
            self._reply(self._context.node, given.token, given.partition, self._unavailable(given.partition))
        else:
            until_us = self._context.now.mono_us + REQUEST_TIMEOUTS * self._settings.election_min_us
            token = self._context.boot_token(given.token)
            self._requested[token] = RequestedTransfer(given.token, given.partition, until_us)
            self._context.out.append(
                Send(leader, TransferLeadership(self._context.node, token, given.partition, given.peer))
            )

    def _alive_replica(self, partition: Partition) -> NodeId | None:
        if partition.topic not in self._metadata.state.topics:
            return None
        replicas = self._metadata.state.replica_assignment(partition).replicas
        return next((node for node in replicas if node != self._context.node and self._peers.is_alive(node)), None)

    def request_received(self, message: TransferLeadership) -> None:
        group = self._groups.replicas.get(message.partition)
        if group is not None and group.is_owner:
            self._start_transfer(message.origin, message.token, message.partition, message.target)
        elif group is not None and group.leader is not None and not message.forwarded:
            self._context.out.append(Send(group.leader, msgspec.structs.replace(message, forwarded=True)))
        else:
            self._reply(message.origin, message.token, message.partition, self._unavailable(message.partition))

    def _start_transfer(self, requester: NodeId, token: int, partition: Partition, target: NodeId) -> None:
        group = self._groups.replicas[partition]
        error: RostraError | None = None
        if target == self._context.node:
            self._reply(requester, token, partition, None)
            return
        if target not in group.config.voters:
            error = NotAReplica(self._peers.name_of(target), group.name, partition.index)
        elif not self._peers.is_alive(target):
            error = TransferTimedOut(self._peers.name_of(target), group.name, partition.index)
        else:
            error = group.transfer_leadership(self._context.now, target)
        self._groups.collect(group)
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
        self._reply(self._context.node, requested.token, requested.partition, error)
        return True

    def _reply(self, requester: NodeId, token: int, partition: Partition, error: RostraError | None) -> None:
        if requester != self._context.node:
            code = type(error).__name__ if error is not None else ""
            self._context.out.append(
                Send(requester, RequestReply(token, code, error.carried() if error is not None else {}))
            )
        elif token:
            self._context.out.append(OperationDone(token) if error is None else Refused(token, error))
        elif error is not None:
            about: dict[str, int | str] = {"partition": str(partition), "error": str(error)}
            self._context.out.append(LogLine("warning", "leadership transfer refused", about))

    def _unavailable(self, partition: Partition) -> RostraError:
        error = self._replicas.no_replica_error(partition)
        if isinstance(error, UnknownPartition):
            return error
        made = self._replicas.topics[partition.topic]
        return Unavailable(made.spec.name, partition.index, "its leader is not known, or is changing")

    def tick(self) -> None:
        """Answers transfers that have ended or timed out."""
        pending, self._pending = self._pending, []
        for transfer in pending:
            group = self._groups.replicas.get(transfer.partition)
            if group is not None and group.transfer_to is not None:
                self._pending.append(transfer)
            elif group is not None and group.is_owner:
                target = self._peers.name_of(transfer.target)
                error = TransferTimedOut(target, group.name, transfer.partition.index)
                self._reply(transfer.requester, transfer.token, transfer.partition, error)
            else:
                self._reply(transfer.requester, transfer.token, transfer.partition, None)
        for token, requested in list(self._requested.items()):
            if self._context.now.mono_us >= requested.until_us:
                del self._requested[token]
                self._reply(
                    self._context.node, requested.token, requested.partition, self._unavailable(requested.partition)
                )

    # --- stopping ---

    def prepare_stop(self) -> None:
        self.stop_deadline_us = self._context.now.mono_us + 2 * self._settings.election_min_us
        for group in list(self._groups.replicas.values()):
            target = transferee_of(group, self._peers, self._metadata.state) if group.is_owner else None
            if target is not None:
                group.transfer_leadership(self._context.now, target)
                self._groups.collect(group)

    def finish_stop(self) -> None:
        until_us = self.stop_deadline_us
        if until_us is None:
            return
        pending = any(group.transfer_to is not None for group in self._groups.replicas.values())
        if not pending or self._context.now.mono_us >= until_us:
            self.stop_deadline_us = 1 << 62
            if until_us < 1 << 62:
                self._context.out.append(StopPrepared())
