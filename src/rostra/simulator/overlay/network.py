"""The network of a seed: delay, loss, duplication, overtaking, and splits."""

from __future__ import annotations

from random import Random

from rostra.fabric.overlay.messages import Answer, Packet
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.model.ids import NodeId
from rostra.simulator.overlay.loop import Loop

DELAY_US_MIN = 2_000


class Network(Loop):
    """A loop whose packets suffer. A live node misses fewer requests in a row than the limit allows, except across a
    split: the invariants are claimed only where a node that is taken for dead is dead."""

    def __init__(self, random: Random, settings: OverlaySettings) -> None:
        super().__init__(self._delay)
        self.loss = 0.0
        self.duplication = 0.0
        self.lost = self.doubled = self.cut = 0
        self.side: dict[NodeId, int] = {}
        """The side of a split that each node is on; empty when there is none."""
        self._random = random
        self._bound_us = settings.answer_ms * 1000 // 2 - 1
        self._losses_max = settings.misses_max - 1
        self._losses: dict[tuple[NodeId, int], int] = {}

    def send(self, packet: Packet) -> None:
        super().send(packet)
        if self.duplication and self._random.random() < self.duplication:
            self.doubled += 1
            super().send(packet)

    def _delay(self, packet: Packet) -> int | None:
        sender, to = packet.sender.node, packet.to.node
        if self.side and self.side.get(sender) != self.side.get(to):
            self.cut += 1
            return None
        if self.loss and self._random.random() < self.loss and self._may_lose(packet):
            self.lost += 1
            return None
        return self._random.randint(DELAY_US_MIN, self._bound_us)

    def _may_lose(self, packet: Packet) -> bool:
        """Of one request and its answers only so many are lost that the next still comes in time."""
        if not packet.token:
            return True
        asking = packet.to.node if isinstance(packet.body, Answer) else packet.sender.node
        losses = self._losses.get((asking, packet.token), 0)
        if losses >= self._losses_max:
            return False
        self._losses[asking, packet.token] = losses + 1
        return True
