"""Replica reassignment: the leader of a partition changes its group, one member at a time, to the assigned nodes."""

from __future__ import annotations

from rostra.fabric.api import Send
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.consensus.membership import MembershipChange
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.messages import ReassignmentReport
from rostra.fabric.raft.placement import ReplicaPlacement
from rostra.fabric.raft.replica_assignments import ReplicaAssignments
from rostra.fabric.raft.settings import RaftSettings
from rostra.fabric.raft.transferee import transferee_of
from rostra.model.ids import NodeId, Partition


class ReplicaReassignment:
    def __init__(
        self,
        context: NodeContext,
        settings: RaftSettings,
        groups: GroupSet,
        metadata: MetadataGroup[ReplicaAssignments],
        peers: PeerSet,
        placement: ReplicaPlacement,
    ) -> None:
        self._context = context
        self._settings = settings
        self._groups = groups
        self._metadata = metadata
        self._peers = peers
        self._placement = placement
        self._report_again_us: dict[Partition, int] = {}
        """When to repeat the report to the metadata leader, which may be lost."""

    def tick(self) -> None:
        reassigning = self._metadata.state.reassigning
        if not reassigning:
            self._report_again_us.clear()
            return
        for partition in list(reassigning):
            group = self._groups.replicas.get(partition)
            if group is not None and group.is_owner:
                self._advance(group, self._metadata.state.replica_assignment(partition).replicas)
                self._groups.collect(group)

    def _advance(self, group: RaftGroup, wanted: tuple[NodeId, ...]) -> None:
        """Takes the next step: adds new replicas as learners, waits until they are voters, then removes old ones."""
        config = group.config
        if group.persisting or group.membership.refusal() is not None:
            return
        to_add = [node for node in wanted if node not in config.members]
        to_remove = [node for node in config.members if node not in wanted]
        other_to_remove = [node for node in to_remove if node != group.node]
        if to_add:
            group.change_membership(self._context.now, MembershipChange.ADD, to_add[0])
        elif any(node in config.learners for node in wanted):
            return
        elif other_to_remove:
            if self._peers.keeps_quorum_without(group, other_to_remove[0]):
                group.change_membership(self._context.now, MembershipChange.REMOVE, other_to_remove[0])
        elif to_remove:
            self._transfer_away(group, wanted)
        else:
            self._report(group.partition, wanted)

    def _transfer_away(self, group: RaftGroup, wanted: tuple[NodeId, ...]) -> None:
        """Transfers leadership without an election timeout; the new leader removes this node."""
        first = group.sender.progress.get(wanted[0])
        ready = first is not None and first.match == group.log.end and self._peers.is_alive(wanted[0])
        target = wanted[0] if ready else transferee_of(group, self._peers, self._metadata.state)
        if target is not None:
            group.transfer_leadership(self._context.now, target)

    def _report(self, partition: Partition, replicas: tuple[NodeId, ...]) -> None:
        if self._context.now.mono_us < self._report_again_us.get(partition, 0):
            return
        self._report_again_us[partition] = self._context.now.mono_us + self._settings.election_min_us
        leader = self._metadata.group.leader
        message = ReassignmentReport(partition, replicas)
        if leader == self._context.node:
            self._placement.reassignment_reported(message)
        elif leader is not None:
            self._context.out.append(Send(leader, message))
