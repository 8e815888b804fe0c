"""What a subscriber gets, in what order, at what pace, and how it goes on."""

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
from tests.unit.client.play import Play


def connected(partitions: int = 1, batches: int = 0) -> Play:
    play = Play()
    play.node._create("t", TopicSettings(partitions))
    play.connect()
    store(play, batches)
    return play


def store(play: Play, batches: int) -> None:
    """Batches of three records each, numbered on."""
    call = play.call()
    state = play.core.open_producer(play.now_us, call, "t", ProducerSettings(partition=0))
    play.run()
    play.settle()
    for _ in range(batches):
        first = play.node.log("t").end
        for n in range(first, first + 3):
            state.add(play.now_us, b"%04d" % n)
        state.close(play.now_us)
        play.run()
        play.settle()
    play.core.close_producer(state)


def subscribe(
    play: Play, start: Start = "earliest", partition: int | None = None, credit_bytes: int = 1 << 20
) -> TopicSubscription:
    """The topic is located already; the node has yet to hear of the subscription itself."""
    state = play.core.subscribe(play.now_us, play.call(), "t", start, partition, credit_bytes)
    play.run()
    play.node_hears(1)
    play.client_hears(1)
    return state


def numbers(values: list[bytes | None]) -> list[int]:
    return [int(value or b"") for value in values]


@pytest.mark.parametrize(
    ("start", "expected"),
    [("earliest", range(9)), ("latest", ()), (Offset(4), range(4, 9)), (Last(2), range(7, 9)), (Last(100), range(9))],
)
def test_delivery_begins_where_it_was_asked_to_even_inside_a_batch(start: Start, expected: range) -> None:
    play = connected(batches=3)
    state = subscribe(play, start)
    play.settle()
    assert numbers(play.values(state.number)) == list(expected)


def test_a_trimmed_batch_is_trimmed_in_every_form() -> None:
    play = connected(batches=1)
    state = subscribe(play, Offset(2))
    play.settle()
    (batch,) = play.delivered[state.number]
    assert len(batch) == 1
    assert (batch.first_offset, batch.next_offset) == (2, 3)
    assert batch.values() == [b"0002"]
    assert batch.offsets() == [2]
    assert batch.keys() == [None]
    assert len(batch.timestamps()) == 1
    assert [record.offset for record in batch.records()] == [2]
    assert batch.to_arrow().column("value").to_pylist() == [b"0002"]


@pytest.mark.requirement("CM-10")
@pytest.mark.parametrize("delivered", range(5))
def test_after_a_lost_connection_delivery_goes_on_without_gap_or_repeat(delivered: int) -> None:
    play = connected(batches=4)
    state = subscribe(play)
    play.node_hears(1)
    play.client_hears(1)
    play.node_pushes()
    play.client_hears(delivered)
    play.lose()
    play.come_back()
    store(play, 2)
    assert numbers(play.values(state.number)) == list(range(18))
    assert Resubscribed("t", 0, 3 * delivered) in play.events


def test_a_subscription_to_the_latest_goes_on_where_it_began_and_not_at_a_later_end() -> None:
    play = connected(batches=2)
    state = subscribe(play, "latest")
    play.settle()
    play.lose()
    other = Play(node=play.node, seed=1)
    other.connect()
    store(other, 1)
    play.come_back()
    assert numbers(play.values(state.number)) == [6, 7, 8]


def test_all_partitions_are_one_subscription() -> None:
    play = connected(partitions=3)
    state = subscribe(play)
    play.settle()
    for partition in range(3):
        play.core.publish(play.now_us, play.call(), "t", b"%d" % partition, partition=partition)
        play.run()
        play.settle()
    assert sorted(numbers(play.values(state.number))) == [0, 1, 2]
    assert [batch.partition for batch in play.delivered[state.number]] == [0, 1, 2]


# --- credit ----------------------------------------------------------------------------------------


@pytest.mark.requirement("CM-7")
def test_a_subscriber_that_takes_nothing_gets_no_more_than_its_credit() -> None:
    play = connected(batches=50)
    size = len(play.node.log("t").batches[0][2])
    state = subscribe(play, credit_bytes=10 * size)
    play.settle()
    assert len(play.delivered[state.number]) == 10
    play.settle()
    assert not play.node.credits


@pytest.mark.requirement("CM-7")
def test_credit_goes_back_in_halves_as_the_application_takes_batches() -> None:
    play = connected(batches=50)
    size = len(play.node.log("t").batches[0][2])
    state = subscribe(play, credit_bytes=10 * size)
    play.settle()
    taken = 0
    while taken < len(play.delivered[state.number]):
        batch = play.delivered[state.number][taken]
        taken += 1
        play.core.taken(state, batch.partition, batch.bytes)
        play.run()
        play.settle()
        assert len(play.delivered[state.number]) - taken <= 10
    assert numbers(play.values(state.number)) == list(range(150))
    assert set(play.node.credits) == {5 * size}


