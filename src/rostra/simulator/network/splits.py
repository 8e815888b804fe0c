"""Network splits: which directed links between nodes are blocked, by shape, and when."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rostra.model.ids import NodeId
from rostra.simulator.clock import MS_US
from rostra.simulator.faults.fault_plan import Fault

BLIP_US = 43 * MS_US
"""Period of a flapping split; shorter than any timeout, so no failure detector notices it."""

BlockedPaths = frozenset[tuple[NodeId, NodeId]]


class NetworkSplit:
    """Blocks some links between nodes; if it flaps, only during every other `BLIP_US`."""

    __slots__ = ("_flaps", "_paths", "_since_us", "counts_as", "shape", "until_us")

    def __init__(self, shape: Fault, paths: BlockedPaths, since_us: int, until_us: int, *, flaps: bool) -> None:
        self.shape = shape
        self.counts_as = Fault.FLAP if flaps else shape
        self.until_us = until_us
        self._paths = paths
        self._since_us = since_us
        self._flaps = flaps

    def blocks(self, now_us: int, sender: NodeId, receiver: NodeId) -> bool:
        if (sender, receiver) not in self._paths or now_us >= self.until_us:
            return False
        return not self._flaps or (now_us - self._since_us) // BLIP_US % 2 == 0

    def opens_us(self, now_us: int) -> int:
        """When links that it blocks now open again."""
        if not self._flaps:
            return self.until_us
        return min(self.until_us, now_us + BLIP_US - (now_us - self._since_us) % BLIP_US)


def draw_blocked_paths(shape: Fault, nodes: Sequence[NodeId], random: Random) -> BlockedPaths:
    """Draws the links that a split of this shape blocks."""
    order = list(nodes)
    random.shuffle(order)
    count = len(order)
    match shape:
        case Fault.ONE_WAY:
            deaf = order[0]
            from_all = random.random() < 0.5
            blocked = {(other, deaf) if from_all else (deaf, other) for other in order[1 : random.randint(2, count)]}
        case Fault.ISOLATED:
            blocked = {(order[0], other) for other in order[1:]} | {(other, order[0]) for other in order[1:]}
        case Fault.HALVES:
            middle = random.randint(1, count - 1)
            blocked = _between(order[:middle], order[middle:])
        case Fault.BRIDGE:
            # One node reaches both sides, which do not reach each other.
            middle = (count - 1) // 2
            blocked = _between(order[:middle], order[middle:-1])
        case _:
            # A ring: each node reaches its two neighbours only; with three nodes, only one neighbour.
            near = {(order[at], order[(at + 1) % count]) for at in range(count)}
            near |= {(other, one) for one, other in near} if count > 3 else set()
            blocked = {(one, other) for one in order for other in order if one != other and (one, other) not in near}
    return frozenset(blocked)


def _between(some: Sequence[NodeId], others: Sequence[NodeId]) -> set[tuple[NodeId, NodeId]]:
    return {pair for one in some for other in others for pair in ((one, other), (other, one))}
