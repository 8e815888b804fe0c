"""What becomes of records between `send` and their acknowledgement."""

from __future__ import annotations

import pytest

from rostra.client.core.effects import Ack, Acknowledged
from rostra.client.core.events import MayDuplicate, Resent
from rostra.client.core.options import BATCHES_IN_FLIGHT_MAX, EAGER_BATCHES, Options, ProducerSettings
from rostra.client.core.producer.partition_sender import SEQUENCES
from rostra.client.core.producer.partitioner import partition_of
from rostra.client.core.producer.producer_state import ProducerState
from rostra.errors import (
    BatchRejected,
    ClientClosed,
    DiskFull,
    InvalidSetting,
    LimitExceeded,
    NotAcknowledged,
    RecordTooLarge,
    RostraError,
    TopicRecreated,
    UnknownPartition,
)
from rostra.model.batch import Codec, producer_stamp
from rostra.wire.messages import DeleteTopic, Locate, Publish, TopicSettings
from tests.unit.client.play import Play


def producer(play: Play, name: str = "t", settings: ProducerSettings | None = None) -> ProducerState:
    call = play.call()
    state = play.core.open_producer(play.now_us, call, name, settings or ProducerSettings())
    play.run()
    play.settle()
    assert call in play.results
    return state


def send(play: Play, state: ProducerState, *values: bytes) -> None:
    """One batch of these values."""
    for value in values:
        state.add(play.now_us, value)
    state.close(play.now_us)
    play.run()


def flush(play: Play, state: ProducerState) -> int:
    call = play.call()
    state.flush(play.now_us, call)
    play.run()
    return call


def publish(play: Play, value: bytes, **options: object) -> int:
    call = play.call()
    play.core.publish(play.now_us, call, "t", value, **options)  # type: ignore[arg-type]
    play.run()
    return call


def connected(options: Options | None = None, partitions: int = 1) -> Play:
    play = Play(options)
    play.node._create("t", TopicSettings(partitions))
    play.connect()
    return play


# --- publishing one record -------------------------------------------------------------------------


def test_publishing_tells_where_the_record_is_stored() -> None:
    play = connected()
    first, second = publish(play, b"a", key=b"k", headers=[("h", b"v")]), publish(play, b"b")
    play.core.turn_publishers(play.now_us)
    play.run()
    play.settle()
    assert play.results[first] == Ack("t", 0, 0)
    assert play.results[second] == Ack("t", 0, 1)


