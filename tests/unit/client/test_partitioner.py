"""The partition of a record: fixed by its key, or each partition in turn, a batch at a time."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.client.core.options import ProducerSettings
from rostra.client.core.producer.partitioner import partition_of
from rostra.client.core.producer.producer_state import ProducerState
from rostra.wire.messages import Publish, TopicSettings
from tests.unit.client.core_harness import CoreHarness

GOLDEN = {
    b"": (0, 0, 1, 2, 138, 194),
    b"a": (0, 1, 1, 7, 719, 543),
    b"customer-7": (0, 0, 2, 0, 432, 552),
    b"orders/eu": (0, 1, 2, 1, 217, 481),
    bytes(range(256)): (0, 1, 0, 1, 113, 369),
    "zażółć".encode(): (0, 1, 1, 1, 313, 497),
}
"""By key, its partition of 1, 2, 3, 8, 1000 and 1024. Clients of every version and language must agree on these."""


def producer(partitions: int, settings: ProducerSettings | None = None) -> tuple[CoreHarness, ProducerState]:
    harness = CoreHarness()
    harness.node._create("t", TopicSettings(partitions))
    harness.connect()
    state = harness.core.open_producer(harness.now_us, harness.call(), "t", settings or ProducerSettings())
    harness.run()
    harness.settle()
    return harness, state


def batches(harness: CoreHarness) -> list[int]:
    """The partitions of all batches sent so far, in order."""
    return [message.partition for message in harness.written if isinstance(message, Publish)]


@pytest.mark.parametrize("key", GOLDEN, ids=lambda key: repr(key[:12]))
def test_a_key_has_the_same_partition_in_every_client_for_ever(key: bytes) -> None:
    assert tuple(partition_of(key, count) for count in (1, 2, 3, 8, 1000, 1024)) == GOLDEN[key]


@given(st.binary(max_size=40), st.integers(1, 1024))
def test_every_key_has_one_of_the_partitions_there_are(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_keys_spread_over_all_partitions() -> None:
    counts = Counter(partition_of(b"customer-%d" % number, 16) for number in range(16_000))
    assert sorted(counts) == list(range(16))
    assert min(counts.values()) > 800 and max(counts.values()) < 1200


def test_records_with_a_key_go_where_their_key_says_and_keep_their_order() -> None:
    harness, state = producer(4)
    for number in range(60):
        state.add(harness.now_us, b"%d" % number, key=b"key-%d" % (number % 7))
    call = harness.call()
    state.flush(harness.now_us, call)
    harness.run()
    harness.settle()
    for partition in range(4):
        values = [int(value or b"") for value in harness.node.log("t", partition).values()]
        assert values == [n for n in range(60) if partition_of(b"key-%d" % (n % 7), 4) == partition]


def test_without_a_key_a_batch_stays_together_and_the_next_goes_to_the_next_partition() -> None:
    harness, state = producer(3)
    for first in range(0, 28, 4):
        for number in range(first, first + 4):
            state.add(harness.now_us, b"%02d" % number)
        state.close(harness.now_us)
        harness.run()
    harness.settle()
    assert batches(harness) == [0, 1, 2, 0, 1, 2, 0]
    stored = [harness.node.log("t", partition).values() for partition in range(3)]
    assert stored[1] == [b"%02d" % number for number in (*range(4, 8), *range(16, 20))]
    assert [len(values) for values in stored] == [12, 8, 8]


def test_records_published_one_by_one_take_turns_too() -> None:
    harness = CoreHarness()
    harness.node._create("t", TopicSettings(3))
    harness.connect()
    for number in range(7):
        harness.core.publish(harness.now_us, harness.call(), "t", b"%d" % number)
        harness.run()
        harness.settle()
    assert batches(harness) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("partitions", [1, 2, 1024])
def test_a_topic_has_as_many_partitions_as_were_asked_for(partitions: int) -> None:
    harness, state = producer(partitions)
    assert len(state.senders) == partitions
    for partition in {0, partitions - 1}:
        call = harness.call()
        harness.core.publish(harness.now_us, call, "t", b"x", partition=partition)
        harness.run()
        harness.settle()
        assert harness.node.log("t", partition).values() == [b"x"]
