"""One seed of the overlay, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import msgspec

from rostra.safeguards import ALL_ON, Without
from rostra.simulator.overlay.scenario import draw
from rostra.simulator.overlay.world import OverlayWorld


class OverlaySeed(msgspec.Struct, frozen=True):
    """What came of one seed."""

    seed: int
    nodes: int
    successors_max: int
    claims_invariants: bool
    rounds_to_heal: int
    events: int
    cpu_s: float
    digest: str
    counts: dict[str, int]
    violations: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.nodes} nodes, lists of {self.successors_max}"


def run_overlay_seed(seed: int, without: Without = ALL_ON, show: Callable[[str], None] | None = None) -> OverlaySeed:
    random = Random(f"{seed}/overlay")
    scenario = draw(random)
    world = OverlayWorld(scenario, random, without, show)
    begin_s = time.process_time()
    world.run()
    network = world.network
    counts = {**world.counts, "lost packets": network.lost, "doubled packets": network.doubled}
    return OverlaySeed(
        seed=seed,
        nodes=scenario.nodes,
        successors_max=scenario.settings.successors_max,
        claims_invariants=scenario.claims_invariants,
        rounds_to_heal=world.rounds_to_heal,
        events=network.events,
        cpu_s=time.process_time() - begin_s,
        digest=world.digest,
        counts=counts,
        violations=tuple(world.violations),
    )
