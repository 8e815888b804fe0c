"""Records between `send` and their acknowledgement."""

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
    UnknownTopic,
)
from rostra.model.batch import Codec, producer_stamp
from rostra.wire.messages import DeleteTopic, Locate, Publish, TopicSettings
from tests.unit.client.core_harness import CoreHarness


def producer(harness: CoreHarness, name: str = "t", settings: ProducerSettings | None = None) -> ProducerState:
    call = harness.call()
    state = harness.core.open_producer(harness.now_us, call, name, settings or ProducerSettings())
    harness.run()
    harness.settle()
    assert call in harness.results
    return state


def send(harness: CoreHarness, state: ProducerState, *values: bytes) -> None:
    """Send these values as one batch."""
    for value in values:
        state.add(harness.now_us, value)
    state.close(harness.now_us)
    harness.run()


def flush(harness: CoreHarness, state: ProducerState) -> int:
    call = harness.call()
    state.flush(harness.now_us, call)
    harness.run()
    return call


def publish(harness: CoreHarness, value: bytes, **options: object) -> int:
    call = harness.call()
    harness.core.publish(harness.now_us, call, "t", value, **options)  # type: ignore[arg-type]
    harness.run()
    return call


def connected(options: Options | None = None, partitions: int = 1) -> CoreHarness:
    harness = CoreHarness(options)
    harness.node._create("t", TopicSettings(partitions))
    harness.connect()
    return harness


# --- publishing one record -------------------------------------------------------------------------


def test_publishing_tells_where_the_record_is_stored() -> None:
    harness = connected()
    first, second = publish(harness, b"a", key=b"k", headers=[("h", b"v")]), publish(harness, b"b")
    harness.core.end_turn(harness.now_us)
    harness.run()
    harness.settle()
    assert harness.results[first] == Ack("t", 0, 0)
    assert harness.results[second] == Ack("t", 0, 1)


