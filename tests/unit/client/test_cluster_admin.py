"""Cluster administration: answers, errors, and nodes that do not support it."""

from __future__ import annotations

from rostra.errors import NotSupported, UnknownMember, UnknownTopic
from rostra.model.cluster import ClusterState
from rostra.wire.features import ADMINISTRATION
from rostra.wire.messages import CreateTopic, TopicSettings
from tests.unit.client.core_harness import CoreHarness


def connected() -> CoreHarness:
    harness = CoreHarness()
    harness.node.features = (ADMINISTRATION,)
    harness.connect()
    return harness


def test_the_cluster_is_described() -> None:
    harness = connected()
    harness.core.describe_cluster(harness.now_us, 1)
    harness.run()
    harness.settle()
    state = harness.results[1]
    assert isinstance(state, ClusterState) and [node.node for node in state.nodes] == [1]


def test_orders_are_answered_or_fail_typed() -> None:
    harness = connected()
    harness.core.remove_member(harness.now_us, 1, 77)
    harness.core.transfer_partition(harness.now_us, 2, "nowhere", 0, 77)
    harness.run()
    harness.settle()
    assert isinstance(harness.errors[1], UnknownMember) and isinstance(harness.errors[2], UnknownTopic)
    harness.node.received(0, CreateTopic(0, "t", TopicSettings()), None)
    harness.core.transfer_partition(harness.now_us, 3, "t", 0, 1)
    harness.run()
    harness.settle()
    assert harness.results[3] is None


def test_a_node_that_is_too_old_is_not_asked() -> None:
    harness = CoreHarness()
    harness.connect()
    harness.core.describe_cluster(harness.now_us, 1)
    harness.run()
    harness.settle()
    assert isinstance(harness.errors[1], NotSupported)
