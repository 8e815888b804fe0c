"""What the cluster is like: asked of any node, told by all that are there, put together by the one that was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import Described, Send
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import ClusterStateReply, ClusterStateRequest
from rostra.fabric.raft.metadata.metadata_state import META
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
from rostra.model.ids import NodeId, Partition

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

Place = tuple[str, int]

PART = 1000
"""Partitions told of in one message."""


class PendingDescription:
    """One question under way."""

    def __init__(self, until_us: int, awaited: set[NodeId]) -> None:
        self.until_us = until_us
        self.awaited = awaited
        self.answered: list[NodeId] = []
        self.best: dict[Place, PlacedPartition] = {}

    def take(self, node: NodeId, partitions: tuple[PlacedPartition, ...], *, more: bool = False) -> None:
        if not more:
            self.awaited.discard(node)
            self.answered.append(node)
        for told in partitions:
            place = (told.topic, told.partition)
            known = self.best.get(place)
            if known is None or _worth(told) > _worth(known):
                self.best[place] = told


class ClusterDescription:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._gatherings: dict[int, PendingDescription] = {}

    def ask(self, token: int) -> None:
        raft = self._raft
        peers = {member.node for member in raft.peers.members() if raft.peers.is_there(member.node)}
        gathering = PendingDescription(raft.now.mono_us + raft.settings.patience_us, peers)
        gathering.take(raft.node, self._own())
        self._gatherings[token] = gathering
        raft.out += [Send(peer, ClusterStateRequest(raft.since_boot(token))) for peer in sorted(peers)]
        self._finish(token)

    def asked(self, peer: NodeId, message: ClusterStateRequest) -> None:
        own = self._own()
        for at in range(0, len(own), PART):
            more = at + PART < len(own)
            self._raft.out.append(Send(peer, ClusterStateReply(message.token, own[at : at + PART], more)))

    def told(self, peer: NodeId, message: ClusterStateReply) -> None:
        token = message.token % (1 << 40)
        gathering = self._gatherings.get(token) if message.token == self._raft.since_boot(token) else None
        if gathering is not None and peer in gathering.awaited:
            gathering.take(peer, message.partitions, more=message.more)
            self._finish(token)

    def look(self) -> None:
        """Who has not answered by now is not waited for."""
        for token, gathering in list(self._gatherings.items()):
            if self._raft.now.mono_us >= gathering.until_us:
                gathering.awaited.clear()
                self._finish(token)

    def _finish(self, token: int) -> None:
        gathering = self._gatherings[token]
        if gathering.awaited:
            return
        del self._gatherings[token]
        self._fill_in(gathering)
        partitions = tuple(gathering.best[place] for place in sorted(gathering.best))
        state = ClusterState("raft", self._nodes(partitions), partitions, tuple(gathering.answered))
        self._raft.out.append(Described(token, state))

    def _fill_in(self, gathering: PendingDescription) -> None:
        """Of partitions that nobody told of, what the catalogue has."""
        catalogue = self._raft.meta.catalogue
        for partition in catalogue.partitions():
            name = catalogue.topics[partition.topic].spec.name
            if (name, partition.index) not in gathering.best:
                copies = tuple(CopyState(node, -1, True) for node in sorted(catalogue.placement(partition).replicas))
                unknown = PlacedPartition(name, partition.index, NodeId(0), 0, 0, 0, 0, copies)
                gathering.best[name, partition.index] = unknown

    def _own(self) -> tuple[PlacedPartition, ...]:
        return tuple(self._partition(group) for _, group in sorted(self._raft.groups.items()))

    def _partition(self, group: RaftGroup) -> PlacedPartition:
        leads = group.role is Role.LEADER
        copies = tuple(
            CopyState(node, _match(group, node) if leads else -1, node in group.config.voters)
            for node in sorted(group.config.everyone)
        )
        copy = group.copy
        moving = group.partition in self._raft.meta.catalogue.moving
        topic = "" if group.partition == META else group.name
        owner = group.leader or NodeId(0)
        return PlacedPartition(
            topic, group.partition.index, owner, group.term, copy.first, copy.end, group.commit, copies, moving
        )

    def _nodes(self, partitions: tuple[PlacedPartition, ...]) -> tuple[NodeState, ...]:
        raft = self._raft
        catalogue = raft.meta.catalogue
        voters = raft.meta.group.config.voters
        members = {member.node: member for member in raft.peers.members()}
        members[raft.node] = catalogue.members.get(raft.node, raft.own)
        copies = dict.fromkeys(members, 0)
        for partition in catalogue.partitions():
            self._count(partition, copies)
        return tuple(
            NodeState(
                node,
                members[node].address,
                members[node].peer_address,
                raft.peers.is_there(node),
                node in voters,
                node in catalogue.leaving,
                sum(partition.owner == node and partition.topic != "" for partition in partitions),
                copies[node],
            )
            for node in sorted(members)
        )

    def _count(self, partition: Partition, copies: dict[NodeId, int]) -> None:
        for node in self._raft.meta.catalogue.placement(partition).replicas:
            if node in copies:
                copies[node] += 1


def _match(group: RaftGroup, node: NodeId) -> int:
    if node == group.me:
        return group.copy.synced
    progress = group.replication.peers.get(node)
    return progress.match if progress is not None else -1


def _worth(told: PlacedPartition) -> tuple[int, bool, int]:
    """The highest epoch knows best, its owner best of all."""
    return told.epoch, any(copy.match >= 0 for copy in told.copies), told.commit
