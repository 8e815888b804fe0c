"""The cluster's state for operators: any node collects it from all nodes that are alive and merges the replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import Described, Send
from rostra.fabric.cluster.messages import ClusterStateReply, ClusterStateRequest
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.consensus.roles import Role
from rostra.fabric.raft.metadata.metadata_state import METADATA_PARTITION
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

TopicPartition = tuple[str, int]

PARTITIONS_PER_MESSAGE = 1000
"""Partitions described in one message."""


class PendingDescription:
    """One pending request for the cluster's state."""

    def __init__(self, until_us: int, awaited: set[NodeId]) -> None:
        self.until_us = until_us
        self.awaited = awaited
        self.answered: list[NodeId] = []
        self.best: dict[TopicPartition, PlacedPartition] = {}

    def add(self, node: NodeId, partitions: tuple[PlacedPartition, ...], *, more: bool = False) -> None:
        if not more:
            self.awaited.discard(node)
            self.answered.append(node)
        for described in partitions:
            key = (described.topic, described.partition)
            known = self.best.get(key)
            if known is None or _freshness(described) > _freshness(known):
                self.best[key] = described


class ClusterDescription:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._pending: dict[int, PendingDescription] = {}

    def request(self, token: int) -> None:
        raft = self._raft
        peers = {member.node for member in raft.peers.members() if raft.peers.is_alive(member.node)}
        pending = PendingDescription(raft.now.mono_us + raft.settings.election_max_us, peers)
        pending.add(raft.node, self._local_partitions())
        self._pending[token] = pending
        raft.out += [Send(peer, ClusterStateRequest(raft.boot_token(token))) for peer in sorted(peers)]
        self._finish(token)

    def request_received(self, peer: NodeId, message: ClusterStateRequest) -> None:
        own = self._local_partitions()
        for at in range(0, len(own), PARTITIONS_PER_MESSAGE):
            more = at + PARTITIONS_PER_MESSAGE < len(own)
            self._raft.out.append(
                Send(peer, ClusterStateReply(message.token, own[at : at + PARTITIONS_PER_MESSAGE], more))
            )

    def reply_received(self, peer: NodeId, message: ClusterStateReply) -> None:
        token = message.token % (1 << 40)
        pending = self._pending.get(token) if message.token == self._raft.boot_token(token) else None
        if pending is not None and peer in pending.awaited:
            pending.add(peer, message.partitions, more=message.more)
            self._finish(token)

    def tick(self) -> None:
        """Ends requests that have timed out, without the missing replies."""
        for token, pending in list(self._pending.items()):
            if self._raft.now.mono_us >= pending.until_us:
                pending.awaited.clear()
                self._finish(token)

    def _finish(self, token: int) -> None:
        pending = self._pending[token]
        if pending.awaited:
            return
        del self._pending[token]
        self._fill_in(pending)
        partitions = tuple(pending.best[key] for key in sorted(pending.best))
        state = ClusterState("raft", self._nodes(partitions), partitions, tuple(pending.answered))
        self._raft.out.append(Described(token, state))

    def _fill_in(self, pending: PendingDescription) -> None:
        """Adds partitions that no node described, from the metadata."""
        state = self._raft.metadata.state
        for partition in state.partitions():
            name = state.topics[partition.topic].spec.name
            if (name, partition.index) not in pending.best:
                copies = tuple(
                    CopyState(node, -1, True) for node in sorted(state.replica_assignment(partition).replicas)
                )
                undescribed = PlacedPartition(name, partition.index, NodeId(0), 0, 0, 0, 0, copies)
                pending.best[name, partition.index] = undescribed

    def _local_partitions(self) -> tuple[PlacedPartition, ...]:
        return tuple(self._partition(group) for _, group in sorted(self._raft.groups.items()))

    def _partition(self, group: RaftGroup) -> PlacedPartition:
        leads = group.role is Role.LEADER
        copies = tuple(
            CopyState(node, _match(group, node) if leads else -1, node in group.config.voters)
            for node in sorted(group.config.members)
        )
        log = group.log
        moving = group.partition in self._raft.metadata.state.reassigning
        topic = "" if group.partition == METADATA_PARTITION else group.name
        owner = group.leader or NodeId(0)
        return PlacedPartition(
            topic, group.partition.index, owner, group.term, log.first, log.end, group.commit, copies, moving
        )

    def _nodes(self, partitions: tuple[PlacedPartition, ...]) -> tuple[NodeState, ...]:
        raft = self._raft
        state = raft.metadata.state
        voters = raft.metadata.group.config.voters
        members = {member.node: member for member in raft.peers.members()}
        members[raft.node] = state.members.get(raft.node, raft.own)
        copies = dict.fromkeys(members, 0)
        for partition in state.partitions():
            self._count(partition, copies)
        return tuple(
            NodeState(
                node,
                members[node].address,
                members[node].peer_address,
                raft.peers.is_alive(node),
                node in voters,
                node in state.leaving,
                sum(partition.owner == node and partition.topic != "" for partition in partitions),
                copies[node],
                members[node].name or members[node].address,
            )
            for node in sorted(members)
        )

    def _count(self, partition: Partition, copies: dict[NodeId, int]) -> None:
        for node in self._raft.metadata.state.replica_assignment(partition).replicas:
            if node in copies:
                copies[node] += 1


def _match(group: RaftGroup, node: NodeId) -> int:
    if node == group.node:
        return group.log.synced
    progress = group.sender.progress.get(node)
    return progress.match if progress is not None else -1


def _freshness(described: PlacedPartition) -> tuple[int, bool, int]:
    """Orders descriptions of a partition: higher epoch first, then the owner's."""
    return described.epoch, any(log.match >= 0 for log in described.copies), described.commit
