"""Very many producers of one client: idle ones cost nothing, and a common limit holds."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.client.core.options import Options, ProducerSettings
from rostra.client.core.producer import in_flight_window
from rostra.client.core.producer.producer_state import ProducerState
from rostra.client.core.producer.wakeup_queue import NEVER_US, SPARE
from rostra.errors import ClientClosed, InvalidArgument, InvalidSetting, NotAcknowledged
from rostra.wire.messages import Acks, TopicSettings
from tests.unit.client.core_harness import CoreHarness

BATCH_BYTES = 10_000


def opened(harness: CoreHarness, count: int, settings: ProducerSettings | None = None) -> list[ProducerState]:
    made = []
    for number in range(count):
        harness.node._create(f"t{number}", TopicSettings())
        call = harness.call()
        made.append(harness.core.open_producer(harness.now_us, call, f"t{number}", settings or ProducerSettings()))
        harness.run()
        harness.settle()
        assert call in harness.results
    return made


def connected(options: Options | None = None) -> CoreHarness:
    harness = CoreHarness(options)
    harness.connect()
    return harness


def send(harness: CoreHarness, state: ProducerState, value: bytes) -> None:
    state.add(harness.now_us, value)
    state.close(harness.now_us)
    harness.run()


def test_idle_producers_cost_nothing_when_another_one_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = connected()
    first, *idle = opened(harness, 50)
    looked_at: list[int] = []
    due, tick = ProducerState.deadline_us, ProducerState.tick

    def noted_due(self: ProducerState) -> int | None:
        looked_at.append(self.number)
        return due(self)

    def noted_tick(self: ProducerState, now_us: int) -> None:
        looked_at.append(self.number)
        tick(self, now_us)

    monkeypatch.setattr(ProducerState, "deadline_us", noted_due)
    monkeypatch.setattr(ProducerState, "tick", noted_tick)
    for _ in range(10):
        send(harness, first, b"x")
        harness.settle()
        harness.core.deadline_us()
        harness.pass_time(1_000_000)
    assert len(harness.node.log("t0").values()) == 10
    assert not {state.number for state in idle} & set(looked_at)


def test_records_of_publish_leave_at_the_end_of_the_turn_whichever_topics_they_are_for() -> None:
    harness = connected()
    for number in range(20):
        harness.node._create(f"t{number}", TopicSettings())
    for _ in range(3):
        for number in range(20):
            harness.core.publish(harness.now_us, harness.call(), f"t{number}", b"x")
            harness.run()
    harness.core.end_turn(harness.now_us)
    harness.run()
    harness.settle()
    assert [len(harness.node.log(f"t{number}").values()) for number in range(20)] == [3] * 20


@pytest.mark.requirement("CM-4:window")
def test_all_producers_together_hold_their_callers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And when there is space again, every waiting producer is resumed."""
    monkeypatch.setattr(in_flight_window, "CLIENT_WINDOW_BYTES", 4 * BATCH_BYTES)
    harness = connected()
    own = ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=2 * BATCH_BYTES)
    states = opened(harness, 10, own)
    sent = 0
    for state in states:
        if not state.full:
            send(harness, state, bytes(BATCH_BYTES))
            sent += 1
    assert sent == 4
    harness.settle()
    assert sorted(harness.resumed) == [state.number for state in states[4:]]
    assert not any(state.full for state in states)


@given(
    st.integers(0, 1 << 32),
    st.integers(2, 8),
    st.sampled_from([("all", 1), ("all", 6), ("none", 1)]),
)
def test_a_waiting_producer_is_resumed_when_all_is_settled(seed: int, count: int, kind: tuple[Acks, int]) -> None:
    """Streams of many producers, each blocked by its own window, by the common one, or by a full send buffer."""
    acks, windows = kind
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight_window, "CLIENT_WINDOW_BYTES", 16 * BATCH_BYTES)
        harness = connected()
    own = ProducerSettings(acks=acks, batch_bytes=BATCH_BYTES, window_bytes=4 * windows * BATCH_BYTES)
    left = dict.fromkeys(opened(harness, count, own), 30)
    waiting: set[int] = set()
    link = harness.core.link.number
    for _ in range(20_000):
        if not any(left.values()):
            break
        waiting -= set(harness.resumed)
        harness.resumed.clear()
        able = [state for state, more in left.items() if more and state.number not in waiting]
        if able and random.random() < 0.7:
            state = random.choice(able)
            if state.full:
                waiting.add(state.number)
            else:
                left[state] -= 1
                send(harness, state, bytes(BATCH_BYTES))
                if acks == "none" and random.random() < 0.2:
                    harness.core.congested(link)
        elif random.random() < 0.1:
            harness.core.drained(link)
            harness.run()
        elif harness.to_node:
            harness.deliver_to_node(random.randint(1, len(harness.to_node)))
        elif harness.to_client:
            harness.deliver_to_client(random.randint(1, len(harness.to_client)))
    assert not any(left.values()), (waiting, harness.core._producers._window.bytes)


