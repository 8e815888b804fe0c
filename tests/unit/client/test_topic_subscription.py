"""What a subscriber receives, in what order, at what pace, and how it resumes."""

from __future__ import annotations

import pytest

from rostra.client.core.events import Disconnected, Resubscribed, Skipped
from rostra.client.core.options import Last, Offset, Options, ProducerSettings, Start, Time
from rostra.client.core.subscription.topic_subscription import GRANT_BYTES_MAX, TopicSubscription
from rostra.errors import (
    ClientClosed,
    InvalidSetting,
    InvalidTopicName,
    NotSupported,
    OffsetOutOfRange,
    PartitionDamaged,
    TopicDeleted,
    TopicRecreated,
    Unavailable,
    UnknownPartition,
)
from rostra.model.batch import stamp
from rostra.model.encode import encode
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.wire.features import FEATURES
from rostra.wire.messages import Credit, Ended, Failed, Push, Subscribe, Subscribed, TopicSettings, Unsubscribe
from tests.unit.client.core_harness import CoreHarness


def connected(partitions: int = 1, batches: int = 0) -> CoreHarness:
    harness = CoreHarness()
    harness.node._create("t", TopicSettings(partitions))
    harness.connect()
    store(harness, batches)
    return harness


def store(harness: CoreHarness, batches: int) -> None:
    """Batches of three numbered records each."""
    call = harness.call()
    state = harness.core.open_producer(harness.now_us, call, "t", ProducerSettings(partition=0))
    harness.run()
    harness.settle()
    for _ in range(batches):
        first = harness.node.log("t").end
        for n in range(first, first + 3):
            state.add(harness.now_us, b"%04d" % n)
        state.close(harness.now_us)
        harness.run()
        harness.settle()
    harness.core.close_producer(state)


def subscribe(
    harness: CoreHarness, start: Start = "earliest", partition: int | None = None, credit_bytes: int = 1 << 20
) -> TopicSubscription:
    """The topic is located already; the node has not received the Subscribe yet."""
    state = harness.core.subscribe(harness.now_us, harness.call(), "t", start, partition, credit_bytes)
    harness.run()
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    return state


def numbers(values: list[bytes | None]) -> list[int]:
    return [int(value or b"") for value in values]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", range(9)), ("latest", ()), (Offset(4), range(4, 9)), (Last(2), range(7, 9)), (Last(100), range(9))],
)
def test_delivery_begins_where_it_was_asked_to_even_inside_a_batch(start: Start, expected: range) -> None:
    harness = connected(batches=3)
    state = subscribe(harness, start)
    harness.settle()
    assert numbers(harness.values(state.number)) == list(expected)


def test_a_trimmed_batch_is_trimmed_in_every_form() -> None:
    harness = connected(batches=1)
    state = subscribe(harness, Offset(2))
    harness.settle()
    (batch,) = harness.delivered[state.number]
    assert len(batch) == 1
    assert (batch.first_offset, batch.next_offset) == (2, 3)
    assert batch.values() == [b"0002"]
    assert batch.offsets() == [2]
    assert batch.keys() == [None]
    assert len(batch.timestamps()) == 1
    assert [record.offset for record in batch.records()] == [2]
    assert batch.to_arrow().column("value").to_pylist() == [b"0002"]


@pytest.mark.requirement("CM-10:resubscribes", "CM-10:told")
@pytest.mark.parametrize("delivered", range(5))
def test_after_a_lost_connection_delivery_goes_on_without_gap_or_repeat(delivered: int) -> None:
    harness = connected(batches=4)
    state = subscribe(harness)
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    harness.push_from_node()
    harness.deliver_to_client(delivered)
    harness.disconnect()
    harness.reconnect()
    store(harness, 2)
    assert numbers(harness.values(state.number)) == list(range(18))
    assert Resubscribed("t", 0, 3 * delivered) in harness.events


def test_a_subscription_to_the_latest_goes_on_where_it_began_and_not_at_a_later_end() -> None:
    harness = connected(batches=2)
    state = subscribe(harness, "latest")
    harness.settle()
    harness.disconnect()
    other = CoreHarness(node=harness.node, seed=1)
    other.connect()
    store(other, 1)
    harness.reconnect()
    assert numbers(harness.values(state.number)) == [6, 7, 8]


