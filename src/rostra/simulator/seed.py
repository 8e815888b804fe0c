"""Runs one seed: builds its world, runs it and checks the history."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

import msgspec

from rostra.safeguards import ALL_ON, Without
from rostra.simulator.checkers import find_violations
from rostra.simulator.faults.fault_plan import Fault
from rostra.simulator.history import OPERATIONS_MIN
from rostra.simulator.world.flood_world import FloodWorld
from rostra.simulator.world.world import World


class SeedResult(msgspec.Struct, frozen=True):
    seed: int
    digest: str
    violations: tuple[str, ...]
    faults: dict[Fault, int]
    operations: int
    events: int
    virtual_us: int
    cpu_s: float
    recent: tuple[str, ...] = ()
    """The last lines of the trace, if there was a violation."""


WORLDS: dict[str, type[World]] = {"raft": World, "flood": FloodWorld}
"""The world of each fabric that can be simulated."""


def run_seed(
    seed: int,
    *,
    fabric: str = "raft",
    nodes: int = 0,
    without: Without = ALL_ON,
    show: Callable[[str], None] | None = None,
) -> SeedResult:
    """Runs a seed and checks it. `nodes` 0 means as many as the seed draws; `show` gets each line of the trace."""
    began_s = time.process_time()
    world = WORLDS[fabric](seed, without, show, nodes=nodes)
    history, clock = world.history, world.clock
    try:
        world.run()
    except Exception:
        history.exceptions.append(f"running the world: {traceback.format_exc()}")
    violations = find_violations(history)
    if clock.now_us < world.bounds.end_us or history.operations < OPERATIONS_MIN:
        violations.append(f"the seed is too short: {history.operations} operations in {clock.now_us} us")
    return SeedResult(
        seed=seed,
        digest=world.trace.digest(),
        violations=tuple(violations),
        faults=world.fault_counts.counts,
        operations=history.operations,
        events=clock.events,
        virtual_us=clock.now_us,
        cpu_s=time.process_time() - began_s,
        recent=tuple(world.trace.lines()) if violations else (),
    )
