"""Starts many simulated nodes in one process and prints the cost: `python -m rostra.simulator.scale --nodes 200`.

The nodes found one cluster of a fabric, without faults and clients, until each of them serves.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import msgspec

from rostra.simulator.clock import SECOND_US
from rostra.simulator.faults.fault_plan import FaultPlan
from rostra.simulator.seed import WORLDS
from rostra.simulator.world.bounds import WorldBounds

PATIENCE_US = 60 * SECOND_US
STEP_US = SECOND_US // 2
NODES = 200
EVENTS_PER_PAIR = 200
"""Bound of the events until all serve: every node talks to every other."""


class StartCost(msgspec.Struct, frozen=True):
    """What starting the nodes took; `mb` is what the process grew by."""

    fabric: str
    nodes: int
    serving: int
    seconds: float
    virtual_s: float
    events: int
    mb: float


def start_nodes(fabric: str, nodes: int, seed: int = 0) -> StartCost:
    """Starts the nodes and runs until all serve, or until they should have."""
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.process_time()
    plan = msgspec.structs.replace(FaultPlan.none(), heartbeat_ms=900)
    world = WORLDS[fabric](seed, plan=plan, nodes=nodes, bounds=WorldBounds(events_max=EVENTS_PER_PAIR * nodes * nodes))
    world.start()
    while sum(node.listening for node in world.nodes) < nodes and world.clock.now_us < PATIENCE_US:
        world.until(world.clock.now_us + STEP_US)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    return StartCost(
        fabric=fabric,
        nodes=nodes,
        serving=sum(node.listening for node in world.nodes),
        seconds=round(time.process_time() - began_s, 2),
        virtual_s=world.clock.now_us / SECOND_US,
        events=world.clock.events,
        mb=round(grown_kib / 1024, 1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rostra.simulator.scale", description=__doc__)
    parser.add_argument("--fabric", default="raft", choices=tuple(WORLDS))
    parser.add_argument("--nodes", type=int, default=NODES)
    given = parser.parse_args()
    cost = start_nodes(given.fabric, given.nodes)
    print(msgspec.json.encode(cost).decode())
    return 0 if cost.serving == cost.nodes else 1


if __name__ == "__main__":
    sys.exit(main())