def test_all_partitions_are_one_subscription() -> None:
    harness = connected(partitions=3)
    state = subscribe(harness)
    harness.settle()
    for partition in range(3):
        harness.core.publish(harness.now_us, harness.call(), "t", b"%d" % partition, partition=partition)
        harness.run()
        harness.settle()
    assert sorted(numbers(harness.values(state.number))) == [0, 1, 2]
    assert [batch.partition for batch in harness.delivered[state.number]] == [0, 1, 2]


# --- credit ----------------------------------------------------------------------------------------


@pytest.mark.requirement("CM-7:credit")
def test_a_subscriber_that_takes_nothing_gets_no_more_than_its_credit() -> None:
    harness = connected(batches=50)
    size = len(harness.node.log("t").batches[0][2])
    state = subscribe(harness, credit_bytes=10 * size)
    harness.settle()
    assert len(harness.delivered[state.number]) == 10
    harness.settle()
    assert not harness.node.credits


@pytest.mark.requirement("CM-7:credit")
def test_credit_goes_back_in_halves_as_the_application_takes_batches() -> None:
    harness = connected(batches=50)
    size = len(harness.node.log("t").batches[0][2])
    state = subscribe(harness, credit_bytes=10 * size)
    harness.settle()
    taken = 0
    while taken < len(harness.delivered[state.number]):
        batch = harness.delivered[state.number][taken]
        taken += 1
        harness.core.consumed(state, batch.partition, batch.bytes)
        harness.run()
        harness.settle()
        assert len(harness.delivered[state.number]) - taken <= 10
    assert numbers(harness.values(state.number)) == list(range(150))
    assert set(harness.node.credits) == {5 * size}


@pytest.mark.requirement("CM-7:credit")
def test_a_new_connection_is_granted_only_what_is_free() -> None:
    harness = connected(batches=50)
    size = len(harness.node.log("t").batches[0][2])
    state = subscribe(harness, credit_bytes=10 * size)
    harness.settle()
    for batch in harness.delivered[state.number][:3]:
        harness.core.consumed(state, batch.partition, batch.bytes)
    harness.disconnect()
    harness.reconnect()
    assert harness.node.subscribes[-1].credit == 3 * size
    assert len(harness.delivered[state.number]) == 13


@pytest.mark.requirement("CM-7:credit")
def test_what_is_taken_while_a_new_connection_is_asked_is_granted_when_it_answers() -> None:
    harness = connected(batches=50)
    size = len(harness.node.log("t").batches[0][2])
    state = subscribe(harness, credit_bytes=10 * size)
    harness.settle()
    harness.disconnect()
    while harness.link is None:
        harness.pass_time(100_000)
    harness.open()
    while not any(isinstance(message, Subscribe) for message, _ in harness.to_node):
        harness.deliver_to_node(1)
        harness.deliver_to_client(1)
    for batch in harness.delivered[state.number][:10]:
        harness.core.consumed(state, batch.partition, batch.bytes)
    harness.run()
    harness.settle()
    assert harness.node.subscribes[-1].credit == 0, "there was no space at that time"
    assert len(harness.delivered[state.number]) == 20


def test_more_credit_than_a_node_counts_is_still_granted_in_time() -> None:
    harness = connected()
    state = subscribe(harness, credit_bytes=1 << 40)
    harness.settle()
    harness.core.consumed(state, 0, GRANT_BYTES_MAX)
    harness.run()
    assert isinstance(harness.written[-1], Credit)


def test_control_batches_are_passed_over_and_their_credit_given_back() -> None:
    harness = connected()
    state = subscribe(harness, credit_bytes=100)
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    feed = state.feeds[0]
    place = Partition(TopicId(state.topic), PartitionIndex(0))
    control = encode([b"epoch 2"], timestamp_us=1, control=True)
    stamp(control, partition=place, base_offset=0, owner_epoch=2)
    plain = encode([b"a"], timestamp_us=1)
    stamp(plain, partition=place, base_offset=1, owner_epoch=2)
    harness.receive(Push(feed.number, 2), bytes(control + plain))
    assert harness.values(state.number) == [b"a"]
    assert feed.next == 2
    assert harness.written[-1] == Credit(feed.number, len(control))


