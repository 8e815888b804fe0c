"""A node that is stopped keeps its connections, and nothing on them says so: its clients must find out themselves."""

from __future__ import annotations

import pytest

from rostra.broker.settings import BrokerSettings
from rostra.fabric.registry import FABRICS
from tests.contract.simulated import SimulatedCluster

SILENT_HEARTBEATS = 3
"""So many the links of a client survive."""


@pytest.mark.parametrize("seed", range(6))
def test_clients_of_an_owner_that_is_stopped_go_on_long_before_they_give_its_links_up(seed: int) -> None:
    cluster = SimulatedCluster(FABRICS["raft"], 3, seed, settings=BrokerSettings())
    cluster.create_topic("t")
    owner = cluster.owner("t")
    here, there = cluster.others(owner)
    producer, subscription = cluster.producer("t", at=here), cluster.subscribe("t", at=there)
    producer.send(b"before")
    cluster.run_until(lambda: len(subscription.records) == 1, "the first record")
    cluster.pause(owner)
    producer.send(b"after")
    given_up_s = SILENT_HEARTBEATS * BrokerSettings().heartbeat_ms / 1000
    cluster.run_until(lambda: producer.settled, "another owner to take it", timeout_s=given_up_s / 2)
    cluster.run_until(lambda: len(subscription.records) == 2, "it to be delivered", timeout_s=given_up_s / 2)
    assert subscription.values == [b"before", b"after"]