def test_records_published_one_by_one_take_turns_under_numbers_without_gap() -> None:
    play = connected(partitions=2)
    calls = []
    for n in range(6):
        calls.append(publish(play, b"%d" % n))
        play.settle()
    assert [play.results[call] for call in calls] == [Ack("t", n % 2, n // 2) for n in range(6)]
    assert [play.node.log("t", p).values() for p in range(2)] == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


@pytest.mark.requirement("CM-5")
def test_a_record_published_alone_is_sent_again_under_its_number_and_stored_once() -> None:
    play = connected()
    publish(play, b"first")
    play.settle()
    call = publish(play, b"second")
    before = [producer_stamp(payload) for _, payload in play.towards_node if payload]
    play.node_hears(1)
    play.lose()
    play.come_back()
    play.settle()
    assert [stamp[1:] for stamp in before] == [(0, 1, 1)]
    assert play.results[call] == Ack("t", 0, 1)
    assert play.node.log("t").values() == [b"first", b"second"]
    assert [event for event in play.events if isinstance(event, Resent)] == [Resent("t", 0, 1, 1)]


def test_a_record_published_alone_over_the_limit_of_the_node_fails_and_the_next_does_not() -> None:
    play = connected()
    play.node.batch_bytes_max = 50_000
    play.lose()
    play.come_back()
    publish(play, b"first")
    play.settle()
    too_large, next_one = publish(play, bytes(50_000)), publish(play, bytes(49_000))
    play.settle()
    assert isinstance(play.errors[too_large], RecordTooLarge)
    assert play.results[next_one] == Ack("t", 0, 1)


def test_an_unknown_topic_is_looked_up_once_and_created_when_allowed() -> None:
    play = Play()
    play.connect()
    calls = [publish(play, b"%d" % n) for n in range(3)]
    play.settle()
    assert [play.results[call] for call in calls] == [Ack("t", 0, n) for n in range(3)]
    assert sum(isinstance(message, Locate) for message in play.written) == 1


@pytest.mark.requirement("CM-11")
def test_without_auto_create_an_unknown_topic_is_an_error_and_asked_for_again_next_time() -> None:
    play = Play(Options(auto_create=False))
    play.connect()
    call = publish(play, b"a")
    play.settle()
    assert type(play.errors[call]).__name__ == "UnknownTopic"
    play.node._create("t", TopicSettings())
    call = publish(play, b"a")
    play.settle()
    assert play.results[call] == Ack("t", 0, 0)


def test_the_same_key_goes_to_the_same_partition_in_every_client() -> None:
    # Fixed numbers: another result would send old keys elsewhere.
    assert [partition_of(key, 7) for key in (b"", b"a", b"customer-7")] == [4, 1, 0]
    play = connected(partitions=7)
    call = publish(play, b"v", key=b"customer-7")
    play.settle()
    assert play.results[call] == Ack("t", 0, 0)


def test_records_without_a_key_take_turns_by_batch() -> None:
    play = connected(partitions=3)
    state = producer(play)
    for n in range(6):
        send(play, state, b"%d" % n, b"%d'" % n)
    play.settle()
    assert [play.node.log("t", p).values() for p in range(3)] == [
        [b"0", b"0'", b"3", b"3'"],
        [b"1", b"1'", b"4", b"4'"],
        [b"2", b"2'", b"5", b"5'"],
    ]


def test_a_partition_that_does_not_exist_is_refused() -> None:
    play = connected()
    assert isinstance(play.errors.get(publish(play, b"a", partition=3)), type(None))
    play.settle()
    call = publish(play, b"a", partition=3)
    assert isinstance(play.errors[call], UnknownPartition)


# --- batches and the window ------------------------------------------------------------------------


@pytest.mark.requirement("CM-4")
def test_a_batch_leaves_when_it_is_full() -> None:
    play = connected()
    state = producer(play, settings=ProducerSettings(batch_bytes=1000))
    for _ in range(8):
        state.add(play.now_us, bytes(100))
    play.run()
    assert not play.towards_node
    state.add(play.now_us, bytes(100))
    play.run()
    assert [type(message) for message, _ in play.towards_node] == [Publish]


@pytest.mark.requirement("CM-4")
def test_an_open_batch_leaves_at_the_end_of_the_turn_unless_many_are_under_way() -> None:
    play = connected()
    state = producer(play)
    for n in range(EAGER_BATCHES + 3):
        state.add(play.now_us, b"%d" % n)
        state.turn(play.now_us)
    play.run()
    assert len(play.towards_node) == EAGER_BATCHES
    play.node_hears(1)
    play.client_hears(1)
    # The acknowledgement lets the rest go, as one batch.
    assert len(play.towards_node) == EAGER_BATCHES
    play.settle()
    assert play.node.log("t").values() == [b"%d" % n for n in range(EAGER_BATCHES + 3)]
    assert len(play.node.log("t").batches) == EAGER_BATCHES + 1


def test_a_record_given_alone_leaves_at_once_until_many_are_under_way() -> None:
    play = connected()
    state = producer(play)
    for number in range(EAGER_BATCHES):
        assert state.sent_alone(play.now_us, b"%d" % number)
    play.run()
    assert len(play.towards_node) == EAGER_BATCHES
    assert not state.sent_alone(play.now_us, b"next"), "it is to wait for others, in one batch"
    play.settle()
    assert play.node.log("t").values() == [b"%d" % number for number in range(EAGER_BATCHES)]
    assert state.acked == EAGER_BATCHES and not state.unacknowledged_bytes


def test_a_record_given_alone_does_not_overtake_those_that_wait() -> None:
    play = connected()
    state = producer(play)
    state.add(play.now_us, b"first")
    assert not state.sent_alone(play.now_us, b"second")


@pytest.mark.parametrize("settings", [ProducerSettings(linger_ms=20), ProducerSettings(codec=Codec.ZSTD)])
def test_a_record_that_is_to_wait_or_to_be_packed_never_leaves_as_it_is(settings: ProducerSettings) -> None:
    play = connected()
    state = producer(play, settings=settings)
    assert not state.sent_alone(play.now_us, b"a")
    assert not play.towards_node and not state.sent


def test_a_record_given_alone_to_a_producer_that_has_ended_stays_with_the_caller() -> None:
    play = connected()
    state = producer(play)
    state.end(DiskFull())
    assert not state.sent_alone(play.now_us, b"a") and not state.unacknowledged_batches


def test_a_lingering_batch_waits_for_its_time_and_no_longer() -> None:
    play = connected()
    state = producer(play, settings=ProducerSettings(linger_ms=20))
    state.add(play.now_us, b"a")
    state.turn(play.now_us)
    play.run()
    play.pass_time(19_000)
    state.add(play.now_us, b"b")
    state.turn(play.now_us)
    assert not play.towards_node
    play.pass_time(1_000)
    assert len(play.towards_node) == 1


@pytest.mark.requirement("CM-4")
def test_a_full_window_holds_the_caller_back_until_a_quarter_is_free() -> None:
    play = connected()
    state = producer(play, settings=ProducerSettings(batch_bytes=65_536, window_bytes=65_536))
    sent = 0
    while not state.full:
        send(play, state, bytes(8000))
        sent += 1
    assert 8 <= sent <= 9
    play.node_hears(sent)
    play.client_hears(1)
    assert not play.resumed
    play.client_hears(2)
    assert play.resumed == [state.number]
    assert not state.full


@pytest.mark.requirement("CM-4")
def test_the_window_counts_batches_too() -> None:
    play = connected()
    state = producer(play)
    for _ in range(BATCHES_IN_FLIGHT_MAX):
        assert not state.full
        send(play, state, b"x")
    assert state.full


def test_many_values_make_full_batches_in_order() -> None:
    play = connected()
    state = producer(play)
    values = [b"%0100d" % n for n in range(5000)]
    at = 0
    while at < len(values):
        at = state.add_many(play.now_us, values, at)
        play.run()
        play.settle()
    flush(play, state)
    play.settle()
    assert play.node.log("t").values() == values
    assert len(play.node.log("t").batches) <= 10


def test_values_of_very_different_sizes_still_fit_their_batches() -> None:
    play = connected()
    play.node.batch_bytes_max = 1 << 20
    state = producer(play, settings=ProducerSettings(batch_bytes=65_536))
    values = [b"s"] * 3000 + [bytes(60_000)] * 40 + [b"e"] * 3000
    at = 0
    while at < len(values):
        at = state.add_many(play.now_us, values, at)
        play.run()
        play.settle()
    flush(play, state)
    play.settle()
    assert play.node.log("t").values() == values
    assert max(len(batch) for _, _, batch in play.node.log("t").batches) <= 131_072


@pytest.mark.requirement("CM-11")
def test_a_record_over_the_limit_of_the_node_fails_alone() -> None:
    play = connected()
    play.node.batch_bytes_max = 50_000
    play.lose()
    play.come_back()
    state = producer(play)
    state.add(play.now_us, b"before")
    state.add(play.now_us, bytes(60_000))
    state.add(play.now_us, b"after")
    call = flush(play, state)
    play.settle()
    assert isinstance(play.errors[call], RecordTooLarge)
    assert play.node.log("t").values() == [b"before", b"after"]
    again = flush(play, state)
    assert again in play.results


def test_keys_headers_and_timestamps_may_come_and_go_within_a_batch() -> None:
    play = connected()
    state = producer(play)
    state.add(play.now_us, b"0")
    state.add(play.now_us, b"1", key=b"k")
    state.add(play.now_us, None, timestamp_us=5)
    state.add(play.now_us, b"3", headers=[("h", b"v")])
    state.draft.values.append(b"4")
    flush(play, state)
    play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    play.settle()
    (batch,) = next(iter(play.delivered.values()))
    records = batch.records()
    assert [record.value for record in records] == [b"0", b"1", None, b"3", b"4"]
    assert [record.key for record in records] == [None, b"k", None, None, None]
    assert [record.headers for record in records] == [(), (), (), (("h", b"v"),), ()]
    assert records[2].timestamp_us == 5
    assert records[0].timestamp_us == records[4].timestamp_us > 1_700_000_000_000_000


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in (
        {"acks": "most"},
        {"batch_bytes": 0},
        {"window_bytes": 10},
        {"linger_ms": -1},
        {"partition": -1},
    ):
        with pytest.raises(InvalidSetting):
            ProducerSettings(**wrong)


# --- acknowledgements and flush --------------------------------------------------------------------


@pytest.mark.requirement("CM-4")
def test_flush_is_done_when_everything_given_before_is_acknowledged() -> None:
    play = connected(partitions=2)
    state = producer(play)
    send(play, state, b"a")
    send(play, state, b"b")
    call = flush(play, state)
    play.node_hears(2)
    late = play.towards_client.pop()
    play.client_hears(1)
    assert call not in play.results
    play.towards_client.append(late)
    play.client_hears(1)
    assert call in play.results
    assert (state.sent, state.acked) == (2, 2)


def test_flush_does_not_wait_for_what_comes_after_it() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    call = flush(play, state)
    send(play, state, b"b")
    play.node_hears(1)
    play.client_hears(1)
    assert call in play.results


def test_answers_may_come_in_any_order() -> None:
    play = connected()
    state = producer(play)
    for n in range(4):
        send(play, state, b"%d" % n)
    play.node_hears(4)
    play.towards_client.reverse()
    play.client_hears(3)
    assert state.acked == 3
    play.lose()
    play.come_back()
    assert state.acked == 4
    assert play.node.log("t").values() == [b"0", b"1", b"2", b"3"]


def test_acks_none_is_done_when_written() -> None:
    play = connected()
    state = producer(play, settings=ProducerSettings(acks="none"))
    send(play, state, b"a")
    assert play.acknowledged == [Acknowledged(state.number, 0, -1, 1)]
    assert flush(play, state) in play.results
    play.settle()
    assert play.node.log("t").values() == [b"a"]


def test_acks_none_goes_on_after_a_lost_connection_although_some_are_lost() -> None:
    play = connected()
    state = producer(play, settings=ProducerSettings(acks="none"))
    send(play, state, b"a")
    play.settle()
    send(play, state, b"lost")
    play.lose()
    send(play, state, b"b")
    play.come_back()
    send(play, state, b"c")
    play.settle()
    assert play.node.log("t").values() == [b"a", b"b", b"c"]


def test_acks_none_hears_of_a_refusal_at_flush_and_goes_on() -> None:
    play = connected()
    state = producer(play, settings=ProducerSettings(acks="none"))
    play.node.refuse = BatchRejected("magic", "of no use")
    send(play, state, b"a")
    send(play, state, b"b")
    play.settle()
    play.node.refuse = None
    send(play, state, b"c")
    call = flush(play, state)
    play.settle()
    assert isinstance(play.errors[call], BatchRejected)
    assert play.node.log("t").values() == [b"c"]


def test_acks_none_waits_for_a_congested_connection() -> None:
    play = connected()
    state = producer(play, settings=ProducerSettings(acks="none"))
    assert play.link is not None
    play.core.congested(play.link)
    assert state.full
    play.core.drained(play.link)
    play.run()
    assert play.resumed == [state.number]
    assert not state.full


# --- again -----------------------------------------------------------------------------------------


@pytest.mark.requirement("CM-5", "CM-10")
@pytest.mark.parametrize("stored", range(5))
@pytest.mark.parametrize("heard", range(5))
def test_what_was_not_acknowledged_is_sent_again_and_stored_once(stored: int, heard: int) -> None:
    play = connected()
    state = producer(play)
    for n in range(4):
        send(play, state, b"%d" % n)
    play.node_hears(stored)
    play.client_hears(min(heard, stored))
    play.lose()
    play.come_back()
    assert play.node.log("t").values() == [b"0", b"1", b"2", b"3"]
    assert state.acked == 4
    left = 4 - min(heard, stored)
    resent = [event for event in play.events if isinstance(event, Resent)]
    assert resent == ([Resent("t", 0, left, left)] if left else [])


@pytest.mark.requirement("CM-5")
def test_a_batch_sent_again_carries_the_same_numbers() -> None:
    play = connected()
    state = producer(play)
    for n in range(3):
        send(play, state, b"%d" % n, b"x")
    before = [producer_stamp(payload) for _, payload in play.towards_node if payload]
    play.lose()
    while not play.core.link.up:
        play.pass_time(10_000)
        if play.link is not None:
            play.open()
            play.node_hears(1)
            play.client_hears(1)
    again = [producer_stamp(payload) for _, payload in play.towards_node if payload]
    assert before == again == [(state.producer, 0, 2 * n, 2) for n in range(3)]
    said = [message.again for message in play.written if isinstance(message, Publish)]
    assert said == [False] * 3 + [True] * 3


def test_records_given_while_the_connection_is_away_leave_when_it_is_back() -> None:
    play = connected()
    state = producer(play)
    play.lose()
    send(play, state, b"a")
    call = publish(play, b"b")
    assert not play.towards_node
    play.come_back()
    play.core.turn_publishers(play.now_us)
    play.run()
    play.settle()
    assert play.node.log("t").values() == [b"a", b"b"]
    assert play.results[call] == Ack("t", 0, 1)


@pytest.mark.requirement("CM-5")
@pytest.mark.parametrize("error", [DiskFull(), LimitExceeded("publishes", 1), BatchRejected("body-crc", "damaged")])
def test_a_refusal_that_a_retry_may_mend_is_retried_in_order(error: RostraError) -> None:
    play = connected()
    state = producer(play)
    play.node.refuse = error
    for n in range(3):
        send(play, state, b"%d" % n)
    play.settle()
    play.pass_time(300_000)
    play.settle()
    assert state.acked == 0
    play.node.refuse = None
    play.pass_time(3_000_000)
    play.settle()
    assert play.node.log("t").values() == [b"0", b"1", b"2"]
    assert state.acked == 3


def test_a_rejected_batch_fails_alone_and_the_rest_closes_up() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    play.settle()
    send(play, state, b"bad")
    send(play, state, b"b")
    send(play, state, b"c")
    play.node.refuse = BatchRejected("magic", "of no use")
    play.node_hears(1)
    play.node.refuse = None
    play.settle()
    assert play.node.log("t").values() == [b"a", b"b", b"c"]
    assert (state.acked, len(play.refused)) == (3, 1)
    call = flush(play, state)
    assert isinstance(play.errors[call], BatchRejected)
    assert state.lanes[0].epoch == 0


def test_a_batch_rejected_at_its_second_attempt_leaves_its_numbers_to_nobody() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    send(play, state, b"b")
    play.node_hears(1)
    play.lose()
    play.node.refuse = BatchRejected("magic", "of no use")
    while not play.towards_node or not isinstance(play.towards_node[0][0], Publish):
        play.pass_time(10_000)
        if play.link is not None and not play.core.link.up:
            play.open()
            play.node_hears(1)
            play.client_hears(1)
    play.node_hears(1)
    play.node.refuse = None
    play.settle()
    send(play, state, b"c")
    play.settle()
    # "a" was stored by the first attempt; if others took over its numbers, one of them would pass for a repeat.
    assert play.node.log("t").values() == [b"a", b"b", b"c"]
    assert state.lanes[0].epoch == 0
    assert not [event for event in play.events if isinstance(event, MayDuplicate)]


@pytest.mark.requirement("CM-5")
def test_a_producer_the_node_forgot_goes_on_under_a_new_epoch() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    play.settle()
    play.node.log("t").producers.clear()
    send(play, state, b"b")
    send(play, state, b"c")
    play.settle()
    assert play.node.log("t").values() == [b"a", b"b", b"c"]
    assert state.acked == 3
    # They were refused at their first attempt, so they cannot be there twice.
    assert not [event for event in play.events if isinstance(event, MayDuplicate)]


@pytest.mark.requirement("CM-5")
def test_a_first_batch_whose_producer_the_node_forgot_is_sent_under_a_new_epoch_and_said_to_be_doubtful() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    play.node_hears(1)
    play.lose()
    play.node.log("t").producers.clear()
    play.node.forgot = True
    play.come_back()
    assert play.node.log("t").values() == [b"a", b"a"] and state.acked == 1
    assert [event.records for event in play.events if isinstance(event, MayDuplicate)] == [1]
    said = [message.again for message in play.written if isinstance(message, Publish)]
    assert said == [False, True, False], "under its new numbers it was never sent"


def test_an_application_is_told_what_may_be_stored_twice() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    play.settle()
    send(play, state, b"b")
    play.node_hears(1)
    play.lose()
    play.node.log("t").producers.clear()
    play.come_back()
    assert play.node.log("t").values() == [b"a", b"b", b"b"]
    told = [event for event in play.events if isinstance(event, MayDuplicate)]
    assert [(event.topic, event.records) for event in told] == [("t", 1)]


@pytest.mark.requirement("CM-11")
def test_what_is_not_acknowledged_in_time_is_given_up_and_the_rest_goes_on() -> None:
    play = connected(Options(delivery_timeout_ms=1000, backoff_ms_max=100))
    state = producer(play)
    play.reachable = False
    play.lose()
    send(play, state, b"late", b"too")
    play.pass_time(800_000)
    send(play, state, b"in time")
    play.pass_time(300_000)
    call = flush(play, state)
    play.reachable = True
    play.come_back()
    error = play.errors[call]
    assert isinstance(error, NotAcknowledged)
    assert (error.records, error.waited_ms) == (2, 1000)
    assert play.node.log("t").values() == [b"in time"]


def test_sequences_go_round() -> None:
    play = connected()
    state = producer(play)
    lane = state.lanes[0]
    lane.sequence = SEQUENCES - 3
    play.node.log("t").producers[state.producer] = (0, SEQUENCES - 3, SEQUENCES - 4, 0)
    send(play, state, b"a", b"b")
    assert lane.sequence == SEQUENCES - 1
    send(play, state, b"c", b"d")
    assert lane.sequence == 1


@pytest.mark.parametrize("stored", [False, True])
def test_what_follows_a_batch_that_was_given_up_is_stored_once_either_way(stored: bool) -> None:
    play = connected(Options(delivery_timeout_ms=1000, backoff_ms_max=100))
    state = producer(play)
    send(play, state, b"doubtful")
    play.node_hears(int(stored))
    play.reachable = False
    play.lose()
    play.pass_time(950_000)
    send(play, state, b"next")
    play.pass_time(60_000)
    assert len(play.refused) == 1
    play.reachable = True
    play.come_back()
    assert play.node.log("t").values() == ([b"doubtful", b"next"] if stored else [b"next"])
    assert state.acked == 1


@pytest.mark.requirement("CM-11")
def test_a_topic_created_anew_is_another_topic_for_its_producers() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    play.settle()
    del play.node.topics["t"]
    play.node._create("t", TopicSettings())
    send(play, state, b"b")
    call = flush(play, state)
    play.settle()
    assert isinstance(play.errors[call], TopicRecreated)
    with pytest.raises(TopicRecreated):
        state.add(play.now_us, b"c")
    fresh = publish(play, b"d")
    play.settle()
    assert play.results[fresh] == Ack("t", 0, 0)


def test_deleting_a_topic_makes_the_client_look_it_up_again() -> None:
    play = connected()
    publish(play, b"a")
    play.settle()
    play.core.delete_topic(play.now_us, play.call(), "t")
    play.run()
    play.settle()
    call = publish(play, b"b")
    play.settle()
    assert play.results[call] == Ack("t", 0, 0)
    assert any(isinstance(message, DeleteTopic) for message in play.written)


def test_closing_the_client_fails_what_is_under_way() -> None:
    play = connected()
    state = producer(play)
    send(play, state, b"a")
    call = flush(play, state)
    one = publish(play, b"b")
    play.core.close(play.now_us)
    play.run()
    assert isinstance(play.errors[call], ClientClosed)
    assert isinstance(play.errors[one], ClientClosed)
    with pytest.raises(ClientClosed):
        publish(play, b"c")
