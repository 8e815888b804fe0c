"""With per-node partitions, a producer's records keep their order after it migrated."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest

from rostra.model.batch import BROKER_STATE, stamp
from rostra.model.encode import encode
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.model.producer_move import ProducerMove
from rostra.wire.messages import Locate, Located, PartitionLocation, Push, Subscribe, Subscribed, Topic, TopicSettings
from tests.unit.client.core_harness import CoreHarness

NEW, OLD = 11, 22
"""The partition that the producer migrated to, and the one it came from."""
MOVED_AFTER = 5

M = TypeVar("M")


@pytest.fixture
def harness() -> CoreHarness:
    harness = CoreHarness()
    harness.connect()
    harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest", None, 1000)
    harness.run()
    (locate,) = asked(harness, Locate)
    places = tuple(PartitionLocation(0, "", 1, topic) for topic in (NEW, OLD))
    harness.receive(Located(locate.request, Topic(NEW, "t", TopicSettings(1)), places, per_node=True))
    return harness


def asked(harness: CoreHarness, kind: type[M]) -> list[M]:
    return [message for message in harness.written if isinstance(message, kind)]


def begins(harness: CoreHarness, topic: int, at: int) -> int:
    """Answer where the partition starts; return the number used for pushes."""
    (ask,) = [ask for ask in asked(harness, Subscribe) if ask.topic == topic]
    harness.receive(Subscribed(ask.request, ask.subscription, at, at))
    return ask.subscription


def moved_here_with(value: bytes) -> bytes:
    """The new partition: the migration record, and a record behind it."""
    move = ProducerMove(producer=9, epoch=0, expected=MOVED_AFTER, number=1, after=OLD, after_offset=MOVED_AFTER)
    word = encode([msgspec.msgpack.encode(move)], timestamp_us=1, control=True)
    record = encode([value], timestamp_us=1, producer=9, sequence=MOVED_AFTER)
    place = Partition(TopicId(NEW), PartitionIndex(0))
    stamp(word, partition=place, base_offset=0, owner_epoch=1, owner_flags=BROKER_STATE)
    stamp(record, partition=place, base_offset=1, owner_epoch=1)
    return bytes(word + record)


def delivered(harness: CoreHarness) -> list[bytes | None]:
    return [value for batches in harness.delivered.values() for batch in batches for value in batch.values()]


def test_a_batch_that_waits_for_another_partition_is_delivered_when_that_is_far_enough(
    harness: CoreHarness,
) -> None:
    """Nothing more is pushed: the answer that the other partition starts behind the move is sufficient."""
    harness.receive(Push(begins(harness, NEW, 0), 2), moved_here_with(b"later"))
    assert delivered(harness) == []
    begins(harness, OLD, MOVED_AFTER)
    assert delivered(harness) == [b"later"]


def test_a_batch_that_waits_for_another_partition_is_held_while_that_is_not_far_enough(harness: CoreHarness) -> None:
    harness.receive(Push(begins(harness, NEW, 0), 2), moved_here_with(b"later"))
    begins(harness, OLD, MOVED_AFTER - 1)
    assert delivered(harness) == []