@pytest.mark.requirement("CM-7")
def test_a_new_connection_is_granted_only_what_is_free() -> None:
    play = connected(batches=50)
    size = len(play.node.log("t").batches[0][2])
    state = subscribe(play, credit_bytes=10 * size)
    play.settle()
    for batch in play.delivered[state.number][:3]:
        play.core.taken(state, batch.partition, batch.bytes)
    play.lose()
    play.come_back()
    assert play.node.subscribes[-1].credit == 3 * size
    assert len(play.delivered[state.number]) == 13


@pytest.mark.requirement("CM-7")
def test_what_is_taken_while_a_new_connection_is_asked_is_granted_when_it_answers() -> None:
    play = connected(batches=50)
    size = len(play.node.log("t").batches[0][2])
    state = subscribe(play, credit_bytes=10 * size)
    play.settle()
    play.lose()
    while play.link is None:
        play.pass_time(100_000)
    play.open()
    while not any(isinstance(message, Subscribe) for message, _ in play.towards_node):
        play.node_hears(1)
        play.client_hears(1)
    for batch in play.delivered[state.number][:10]:
        play.core.taken(state, batch.partition, batch.bytes)
    play.run()
    play.settle()
    assert play.node.subscribes[-1].credit == 0, "there was no room when it was asked"
    assert len(play.delivered[state.number]) == 20


def test_more_credit_than_a_node_counts_is_still_granted_in_time() -> None:
    play = connected()
    state = subscribe(play, credit_bytes=1 << 40)
    play.settle()
    play.core.taken(state, 0, GRANT_BYTES_MAX)
    play.run()
    assert isinstance(play.written[-1], Credit)


def test_control_batches_are_passed_over_and_their_credit_given_back() -> None:
    play = connected()
    state = subscribe(play, credit_bytes=100)
    play.node_hears(1)
    play.client_hears(1)
    feed = state.feeds[0]
    place = Partition(TopicId(state.topic), PartitionIndex(0))
    control = encode([b"epoch 2"], timestamp_us=1, control=True)
    stamp(control, partition=place, base_offset=0, owner_epoch=2)
    plain = encode([b"a"], timestamp_us=1)
    stamp(plain, partition=place, base_offset=1, owner_epoch=2)
    play.hear(Push(feed.number, 2), bytes(control + plain))
    assert play.values(state.number) == [b"a"]
    assert feed.next == 2
    assert play.written[-1] == Credit(feed.number, len(control))


# --- ends ------------------------------------------------------------------------------------------


@pytest.mark.requirement("CM-9")
def test_once_unsubscribed_nothing_is_delivered() -> None:
    play = connected(batches=3)
    state = subscribe(play)
    play.node_hears(1)
    play.client_hears(1)
    call = play.call()
    play.core.unsubscribe(play.now_us, call, state)
    play.run()
    play.node_pushes()
    play.client_hears(10)
    assert call not in play.results
    assert play.values(state.number) == []
    play.settle()
    assert call in play.results
    assert play.node.feeds == {play.link: {}}


def test_an_unsubscribe_is_done_when_the_connection_is_gone() -> None:
    play = connected(batches=3)
    state = subscribe(play)
    play.settle()
    call = play.call()
    play.core.unsubscribe(play.now_us, call, state)
    play.run()
    play.lose()
    assert call in play.results
    play.come_back()
    assert sum(isinstance(message, Subscribe) for message in play.written) == 1


@pytest.mark.requirement("CM-9")
def test_deleting_a_topic_ends_its_subscriptions_with_the_reason() -> None:
    play = connected(batches=1)
    state = subscribe(play)
    play.settle()
    assert play.link is not None
    for message, _ in play.node.end_feeds(play.link):
        play.hear(message)
    assert isinstance(play.finished[state.number], TopicDeleted)


@pytest.mark.requirement("CM-11")
def test_a_topic_created_anew_while_away_ends_the_subscription() -> None:
    play = connected(batches=1)
    state = subscribe(play)
    play.settle()
    play.lose()
    del play.node.topics["t"]
    play.node._create("t", TopicSettings())
    play.come_back()
    assert isinstance(play.finished[state.number], TopicRecreated)


