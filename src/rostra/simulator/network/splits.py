"""Shapes in which a network comes apart."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rostra.model.ids import NodeId
from rostra.simulator.clock import MS_US
from rostra.simulator.faults.fault_plan import Fault

BLIP_US = 43 * MS_US
"""Shorter than any timeout: it goes unnoticed by all but what it swallows."""

BlockedPaths = frozenset[tuple[NodeId, NodeId]]


class NetworkSplit:
    """Some ways between nodes are shut; in a flapping split, every other 43 ms."""

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
        """When what it stops now may go through."""
        if not self._flaps:
            return self.until_us
        return min(self.until_us, now_us + BLIP_US - (now_us - self._since_us) % BLIP_US)


def draw_blocked_paths(shape: Fault, nodes: Sequence[NodeId], random: Random) -> BlockedPaths:
    """Which ways a split of this shape shuts."""
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
            # One node sees both sides, which do not see each other.
            middle = (count - 1) // 2
            blocked = _between(order[:middle], order[middle:-1])
        case _:
            # A ring: each sees its two neighbours only; of three nodes, who are all neighbours, one way around.
            near = {(order[at], order[(at + 1) % count]) for at in range(count)}
            near |= {(other, one) for one, other in near} if count > 3 else set()
            blocked = {(one, other) for one in order for other in order if one != other and (one, other) not in near}
    return frozenset(blocked)


def _between(some: Sequence[NodeId], others: Sequence[NodeId]) -> set[tuple[NodeId, NodeId]]:
    return {pair for one in some for other in others for pair in ((one, other), (other, one))}
