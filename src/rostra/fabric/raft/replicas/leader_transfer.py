"""Giving leadership away: one partition's at an operator's wish, or all of it because the node stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rostra.errors import NotAReplica, RostraError, TransferTimedOut, Unavailable, UnknownPartition, from_wire
from rostra.fabric.api import LogLine, OperationDone, Refused, Send, StopPrepared, TransferOwnership
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import RequestRefused, TransferLeadership
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

GIVE_UP_TIMEOUTS = 4


class PendingTransfer(NamedTuple):
    """A partition of this node's that is being handed over, and who waits for that."""

    asker: NodeId
    token: int
    partition: Partition
    heir: NodeId


class RequestedTransfer(NamedTuple):
    """What another node was asked to hand over."""

    token: int
    partition: Partition
    until_us: int


class LeaderTransfer:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.until_us: int | None = None
        """While the node stops: how long it waits for its heirs."""
        self._giving: list[PendingTransfer] = []
        self._asked: dict[int, RequestedTransfer] = {}

    # --- one partition ---

    def give_away(self, given: TransferOwnership) -> None:
        """Whoever leads the partition hands it over; another node is asked to."""
        raft = self._raft
        group = raft.groups.get(given.partition)
        leader = group.leader if group is not None else self._some_holder(given.partition)
        if group is not None and group.role is Role.LEADER:
            self._give(raft.node, given.token, given.partition, given.peer)
        elif leader is None or not given.token:
            self._answer(raft.node, given.token, given.partition, self._not_now(given.partition))
        else:
            until_us = raft.now.mono_us + GIVE_UP_TIMEOUTS * raft.settings.election_us
            token = raft.since_boot(given.token)
            self._asked[token] = RequestedTransfer(given.token, given.partition, until_us)
            raft.out.append(Send(leader, TransferLeadership(raft.node, token, given.partition, given.peer)))

    def _some_holder(self, partition: Partition) -> NodeId | None:
        raft = self._raft
        if partition.topic not in raft.meta.catalogue.topics:
            return None
        replicas = raft.meta.catalogue.placement(partition).replicas
        return next((node for node in replicas if node != raft.node and raft.peers.is_there(node)), None)

    def asked(self, message: TransferLeadership) -> None:
        raft = self._raft
        group = raft.groups.get(message.partition)
        if group is not None and group.role is Role.LEADER:
            self._give(message.origin, message.token, message.partition, message.heir)
        elif group is not None and group.leader is not None and not message.passed_on:
            raft.out.append(Send(group.leader, msgspec.structs.replace(message, passed_on=True)))
        else:
            self._answer(message.origin, message.token, message.partition, self._not_now(message.partition))

    def _give(self, asker: NodeId, token: int, partition: Partition, heir: NodeId) -> None:
        raft = self._raft
        group = raft.groups[partition]
        error: RostraError | None = None
        if heir == raft.node:
            self._answer(asker, token, partition, None)
            return
        if heir not in group.config.voters:
            error = NotAReplica(heir, group.name, partition.index)
        elif not raft.peers.is_there(heir):
            error = TransferTimedOut(heir, group.name, partition.index)
        else:
            error = group.transfer(raft.now, heir)
        raft.touch(group)
        if error is None:
            self._giving.append(PendingTransfer(asker, token, partition, heir))
        else:
            self._answer(asker, token, partition, error)

    def answered(self, message: RequestRefused) -> bool:
        """The partition's leader has answered; False if nobody here waits for that."""
        asked = self._asked.pop(message.token, None)
        if asked is None:
            return False
        error = from_wire(message.code, dict(message.carried)) if message.code else None
        self._answer(self._raft.node, asked.token, asked.partition, error)
        return True

    def _answer(self, asker: NodeId, token: int, partition: Partition, error: RostraError | None) -> None:
        raft = self._raft
        if asker != raft.node:
            code = type(error).__name__ if error is not None else ""
            raft.out.append(Send(asker, RequestRefused(token, code, error.carried() if error is not None else {})))
        elif token:
            raft.out.append(OperationDone(token) if error is None else Refused(token, error))
        elif error is not None:
            about: dict[str, int | str] = {"partition": str(partition), "error": str(error)}
            raft.out.append(LogLine("warning", "not given away", about))

    def _not_now(self, partition: Partition) -> RostraError:
        error = self._raft.hosting.nowhere(partition)
        if isinstance(error, UnknownPartition):
            return error
        made = self._raft.hosting.opened[partition.topic]
        return Unavailable(made.spec.name, partition.index, "its leader is not known, or is changing")

    def look(self) -> None:
        """Who was promised a partition has it, or has not taken it in time."""
        raft = self._raft
        giving, self._giving = self._giving, []
        for one in giving:
            group = raft.groups.get(one.partition)
            if group is not None and group.transfer_to is not None:
                self._giving.append(one)
            elif group is not None and group.role is Role.LEADER:
                error = TransferTimedOut(one.heir, group.name, one.partition.index)
                self._answer(one.asker, one.token, one.partition, error)
            else:
                self._answer(one.asker, one.token, one.partition, None)
        for token, asked in list(self._asked.items()):
            if raft.now.mono_us >= asked.until_us:
                del self._asked[token]
                self._answer(raft.node, asked.token, asked.partition, self._not_now(asked.partition))

    # --- all of it ---

    def heir_of(self, group: RaftGroup) -> NodeId | None:
        """Of those that could lead, the one that has most."""
        raft = self._raft
        heirs = [
            (progress.match, peer)
            for peer, progress in group.replication.peers.items()
            if peer in group.config.voters and raft.peers.is_there(peer) and peer not in raft.meta.catalogue.leaving
        ]
        return max(heirs)[1] if heirs else None

    def hand_over(self) -> None:
        raft = self._raft
        self.until_us = raft.now.mono_us + 2 * raft.settings.election_us
        for group in list(raft.groups.values()):
            heir = self.heir_of(group) if group.role is Role.LEADER else None
            if heir is not None:
                group.transfer(raft.now, heir)
                raft.touch(group)

    def finish(self) -> None:
        raft = self._raft
        until_us = self.until_us
        if until_us is None:
            return
        giving = any(group.transfer_to is not None for group in raft.groups.values())
        if not giving or raft.now.mono_us >= until_us:
            self.until_us = 1 << 62
            if until_us < 1 << 62:
                raft.out.append(StopPrepared())
