"""One seed of a partition with a primary and backups, and its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import msgspec

from rostra.safeguards import ALL_ON, Without
from rostra.simulator.primary_backup.scenario import draw_partition
from rostra.simulator.primary_backup.world import PartitionWorld


class PartitionSeed(msgspec.Struct, frozen=True):
    """What came of one seed."""

    seed: int
    nodes: int
    replicas: int
    min_copies: int
    events: int
    cpu_s: float
    healed_us: int
    digest: str
    counts: dict[str, int]
    violations: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.nodes} nodes, {self.replicas} replicas, at least {self.min_copies} copies"


def run_partition_seed(
    seed: int, without: Without = ALL_ON, show: Callable[[str], None] | None = None
) -> PartitionSeed:
    random = Random(f"{seed}/primary-backup")
    scenario = draw_partition(random)
    begin_s = time.process_time()
    world = PartitionWorld(scenario, random, without, show)
    world.run()
    authority, network = world.authority, world.network
    counts = {
        **world.counts,
        "configurations decided": authority.decided,
        "void changes": authority.void,
        "proposals superseded": authority.superseded,
        "proposals and answers lost": authority.lost,
        "messages lost": network.lost,
        "messages repeated": network.repeated,
    }
    return PartitionSeed(
        seed=seed,
        nodes=scenario.nodes,
        replicas=scenario.policy.replicas,
        min_copies=scenario.policy.min_copies,
        events=world.clock.events,
        cpu_s=time.process_time() - begin_s,
        healed_us=world.healed_us,
        digest=world.trace.digest(),
        counts=counts,
        violations=tuple(world.violations),
    )
