"""Very many producers of one client: those that do nothing cost nothing, and all together keep a bound."""

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
from rostra.errors import ClientClosed, NotAcknowledged
from rostra.wire.messages import Acks, TopicSettings
from tests.unit.client.play import Play

BATCH_BYTES = 10_000


def opened(play: Play, count: int, settings: ProducerSettings | None = None) -> list[ProducerState]:
    made = []
    for number in range(count):
        play.node._create(f"t{number}", TopicSettings())
        call = play.call()
        made.append(play.core.open_producer(play.now_us, call, f"t{number}", settings or ProducerSettings()))
        play.run()
        play.settle()
        assert call in play.results
    return made


def connected(options: Options | None = None) -> Play:
    play = Play(options)
    play.connect()
    return play


def send(play: Play, state: ProducerState, value: bytes) -> None:
    state.add(play.now_us, value)
    state.close(play.now_us)
    play.run()


@pytest.mark.requirement("CM-4")
def test_idle_producers_are_not_even_looked_at_when_another_one_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    play = connected()
    first, *idle = opened(play, 50)
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
        send(play, first, b"x")
        play.settle()
        play.core.deadline_us()
        play.pass_time(1_000_000)
    assert len(play.node.log("t0").values()) == 10
    assert not {state.number for state in idle} & set(looked_at)


def test_records_of_publish_leave_at_the_end_of_the_turn_whichever_topics_they_are_for() -> None:
    play = connected()
    for number in range(20):
        play.node._create(f"t{number}", TopicSettings())
    for _ in range(3):
        for number in range(20):
            play.core.publish(play.now_us, play.call(), f"t{number}", b"x")
            play.run()
    play.core.turn_publishers(play.now_us)
    play.run()
    play.settle()
    assert [len(play.node.log(f"t{number}").values()) for number in range(20)] == [3] * 20


@pytest.mark.requirement("CM-4")
def test_all_producers_together_hold_their_callers_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And when there is room again, every one that waited is told."""
    monkeypatch.setattr(in_flight_window, "TOGETHER_BYTES_MAX", 4 * BATCH_BYTES)
    play = connected()
    own = ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=2 * BATCH_BYTES)
    states = opened(play, 10, own)
    sent = 0
    for state in states:
        if not state.full:
            send(play, state, bytes(BATCH_BYTES))
            sent += 1
    assert sent == 4
    play.settle()
    assert sorted(play.resumed) == [state.number for state in states[4:]]
    assert not any(state.full for state in states)


@given(
    st.integers(0, 1 << 32),
    st.integers(2, 8),
    st.sampled_from([("all", 1), ("all", 6), ("none", 1)]),
)
def test_whoever_waits_is_resumed_when_all_is_settled(seed: int, count: int, kind: tuple[Acks, int]) -> None:
    """Streams of many producers, each held back by its own window, by the common one, or by a full send buffer."""
    acks, windows = kind
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight_window, "TOGETHER_BYTES_MAX", 16 * BATCH_BYTES)
        play = connected()
    own = ProducerSettings(acks=acks, batch_bytes=BATCH_BYTES, window_bytes=4 * windows * BATCH_BYTES)
    left = dict.fromkeys(opened(play, count, own), 30)
    waiting: set[int] = set()
    link = play.core.link.number
    for _ in range(20_000):
        if not any(left.values()):
            break
        waiting -= set(play.resumed)
        play.resumed.clear()
        able = [state for state, more in left.items() if more and state.number not in waiting]
        if able and random.random() < 0.7:
            state = random.choice(able)
            if state.full:
                waiting.add(state.number)
            else:
                left[state] -= 1
                send(play, state, bytes(BATCH_BYTES))
                if acks == "none" and random.random() < 0.2:
                    play.core.congested(link)
        elif random.random() < 0.1:
            play.core.drained(link)
            play.run()
        elif play.towards_node:
            play.node_hears(random.randint(1, len(play.towards_node)))
        elif play.towards_client:
            play.client_hears(random.randint(1, len(play.towards_client)))
    assert not any(left.values()), (waiting, play.core._producers._window.bytes)


def test_one_that_waited_for_itself_and_then_for_the_others_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All it had sent is acknowledged while the others have nearly as much under way as all may have together."""
    monkeypatch.setattr(in_flight_window, "TOGETHER_BYTES_MAX", 17 * BATCH_BYTES)
    play = connected()
    own = ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=4 * BATCH_BYTES)
    first, *others, last = opened(play, 5, own)
    for state in (first, *others):
        for _ in range(4):
            assert not state.full
            send(play, state, bytes(BATCH_BYTES))
    assert first.full
    play.node_hears(16)
    play.client_hears(1)
    send(play, last, bytes(BATCH_BYTES))
    play.client_hears(3)
    assert first.unacknowledged_bytes == 0
    assert play.resumed == []
    play.settle()
    assert play.resumed == [first.number]