def test_records_published_one_by_one_take_turns_under_numbers_without_gap() -> None:
    harness = connected(partitions=2)
    calls = []
    for n in range(6):
        calls.append(publish(harness, b"%d" % n))
        harness.settle()
    assert [harness.results[call] for call in calls] == [Ack("t", n % 2, n // 2) for n in range(6)]
    assert [harness.node.log("t", p).values() for p in range(2)] == [[b"0", b"2", b"4"], [b"1", b"3", b"5"]]


@pytest.mark.requirement("CM-5:numbered")
def test_a_record_published_alone_is_sent_again_under_its_number_and_stored_once() -> None:
    harness = connected()
    publish(harness, b"first")
    harness.settle()
    call = publish(harness, b"second")
    before = [producer_stamp(payload) for _, payload in harness.to_node if payload]
    harness.deliver_to_node(1)
    harness.disconnect()
    harness.reconnect()
    harness.settle()
    assert [stamp[1:] for stamp in before] == [(0, 1, 1)]
    assert harness.results[call] == Ack("t", 0, 1)
    assert harness.node.log("t").values() == [b"first", b"second"]
    assert [event for event in harness.events if isinstance(event, Resent)] == [Resent("t", 0, 1, 1)]


def test_a_record_published_alone_over_the_limit_of_the_node_fails_and_the_next_does_not() -> None:
    harness = connected()
    harness.node.batch_bytes_max = 50_000
    harness.disconnect()
    harness.reconnect()
    publish(harness, b"first")
    harness.settle()
    too_large, next_one = publish(harness, bytes(50_000)), publish(harness, bytes(49_000))
    harness.settle()
    assert isinstance(harness.errors[too_large], RecordTooLarge)
    assert harness.results[next_one] == Ack("t", 0, 1)


def test_an_unknown_topic_is_looked_up_once_and_created_when_allowed() -> None:
    harness = CoreHarness()
    harness.connect()
    calls = [publish(harness, b"%d" % n) for n in range(3)]
    harness.settle()
    assert [harness.results[call] for call in calls] == [Ack("t", 0, n) for n in range(3)]
    assert sum(isinstance(message, Locate) for message in harness.written) == 1


def test_without_auto_create_an_unknown_topic_is_an_error_and_asked_for_again_next_time() -> None:
    harness = CoreHarness(Options(auto_create=False))
    harness.connect()
    call = publish(harness, b"a")
    harness.settle()
    assert type(harness.errors[call]).__name__ == "UnknownTopic"
    harness.node._create("t", TopicSettings())
    call = publish(harness, b"a")
    harness.settle()
    assert harness.results[call] == Ack("t", 0, 0)


def test_the_same_key_goes_to_the_same_partition_in_every_client() -> None:
    # Fixed numbers: another result would send existing keys to other partitions.
    assert [partition_of(key, 7) for key in (b"", b"a", b"customer-7")] == [4, 1, 0]
    harness = connected(partitions=7)
    call = publish(harness, b"v", key=b"customer-7")
    harness.settle()
    assert harness.results[call] == Ack("t", 0, 0)


def test_records_without_a_key_take_turns_by_batch() -> None:
    harness = connected(partitions=3)
    state = producer(harness)
    for n in range(6):
        send(harness, state, b"%d" % n, b"%d'" % n)
    harness.settle()
    assert [harness.node.log("t", p).values() for p in range(3)] == [
        [b"0", b"0'", b"3", b"3'"],
        [b"1", b"1'", b"4", b"4'"],
        [b"2", b"2'", b"5", b"5'"],
    ]


def test_a_partition_that_does_not_exist_is_refused() -> None:
    harness = connected()
    assert isinstance(harness.errors.get(publish(harness, b"a", partition=3)), type(None))
    harness.settle()
    call = publish(harness, b"a", partition=3)
    assert isinstance(harness.errors[call], UnknownPartition)


# --- batches and the window ------------------------------------------------------------------------


@pytest.mark.requirement("CM-4:batches")
def test_a_batch_leaves_when_it_is_full() -> None:
    harness = connected()
    state = producer(harness, settings=ProducerSettings(batch_bytes=1000))
    for _ in range(8):
        state.add(harness.now_us, bytes(100))
    harness.run()
    assert not harness.to_node
    state.add(harness.now_us, bytes(100))
    harness.run()
    assert [type(message) for message, _ in harness.to_node] == [Publish]


@pytest.mark.requirement("CM-4:batches")
def test_an_open_batch_leaves_at_the_end_of_the_turn_unless_many_are_under_way() -> None:
    harness = connected()
    state = producer(harness)
    for n in range(EAGER_BATCHES + 3):
        state.add(harness.now_us, b"%d" % n)
        state.end_turn(harness.now_us)
    harness.run()
    assert len(harness.to_node) == EAGER_BATCHES
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    # The acknowledgement releases the rest as one batch.
    assert len(harness.to_node) == EAGER_BATCHES
    harness.settle()
    assert harness.node.log("t").values() == [b"%d" % n for n in range(EAGER_BATCHES + 3)]
    assert len(harness.node.log("t").batches) == EAGER_BATCHES + 1


def test_a_record_given_alone_leaves_at_once_until_many_are_under_way() -> None:
    harness = connected()
    state = producer(harness)
    for number in range(EAGER_BATCHES):
        assert state.send_single(harness.now_us, b"%d" % number)
    harness.run()
    assert len(harness.to_node) == EAGER_BATCHES
    assert not state.send_single(harness.now_us, b"next"), "it is to wait for others, in one batch"
    harness.settle()
    assert harness.node.log("t").values() == [b"%d" % number for number in range(EAGER_BATCHES)]
    assert state.acked == EAGER_BATCHES and not state.unacknowledged_bytes


def test_a_record_given_alone_does_not_overtake_those_that_wait() -> None:
    harness = connected()
    state = producer(harness)
    state.add(harness.now_us, b"first")
    assert not state.send_single(harness.now_us, b"second")


@pytest.mark.parametrize("settings", [ProducerSettings(linger_ms=20), ProducerSettings(codec=Codec.ZSTD)])
def test_a_record_that_is_to_wait_or_to_be_packed_never_leaves_as_it_is(settings: ProducerSettings) -> None:
    harness = connected()
    state = producer(harness, settings=settings)
    assert not state.send_single(harness.now_us, b"a")
    assert not harness.to_node and not state.sent


def test_a_record_given_alone_to_a_producer_that_has_ended_stays_with_the_caller() -> None:
    harness = connected()
    state = producer(harness)
    state.end(DiskFull())
    assert not state.send_single(harness.now_us, b"a") and not state.unacknowledged_batches


@pytest.mark.requirement("CM-4:batches")
def test_a_lingering_batch_waits_for_its_time_and_no_longer() -> None:
    harness = connected()
    state = producer(harness, settings=ProducerSettings(linger_ms=20))
    state.add(harness.now_us, b"a")
    state.end_turn(harness.now_us)
    harness.run()
    harness.pass_time(19_000)
    state.add(harness.now_us, b"b")
    state.end_turn(harness.now_us)
    assert not harness.to_node
    harness.pass_time(1_000)
    assert len(harness.to_node) == 1


@pytest.mark.requirement("CM-4:window")
def test_a_full_window_holds_the_caller_back_until_a_quarter_is_free() -> None:
    harness = connected()
    state = producer(harness, settings=ProducerSettings(batch_bytes=65_536, window_bytes=65_536))
    sent = 0
    while not state.full:
        send(harness, state, bytes(8000))
        sent += 1
    assert 8 <= sent <= 9
    harness.deliver_to_node(sent)
    harness.deliver_to_client(1)
    assert not harness.resumed
    harness.deliver_to_client(2)
    assert harness.resumed == [state.number]
    assert not state.full


@pytest.mark.requirement("CM-4:window")
def test_the_window_counts_batches_too() -> None:
    harness = connected()
    state = producer(harness)
    for _ in range(BATCHES_IN_FLIGHT_MAX):
        assert not state.full
        send(harness, state, b"x")
    assert state.full


def test_many_values_make_full_batches_in_order() -> None:
    harness = connected()
    state = producer(harness)
    values = [b"%0100d" % n for n in range(5000)]
    at = 0
    while at < len(values):
        at = state.add_many(harness.now_us, values, at)
        harness.run()
        harness.settle()
    flush(harness, state)
    harness.settle()
    assert harness.node.log("t").values() == values
    assert len(harness.node.log("t").batches) <= 10


def test_values_of_very_different_sizes_still_fit_their_batches() -> None:
    harness = connected()
    harness.node.batch_bytes_max = 1 << 20
    state = producer(harness, settings=ProducerSettings(batch_bytes=65_536))
    values = [b"s"] * 3000 + [bytes(60_000)] * 40 + [b"e"] * 3000
    at = 0
    while at < len(values):
        at = state.add_many(harness.now_us, values, at)
        harness.run()
        harness.settle()
    flush(harness, state)
    harness.settle()
    assert harness.node.log("t").values() == values
    assert max(len(batch) for _, _, batch in harness.node.log("t").batches) <= 131_072


def test_a_record_over_the_limit_of_the_node_fails_alone() -> None:
    harness = connected()
    harness.node.batch_bytes_max = 50_000
    harness.disconnect()
    harness.reconnect()
    state = producer(harness)
    state.add(harness.now_us, b"before")
    state.add(harness.now_us, bytes(60_000))
    state.add(harness.now_us, b"after")
    call = flush(harness, state)
    harness.settle()
    assert isinstance(harness.errors[call], RecordTooLarge)
    assert harness.node.log("t").values() == [b"before", b"after"]
    again = flush(harness, state)
    assert again in harness.results


def test_keys_headers_and_timestamps_may_come_and_go_within_a_batch() -> None:
    harness = connected()
    state = producer(harness)
    state.add(harness.now_us, b"0")
    state.add(harness.now_us, b"1", key=b"k")
    state.add(harness.now_us, None, timestamp_us=5)
    state.add(harness.now_us, b"3", headers=[("h", b"v")])
    state.builder.values.append(b"4")
    flush(harness, state)
    harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    harness.settle()
    (batch,) = next(iter(harness.delivered.values()))
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


def test_flush_is_done_when_everything_given_before_is_acknowledged() -> None:
    harness = connected(partitions=2)
    state = producer(harness)
    send(harness, state, b"a")
    send(harness, state, b"b")
    call = flush(harness, state)
    harness.deliver_to_node(2)
    late = harness.to_client.pop()
    harness.deliver_to_client(1)
    assert call not in harness.results
    harness.to_client.append(late)
    harness.deliver_to_client(1)
    assert call in harness.results
    assert (state.sent, state.acked) == (2, 2)


def test_flush_does_not_wait_for_what_comes_after_it() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    call = flush(harness, state)
    send(harness, state, b"b")
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    assert call in harness.results


def test_answers_may_come_in_any_order() -> None:
    harness = connected()
    state = producer(harness)
    for n in range(4):
        send(harness, state, b"%d" % n)
    harness.deliver_to_node(4)
    harness.to_client.reverse()
    harness.deliver_to_client(3)
    assert state.acked == 3
    harness.disconnect()
    harness.reconnect()
    assert state.acked == 4
    assert harness.node.log("t").values() == [b"0", b"1", b"2", b"3"]


def test_acks_none_is_done_when_written() -> None:
    harness = connected()
    state = producer(harness, settings=ProducerSettings(acks="none"))
    send(harness, state, b"a")
    assert harness.acknowledged == [Acknowledged(state.number, 0, -1, 1)]
    assert flush(harness, state) in harness.results
    harness.settle()
    assert harness.node.log("t").values() == [b"a"]


def test_acks_none_goes_on_after_a_lost_connection_although_some_are_lost() -> None:
    harness = connected()
    state = producer(harness, settings=ProducerSettings(acks="none"))
    send(harness, state, b"a")
    harness.settle()
    send(harness, state, b"lost")
    harness.disconnect()
    send(harness, state, b"b")
    harness.reconnect()
    send(harness, state, b"c")
    harness.settle()
    assert harness.node.log("t").values() == [b"a", b"b", b"c"]


def test_with_acks_none_flush_reports_a_refusal_and_the_producer_continues() -> None:
    harness = connected()
    state = producer(harness, settings=ProducerSettings(acks="none"))
    harness.node.refuse = BatchRejected("magic", "of no use")
    send(harness, state, b"a")
    send(harness, state, b"b")
    harness.settle()
    harness.node.refuse = None
    send(harness, state, b"c")
    call = flush(harness, state)
    harness.settle()
    assert isinstance(harness.errors[call], BatchRejected)
    assert harness.node.log("t").values() == [b"c"]


def test_acks_none_waits_for_a_congested_connection() -> None:
    harness = connected()
    state = producer(harness, settings=ProducerSettings(acks="none"))
    assert harness.link is not None
    harness.core.congested(harness.link)
    assert state.full
    harness.core.drained(harness.link)
    harness.run()
    assert harness.resumed == [state.number]
    assert not state.full


# --- again -----------------------------------------------------------------------------------------


@pytest.mark.requirement("CM-5:numbered", "CM-10:resends")
@pytest.mark.parametrize("stored", range(5))
@pytest.mark.parametrize("heard", range(5))
def test_what_was_not_acknowledged_is_sent_again_and_stored_once(stored: int, heard: int) -> None:
    harness = connected()
    state = producer(harness)
    for n in range(4):
        send(harness, state, b"%d" % n)
    harness.deliver_to_node(stored)
    harness.deliver_to_client(min(heard, stored))
    harness.disconnect()
    harness.reconnect()
    assert harness.node.log("t").values() == [b"0", b"1", b"2", b"3"]
    assert state.acked == 4
    left = 4 - min(heard, stored)
    resent = [event for event in harness.events if isinstance(event, Resent)]
    assert resent == ([Resent("t", 0, left, left)] if left else [])


@pytest.mark.requirement("CM-5:numbered")
def test_a_batch_sent_again_carries_the_same_numbers() -> None:
    harness = connected()
    state = producer(harness)
    for n in range(3):
        send(harness, state, b"%d" % n, b"x")
    before = [producer_stamp(payload) for _, payload in harness.to_node if payload]
    harness.disconnect()
    while not harness.core.link.up:
        harness.pass_time(10_000)
        if harness.link is not None:
            harness.open()
            harness.deliver_to_node(1)
            harness.deliver_to_client(1)
    again = [producer_stamp(payload) for _, payload in harness.to_node if payload]
    assert before == again == [(state.producer_id, 0, 2 * n, 2) for n in range(3)]
    said = [message.again for message in harness.written if isinstance(message, Publish)]
    assert said == [False] * 3 + [True] * 3


def test_records_given_while_the_connection_is_away_leave_when_it_is_back() -> None:
    harness = connected()
    state = producer(harness)
    harness.disconnect()
    send(harness, state, b"a")
    call = publish(harness, b"b")
    assert not harness.to_node
    harness.reconnect()
    harness.core.end_turn(harness.now_us)
    harness.run()
    harness.settle()
    assert harness.node.log("t").values() == [b"a", b"b"]
    assert harness.results[call] == Ack("t", 0, 1)


@pytest.mark.parametrize("error", [DiskFull(), LimitExceeded("publishes", 1), BatchRejected("body-crc", "damaged")])
def test_a_refusal_that_a_retry_may_mend_is_retried_in_order(error: RostraError) -> None:
    harness = connected()
    state = producer(harness)
    harness.node.refuse = error
    for n in range(3):
        send(harness, state, b"%d" % n)
    harness.settle()
    harness.pass_time(300_000)
    harness.settle()
    assert state.acked == 0
    harness.node.refuse = None
    harness.pass_time(3_000_000)
    harness.settle()
    assert harness.node.log("t").values() == [b"0", b"1", b"2"]
    assert state.acked == 3


def test_a_refusal_for_the_limit_of_requests_does_not_hide_the_answer_to_an_earlier_batch() -> None:
    """Seed 7000123 of 35febbd: each round of retries hid that the topic was gone, until the delivery timed out."""
    harness = connected()
    state = producer(harness)
    for n in range(3):
        send(harness, state, b"%d" % n)
    harness.node.refuse = UnknownTopic("t")
    harness.deliver_to_node(1)
    harness.node.refuse = LimitExceeded("requests_per_connection_max", 1)
    harness.deliver_to_node(2)
    harness.to_client.rotate(-1)
    harness.settle()
    assert isinstance(state.ended, UnknownTopic)


def test_batches_before_one_refused_for_the_limit_of_requests_are_acknowledged_once() -> None:
    harness = connected()
    state = producer(harness)
    for n in range(3):
        send(harness, state, b"%d" % n)
    harness.deliver_to_node(1)
    harness.node.refuse = LimitExceeded("requests_per_connection_max", 1)
    harness.deliver_to_node(2)
    harness.node.refuse = None
    harness.to_client.rotate(-1)
    harness.settle()
    assert state.acked == 1
    harness.pass_time(300_000)
    harness.settle()
    assert harness.node.log("t").values() == [b"0", b"1", b"2"]
    assert state.acked == 3


def test_a_rejected_batch_fails_alone_and_the_rest_closes_up() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    harness.settle()
    send(harness, state, b"bad")
    send(harness, state, b"b")
    send(harness, state, b"c")
    harness.node.refuse = BatchRejected("magic", "of no use")
    harness.deliver_to_node(1)
    harness.node.refuse = None
    harness.settle()
    assert harness.node.log("t").values() == [b"a", b"b", b"c"]
    assert (state.acked, len(harness.refused)) == (3, 1)
    call = flush(harness, state)
    assert isinstance(harness.errors[call], BatchRejected)
    assert state.senders[0].epoch == 0


def test_the_sequence_of_a_batch_rejected_at_its_second_attempt_is_not_reused() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    send(harness, state, b"b")
    harness.deliver_to_node(1)
    harness.disconnect()
    harness.node.refuse = BatchRejected("magic", "of no use")
    while not harness.to_node or not isinstance(harness.to_node[0][0], Publish):
        harness.pass_time(10_000)
        if harness.link is not None and not harness.core.link.up:
            harness.open()
            harness.deliver_to_node(1)
            harness.deliver_to_client(1)
    harness.deliver_to_node(1)
    harness.node.refuse = None
    harness.settle()
    send(harness, state, b"c")
    harness.settle()
    # "a" was stored by the first attempt; if others took over its numbers, one of them would count as a repeat.
    assert harness.node.log("t").values() == [b"a", b"b", b"c"]
    assert state.senders[0].epoch == 0
    assert not [event for event in harness.events if isinstance(event, MayDuplicate)]


def test_a_producer_the_node_forgot_goes_on_under_a_new_epoch() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    harness.settle()
    harness.node.log("t").producers.clear()
    send(harness, state, b"b")
    send(harness, state, b"c")
    harness.settle()
    assert harness.node.log("t").values() == [b"a", b"b", b"c"]
    assert state.acked == 3
    # They were refused at their first attempt, so they cannot be stored twice.
    assert not [event for event in harness.events if isinstance(event, MayDuplicate)]


def test_a_first_batch_whose_producer_the_node_forgot_is_sent_under_a_new_epoch_and_said_to_be_doubtful() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    harness.deliver_to_node(1)
    harness.disconnect()
    harness.node.log("t").producers.clear()
    harness.node.forgot = True
    harness.reconnect()
    assert harness.node.log("t").values() == [b"a", b"a"] and state.acked == 1
    assert [event.records for event in harness.events if isinstance(event, MayDuplicate)] == [1]
    said = [message.again for message in harness.written if isinstance(message, Publish)]
    assert said == [False, True, False], "under its new numbers it was never sent"


def test_an_application_is_told_what_may_be_stored_twice() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    harness.settle()
    send(harness, state, b"b")
    harness.deliver_to_node(1)
    harness.disconnect()
    harness.node.log("t").producers.clear()
    harness.reconnect()
    assert harness.node.log("t").values() == [b"a", b"b", b"b"]
    told = [event for event in harness.events if isinstance(event, MayDuplicate)]
    assert [(event.topic, event.records) for event in told] == [("t", 1)]


def test_what_is_not_acknowledged_in_time_is_given_up_and_the_rest_goes_on() -> None:
    harness = connected(Options(delivery_timeout_ms=1000, backoff_ms_max=100))
    state = producer(harness)
    harness.reachable = False
    harness.disconnect()
    send(harness, state, b"late", b"too")
    harness.pass_time(800_000)
    send(harness, state, b"in time")
    harness.pass_time(300_000)
    call = flush(harness, state)
    harness.reachable = True
    harness.reconnect()
    error = harness.errors[call]
    assert isinstance(error, NotAcknowledged)
    assert (error.records, error.waited_ms) == (2, 1000)
    assert harness.node.log("t").values() == [b"in time"]


def test_sequences_go_round() -> None:
    harness = connected()
    state = producer(harness)
    sender = state.senders[0]
    sender.sequence = SEQUENCES - 3
    harness.node.log("t").producers[state.producer_id] = (0, SEQUENCES - 3, SEQUENCES - 4, 0)
    send(harness, state, b"a", b"b")
    assert sender.sequence == SEQUENCES - 1
    send(harness, state, b"c", b"d")
    assert sender.sequence == 1


@pytest.mark.parametrize("stored", [False, True])
def test_what_follows_a_batch_that_was_given_up_is_stored_once_either_way(stored: bool) -> None:
    harness = connected(Options(delivery_timeout_ms=1000, backoff_ms_max=100))
    state = producer(harness)
    send(harness, state, b"doubtful")
    harness.deliver_to_node(int(stored))
    harness.reachable = False
    harness.disconnect()
    harness.pass_time(950_000)
    send(harness, state, b"next")
    harness.pass_time(60_000)
    assert len(harness.refused) == 1
    harness.reachable = True
    harness.reconnect()
    assert harness.node.log("t").values() == ([b"doubtful", b"next"] if stored else [b"next"])
    assert state.acked == 1


@pytest.mark.requirement("CM-26:recreated")
def test_a_topic_created_anew_is_another_topic_for_its_producers() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    harness.settle()
    del harness.node.topics["t"]
    harness.node._create("t", TopicSettings())
    send(harness, state, b"b")
    call = flush(harness, state)
    harness.settle()
    assert isinstance(harness.errors[call], TopicRecreated)
    with pytest.raises(TopicRecreated):
        state.add(harness.now_us, b"c")
    fresh = publish(harness, b"d")
    harness.settle()
    assert harness.results[fresh] == Ack("t", 0, 0)


def test_deleting_a_topic_makes_the_client_look_it_up_again() -> None:
    harness = connected()
    publish(harness, b"a")
    harness.settle()
    harness.core.delete_topic(harness.now_us, harness.call(), "t")
    harness.run()
    harness.settle()
    call = publish(harness, b"b")
    harness.settle()
    assert harness.results[call] == Ack("t", 0, 0)
    assert any(isinstance(message, DeleteTopic) for message in harness.written)


def test_closing_the_client_fails_what_is_under_way() -> None:
    harness = connected()
    state = producer(harness)
    send(harness, state, b"a")
    call = flush(harness, state)
    one = publish(harness, b"b")
    harness.core.close(harness.now_us)
    harness.run()
    assert isinstance(harness.errors[call], ClientClosed)
    assert isinstance(harness.errors[one], ClientClosed)
    with pytest.raises(ClientClosed):
        publish(harness, b"c")
