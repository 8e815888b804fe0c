"""Where another node than the owner serves a partition: reads go to that node, registered publishers to the owner."""

from __future__ import annotations

import pytest

from rostra.client.core.options import Options, ProducerSettings
from rostra.wire.messages import ClientMessage, PartitionLocation, Publish, Register, Subscribe, Topic, TopicSettings
from tests.unit.client.cluster_harness import ClusterHarness
from tests.unit.client.model_cluster import NOBODY, ModelCluster, ModelMember

OWNER, HERE = "a:1", "b:2"


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ClusterHarness:
    """A client of the second node, which serves a topic that the first one owns."""

    def serves_all(self: ModelMember, topic: Topic, partition: int) -> PartitionLocation:
        owner = self.believes.get((topic.topic, partition), NOBODY)
        return PartitionLocation(partition, "", owner.epoch, 0, True, "" if owner.address == HERE else owner.address)

    monkeypatch.setattr(ModelMember, "partition_place", serves_all)
    cluster = ModelCluster(OWNER, HERE)
    cluster.create("t", TopicSettings())
    harness = ClusterHarness(cluster, Options((HERE,)))
    harness.connect()
    return harness


def sent_to(harness: ClusterHarness, kind: type[ClientMessage]) -> list[str]:
    return [address for address, message in harness.sent if isinstance(message, kind)]


def publish(harness: ClusterHarness, settings: ProducerSettings) -> None:
    producer = harness.core.open_producer(harness.now_us, harness.call(), "t", settings)
    harness.run()
    harness.settle()
    producer.add(harness.now_us, b"x", call=harness.call())
    producer.end_turn(harness.now_us)
    harness.run()


def test_a_subscription_is_made_where_the_partition_is_served(harness: ClusterHarness) -> None:
    harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest", None, 1 << 20)
    harness.run()
    harness.settle()
    assert sent_to(harness, Subscribe)[0] == HERE


def test_a_publisher_with_a_strength_registers_and_publishes_at_the_owner(harness: ClusterHarness) -> None:
    publish(harness, ProducerSettings(strength=3))
    harness.settle()
    assert sent_to(harness, Register) == sent_to(harness, Publish) == [OWNER]
    assert harness.cluster.values("t", 0) == [b"x"]


def test_a_publisher_without_a_strength_publishes_where_the_partition_is_served(harness: ClusterHarness) -> None:
    publish(harness, ProducerSettings())
    assert sent_to(harness, Publish) == [HERE]


def test_when_the_owner_is_lost_readers_stay_and_the_publisher_waits_for_it(harness: ClusterHarness) -> None:
    publish(harness, ProducerSettings(strength=3))
    harness.settle()
    harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest", None, 1 << 20)
    harness.run()
    reader = harness.to(HERE)
    harness.crash(OWNER)
    assert reader.number in harness.connections
    harness.restart(OWNER)
    harness.pass_time(10_000_000)
    assert sent_to(harness, Register) == [OWNER, OWNER]
