"""The network of a simulated partition: it loses, delays, reorders and repeats messages, and is split for a while."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rostra.fabric.api import Send
from rostra.fabric.primary_backup.messages import PartitionMessage, decode_message, encode_message
from rostra.model.ids import NodeId
from rostra.simulator.clock import Clock
from rostra.simulator.primary_backup.scenario import PartitionScenario

Deliver = Callable[[NodeId, NodeId, PartitionMessage, bytearray | None], None]


class PartitionNetwork:
    def __init__(self, clock: Clock, random: Random, scenario: PartitionScenario) -> None:
        self._clock = clock
        self._random = random
        self._scenario = scenario
        self.reliable = False
        self.cut: set[tuple[NodeId, NodeId]] = set()
        """Directed pairs that hear nothing of each other."""
        self.deliver: Deliver = lambda _to, _sender, _message, _payload: None
        self.sent = self.lost = self.repeated = 0

    def send(self, sender: NodeId, effect: Send) -> None:
        """Every message crosses its encoding. The payload is copied: the receiver stamps and keeps its own."""
        kind, encoded = encode_message(effect.message)
        payload = b"".join(effect.payload)
        self.sent += 1
        scenario = self._scenario
        if not self.reliable and self._random.random() < scenario.loss:
            self.lost += 1
            return
        times = 1
        if not self.reliable and self._random.random() < scenario.duplication:
            self.repeated += 1
            times = 2
        for _ in range(times):
            self._clock.after(self._delay(), self._arrived, sender, effect.peer, kind, encoded, payload)

    def _delay(self) -> int:
        return self._random.randint(500, 3_000 if self.reliable else self._scenario.delay_max_us)

    def _arrived(self, sender: NodeId, receiver: NodeId, kind: int, encoded: bytes, payload: bytes) -> None:
        if (sender, receiver) in self.cut:
            self.lost += 1
            return
        self.deliver(receiver, sender, decode_message(kind, encoded), bytearray(payload) if payload else None)