# --- ends ------------------------------------------------------------------------------------------


@pytest.mark.requirement("CM-9:unsubscribed")
def test_once_unsubscribed_nothing_is_delivered() -> None:
    harness = connected(batches=3)
    state = subscribe(harness)
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    call = harness.call()
    harness.core.unsubscribe(harness.now_us, call, state)
    harness.run()
    harness.push_from_node()
    harness.deliver_to_client(10)
    assert call not in harness.results
    assert harness.values(state.number) == []
    harness.settle()
    assert call in harness.results
    assert harness.node.feeds == {harness.link: {}}


def test_an_unsubscribe_is_done_when_the_connection_is_gone() -> None:
    harness = connected(batches=3)
    state = subscribe(harness)
    harness.settle()
    call = harness.call()
    harness.core.unsubscribe(harness.now_us, call, state)
    harness.run()
    harness.disconnect()
    assert call in harness.results
    harness.reconnect()
    assert sum(isinstance(message, Subscribe) for message in harness.written) == 1


@pytest.mark.requirement("CM-9:deleted")
def test_deleting_a_topic_ends_its_subscriptions_with_the_reason() -> None:
    harness = connected(batches=1)
    state = subscribe(harness)
    harness.settle()
    assert harness.link is not None
    for message, _ in harness.node.end_feeds(harness.link):
        harness.receive(message)
    assert isinstance(harness.finished[state.number], TopicDeleted)


@pytest.mark.requirement("CM-26:recreated")
def test_a_topic_created_anew_while_away_ends_the_subscription() -> None:
    harness = connected(batches=1)
    state = subscribe(harness)
    harness.settle()
    harness.disconnect()
    del harness.node.topics["t"]
    harness.node._create("t", TopicSettings())
    harness.reconnect()
    assert isinstance(harness.finished[state.number], TopicRecreated)


def test_an_offset_removed_by_retention_ends_the_subscription_instead_of_leaving_a_gap() -> None:
    harness = connected(batches=1)
    state = subscribe(harness)
    harness.settle()
    feed = state.feeds[0]
    harness.disconnect()
    while not any(isinstance(message, Subscribe) for message, _ in harness.to_node):
        harness.pass_time(10_000)
        if harness.link is not None and not harness.core.link.up:
            harness.open()
            harness.deliver_to_node(1)
            harness.deliver_to_client(1)
    asked = harness.written[-1]
    assert isinstance(asked, Subscribe)
    harness.receive(Subscribed(asked.request, feed.number, 10, 20))
    error = harness.finished[state.number]
    assert isinstance(error, OffsetOutOfRange)
    assert (error.offset, error.first) == (3, 10)


def test_a_subscription_may_go_on_with_what_retention_has_left_and_says_so() -> None:
    harness = connected(batches=3)
    log = harness.node.log("t")
    log.first = 3
    call = harness.call()
    state = harness.core.subscribe(harness.now_us, call, "t", Offset(1), below_start="earliest")
    harness.run()
    harness.settle()
    assert call in harness.results and numbers(harness.values(state.number)) == [3, 4, 5, 6, 7, 8]
    gone = OffsetOutOfRange("t", 0, 9, 12, 20)
    harness.receive(Ended(state.feeds[0].number, "OffsetOutOfRange", gone.carried()))
    asked = harness.to_node[-1][0]
    assert isinstance(asked, Subscribe) and (asked.start, asked.value) == ("offset", 12)
    harness.receive(Subscribed(asked.request, asked.subscription, 15, 20))
    assert state.feeds[0].next == 15 and state.number not in harness.finished
    told = [(event.offset, event.first) for event in harness.events if isinstance(event, Skipped)]
    assert told == [(1, 3), (9, 12), (12, 15)]