def test_one_with_a_large_window_of_its_own_does_not_keep_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_window, "TOGETHER_BYTES_MAX", BATCH_BYTES)
    play = connected()
    large, small = opened(play, 2, ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=4 * BATCH_BYTES))
    sent = 0
    while not large.full:
        send(play, large, bytes(BATCH_BYTES))
        sent += 1
    assert sent == 4
    assert small.full
    play.node_hears(4)
    play.client_hears(2)
    assert small.number in play.resumed
    assert not small.full


def test_one_that_ended_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_window, "TOGETHER_BYTES_MAX", BATCH_BYTES)
    play = connected()
    first, second = opened(play, 2, ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=BATCH_BYTES))
    send(play, first, bytes(BATCH_BYTES))
    assert second.full
    second.end(ClientClosed())
    assert not second.full


def test_a_lost_connection_takes_its_send_buffer_with_it() -> None:
    """Whoever waited for that, with acks none, is told."""
    play = connected()
    (state,) = opened(play, 1, ProducerSettings(acks="none"))
    play.core.congested(play.core.link.number)
    assert state.full
    play.lose()
    play.run()
    assert play.resumed == [state.number]


def test_a_value_that_is_none_costs_no_other_producer_its_records() -> None:
    play = connected(Options(delivery_timeout_ms=1_000))
    for number in range(3):
        play.node._create(f"t{number}", TopicSettings(2))
    for value in (b"x", b"x"):
        for number in range(3):
            play.core.publish(play.now_us, play.call(), f"t{number}", value)
            play.run()
        play.settle()
    for number in range(3):
        play.core.publish(play.now_us, play.call(), f"t{number}", b"first")
        wrong: Any = "no bytes" if number == 0 else b"second"
        play.core.publish(play.now_us, play.call(), f"t{number}", wrong)
        play.run()
    with pytest.raises(TypeError):
        play.core.turn_publishers(play.now_us)
    play.core.turn_publishers(play.now_us)
    play.run()
    play.settle()
    for number in (1, 2):
        stored = [value or b"" for part in range(2) for value in play.node.log(f"t{number}", part).values()]
        assert sorted(stored) == [b"first", b"second", b"x", b"x"]


def test_what_is_given_up_makes_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight_window, "TOGETHER_BYTES_MAX", 2 * BATCH_BYTES)
    play = connected()
    own = ProducerSettings(batch_bytes=BATCH_BYTES, window_bytes=2 * BATCH_BYTES)
    first, second = opened(play, 2, own)
    while not first.full:
        send(play, first, bytes(BATCH_BYTES))
    assert second.full
    play.core.close_producer(first)
    play.run()
    assert second.number in play.resumed
    assert not second.full


def test_a_producer_that_raises_when_it_is_woken_costs_no_other_its_moment() -> None:
    play = connected(Options(delivery_timeout_ms=2_000))
    good, bad = opened(play, 2, ProducerSettings(linger_ms=5))
    wrong: Any = "no bytes"
    send(play, good, b"x")
    good.turn(play.now_us)
    for state, value in ((good, b"y"), (bad, wrong)):
        state.add(play.now_us, value)
        state.turn(play.now_us)
    with pytest.raises(TypeError):
        play.core.tick(play.now_us + 5_000)
    play.run()
    call = play.call()
    good.flush(play.now_us, call)
    play.pass_time(2_100_000)
    assert isinstance(play.errors[call], NotAcknowledged)


def test_batches_expire_however_often_their_producer_was_woken_for_something_else() -> None:
    """A producer that lingers is woken often; moments that nobody waits for any more do not gather."""
    play = connected(Options(delivery_timeout_ms=2_000))
    lingering, expiring = opened(play, 2, ProducerSettings(linger_ms=5))
    for _ in range(20 * SPARE):
        lingering.add(play.now_us, b"x")
        lingering.turn(play.now_us)
        play.run()
        play.pass_time(5_000)
        play.settle()
    assert len(play.core._producers._wakes) <= 2 * 2 + SPARE + 1
    send(play, expiring, b"x")
    call = play.call()
    expiring.flush(play.now_us, call)
    play.pass_time(1_999_000)
    assert call not in play.results and call not in play.errors
    play.pass_time(1_001)
    assert isinstance(play.errors[call], NotAcknowledged)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 40)), max_size=60))
def test_nobody_is_woken_too_late(moves: list[tuple[int, int, int]]) -> None:
    """Whatever producers do, what the core says is not later than what the slowest way to find it out would say."""
    play = connected(Options(delivery_timeout_ms=50))
    states = opened(play, 5, ProducerSettings(linger_ms=7))
    for number, move, ms in moves:
        state = states[number]
        match move:
            case 0:
                state.add(play.now_us, b"x")
                state.turn(play.now_us)
            case 1:
                send(play, state, b"x")
            case 2:
                play.pass_time(ms * 1000)
            case _:
                play.settle()
        play.run()
        due = [one.deadline_us() for one in states]
        earliest = min((moment for moment in due if moment is not None), default=NEVER_US)
        said = play.core.deadline_us()
        assert said is not None or earliest == NEVER_US
        assert said is None or said <= earliest
