"""Copies on their way: the leader of each partition changes its group, one member at a time, into what is wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import Send
from rostra.fabric.raft.consensus.membership import MembershipChange
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import ReassignmentReport
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft


class ReplicaReassignment:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._told_us: dict[Partition, int] = {}
        """When the catalogue's leader was last told that a move is over: messages may be lost."""

    def look(self) -> None:
        raft = self._raft
        moving = raft.meta.catalogue.moving
        if not moving:
            self._told_us.clear()
            return
        for partition in list(moving):
            group = raft.groups.get(partition)
            if group is not None and group.role is Role.LEADER:
                self._steer(group, raft.meta.catalogue.placement(partition).replicas)
                raft.touch(group)

    def _steer(self, group: RaftGroup, wanted: tuple[NodeId, ...]) -> None:
        """First all that shall come, as learners until they have caught up; then away with those that shall go."""
        config = group.config
        if group.settling or group.membership.refusal() is not None:
            return
        coming = [node for node in wanted if node not in config.everyone]
        going = [node for node in config.everyone if node not in wanted]
        others = [node for node in going if node != group.me]
        if coming:
            group.change(self._raft.now, MembershipChange.ADD, coming[0])
        elif any(node in config.learners for node in wanted):
            return
        elif others:
            if self._raft.peers.could_agree(group, others[0]):
                group.change(self._raft.now, MembershipChange.REMOVE, others[0])
        elif going:
            self._hand_over(group, wanted)
        else:
            self._tell(group.partition, wanted)

    def _hand_over(self, group: RaftGroup, wanted: tuple[NodeId, ...]) -> None:
        """Nobody waits for an election that way; the heir removes this node."""
        raft = self._raft
        first = group.replication.peers.get(wanted[0])
        ready = first is not None and first.match == group.copy.end and raft.peers.is_there(wanted[0])
        heir = wanted[0] if ready else raft.leaving.heir_of(group)
        if heir is not None:
            group.transfer(raft.now, heir)

    def _tell(self, partition: Partition, replicas: tuple[NodeId, ...]) -> None:
        raft = self._raft
        if raft.now.mono_us < self._told_us.get(partition, 0):
            return
        self._told_us[partition] = raft.now.mono_us + raft.settings.election_us
        leader = raft.meta.group.leader
        message = ReassignmentReport(partition, replicas)
        if leader == raft.node:
            raft.placing.arranged(message)
        elif leader is not None:
            raft.out.append(Send(leader, message))