def test_one_that_waited_for_itself_and_then_for_the_others_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All it has sent is acknowledged while the others nearly fill the common window."""
    monkeypatch.setattr(in_flight_window, "CLIENT_WINDOW_BYTES", 17 * BATCH_BYTES)
    harness = connected()
    own = ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=4 * BATCH_BYTES)
    first, *others, last = opened(harness, 5, own)
    for state in (first, *others):
        for _ in range(4):
            assert not state.full
            send(harness, state, bytes(BATCH_BYTES))
    assert first.full
    harness.deliver_to_node(16)
    harness.deliver_to_client(1)
    send(harness, last, bytes(BATCH_BYTES))
    harness.deliver_to_client(3)
    assert first.unacknowledged_bytes == 0
    assert harness.resumed == []
    harness.settle()
    assert harness.resumed == [first.number]


def test_one_with_a_large_window_of_its_own_does_not_keep_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_window, "CLIENT_WINDOW_BYTES", BATCH_BYTES)
    harness = connected()
    large, small = opened(harness, 2, ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=4 * BATCH_BYTES))
    sent = 0
    while not large.full:
        send(harness, large, bytes(BATCH_BYTES))
        sent += 1
    assert sent == 4
    assert small.full
    harness.deliver_to_node(4)
    harness.deliver_to_client(2)
    assert small.number in harness.resumed
    assert not small.full


def test_an_ended_producer_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_window, "CLIENT_WINDOW_BYTES", BATCH_BYTES)
    harness = connected()
    first, second = opened(harness, 2, ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=BATCH_BYTES))
    send(harness, first, bytes(BATCH_BYTES))
    assert second.full
    second.end(ClientClosed())
    assert not second.full


def test_a_lost_connection_takes_its_send_buffer_with_it() -> None:
    """A producer with acks none that waited for the send buffer is resumed."""
    harness = connected()
    (state,) = opened(harness, 1, ProducerSettings(acks="none"))
    harness.core.congested(harness.core.link.number)
    assert state.full
    harness.disconnect()
    harness.run()
    assert harness.resumed == [state.number]


def test_an_invalid_value_costs_no_other_producer_its_records() -> None:
    harness = connected(Options(delivery_timeout_ms=1_000))
    for number in range(3):
        harness.node._create(f"t{number}", TopicSettings(2))
    for value in (b"x", b"x"):
        for number in range(3):
            harness.core.publish(harness.now_us, harness.call(), f"t{number}", value)
            harness.run()
        harness.settle()
    for number in range(3):
        harness.core.publish(harness.now_us, harness.call(), f"t{number}", b"first")
        wrong: Any = "no bytes"
        with pytest.raises(InvalidArgument):
            harness.core.publish(harness.now_us, harness.call(), f"t{number}", wrong)
        harness.core.publish(harness.now_us, harness.call(), f"t{number}", b"second")
        harness.run()
    harness.core.end_turn(harness.now_us)
    harness.run()
    harness.settle()
    for number in range(3):
        stored = [value or b"" for part in range(2) for value in harness.node.log(f"t{number}", part).values()]
        assert sorted(stored) == [b"first", b"second", b"x", b"x"]


def test_failed_batches_free_the_window_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_window, "CLIENT_WINDOW_BYTES", 2 * BATCH_BYTES)
    harness = connected()
    own = ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=2 * BATCH_BYTES)
    first, second = opened(harness, 2, own)
    while not first.full:
        send(harness, first, bytes(BATCH_BYTES))
    assert second.full
    harness.core.close_producer(first)
    harness.run()
    assert second.number in harness.resumed
    assert not second.full


def test_a_producer_whose_batch_can_not_be_encoded_costs_no_other_its_wakeup() -> None:
    harness = connected(Options(delivery_timeout_ms=2_000))
    good, bad = opened(harness, 2, ProducerSettings(linger_ms=5))
    wrong: Any = "no bytes"
    send(harness, good, b"x")
    good.end_turn(harness.now_us)
    for state, value in ((good, b"y"), (bad, wrong)):
        # As a driver may do, without the checks of `add`.
        state.builder.values.append(value)
        state.end_turn(harness.now_us)
    harness.core.tick(harness.now_us + 5_000)
    harness.run()
    assert isinstance(bad.error, InvalidSetting)
    call = harness.call()
    good.flush(harness.now_us, call)
    harness.pass_time(2_100_000)
    assert isinstance(harness.errors[call], NotAcknowledged)


def test_batches_expire_however_often_their_producer_was_woken_for_something_else() -> None:
    """A lingering producer is woken often; outdated wakeups do not accumulate."""
    harness = connected(Options(delivery_timeout_ms=2_000))
    lingering, expiring = opened(harness, 2, ProducerSettings(linger_ms=5))
    for _ in range(20 * SPARE):
        lingering.add(harness.now_us, b"x")
        lingering.end_turn(harness.now_us)
        harness.run()
        harness.pass_time(5_000)
        harness.settle()
    assert len(harness.core._producers._wakeups) <= 2 * 2 + SPARE + 1
    send(harness, expiring, b"x")
    call = harness.call()
    expiring.flush(harness.now_us, call)
    harness.pass_time(1_999_000)
    assert call not in harness.results and call not in harness.errors
    harness.pass_time(1_001)
    assert isinstance(harness.errors[call], NotAcknowledged)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 40)), max_size=60))
def test_no_producer_is_woken_too_late(moves: list[tuple[int, int, int]]) -> None:
    """The core's deadline is never later than a full scan of all producers would give."""
    harness = connected(Options(delivery_timeout_ms=50))
    states = opened(harness, 5, ProducerSettings(linger_ms=7))
    for number, move, ms in moves:
        state = states[number]
        match move:
            case 0:
                state.add(harness.now_us, b"x")
                state.end_turn(harness.now_us)
            case 1:
                send(harness, state, b"x")
            case 2:
                harness.pass_time(ms * 1000)
            case _:
                harness.settle()
        harness.run()
        due = [one.deadline_us() for one in states]
        earliest = min((moment for moment in due if moment is not None), default=NEVER_US)
        said = harness.core.deadline_us()
        assert said is not None or earliest == NEVER_US
        assert said is None or said <= earliest
