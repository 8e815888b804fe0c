"""A node of every fabric whose disk fails, and what its clients see of that."""

from __future__ import annotations

import pytest

from rostra.errors import DiskFull, DiskUntrusted
from rostra.simulator.clock import SECOND_US
from rostra.simulator.faults.fault_plan import FaultPlan
from rostra.simulator.seed import WORLDS
from rostra.simulator.world.world import World
from tests.simulation.test_world import acknowledged, delivered

pytestmark = pytest.mark.parametrize("fabric", sorted(WORLDS))
SEED = 4


def running(fabric: str) -> World:
    world = WORLDS[fabric](SEED, plan=FaultPlan.none(), nodes=1)
    for node in world.nodes:
        node.on_broken = lambda _: None
        node.start()
    world.clock.run_until(6 * SECOND_US)
    return world


@pytest.mark.requirement("CM-15:full", "CM-15:nothing-deleted")
def test_a_full_disk_refuses_publishes_deletes_nothing_and_serves_readers(fabric: str) -> None:
    world = running(fabric)
    (node,) = world.nodes
    before = {path: size for path, size in node.files.durable_sizes().items() if path.endswith(".log")}
    node.files.faults.capacity_bytes = node.files.used_bytes
    # Requests in flight may still be answered.
    world.clock.run_until(7 * SECOND_US)
    stored, read = acknowledged(world), delivered(world)
    world.clock.run_until(12 * SECOND_US)
    assert acknowledged(world) == stored
    assert node.files.counters["disk_full"] > 0
    assert delivered(world) >= read
    sizes = node.files.durable_sizes()
    assert all(sizes.get(path, 0) >= size for path, size in before.items())
    node.files.faults.capacity_bytes = None
    world.clock.run_until(world.bounds.heal_us + 15 * SECOND_US)
    assert acknowledged(world) > stored
    assert all(not isinstance(failed.error, DiskFull) for failed in world.history.failed.values())
    assert world.history.exceptions == []


@pytest.mark.requirement("CM-15:fsync")
def test_after_a_failed_fsync_nothing_is_acknowledged_until_the_restart(fabric: str) -> None:
    world = running(fabric)
    (node,) = world.nodes
    node.files.faults.sync_failure_chance = 1.0
    while not node.needs_restart:
        world.clock.run_until(world.clock.now_us + SECOND_US // 100)
    node.files.faults.sync_failure_chance = 0.0
    assert node.broker is not None and isinstance(node.broker.broken, DiskUntrusted)
    world.clock.run_until(world.clock.now_us + SECOND_US // 10)
    before = acknowledged(world)
    world.clock.run_until(world.clock.now_us + 5 * SECOND_US)
    assert acknowledged(world) == before
    node.crash(power=False)
    assert node.start()
    world.clock.run_until(world.bounds.heal_us + 15 * SECOND_US)
    assert acknowledged(world) > before
    assert world.history.exceptions == []