def test_a_subscription_beyond_the_end_is_refused_whatever_it_does_below_the_start() -> None:
    harness = connected(batches=1)
    call = harness.call()
    harness.core.subscribe(harness.now_us, call, "t", Offset(99), below_start="earliest")
    harness.run()
    harness.settle()
    assert isinstance(harness.errors[call], OffsetOutOfRange)
    with pytest.raises(InvalidSetting):
        harness.core.subscribe(harness.now_us, harness.call(), "t", below_start="wherever")  # type: ignore[arg-type]


def test_an_end_that_a_retry_may_mend_is_retried() -> None:
    harness = connected(batches=1)
    state = subscribe(harness)
    harness.settle()
    feed = state.feeds[0]
    error = Unavailable("t", 0, "recovering")
    harness.receive(Ended(feed.number, "Unavailable", error.carried()))
    assert state.number not in harness.finished
    assert harness.link is not None
    harness.node.lost(harness.link)
    harness.pass_time(2_000_000)
    harness.settle()
    store(harness, 1)
    assert numbers(harness.values(state.number)) == list(range(6))


def test_a_refused_subscription_fails_the_call_that_asked_for_it() -> None:
    harness = connected(batches=1)
    call = harness.call()
    harness.core.subscribe(harness.now_us, call, "t", Offset(99))
    harness.run()
    harness.settle()
    assert isinstance(harness.errors[call], OffsetOutOfRange)
    call = harness.call()
    harness.core.subscribe(harness.now_us, call, "t", partition=5)
    harness.run()
    harness.settle()
    assert isinstance(harness.errors[call], UnknownPartition)


def test_a_subscription_of_many_partitions_is_refused_as_a_whole() -> None:
    harness = connected(partitions=2)
    call = harness.call()
    harness.core.subscribe(harness.now_us, call, "t", "earliest")
    harness.run()
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    first, second = (message for message, _ in harness.to_node if isinstance(message, Subscribe))
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    error = OffsetOutOfRange("t", 1, 0, 5, 9)
    harness.receive(Failed(second.request, "OffsetOutOfRange", error.carried()))
    assert isinstance(harness.errors[call], OffsetOutOfRange)
    left = [message for message in harness.written if isinstance(message, Unsubscribe)]
    assert [message.subscription for message in left] == [first.subscription]


@pytest.mark.parametrize("at", [5, 20, 37, 60, 100])
def test_a_damaged_batch_is_not_delivered(at: int) -> None:
    harness = connected(batches=2)
    state = subscribe(harness)
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    first, second = (bytearray(batch) for _, _, batch in harness.node.log("t").batches)
    second[at] ^= 1
    harness.receive(Push(state.feeds[0].number, 6), bytes(first + second))
    assert numbers(harness.values(state.number)) == [0, 1, 2]
    error = harness.finished[state.number]
    assert isinstance(error, PartitionDamaged)
    assert error.offset == 3
    harness.receive(Push(state.feeds[0].number, 6), harness.node.log("t").batches[1][2])
    assert numbers(harness.values(state.number)) == [0, 1, 2]


@pytest.mark.parametrize("in_order", [0, 1])
def test_a_gap_in_what_is_pushed_is_not_taken_and_delivery_goes_on_at_the_right_offset(in_order: int) -> None:
    harness = connected(batches=4)
    state = subscribe(harness)
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    pushed = [harness.node.log("t").batches[n][2] for n in (*range(in_order), in_order + 1)]
    harness.receive(Push(state.feeds[0].number, 12), b"".join(pushed))
    assert harness.values(state.number) == []
    assert not harness.core.link.up
    (event,) = [event for event in harness.events if isinstance(event, Disconnected)]
    assert "message not expected now" in event.reason
    harness.reconnect()
    assert numbers(harness.values(state.number)) == list(range(12))
    assert Resubscribed("t", 0, 0) in harness.events


def test_a_repeat_is_trimmed_and_costs_no_connection() -> None:
    harness = connected(batches=2)
    state = subscribe(harness, Offset(4))
    harness.settle()
    for _, _, batch in harness.node.log("t").batches:
        harness.receive(Push(state.feeds[0].number, 6), batch)
    assert numbers(harness.values(state.number)) == [4, 5]
    assert harness.core.link.up


