"""Virtual time and a simulated network, for members of one group and for whole nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

import msgspec

from rostra.fabric.api import Now
from rostra.fabric.links.messages import NodeHeartbeat

MS = 1000


class Network:
    """What may happen to a message. `blocked` holds ordered pairs (from, to)."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.delay_us = (200, 2_000)
        self.loss = 0.0
        self.repeat = 0.0
        self.blocked: set[tuple[int, int]] = set()
        self.lost = 0
        self.repeated = 0

    def split(self, *sides: tuple[int, ...]) -> None:
        """Only members of the same side hear each other."""
        side_of = {node: number for number, side in enumerate(sides) for node in side}
        self.blocked = {(a, b) for a in side_of for b in side_of if side_of[a] != side_of[b]}

    def heal(self) -> None:
        self.blocked = set()
        self.loss = self.repeat = 0.0

    def delays(self, sender: int, receiver: int) -> list[int]:
        if (sender, receiver) in self.blocked or self.random.random() < self.loss:
            self.lost += 1
            return []
        copies = 1
        if self.random.random() < self.repeat:
            self.repeated += 1
            copies = 2
        return [self.random.randint(*self.delay_us) for _ in range(copies)]


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.network = Network(self.random)
        self.sent: Counter[str] = Counter()
        """Messages by name; heartbeats of groups are counted separately."""
        self.us = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0

    @property
    def now(self) -> Now:
        return Now(self.us, self.us)

    def at(self, us: int, action: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (max(us, self.us), self._order, action))

    def later(self, us: int, action: Callable[[], None]) -> None:
        self.at(self.us + us, action)

    def run(self, ms: float) -> None:
        until = self.us + int(ms * MS)
        while self._events and self._events[0][0] <= until:
            self.us, _, action = heappop(self._events)
            action()
        self.us = until

    def run_until(self, holds: Callable[[], bool], ms: float = 20_000) -> None:
        until = self.us + int(ms * MS)
        while not holds():
            assert self._events and self._events[0][0] <= until, f"seed {self.seed}: not within {ms} ms"
            self.us, _, action = heappop(self._events)
            action()

    def transmit(self, sender: int, receiver: int, message: object, arrive: Callable[[object], None]) -> None:
        """Delivers each copy of a message, decoded, unless the link is blocked by then."""
        packed = msgspec.msgpack.encode(message)
        self.sent[type(message).__name__] += 1
        if isinstance(message, NodeHeartbeat):
            self.sent["Beat"] += len(message.partitions)

        def arrived() -> None:
            if (sender, receiver) not in self.network.blocked:
                arrive(msgspec.msgpack.decode(packed, type=type(message)))

        for delay_us in self.network.delays(sender, receiver):
            self.later(delay_us, arrived)
