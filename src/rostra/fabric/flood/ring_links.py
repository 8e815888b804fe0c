"""The links to the neighbours: one to the next broker and, with `both_ways`, one to the previous."""

from __future__ import annotations

from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.origin_partition import OriginLog
from rostra.fabric.flood.ring import Ring
from rostra.fabric.flood.ring_link import RingLink
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard


class RingLinks:
    def __init__(self, context: FloodContext, ring: Ring) -> None:
        self._context = context
        self._ring = ring
        self.by_peer: dict[NodeId, RingLink] = {}
        self._numbered = 0
        self._reads: dict[int, tuple[RingLink, Partition]] = {}
        """Pending log reads by token, and for which link."""
        self._hops_bounded = Safeguard.HOP_BOUND not in context.without

    def update(self) -> None:
        """Opens links to the current neighbours, after the view changed or a neighbour restarted."""
        following, previous = self._ring.next, self._ring.previous
        wanted = {following, previous} if self._context.settings.both_ways else {following}
        for peer in [peer for peer in self.by_peer if peer not in wanted]:
            del self.by_peer[peer]
        for peer in sorted(peer for peer in wanted if peer is not None and peer not in self.by_peer):
            self._numbered += 1
            number = (self._context.boot % (1 << 31) << 32) + self._numbered
            self.by_peer[peer] = RingLink(self._context, self._next_read, peer, number)

    def close(self, peer: NodeId) -> bool:
        """Forgets the link to a peer that restarted; returns whether there was one."""
        return self.by_peer.pop(peer, None) is not None

    def forward(
        self, log: OriginLog, base: int, end: int, batch: bytearray, hops: int, received_from: NodeId | None
    ) -> None:
        if log.origin_partition.local or (self._hops_bounded and hops > len(self._ring.members)):
            return
        for peer, link in self.by_peer.items():
            if peer != received_from:
                link.forward(log, base, end, batch, hops)

    def missing_records(self) -> int:
        """How many records the neighbours have not acknowledged."""
        return sum(link.missing_records() for link in self.by_peer.values())

    def tick(self) -> None:
        for link in list(self.by_peer.values()):
            link.tick()

    # --- reads of the log ----------------------------------------------------------------------------

    def _next_read(self, link: RingLink, partition: Partition) -> int:
        token = self._context.next_token()
        self._reads[token] = link, partition
        return token

    def read_done(self, token: int, batches: bytes, next_offset: int) -> None:
        link, partition = self._reads.pop(token, (None, None))
        if link is not None and partition is not None:
            link.read_done(token, partition, batches, next_offset)

    def read_failed(self, token: int) -> bool:
        """Returns whether the read was for a link."""
        link, partition = self._reads.pop(token, (None, None))
        if link is None or partition is None:
            return False
        link.read_failed(token, partition)
        return True
