"""A partition that another node comes to own: its broker knows every producer before it takes a batch."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rostra.broker.broker import RETENTION
from rostra.fabric.api import TimerFired
from rostra.fabric.raft.consensus.hard_state import key_of, pack_hard_state, unpack_hard_state
from rostra.fabric.raft.metadata.metadata_state import META
from rostra.model.decode import iterate
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.wire.messages import CreateTopic, Published, TopicCreated, TopicSettings, TransferPartition
from tests.unit.raft.desks import ClusterDesk, Desks


def with_topic(**settings: Any) -> tuple[Desks, Partition]:
    desks = Desks(3)
    desks.run_until_ready()
    for desk in desks.desks.values():
        desk.connect(1)
    desks.run(400)
    maker = desks[1]
    maker.effects.clear()
    maker.send(1, CreateTopic(maker.request(), "t", TopicSettings(**settings)))
    desks.run(50)
    (made,) = maker.received(1, TopicCreated)
    partition = Partition(TopicId(made.topic.topic), PartitionIndex(0))
    desks.run_until_owned(partition)
    desks.run(100)
    return desks, partition


def published(desks: Desks, owner: ClusterDesk, partition: Partition, value: bytes, sequence: int) -> int:
    """Through the owner, until it is acknowledged; its offset."""
    owner.received(1, Published)
    owner.publish(1, partition.topic, value, producer=9, sequence=sequence)
    for _ in range(200):
        desks.run(1)
        answered = owner.received(1, Published)
        if answered:
            return answered[0].offset
    raise AssertionError("not acknowledged")


def values(desk: ClusterDesk, partition: Partition) -> list[bytes | None]:
    whole = b"".join(bytes(batch) for batch in desk.logs[partition].batches)
    return [value for batch in iterate(whole) if not batch.header.is_control for value in batch.values()]


def node_of(desk: ClusterDesk) -> int:
    return desk.raft.node


@pytest.mark.requirement("CM-5:stored-once")
def test_a_batch_that_is_sent_again_after_a_takeover_is_stored_once() -> None:
    desks, partition = with_topic()
    old = desks.run_until_owned(partition)
    published(desks, old, partition, b"first", sequence=0)
    old.publish(1, partition.topic, b"second", producer=9, sequence=1)
    while old.sent:
        # The followers get it; whatever they answer is lost with the owner.
        sender, send = old.sent.popleft()
        desks.pass_on(sender, send)
    assert old.received(1, Published) == []
    desks.down.add(node_of(old))
    new = desks.run_until_owned(partition)
    assert new is not old
    offset = published(desks, new, partition, b"second", sequence=1)
    assert published(desks, new, partition, b"third", sequence=2) > offset
    assert values(new, partition) == [b"first", b"second", b"third"]


def test_a_log_that_is_claimed_only_after_the_start_brings_its_producers_with_it() -> None:
    desks, partition = with_topic()
    owner = desks.run_until_owned(partition)
    offset = published(desks, owner, partition, b"once", sequence=0)
    desks.run(300)
    late = next(desk for desk in desks.desks.values() if desk is not owner)
    # It crashed before it wrote down that the topic's entry is committed: it opens the topic when a leader says so.
    hard = unpack_hard_state(late.hard[key_of(META)])
    late.hard[key_of(META)] = pack_hard_state(msgspec.structs.replace(hard, commit=2))
    late = desks.restart(node_of(late))
    desks.run_until_ready()
    assert late.broker.topic_table.by_name("t") is None, "ready, and does not know the topic yet"
    desks.run(300)
    late.connect(1)
    desks.down.add(node_of(owner))
    other = next(desk for desk in desks.desks.values() if desk is not owner and desk is not late)
    while desks.run_until_owned(partition) is not late:
        other.send(1, TransferPartition(other.request(), "t", 0, node_of(late)))
        desks.run(100)
    assert published(desks, late, partition, b"once", sequence=0) == offset
    assert values(late, partition) == [b"once"]


def test_a_copy_filled_from_a_later_log_start_knows_the_producers_from_before_it() -> None:
    desks, partition = with_topic(segment_bytes=1 << 12, retention_bytes=1 << 12)
    owner = desks.run_until_owned(partition)
    away = next(desk for desk in desks.desks.values() if desk is not owner)
    desks.down.add(node_of(away))
    places = [published(desks, owner, partition, b"x" * 1_000, sequence=number) for number in range(12)]
    owner.step(TimerFired(RETENTION))
    desks.run(10)
    log = owner.logs[partition]
    assert log.first > places[3]
    away = desks.restart(node_of(away))
    desks.run(1_000)
    assert away.logs[partition].first == log.first
    served = away.broker.topic_table.served.get(partition)
    assert served is not None and served.end == log.end
    assert served.producers.check(9, 0, 3, 1) == (places[3], places[3])