def test_a_batch_of_which_compaction_left_only_what_was_delivered_is_passed_over() -> None:
    harness = connected(batches=2)
    state = subscribe(harness, Offset(2))
    log = harness.node.log("t")
    left = encode([b"0000"], keys=[b"k"], timestamp_us=1, offset_deltas=[0])
    partition = Partition(TopicId(state.topic), PartitionIndex(0))
    stamp(left, partition=partition, base_offset=0, owner_epoch=1, last_offset_delta=2)
    log.batches[0] = (0, 3, bytes(left))
    harness.settle()
    assert [len(batch) for batch in harness.delivered[state.number]] == [3]
    assert numbers(harness.values(state.number)) == [3, 4, 5]


def test_closing_the_client_ends_its_subscriptions() -> None:
    harness = connected()
    state = subscribe(harness)
    harness.settle()
    harness.core.close(harness.now_us)
    harness.run()
    assert isinstance(harness.finished[state.number], ClientClosed)


def test_what_cannot_be_subscribed_to_is_refused_at_once() -> None:
    harness = CoreHarness(Options())
    with pytest.raises(InvalidTopicName):
        harness.core.subscribe(harness.now_us, 1, "a//b")
    with pytest.raises(InvalidSetting):
        harness.core.subscribe(harness.now_us, 1, "t", "yesterday")
    with pytest.raises(InvalidSetting):
        harness.core.subscribe(harness.now_us, 1, "t", credit_bytes=0)
    with pytest.raises(InvalidSetting):
        Offset(-1)
    with pytest.raises(InvalidSetting):
        Last(-1)
    with pytest.raises(InvalidSetting):
        Time(-1)


def stored_at(harness: CoreHarness, *stamps_us: int) -> None:
    """One batch of numbered records with these timestamps."""
    producer = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings(partition=0))
    harness.run()
    harness.settle()
    first = harness.node.log("t").end
    for place, stamp_us in enumerate(stamps_us):
        producer.add(harness.now_us, b"%04d" % (first + place), timestamp_us=stamp_us)
    producer.close(harness.now_us)
    harness.run()
    harness.settle()
    harness.core.close_producer(producer)


@pytest.mark.requirement("CM-6:start-time")
@pytest.mark.parametrize(
    ("start_us", "expected"),
    [
        (0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (11, [1, 2, 3, 4, 5, 6, 7, 8]),
        (15, [2, 3, 4, 5, 6, 7, 8]),
        (16, [4, 5, 6, 7, 8]),
        (21, [7, 8]),
        (31, []),
    ],
)
def test_from_a_time_on_means_from_the_first_record_that_is_not_earlier(start_us: int, expected: list[int]) -> None:
    harness = connected()
    harness.disconnect()
    harness.node.features = FEATURES
    harness.reconnect()
    stored_at(harness, 10, 12, 15)
    stored_at(harness, 11, 20, 14)
    state = subscribe(harness, Time(start_us))
    harness.settle()
    stored_at(harness, 9, 30, 10)
    assert numbers(harness.values(state.number)) == expected


def test_a_subscription_from_a_time_on_goes_on_looking_after_a_lost_connection() -> None:
    harness = connected()
    harness.disconnect()
    harness.node.features = FEATURES
    harness.reconnect()
    state = subscribe(harness, Time(100))
    harness.settle()
    stored_at(harness, 50, 60)
    harness.disconnect()
    harness.reconnect()
    stored_at(harness, 70, 100, 80)
    assert numbers(harness.values(state.number)) == [3, 4]


def test_a_node_too_old_to_start_at_a_time_is_not_asked_to() -> None:
    harness = connected()
    call = harness.call()
    harness.core.subscribe(harness.now_us, call, "t", Time(5))
    harness.run()
    harness.settle()
    assert isinstance(harness.errors[call], NotSupported)
    assert not any(isinstance(message, Subscribe) for message in harness.written)


def test_position_and_lag_follow_delivery() -> None:
    harness = connected(batches=3)
    state = subscribe(harness, credit_bytes=1)
    harness.settle()
    queued = harness.delivered[state.number]
    assert len(queued) == 1
    assert state.positions(queued) == {0: 0}
    assert state.positions([]) == {0: 3}
    assert state.lag({"t": {0: 3}}) == 6
