"""What a seed draws for its ring: size, faults, and how long each phase lasts."""

from __future__ import annotations

from math import ceil, log2
from random import Random

import msgspec

from rostra.fabric.overlay.settings import OverlaySettings

ROUND_US = 1_250_000
"""A round: within it every node has stabilized at least once."""

SPLIT_JOINS_MAX = 4


class ChurnScenario(msgspec.Struct, frozen=True):
    nodes: int
    """How many run at a time, at most."""
    settings: OverlaySettings
    loss: float
    duplication: float
    churn_rounds: int
    crashes: float
    """Strikes per round; each kills one node, or several of one successor list at once."""
    restarts: float
    """Share of the crashed nodes that return in a round."""
    split_rounds: int
    """How long the network is split in two; 0 means never."""
    split_by_arc: bool
    """Each side is one arc of the ring, or else the sides are interleaved at random."""
    split_joins: int
    """How many of the nodes join during the split and while the rings are unified."""

    @property
    def claims_invariants(self) -> bool:
        """Zave's invariants are claimed for more than r members; below that a list is the whole ring."""
        return self.nodes > self.settings.successors_max

    def rounds_to_heal(self, gap: int) -> int:
        """The rounds within which neighbours are right again once all is quiet."""
        return 3 * ceil(log2(self.nodes)) + self.settings.successors_max + gap


def draw(random: Random) -> ChurnScenario:
    nodes = round(2 ** random.uniform(2, 6))
    bits = random.choice((8, 16, 32, 64, 64))
    settings = OverlaySettings(bits=bits, successors_max=random.randint(2, 8))
    splits = random.random() < 0.4
    spare = max(nodes - settings.successors_max - 1, 0)
    return ChurnScenario(
        nodes=nodes,
        settings=settings,
        loss=random.choice((0.0, 0.0, 0.05, 0.15)),
        duplication=random.choice((0.0, 0.05)),
        churn_rounds=random.randint(8, 20),
        crashes=random.choice((0.3, 0.8, 1.5)),
        restarts=random.choice((0.0, 0.1, 0.3)),
        split_rounds=random.randint(3, 15) if splits else 0,
        split_by_arc=random.random() < 0.5,
        split_joins=random.randint(0, min(SPLIT_JOINS_MAX, spare)) if splits else 0,
    )
