"""How many hops records travel in simulated rings of the flood fabric."""

from __future__ import annotations

import msgspec
import pytest

from rostra.fabric.api import Fabric
from rostra.fabric.flood.machine import Flood
from rostra.fabric.flood.origin_partition import OriginLog
from rostra.fabric.flood.settings import FloodSettings
from rostra.fabric.registry import FABRICS, NodeSetup
from rostra.model.ids import NodeId
from rostra.simulator.faults.fault_plan import FaultPlan
from tests.contract import simulated
from tests.contract.simulated import SimulatedCluster

RECORDS = 3
EQUAL_DELAYS = msgspec.structs.replace(FaultPlan.none(), delay_us=(1_000, 1_050))
"""All links have the same delay, so that the shorter path is the faster one."""


def record_hops(broker: Flood, taken: dict[tuple[NodeId, str, int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Records the hops of every batch that the broker accepts."""
    forward = broker.ring_links.forward

    def record(log: OriginLog, base: int, end: int, batch: bytearray, hops: int, came_from: NodeId | None) -> None:
        taken[broker.node, str(log.partition), base] = hops - 1
        forward(log, base, end, batch, hops, came_from)

    monkeypatch.setattr(broker.ring_links, "forward", record)


def traced_hops(count: int, monkeypatch: pytest.MonkeyPatch, *, both_ways: bool) -> list[int]:
    """The hops of records from every node to every node, once all have the topic."""
    taken: dict[tuple[NodeId, str, int], int] = {}

    def make(seat: NodeSetup) -> Fabric:
        settings = FloodSettings(both_ways=both_ways)
        addresses = seat.address, seat.peer_address
        broker = Flood(seat.node, *addresses, joins=seat.join, random=seat.random, settings=settings)
        record_hops(broker, taken, monkeypatch)
        return broker

    monkeypatch.setattr(simulated, "network_faults", lambda seed: EQUAL_DELAYS)
    cluster = SimulatedCluster(msgspec.structs.replace(FABRICS["flood"], make=make), count, seed=1)
    cluster.create_topic("t")
    for node in cluster.running:
        cluster.publish("t", b"first", at=node)
    taken.clear()
    for node in cluster.running:
        for number in range(RECORDS):
            cluster.publish("t", b"%d" % number, at=node)
    cluster.run_until(lambda: len(taken) >= RECORDS * count * count, "every record at every broker")
    return list(taken.values())


@pytest.mark.requirement("FL-25")
@pytest.mark.parametrize("count", [5, 8])
def test_passing_both_ways_halves_the_distance_that_records_are_traced_over(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_way = traced_hops(count, monkeypatch, both_ways=False)
    both_ways = traced_hops(count, monkeypatch, both_ways=True)
    crossed = [hops for hops in one_way if hops]
    assert len(crossed) == RECORDS * count * (count - 1), "the origin's own copy has crossed no link"
    assert max(one_way) == count - 1 and sum(crossed) / len(crossed) == pytest.approx(count / 2)
    assert max(both_ways) == count // 2
    # The mean over all brokers, of which one is the origin: for odd counts a little less than a quarter.
    assert sum(both_ways) / len(both_ways) == pytest.approx(count / 4, rel=0.05)
    assert sum(both_ways) <= 0.6 * sum(one_way)
