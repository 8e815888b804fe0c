"""A partition that another node comes to own: its broker knows every producer before it takes a batch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rostra.broker.broker import RETENTION
from rostra.fabric.api import TimerFired
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.consensus.hard_state import key_of, pack_hard_state, unpack_hard_state
from rostra.model.decode import iterate
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.wire.messages import CreateTopic, Published, TopicCreated, TopicSettings, TransferPartition
from tests.unit.raft.broker_cluster import BrokerCluster, ClusterBroker


def with_topic(**settings: Any) -> tuple[BrokerCluster, Partition]:
    cluster = BrokerCluster(3)
    cluster.run_until_ready()
    for broker in cluster.brokers.values():
        broker.connect(1)
    cluster.run(400)
    maker = cluster[1]
    maker.effects.clear()
    maker.send(1, CreateTopic(maker.request(), "t", TopicSettings(**settings)))
    cluster.run(50)
    (made,) = maker.received(1, TopicCreated)
    partition = Partition(TopicId(made.topic.topic), PartitionIndex(0))
    cluster.run_until_owned(partition)
    cluster.run(100)
    return cluster, partition


def published(cluster: BrokerCluster, owner: ClusterBroker, partition: Partition, value: bytes, sequence: int) -> int:
    """Through the owner, until it is acknowledged; its offset."""
    owner.received(1, Published)
    owner.publish(1, partition.topic, value, producer=9, sequence=sequence)
    for _ in range(200):
        cluster.run(1)
        answered = owner.received(1, Published)
        if answered:
            return answered[0].offset
    raise AssertionError("not acknowledged")


def values(broker: ClusterBroker, partition: Partition) -> list[bytes | None]:
    whole = b"".join(bytes(batch) for batch in broker.logs[partition].batches)
    return [value for batch in iterate(whole) if not batch.header.is_control for value in batch.values()]


def node_of(broker: ClusterBroker) -> int:
    return broker.raft.node


@pytest.mark.requirement("CM-5:stored-once")
def test_a_batch_that_is_sent_again_after_a_takeover_is_stored_once() -> None:
    cluster, partition = with_topic()
    old = cluster.run_until_owned(partition)
    published(cluster, old, partition, b"first", sequence=0)
    old.publish(1, partition.topic, b"second", producer=9, sequence=1)
    while old.sent:
        # The followers get it; whatever they answer is lost with the owner.
        sender, send = old.sent.popleft()
        cluster.pass_on(sender, send)
    assert old.received(1, Published) == []
    cluster.down.add(node_of(old))
    new = cluster.run_until_owned(partition)
    assert new is not old
    offset = published(cluster, new, partition, b"second", sequence=1)
    assert published(cluster, new, partition, b"third", sequence=2) > offset
    assert values(new, partition) == [b"first", b"second", b"third"]


def test_a_log_that_is_claimed_only_after_the_start_brings_its_producers_with_it() -> None:
    cluster, partition = with_topic()
    owner = cluster.run_until_owned(partition)
    offset = published(cluster, owner, partition, b"once", sequence=0)
    cluster.run(300)
    late = next(broker for broker in cluster.brokers.values() if broker is not owner)
    # It crashed before it wrote down that the topic's entry is committed: it opens the topic when a leader says so.
    hard = unpack_hard_state(late.hard[key_of(METADATA_PARTITION)])
    late.hard[key_of(METADATA_PARTITION)] = pack_hard_state(msgspec.structs.replace(hard, commit=2))
    late = cluster.restart(node_of(late))
    cluster.run_until_ready()
    assert late.broker.topic_table.by_name("t") is None, "ready, and does not know the topic yet"
    cluster.run(300)
    late.connect(1)
    cluster.down.add(node_of(owner))
    other = next(broker for broker in cluster.brokers.values() if broker is not owner and broker is not late)
    while cluster.run_until_owned(partition) is not late:
        other.send(1, TransferPartition(other.request(), "t", 0, node_of(late)))
        cluster.run(100)
    assert published(cluster, late, partition, b"once", sequence=0) == offset
    assert values(late, partition) == [b"once"]


def test_a_copy_filled_from_a_later_log_start_knows_the_producers_from_before_it() -> None:
    cluster, partition = with_topic(segment_bytes=1 << 12, retention_bytes=1 << 12)
    owner = cluster.run_until_owned(partition)
    away = next(broker for broker in cluster.brokers.values() if broker is not owner)
    cluster.down.add(node_of(away))
    places = [published(cluster, owner, partition, b"x" * 1_000, sequence=number) for number in range(12)]
    owner.step(TimerFired(RETENTION))
    cluster.run(10)
    log = owner.logs[partition]
    assert log.first > places[3]
    away = cluster.restart(node_of(away))
    cluster.run(1_000)
    assert away.logs[partition].first == log.first
    served = away.broker.topic_table.served.get(partition)
    assert served is not None and served.end == log.end
    assert served.producers.check(9, 0, 3, 1) == (places[3], places[3])