def test_a_place_that_is_gone_ends_the_subscription_instead_of_leaving_a_gap() -> None:
    play = connected(batches=1)
    state = subscribe(play)
    play.settle()
    feed = state.feeds[0]
    play.lose()
    while not any(isinstance(message, Subscribe) for message, _ in play.towards_node):
        play.pass_time(10_000)
        if play.link is not None and not play.core.link.up:
            play.open()
            play.node_hears(1)
            play.client_hears(1)
    asked = play.written[-1]
    assert isinstance(asked, Subscribe)
    play.hear(Subscribed(asked.request, feed.number, 10, 20))
    error = play.finished[state.number]
    assert isinstance(error, OffsetOutOfRange)
    assert (error.offset, error.first) == (3, 10)


def test_a_subscription_may_go_on_with_what_retention_has_left_and_says_so() -> None:
    play = connected(batches=3)
    log = play.node.log("t")
    log.first = 3
    call = play.call()
    state = play.core.subscribe(play.now_us, call, "t", Offset(1), below_start="earliest")
    play.run()
    play.settle()
    assert call in play.results and numbers(play.values(state.number)) == [3, 4, 5, 6, 7, 8]
    gone = OffsetOutOfRange("t", 0, 9, 12, 20)
    play.hear(Ended(state.feeds[0].number, "OffsetOutOfRange", gone.carried()))
    asked = play.towards_node[-1][0]
    assert isinstance(asked, Subscribe) and (asked.start, asked.value) == ("offset", 12)
    play.hear(Subscribed(asked.request, asked.subscription, 15, 20))
    assert state.feeds[0].next == 15 and state.number not in play.finished
    told = [(event.offset, event.first) for event in play.events if isinstance(event, Skipped)]
    assert told == [(1, 3), (9, 12), (12, 15)]


def test_a_subscription_beyond_the_end_is_refused_whatever_it_does_below_the_start() -> None:
    play = connected(batches=1)
    call = play.call()
    play.core.subscribe(play.now_us, call, "t", Offset(99), below_start="earliest")
    play.run()
    play.settle()
    assert isinstance(play.errors[call], OffsetOutOfRange)
    with pytest.raises(InvalidSetting):
        play.core.subscribe(play.now_us, play.call(), "t", below_start="wherever")  # type: ignore[arg-type]


def test_an_end_that_a_retry_may_mend_is_retried() -> None:
    play = connected(batches=1)
    state = subscribe(play)
    play.settle()
    feed = state.feeds[0]
    error = Unavailable("t", 0, "recovering")
    play.hear(Ended(feed.number, "Unavailable", error.carried()))
    assert state.number not in play.finished
    assert play.link is not None
    play.node.lost(play.link)
    play.pass_time(2_000_000)
    play.settle()
    store(play, 1)
    assert numbers(play.values(state.number)) == list(range(6))


@pytest.mark.requirement("CM-11")
def test_a_refused_subscription_fails_the_call_that_asked_for_it() -> None:
    play = connected(batches=1)
    call = play.call()
    play.core.subscribe(play.now_us, call, "t", Offset(99))
    play.run()
    play.settle()
    assert isinstance(play.errors[call], OffsetOutOfRange)
    call = play.call()
    play.core.subscribe(play.now_us, call, "t", partition=5)
    play.run()
    play.settle()
    assert isinstance(play.errors[call], UnknownPartition)


def test_a_subscription_of_many_partitions_is_refused_as_a_whole() -> None:
    play = connected(partitions=2)
    call = play.call()
    play.core.subscribe(play.now_us, call, "t", "earliest")
    play.run()
    play.node_hears(1)
    play.client_hears(1)
    first, second = (message for message, _ in play.towards_node if isinstance(message, Subscribe))
    play.node_hears(1)
    play.client_hears(1)
    error = OffsetOutOfRange("t", 1, 0, 5, 9)
    play.hear(Failed(second.request, "OffsetOutOfRange", error.carried()))
    assert isinstance(play.errors[call], OffsetOutOfRange)
    left = [message for message in play.written if isinstance(message, Unsubscribe)]
    assert [message.subscription for message in left] == [first.subscription]


@pytest.mark.parametrize("at", [5, 20, 37, 60, 100])
def test_a_damaged_batch_is_not_handed_out(at: int) -> None:
    play = connected(batches=2)
    state = subscribe(play)
    play.node_hears(1)
    play.client_hears(1)
    first, second = (bytearray(batch) for _, _, batch in play.node.log("t").batches)
    second[at] ^= 1
    play.hear(Push(state.feeds[0].number, 6), bytes(first + second))
    assert numbers(play.values(state.number)) == [0, 1, 2]
    error = play.finished[state.number]
    assert isinstance(error, PartitionDamaged)
    assert error.offset == 3
    play.hear(Push(state.feeds[0].number, 6), play.node.log("t").batches[1][2])
    assert numbers(play.values(state.number)) == [0, 1, 2]


