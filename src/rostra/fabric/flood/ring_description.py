"""The ring's state for operators: any broker collects it from all that are alive and merges the replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from rostra.fabric.api import Described, Send
from rostra.fabric.flood.ack_ring import AckRing
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, RingMember, RingStateReply, RingStateRequest
from rostra.fabric.flood.ring import Ring
from rostra.fabric.flood.ring_links import RingLinks
from rostra.fabric.status import ClusterStatus, MemberStatus
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition, RingState
from rostra.model.ids import NodeId

NO_NODE = NodeId(0)


class PendingRingDescription:
    def __init__(self, until_us: int, awaited: set[NodeId]) -> None:
        self.until_us = until_us
        self.awaited = awaited
        self.answered: list[NodeId] = []
        self.rings: list[RingState] = []
        self.found: dict[tuple[str, int], PlacedPartition] = {}

    def add(self, node: NodeId, ring: RingState, partitions: tuple[PlacedPartition, ...], *, more: bool) -> None:
        if not more:
            self.awaited.discard(node)
            self.answered.append(node)
            self.rings.append(ring)
        for described in partitions:
            known = self.found.get((described.topic, described.partition))
            self.found[described.topic, described.partition] = described if known is None else _merged(known, described)


def _merged(one: PlacedPartition, other: PlacedPartition) -> PlacedPartition:
    copies = {log.node: log for log in (*one.copies, *other.copies)}
    return msgspec.structs.replace(
        one,
        owner=one.owner or other.owner,
        first=min(one.first, other.first),
        end=max(one.end, other.end),
        commit=max(one.commit, other.commit),
        copies=tuple(copies[node] for node in sorted(copies)),
    )


class RingDescription:
    def __init__(self, context: FloodContext, ring: Ring, ack_ring: AckRing, links: RingLinks) -> None:
        self._context = context
        self._ring = ring
        self._ack_ring = ack_ring
        self._links = links
        self._pending: dict[int, PendingRingDescription] = {}

    def request(self, token: int) -> None:
        context = self._context
        peers = {node for node in self._ring.view.active if node != context.node}
        pending = PendingRingDescription(context.now.mono_us + context.settings.failure_timeout_ms * 1000, peers)
        pending.add(context.node, self._ring_state(), self._local_partitions(), more=False)
        self._pending[token] = pending
        context.out += [Send(peer, RingStateRequest(context.boot, token)) for peer in sorted(peers)]
        self._finish(token)

    def request_received(self, peer: NodeId, message: RingStateRequest) -> None:
        own = self._local_partitions()
        for at in range(0, max(len(own), 1), ENTRIES_PER_MESSAGE):
            more = at + ENTRIES_PER_MESSAGE < len(own)
            chunk = own[at : at + ENTRIES_PER_MESSAGE]
            self._context.out.append(
                Send(peer, RingStateReply(message.boot, message.token, self._ring_state(), chunk, more))
            )

    def reply_received(self, peer: NodeId, message: RingStateReply) -> None:
        pending = self._pending.get(message.token) if message.boot == self._context.boot else None
        if pending is not None and peer in pending.awaited:
            pending.add(peer, message.ring, message.partitions, more=message.more)
            self._finish(message.token)

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
        partitions = tuple(pending.found[place] for place in sorted(pending.found))
        rings = tuple(sorted(pending.rings, key=lambda ring: ring.node))
        state = ClusterState("flood", self._nodes(partitions), partitions, tuple(pending.answered), rings)
        self._context.out.append(Described(token, state))

    def _ring_state(self) -> RingState:
        context = self._context
        following = self._ring.next
        link = self._links.by_peer.get(following) if following is not None else None
        return RingState(
            context.node,
            following or NO_NODE,
            self._ring.previous or NO_NODE,
            self._ring.view.epoch,
            self._ring.view.active,
            self._ack_ring.round_trip_us,
            link.missing_records() if link is not None else 0,
        )

    def _local_partitions(self) -> tuple[PlacedPartition, ...]:
        node = self._context.node
        return tuple(
            PlacedPartition(
                log.origin_partition.name,
                log.partition.topic,
                node if log.is_origin else NO_NODE,
                log.origin_partition.epoch,
                log.first,
                log.end,
                log.synced,
                (CopyState(node, log.synced, True),),
            )
            for _, log in sorted(self._context.logs.items())
        )

    def _nodes(self, partitions: tuple[PlacedPartition, ...]) -> tuple[NodeState, ...]:
        return tuple(
            NodeState(
                member.node,
                member.address,
                member.peer_address,
                self._ring.is_alive(member.node),
                True,
                False,
                sum(placed.owner == member.node for placed in partitions),
                sum(any(log.node == member.node for log in placed.copies) for placed in partitions),
                member.name or member.address,
            )
            for _, member in sorted(self._ring.members.items())
        )


def status_of(
    node: NodeId, boot: int, members: Iterable[RingMember], is_alive: Callable[[NodeId], bool]
) -> ClusterStatus:
    """A ring has no voters; every member counts."""
    found = tuple(
        MemberStatus(member.node, member.address, member.peer_address, is_alive(member.node), True)
        for member in sorted(members, key=lambda member: member.node)
    )
    return ClusterStatus(node, boot, found, ())
