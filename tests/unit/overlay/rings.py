"""Rings for tests: nodes on virtual time with a network that delivers, loses or cuts as a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from rostra.fabric.overlay import join
from rostra.fabric.overlay.effects import Effect, LookupDone
from rostra.fabric.overlay.lookup import find
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import Packet
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.fabric.overlay.state import Overlay, former_neighbours
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key
from rostra.safeguards import ALL_ON, Without
from rostra.simulator.overlay.ideal import wrong_fingers, wrong_neighbours
from rostra.simulator.overlay.loop import Loop
from rostra.simulator.overlay.scenario import ROUND_US
from rostra.simulator.papers.layout import lay_out

DELAY_US = 10_000


class Ring:
    """Nodes that are named by number; the first founds the ring."""

    def __init__(self, settings: OverlaySettings | None = None, without: Without = ALL_ON) -> None:
        self.settings = settings or OverlaySettings(bits=16, successors_max=3)
        self.without = without
        self.random = Random(7)
        self.loses: Callable[[Packet], bool] = lambda _packet: False
        self.sent: list[Packet] = []
        self.done: list[LookupDone] = []
        self.loop = Loop(self._delay_us)
        self.loop.told = self._told

    def _delay_us(self, packet: Packet) -> int | None:
        self.sent.append(packet)
        return None if self.loses(packet) else DELAY_US

    def _told(self, _overlay: Overlay, effect: Effect) -> None:
        if isinstance(effect, LookupDone):
            self.done.append(effect)

    def __getitem__(self, node: int) -> Overlay:
        return self.loop.nodes[NodeId(node)]

    @property
    def overlays(self) -> list[Overlay]:
        return list(self.loop.nodes.values())

    def new(self, node: int, key: int, boot: int = 1) -> Overlay:
        me = Member(Key(key), NodeId(node), boot)
        return Overlay(me, self.settings, Random(node * 1000 + boot), self.without)

    def create(self, node: int, key: int) -> Overlay:
        overlay = self.new(node, key)
        join.create(overlay, self.loop.now_us)
        self.loop.start(overlay)
        return overlay

    def join(self, node: int, key: int, *contacts: int) -> Overlay:
        overlay = self.new(node, key)
        join.join(overlay, self.loop.now_us, tuple(self[contact].me for contact in contacts))
        self.loop.start(overlay)
        return overlay

    def restart(self, before: Overlay) -> Overlay:
        overlay = self.new(before.me.node, before.me.key, before.me.boot + 1)
        join.restart(overlay, self.loop.now_us, former_neighbours(before))
        self.loop.start(overlay)
        return overlay

    def lay_out(self, keys: Sequence[int], first_node: int = 1) -> None:
        """An ideal ring at once, its rounds spread over a period."""
        for overlay in lay_out([Key(key) for key in keys], self.settings, self.random, first_node):
            overlay.without = self.without
            overlay.stabilize_us = self.loop.now_us + self.random.randrange(ROUND_US)
            overlay.heartbeat_us = self.loop.now_us + self.random.randrange(self.settings.heartbeat_ms * 1000)
            overlay.probe_us = self.loop.now_us + self.random.randrange(self.settings.probe_ms * 1000)
            self.loop.start(overlay)

    def crash(self, *nodes: int) -> list[Overlay]:
        return [self.loop.crash(NodeId(node)) for node in nodes]

    def pass_rounds(self, rounds: float) -> None:
        self.loop.run_until(self.loop.now_us + int(rounds * ROUND_US))

    def rounds_until_right(self, rounds_max: int) -> int:
        """How many rounds pass until every list and predecessor is right; fails beyond the bound."""
        for passed in range(rounds_max + 1):
            if not wrong_neighbours(self.overlays):
                return passed
            self.pass_rounds(1)
        raise AssertionError(wrong_neighbours(self.overlays)[:5])

    def assert_fingers_right(self) -> None:
        assert wrong_fingers(self.overlays)[:5] == []

    def look_up(self, node: int, key: int) -> LookupDone:
        overlay = self[node]
        number = find(overlay, self.loop.now_us, Key(key))
        self.loop.settle(overlay)
        self.pass_rounds(2)
        return next(done for done in self.done if done.number == number and done.key == key)


def keys_of(overlays: Iterable[Overlay]) -> list[int]:
    return sorted(one.me.key for one in overlays)
