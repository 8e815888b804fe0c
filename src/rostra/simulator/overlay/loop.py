"""A light event loop for overlay nodes: virtual time, packets under way, and nothing of the protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush

from rostra.fabric.overlay.effects import Effect
from rostra.fabric.overlay.messages import Packet
from rostra.fabric.overlay.node import receive, take, wake, wake_at_us
from rostra.fabric.overlay.state import NEVER_US, Overlay
from rostra.model.ids import NodeId

Action = Callable[[], None]


class Loop:
    """Drives overlay nodes. `delay_us` says how long a packet takes; None loses it."""

    def __init__(self, delay_us: Callable[[Packet], int | None]) -> None:
        self.now_us = 0
        self.events = 0
        self.packets = 0
        self.nodes: dict[NodeId, Overlay] = {}
        """Those that run."""
        self.told: Callable[[Overlay, Effect], None] = lambda _overlay, _effect: None
        """Gets every effect that is not a packet."""
        self._delay_us = delay_us
        self._heap: list[tuple[int, int, Packet | NodeId | Action]] = []
        self._number = 0
        self._wakes: dict[NodeId, int] = {}

    def start(self, overlay: Overlay) -> None:
        """Runs a node whose first effects may be waiting already."""
        self.nodes[overlay.me.node] = overlay
        self._wakes[overlay.me.node] = NEVER_US
        self.settle(overlay)

    def crash(self, node: NodeId) -> Overlay:
        self._wakes.pop(node)
        return self.nodes.pop(node)

    def at(self, time_us: int, action: Action) -> None:
        self._push(max(time_us, self.now_us), action)

    def settle(self, overlay: Overlay) -> None:
        """Carries out what a node wants done, and wakes it when it is due."""
        for effect in take(overlay):
            if isinstance(effect, Packet):
                self.send(effect)
            else:
                self.told(overlay, effect)
        node = overlay.me.node
        due_us = wake_at_us(overlay)
        if due_us < self._wakes[node]:
            self._wakes[node] = due_us
            self._push(due_us, node)

    def send(self, packet: Packet) -> None:
        self.packets += 1
        delay_us = self._delay_us(packet)
        if delay_us is not None:
            self._push(self.now_us + delay_us, packet)

    @property
    def due_us(self) -> int:
        """When the next event happens."""
        return self._heap[0][0] if self._heap else NEVER_US

    def under_way(self) -> Iterator[Packet]:
        """Packets sent and not yet arrived, in no particular order of time."""
        return (payload for _, _, payload in self._heap if isinstance(payload, Packet))

    def run_until(self, time_us: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= time_us:
            self.step()
        self.now_us = max(self.now_us, time_us)

    def step(self) -> Overlay | None:
        """Lets the next event happen; the node that it concerned, if any."""
        self.now_us, _, payload = heappop(self._heap)
        self.events += 1
        if isinstance(payload, Packet):
            overlay = self.nodes.get(payload.to.node)
            if overlay is None:
                return None
            receive(overlay, self.now_us, payload)
        elif isinstance(payload, int):
            overlay = self.nodes.get(payload)
            # A node that was woken earlier, or has restarted, has a later time set.
            if overlay is None or self._wakes[payload] != self.now_us:
                return None
            self._wakes[payload] = NEVER_US
            wake(overlay, self.now_us)
        else:
            payload()
            return None
        self.settle(overlay)
        return overlay

    def _push(self, time_us: int, payload: Packet | NodeId | Action) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (time_us, number, payload))
