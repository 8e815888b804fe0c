"""Replica placement, decided by the metadata leader: reassignments, and when a member may leave."""

from __future__ import annotations

from collections.abc import Iterator

from rostra.errors import QuorumAtRisk, ReplicasUnavailable, RostraError, UnknownMember
from rostra.fabric.cluster.messages import CreateTopicRequest
from rostra.fabric.cluster.metadata_entries import NodeLeft
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.consensus.membership import MembershipChange
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.messages import ReassignmentReport
from rostra.fabric.raft.replica_assignments import (
    REPLICAS_DEFAULT,
    ReassignmentDone,
    ReassignmentStarted,
    ReplicaAssignment,
    ReplicaAssignments,
    count_replicas,
)
from rostra.fabric.raft.settings import RaftSettings
from rostra.fabric.raft.transferee import transferee_of
from rostra.model.ids import NodeId, Partition, text

DEAD_TIMEOUTS = 30
SCAN_US_PER_TOPIC = 200
"""Time between two scans of all topics, per topic."""


class ReplicaPlacement:
    """Scans the assignments after changes, and starts the next reassignments, a few at a time."""

    def __init__(
        self,
        context: NodeContext,
        settings: RaftSettings,
        metadata: MetadataGroup[ReplicaAssignments],
        peers: PeerSet,
    ) -> None:
        self._context = context
        self._settings = settings
        self._metadata = metadata
        self._peers = peers
        self._seen: tuple[object, ...] = ()
        """Applied offset, term and nodes at the last scan that found nothing to do."""
        self._next_scan_us = 0
        """When the next scan may start, unless the set of nodes changes."""
        self._scanned_nodes: tuple[object, ...] = ()

    def tick(self) -> None:
        meta = self._metadata
        if not meta.may_decide or meta.has_unapplied:
            return
        nodes = (meta.group.term, self._alive_nodes(), self._dead_nodes(), tuple(meta.state.leaving))
        seen = (meta.applied, *nodes)
        if seen == self._seen or (nodes == self._scanned_nodes and self._context.now.mono_us < self._next_scan_us):
            return
        started = [ReassignmentStarted(*move) for move in self._next_reassignments()]
        self._scanned_nodes = nodes
        if not started and not meta.state.reassigning:
            # A scan of thousands of topics at every heartbeat would slow down their creation.
            self._next_scan_us = self._context.now.mono_us + SCAN_US_PER_TOPIC * len(meta.state.topics)
        leaving = [node for node in meta.state.leaving if not self._has_replicas(node)]
        for node in leaving:
            self._remove_member(node)
        # The change that added a joining node may have been truncated, which that node cannot know.
        outside = [node for node in meta.state.remaining if node not in meta.group.config.members]
        for node in outside:
            meta.group.change_membership(self._context.now, MembershipChange.ADD, node)
        if all(meta.append(entry) for entry in started) and not leaving and not outside:
            self._seen = seen

    def _alive_nodes(self) -> tuple[NodeId, ...]:
        return tuple(node for node in self._metadata.state.remaining if self._peers.is_alive(node))

    def _dead_nodes(self) -> tuple[NodeId, ...]:
        """Members down for so long that reassignments to them are changed."""
        since_us = self._context.now.mono_us - DEAD_TIMEOUTS * self._settings.election_min_us
        return tuple(node for node in self._metadata.state.remaining if self._peers.is_silent_since(node, since_us))

    # --- replicas ---

    def place_topic(self, request: CreateTopicRequest) -> tuple[tuple[NodeId, ...], ...]:
        state = self._metadata.state
        away = tuple(node for node in state.remaining if not self._peers.is_alive(node))
        return state.assign_replicas(request.spec.partitions, request.replicas or REPLICAS_DEFAULT, away)

    def _next_reassignments(self) -> Iterator[tuple[Partition, tuple[NodeId, ...]]]:
        """The next reassignments within the limit; changes of running ones do not count again."""
        reassigning = self._metadata.state.reassigning
        free = self._settings.reassignments_max - len(reassigning)
        for partition, replicas in self._wanted_reassignments():
            if partition not in reassigning:
                if free <= 0:
                    continue
                free -= 1
            yield partition, replicas

    def _wanted_reassignments(self) -> Iterator[tuple[Partition, tuple[NodeId, ...]]]:
        """Partitions that lack replicas which a node could take, or have one at a leaving node."""
        state = self._metadata.state
        alive, dead = self._alive_nodes(), self._dead_nodes()
        leads, holds = state.replica_counts()
        for partition in state.partitions():
            assignment = state.replica_assignment(partition)
            wanted = state.topics[partition.topic].replication_factor or REPLICAS_DEFAULT
            kept = tuple(node for node in assignment.replicas if node in holds)
            if assignment.previous:
                kept = tuple(node for node in kept if node in assignment.previous or node not in dead)
            spare = sorted((node for node in alive if node not in kept), key=lambda node: (holds[node], node))
            chosen = tuple(spare[: max(0, wanted - len(kept))])
            if (
                assignment.previous
                and kept == assignment.replicas
                and not (chosen and len(kept) < len(assignment.previous))
            ):
                # A running reassignment to nodes that remain and are not dead is left alone, unless it drops replicas
                # that a node could take by now.
                continue
            replicas = kept + chosen
            replicas += self._leaving_to_keep(assignment, wanted - len(replicas), len(holds) - len(replicas))
            if replicas and set(replicas) != set(assignment.replicas):
                count_replicas(assignment.replicas, leads, holds, by=-1)
                replicas = _ordered_by_load(replicas, assignment.replicas[0], leads)
                count_replicas(replicas, leads, holds)
                yield partition, replicas

    def _leaving_to_keep(self, assignment: ReplicaAssignment, lacking: int, others: int) -> tuple[NodeId, ...]:
        """Leaving nodes that keep their replica for now, because the members that could take it are down.

        A partition continues with fewer replicas only if there are no other members: with two, damage to one would
        leave no majority to restore it or to elect a leader.
        """
        leaving = [node for node in assignment.holders if node in self._metadata.state.leaving]
        return tuple(leaving[: max(0, min(lacking, others))])

    def reassignment_reported(self, message: ReassignmentReport) -> None:
        """Ends a reassignment: the partition's group has the assigned members."""
        meta = self._metadata
        assignment = meta.state.assignments.get(message.partition)
        over = ReassignmentDone(message.partition, message.replicas)
        if (
            meta.may_decide
            and assignment is not None
            and assignment.previous
            and assignment.replicas == message.replicas
        ):
            meta.append(over)

    # --- members ---

    def _has_replicas(self, node: NodeId) -> bool:
        state = self._metadata.state
        return any(node in state.replica_assignment(partition).holders for partition in state.partitions())

    def _remove_member(self, node: NodeId) -> None:
        """Removes a node from the metadata group, then from the metadata. As leader, transfers leadership first."""
        group = self._metadata.group
        if node == self._context.node:
            target = transferee_of(group, self._peers, self._metadata.state)
            if target is not None:
                group.transfer_leadership(self._context.now, target)
        elif node in group.config.members:
            # Checked again: other members may have failed since the request, and a new member may be no voter yet.
            rest = [voter for voter in group.config.voters if voter != node]
            fewest = min(REPLICAS_DEFAULT, len(self._metadata.state.remaining), len(group.config.voters))
            if len(rest) >= fewest and self._peers.keeps_quorum_without(group, node):
                group.change_membership(self._context.now, MembershipChange.REMOVE, node)
        elif group.config_end <= group.commit:
            self._metadata.append(NodeLeft(node))

    def removal_error(self, node: NodeId) -> RostraError | None:
        """Returns why this member cannot be removed now, or None."""
        state = self._metadata.state
        if node not in state.members:
            return UnknownMember(text(node))
        shown = self._peers.name_of(node)
        leaving = {*state.leaving, node}
        voters = [voter for voter in self._metadata.group.config.voters if voter not in leaving]
        needed = len(voters) // 2 + 1
        alive = sum(self._peers.is_alive(voter) for voter in voters)
        if alive < needed:
            return QuorumAtRisk(shown, alive, needed)
        for partition in state.partitions():
            replicas = state.replica_assignment(partition).replicas
            if node in replicas and not self._can_reassign(replicas, leaving):
                name = state.topics[partition.topic].spec.name
                return ReplicasUnavailable(shown, name, partition.index)
        return None

    def _can_reassign(self, replicas: tuple[NodeId, ...], leaving: set[NodeId]) -> bool:
        """Whether the group has a majority for the change now, and will have one after it."""
        is_there = self._peers.is_alive
        if 2 * sum(is_there(node) for node in replicas) <= len(replicas):
            return False
        rest = [node for node in replicas if node not in leaving]
        spare = [node for node in self._alive_nodes() if node not in replicas and node not in leaving]
        after = [*rest, *spare[: len(replicas) - len(rest)]]
        return 2 * sum(is_there(node) for node in after) > len(after) > 0


def _ordered_by_load(replicas: tuple[NodeId, ...], before: NodeId, leads: dict[NodeId, int]) -> tuple[NodeId, ...]:
    """Puts the preferred leader first: unchanged unless it leaves or a new replica leads fewer partitions."""
    least = min((node for node in replicas if node in leads), key=lambda node: (leads[node], node), default=replicas[0])
    stays = before in replicas and before in leads
    first = before if stays and leads[before] <= leads[least] else least
    return (first, *(node for node in replicas if node != first))