@pytest.mark.parametrize("in_order", [0, 1])
def test_a_gap_in_what_is_pushed_is_not_taken_and_delivery_goes_on_at_the_right_offset(in_order: int) -> None:
    play = connected(batches=4)
    state = subscribe(play)
    play.node_hears(1)
    play.client_hears(1)
    pushed = [play.node.log("t").batches[n][2] for n in (*range(in_order), in_order + 1)]
    play.hear(Push(state.feeds[0].number, 12), b"".join(pushed))
    assert play.values(state.number) == []
    assert not play.core.link.up
    (event,) = [event for event in play.events if isinstance(event, Disconnected)]
    assert "message not expected now" in event.reason
    play.come_back()
    assert numbers(play.values(state.number)) == list(range(12))
    assert Resubscribed("t", 0, 0) in play.events


def test_a_repeat_is_trimmed_and_costs_no_connection() -> None:
    play = connected(batches=2)
    state = subscribe(play, Offset(4))
    play.settle()
    for _, _, batch in play.node.log("t").batches:
        play.hear(Push(state.feeds[0].number, 6), batch)
    assert numbers(play.values(state.number)) == [4, 5]
    assert play.core.link.up


def test_a_batch_of_which_compaction_left_only_what_was_delivered_is_passed_over() -> None:
    play = connected(batches=2)
    state = subscribe(play, Offset(2))
    log = play.node.log("t")
    left = encode([b"0000"], keys=[b"k"], timestamp_us=1, offset_deltas=[0])
    partition = Partition(TopicId(state.topic), PartitionIndex(0))
    stamp(left, partition=partition, base_offset=0, owner_epoch=1, last_offset_delta=2)
    log.batches[0] = (0, 3, bytes(left))
    play.settle()
    assert [len(batch) for batch in play.delivered[state.number]] == [3]
    assert numbers(play.values(state.number)) == [3, 4, 5]


def test_closing_the_client_ends_its_subscriptions() -> None:
    play = connected()
    state = subscribe(play)
    play.settle()
    play.core.close(play.now_us)
    play.run()
    assert isinstance(play.finished[state.number], ClientClosed)


def test_what_cannot_be_subscribed_to_is_refused_at_once() -> None:
    play = Play(Options())
    with pytest.raises(InvalidTopicName):
        play.core.subscribe(play.now_us, 1, "a//b")
    with pytest.raises(InvalidSetting):
        play.core.subscribe(play.now_us, 1, "t", "yesterday")
    with pytest.raises(InvalidSetting):
        play.core.subscribe(play.now_us, 1, "t", credit_bytes=0)
    with pytest.raises(InvalidSetting):
        Offset(-1)
    with pytest.raises(InvalidSetting):
        Last(-1)
    with pytest.raises(InvalidSetting):
        Time(-1)


def stored_at(play: Play, *stamps_us: int) -> None:
    """One batch of records with these timestamps, numbered on."""
    producing = play.core.open_producer(play.now_us, play.call(), "t", ProducerSettings(partition=0))
    play.run()
    play.settle()
    first = play.node.log("t").end
    for place, stamp_us in enumerate(stamps_us):
        producing.add(play.now_us, b"%04d" % (first + place), timestamp_us=stamp_us)
    producing.close(play.now_us)
    play.run()
    play.settle()
    play.core.close_producer(producing)


@pytest.mark.requirement("CM-6")
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
    play = connected()
    play.lose()
    play.node.features = FEATURES
    play.come_back()
    stored_at(play, 10, 12, 15)
    stored_at(play, 11, 20, 14)
    state = subscribe(play, Time(start_us))
    play.settle()
    stored_at(play, 9, 30, 10)
    assert numbers(play.values(state.number)) == expected


def test_a_subscription_from_a_time_on_goes_on_looking_after_a_lost_connection() -> None:
    play = connected()
    play.lose()
    play.node.features = FEATURES
    play.come_back()
    state = subscribe(play, Time(100))
    play.settle()
    stored_at(play, 50, 60)
    play.lose()
    play.come_back()
    stored_at(play, 70, 100, 80)
    assert numbers(play.values(state.number)) == [3, 4]


def test_a_node_too_old_to_start_at_a_time_is_not_asked_to() -> None:
    play = connected()
    call = play.call()
    play.core.subscribe(play.now_us, call, "t", Time(5))
    play.run()
    play.settle()
    assert isinstance(play.errors[call], NotSupported)
    assert not any(isinstance(message, Subscribe) for message in play.written)


def test_position_and_lag_follow_what_was_handed_out() -> None:
    play = connected(batches=3)
    state = subscribe(play, credit_bytes=1)
    play.settle()
    queued = play.delivered[state.number]
    assert len(queued) == 1
    assert state.positions(queued) == {0: 0}
    assert state.positions([]) == {0: 3}
    assert state.lag({"t": {0: 3}}) == 6
