"""Clients of a stopped (SIGSTOP) node, whose connections stay open, fail over before they give up its links."""

from __future__ import annotations

import pytest

from rostra.broker.settings import BrokerSettings
from rostra.fabric.registry import FABRICS
from tests.contract.simulated import SimulatedCluster

SILENT_HEARTBEATS = 3
"""A client link is closed after this many missed heartbeats."""


@pytest.mark.parametrize("seed", range(6))
def test_clients_of_a_stopped_owner_fail_over_long_before_they_give_up_its_links(seed: int) -> None:
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
