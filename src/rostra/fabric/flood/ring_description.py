"""What the ring is like: asked of any broker, told by all that are there, put together by the one that was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rostra.fabric.api import Described, Send
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, RingStateReply, RingStateRequest
from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition, RingState
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood

NOBODY = NodeId(0)


class PendingRingDescription:
    def __init__(self, until_us: int, awaited: set[NodeId]) -> None:
        self.until_us = until_us
        self.awaited = awaited
        self.answered: list[NodeId] = []
        self.rings: list[RingState] = []
        self.found: dict[tuple[str, int], PlacedPartition] = {}

    def take(self, node: NodeId, ring: RingState, partitions: tuple[PlacedPartition, ...], *, more: bool) -> None:
        if not more:
            self.awaited.discard(node)
            self.answered.append(node)
            self.rings.append(ring)
        for told in partitions:
            known = self.found.get((told.topic, told.partition))
            self.found[told.topic, told.partition] = told if known is None else _together(known, told)


def _together(one: PlacedPartition, other: PlacedPartition) -> PlacedPartition:
    copies = {copy.node: copy for copy in (*one.copies, *other.copies)}
    return msgspec.structs.replace(
        one,
        owner=one.owner or other.owner,
        first=min(one.first, other.first),
        end=max(one.end, other.end),
        commit=max(one.commit, other.commit),
        copies=tuple(copies[node] for node in sorted(copies)),
    )


class RingDescription:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._gatherings: dict[int, PendingRingDescription] = {}

    def ask(self, token: int) -> None:
        flood = self._flood
        peers = {node for node in flood.ring.view.active if node != flood.node}
        gathering = PendingRingDescription(flood.now.mono_us + flood.settings.silence_ms * 1000, peers)
        gathering.take(flood.node, self._ring(), self._own(), more=False)
        self._gatherings[token] = gathering
        flood.out += [Send(peer, RingStateRequest(flood.boot, token)) for peer in sorted(peers)]
        self._finish(token)

    def asked(self, peer: NodeId, message: RingStateRequest) -> None:
        own = self._own()
        for at in range(0, max(len(own), 1), ENTRIES_PER_MESSAGE):
            more = at + ENTRIES_PER_MESSAGE < len(own)
            part = own[at : at + ENTRIES_PER_MESSAGE]
            self._flood.out.append(Send(peer, RingStateReply(message.boot, message.token, self._ring(), part, more)))

    def told(self, peer: NodeId, message: RingStateReply) -> None:
        gathering = self._gatherings.get(message.token) if message.boot == self._flood.boot else None
        if gathering is not None and peer in gathering.awaited:
            gathering.take(peer, message.ring, message.partitions, more=message.more)
            self._finish(message.token)

    def look(self) -> None:
        """Who has not answered by now is not waited for."""
        for token, gathering in list(self._gatherings.items()):
            if self._flood.now.mono_us >= gathering.until_us:
                gathering.awaited.clear()
                self._finish(token)

    def _finish(self, token: int) -> None:
        gathering = self._gatherings[token]
        if gathering.awaited:
            return
        del self._gatherings[token]
        partitions = tuple(gathering.found[place] for place in sorted(gathering.found))
        rings = tuple(sorted(gathering.rings, key=lambda ring: ring.node))
        state = ClusterState("flood", self._nodes(partitions), partitions, tuple(gathering.answered), rings)
        self._flood.out.append(Described(token, state))

    def _ring(self) -> RingState:
        flood = self._flood
        following = flood.ring.next
        link = flood.links.get(following) if following is not None else None
        return RingState(
            flood.node,
            following or NOBODY,
            flood.ring.previous or NOBODY,
            flood.ring.view.epoch,
            flood.ring.view.active,
            flood.circle.circle_us,
            link.lacks() if link is not None else 0,
        )

    def _own(self) -> tuple[PlacedPartition, ...]:
        node = self._flood.node
        return tuple(
            PlacedPartition(
                copy.part.name,
                copy.partition.topic,
                node if copy.own else NOBODY,
                copy.part.epoch,
                copy.first,
                copy.end,
                copy.synced,
                (CopyState(node, copy.synced, True),),
            )
            for _, copy in sorted(self._flood.copies.items())
        )

    def _nodes(self, partitions: tuple[PlacedPartition, ...]) -> tuple[NodeState, ...]:
        flood = self._flood
        return tuple(
            NodeState(
                member.node,
                member.address,
                member.peer_address,
                flood.ring.is_there(member.node),
                True,
                False,
                sum(placed.owner == member.node for placed in partitions),
                sum(any(copy.node == member.node for copy in placed.copies) for placed in partitions),
            )
            for _, member in sorted(flood.ring.members.items())
        )
