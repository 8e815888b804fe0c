"""The cluster's state for operators: any node collects it from all nodes that are alive and merges the replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rostra.fabric.api import UNKNOWN_PEER, Described, Send
from rostra.fabric.cluster.messages import ClusterStateReply, ClusterStateRequest
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.links.node_context import NodeContext
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
from rostra.model.ids import NodeId

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
    """`local_partitions` describes those that have a replica here; replies are awaited for `timeout_us`."""

    def __init__(
        self,
        fabric: str,
        context: NodeContext,
        metadata: MetadataGroup[Any],
        peers: PeerSet,
        local_partitions: Callable[[], tuple[PlacedPartition, ...]],
        timeout_us: int,
    ) -> None:
        self._fabric = fabric
        self._context = context
        self._metadata = metadata
        self._peers = peers
        self._local_partitions = local_partitions
        self._timeout_us = timeout_us
        self._pending: dict[int, PendingDescription] = {}

    def request(self, token: int) -> None:
        peers = {member.node for member in self._peers.members() if self._peers.is_alive(member.node)}
        pending = PendingDescription(self._context.now.mono_us + self._timeout_us, peers)
        pending.add(self._context.node, self._local_partitions())
        self._pending[token] = pending
        self._context.out += [
            Send(peer, ClusterStateRequest(self._context.boot_token(token))) for peer in sorted(peers)
        ]
        self._finish(token)

    def request_received(self, peer: NodeId, message: ClusterStateRequest) -> None:
        own = self._local_partitions()
        for at in range(0, len(own), PARTITIONS_PER_MESSAGE):
            more = at + PARTITIONS_PER_MESSAGE < len(own)
            self._context.out.append(
                Send(peer, ClusterStateReply(message.token, own[at : at + PARTITIONS_PER_MESSAGE], more))
            )

    def reply_received(self, peer: NodeId, message: ClusterStateReply) -> None:
        token = self._context.own_token(message.token)
        pending = self._pending.get(token) if token is not None else None
        if token is not None and pending is not None and peer in pending.awaited:
            pending.add(peer, message.partitions, more=message.more)
            self._finish(token)

    def tick(self) -> None:
        """Ends requests that have timed out, without the missing replies."""
        for token, pending in list(self._pending.items()):
            if self._context.now.mono_us >= pending.until_us:
                pending.awaited.clear()
                self._finish(token)

    def _finish(self, token: int) -> None:
        pending = self._pending[token]
        if pending.awaited:
            return
        del self._pending[token]
        self._fill_in(pending)
        partitions = tuple(pending.best[key] for key in sorted(pending.best))
        state = ClusterState(self._fabric, self._nodes(partitions), partitions, tuple(pending.answered))
        self._context.out.append(Described(token, state))

    def _fill_in(self, pending: PendingDescription) -> None:
        """Adds partitions that no node described, from the metadata."""
        state = self._metadata.state
        for partition in state.partitions():
            name = state.topics[partition.topic].spec.name
            if (name, partition.index) not in pending.best:
                copies = tuple(CopyState(node, -1, True) for node in sorted(state.replicas_of(partition)))
                undescribed = PlacedPartition(name, partition.index, UNKNOWN_PEER, 0, 0, 0, 0, copies)
                pending.best[name, partition.index] = undescribed

    def _nodes(self, partitions: tuple[PlacedPartition, ...]) -> tuple[NodeState, ...]:
        state = self._metadata.state
        voters = self._metadata.group.config.voters
        members = {member.node: member for member in self._peers.members()}
        members[self._context.node] = state.members.get(self._context.node, self._peers.own)
        copies = dict.fromkeys(members, 0)
        for partition in state.partitions():
            for node in state.replicas_of(partition):
                if node in copies:
                    copies[node] += 1
        return tuple(
            NodeState(
                node,
                members[node].address,
                members[node].peer_address,
                self._peers.is_alive(node),
                node in voters,
                node in state.leaving,
                sum(partition.owner == node and partition.topic != "" for partition in partitions),
                copies[node],
                members[node].name or members[node].address,
            )
            for node in sorted(members)
        )


def _freshness(described: PlacedPartition) -> tuple[int, bool, int]:
    """Orders descriptions of a partition: higher epoch first, then the owner's."""
    return described.epoch, any(log.match >= 0 for log in described.copies), described.commit
