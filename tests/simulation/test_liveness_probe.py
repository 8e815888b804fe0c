"""The liveness probe: what a majority must be able to do."""

from __future__ import annotations

import msgspec

from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.simulator.clients.liveness_probe import LivenessProbe
from rostra.simulator.clock import SECOND_US, random_for
from rostra.simulator.faults.fault_plan import FaultPlan
from rostra.simulator.world.world import World


def demands_for(topic_of: int | None) -> list[str]:
    """What the probe demands of topic t0, which it knows by this id or by the real one."""
    world = World(1, plan=msgspec.structs.replace(FaultPlan.none(), nodes=3))
    for node in world.nodes:
        node.start()
    begins_us = world.election_us + 2 * SECOND_US
    until_us = begins_us + 10 * SECOND_US
    world.clock.run_until(begins_us)
    made = next(made for made in world.history.created if made.name == "t0")
    place = Partition(TopicId(made.topic if topic_of is None else topic_of), PartitionIndex(0))
    client = world.client("herald", random_for(1, "herald"), [node.address for node in world.nodes])
    probe = LivenessProbe(client, random_for(1, "herald"), [(place, "t0")], until_us)
    probe.begin()
    world.clock.run_until(until_us)
    assert probe.done
    return [demand.what for demand in world.history.liveness_demands]


def test_a_record_is_demanded_in_a_partition_with_a_majority() -> None:
    assert demands_for(None) == ["a metadata change", "a record in ('t0', 0)"]


def test_no_record_is_demanded_in_a_topic_that_was_recreated() -> None:
    assert demands_for(4711) == ["a metadata change"]
