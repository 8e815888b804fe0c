"""Replica reassignment: the leader of a partition changes its group, one member at a time, to the assigned nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import Send
from rostra.fabric.consensus.membership import MembershipChange
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.consensus.roles import Role
from rostra.fabric.raft.messages import ReassignmentReport
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft


class ReplicaReassignment:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._report_again_us: dict[Partition, int] = {}
        """When to repeat the report to the metadata leader, which may be lost."""

    def tick(self) -> None:
        raft = self._raft
        reassigning = raft.metadata.state.reassigning
        if not reassigning:
            self._report_again_us.clear()
            return
        for partition in list(reassigning):
            group = raft.groups.get(partition)
            if group is not None and group.role is Role.LEADER:
                self._advance(group, raft.metadata.state.replica_assignment(partition).replicas)
                raft.collect(group)

    def _advance(self, group: RaftGroup, wanted: tuple[NodeId, ...]) -> None:
        """Takes the next step: adds new replicas as learners, waits until they are voters, then removes old ones."""
        config = group.config
        if group.persisting or group.membership.refusal() is not None:
            return
        to_add = [node for node in wanted if node not in config.members]
        to_remove = [node for node in config.members if node not in wanted]
        other_to_remove = [node for node in to_remove if node != group.node]
        if to_add:
            group.change_membership(self._raft.now, MembershipChange.ADD, to_add[0])
        elif any(node in config.learners for node in wanted):
            return
        elif other_to_remove:
            if self._raft.peers.keeps_quorum_without(group, other_to_remove[0]):
                group.change_membership(self._raft.now, MembershipChange.REMOVE, other_to_remove[0])
        elif to_remove:
            self._transfer_away(group, wanted)
        else:
            self._report(group.partition, wanted)

    def _transfer_away(self, group: RaftGroup, wanted: tuple[NodeId, ...]) -> None:
        """Transfers leadership without an election timeout; the new leader removes this node."""
        raft = self._raft
        first = group.sender.progress.get(wanted[0])
        ready = first is not None and first.match == group.log.end and raft.peers.is_alive(wanted[0])
        target = wanted[0] if ready else raft.transfers.transferee_of(group)
        if target is not None:
            group.transfer_leadership(raft.now, target)

    def _report(self, partition: Partition, replicas: tuple[NodeId, ...]) -> None:
        raft = self._raft
        if raft.now.mono_us < self._report_again_us.get(partition, 0):
            return
        self._report_again_us[partition] = raft.now.mono_us + raft.settings.election_min_us
        leader = raft.metadata.group.leader
        message = ReassignmentReport(partition, replicas)
        if leader == raft.node:
            raft.placement.reassignment_reported(message)
        elif leader is not None:
            raft.out.append(Send(leader, message))
