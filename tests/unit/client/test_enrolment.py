"""A producer that publishes with a strength: when it says so, how often it is heard, how it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.client.core.events import LeaseExpired
from rostra.client.core.options import Options, ProducerSettings
from rostra.client.core.producer.producer_state import ProducerState
from rostra.errors import InvalidSetting, LimitExceeded, NotRegistered, NotSupported, TimedOut
from rostra.wire.features import FEATURES
from rostra.wire.messages import (
    ClientMessage,
    Ping,
    Publish,
    Register,
    Resign,
    TopicSettings,
    Unregistered,
)
from tests.unit.client.cluster_play import ClusterPlay
from tests.unit.client.model_cluster import Cluster
from tests.unit.client.play import Play


def connected(ownership: Any = "exclusive", partitions: int = 1) -> Play:
    play = Play()
    play.node.features = FEATURES
    play.node._create("t", TopicSettings(partitions, ownership=ownership))
    play.connect()
    return play


def begin(play: Play, **settings: Any) -> tuple[ProducerState, int]:
    call = play.call()
    state = play.core.open_producer(play.now_us, call, "t", ProducerSettings(**settings))
    play.run()
    return state, call


def opened(play: Play, **settings: Any) -> ProducerState:
    state, call = begin(play, **settings)
    play.settle()
    assert call in play.results
    return state


def book(play: Play, partition: int = 0) -> dict[int, int]:
    return play.node.publishers.get((play.node.topics["t"].topic, partition), {})


def send(play: Play, state: ProducerState, value: bytes) -> None:
    state.add(play.now_us, value)
    state.close(play.now_us)
    play.run()


def said(play: Play) -> list[ClientMessage]:
    return [message for message in play.written if isinstance(message, Register | Resign | Publish)]


def test_a_producer_with_a_strength_is_open_when_the_owners_of_all_partitions_know_it() -> None:
    play = connected("shared", partitions=3)
    state, call = begin(play, strength=5, lease_ms=2_000)
    play.node_hears(10)
    play.client_hears(1)
    play.node_hears(10)
    assert call not in play.results
    play.settle()
    assert call in play.results
    assert [book(play, partition) for partition in range(3)] == [{state.producer: 5}] * 3
    assert {message.lease_ms for message in play.node.registers} == {2_000}


def test_who_is_bound_to_one_partition_is_a_publisher_of_that_alone() -> None:
    play = connected(partitions=3)
    state = opened(play, strength=5, partition=1)
    assert [book(play, partition) for partition in range(3)] == [{}, {state.producer: 5}, {}]


@pytest.mark.requirement("HR-17")
def test_only_where_ownership_is_exclusive_a_plain_producer_registers_and_as_the_weakest() -> None:
    shared, exclusive = connected("shared"), connected("exclusive")
    opened(shared)
    state = opened(exclusive)
    assert not shared.node.registers
    assert book(exclusive) == {state.producer: 0}


def test_publishing_single_records_to_an_exclusive_topic_registers_and_closing_the_client_takes_it_back() -> None:
    play = connected()
    call = play.call()
    play.core.publish(play.now_us, call, "t", b"x")
    play.run()
    play.settle()
    assert call in play.results and list(book(play).values()) == [0]
    play.core.close(play.now_us)
    messages = [type(message).__name__ for message in play.written]
    for effect in play.core.take():
        for buffer in getattr(effect, "buffers", ()):
            messages += [type(message).__name__ for message, _ in play._reader.feed(buffer)]
    assert messages[-2:] == ["Resign", "Goodbye"]


def test_a_topic_that_is_forgotten_is_left() -> None:
    play = connected()
    call = play.call()
    play.core.publish(play.now_us, call, "t", b"x")
    play.run()
    play.settle()
    play.core._producers.forget_topic("t")
    play.run()
    play.settle()
    assert book(play) == {}


@pytest.mark.requirement("HR-15")
def test_a_change_of_strength_stands_between_the_records_before_it_and_those_after() -> None:
    play = connected()
    state = opened(play, strength=5)
    state.add(play.now_us, b"before")
    call = play.call()
    state.set_strength(play.now_us, call, 9)
    play.run()
    send(play, state, b"after")
    assert call not in play.results
    assert [type(message).__name__ for message in said(play)] == ["Register", "Publish", "Register", "Publish"]
    play.settle()
    assert call in play.results and book(play) == {state.producer: 9}


def test_a_plain_producer_may_take_a_strength_later() -> None:
    play = connected("shared")
    state = opened(play)
    call = play.call()
    state.set_strength(play.now_us, call, 3)
    play.run()
    play.settle()
    assert call in play.results and book(play) == {state.producer: 3}


@pytest.mark.requirement("HR-9")
def test_leaving_is_done_when_the_owners_know_it() -> None:
    play = connected(partitions=2)
    state = opened(play, strength=5)
    call = play.call()
    state.resign(play.now_us, call)
    play.run()
    assert call not in play.results
    play.settle()
    assert call in play.results and book(play, 0) == book(play, 1) == {}


def test_whoever_cannot_be_heard_waits_no_longer_for_its_leaving_than_its_lease() -> None:
    play = connected()
    state = opened(play, strength=5, lease_ms=500)
    play.reachable = False
    play.lose()
    call = play.call()
    state.resign(play.now_us, call)
    play.pass_time(499_000)
    assert call not in play.errors
    play.pass_time(1_000)
    assert isinstance(play.errors[call], TimedOut)


def test_on_a_new_connection_it_registers_before_it_sends_again() -> None:
    play = connected()
    state = opened(play, strength=5)
    send(play, state, b"x")
    play.lose()
    play.written.clear()
    play.come_back()
    assert [type(message).__name__ for message in said(play)] == ["Register", "Publish"]
    assert state.acked == 1


def test_it_registers_with_the_new_owner_when_a_partition_moves() -> None:
    cluster = Cluster("a:1", "b:2")
    cluster.create("t", TopicSettings(ownership="exclusive"))
    play = ClusterPlay(cluster, Options(("a:1", "b:2")))
    play.connect()
    state = opened(play, strength=5)
    cluster.move("t", 0, "b:2")
    send(play, state, b"x")
    play.settle()
    play.pass_time(3_000_000)
    play.settle()
    there = [message for address, message in play.sent if address == "b:2" and isinstance(message, Register | Publish)]
    assert [type(message).__name__ for message in there][:2] == ["Register", "Publish"]
    assert state.acked == 1


def test_a_short_lease_makes_it_heard_more_often_and_silence_is_counted_as_before() -> None:
    play = connected()
    play.written.clear()
    opened(play, strength=5, lease_ms=400)
    for _ in range(10):
        play.pass_time(100_000)
        play.settle()
    assert sum(isinstance(message, Ping) for message in play.written) >= 10
    play.reachable = False
    # The node has fallen silent: that is known after three heartbeats of a second, and not after three pings.
    play.pass_time(1_500_000)
    assert play.core.link.up
    play.pass_time(1_600_000)
    assert not play.core.link.up


def test_a_lease_that_ran_out_is_told_and_taken_anew() -> None:
    play = connected()
    state = opened(play, strength=5)
    book(play).clear()
    play.hear(Unregistered(play.node.topics["t"].topic, 0, state.producer, lapsed=True))
    assert LeaseExpired("t", 0) in play.events
    play.settle()
    assert book(play) == {state.producer: 5}


def test_whoever_hears_that_another_node_orders_the_partition_registers_there_although_it_has_nothing_to_say() -> None:
    cluster = Cluster("a:1", "b:2")
    cluster.create("t", TopicSettings(ownership="exclusive"))
    play = ClusterPlay(cluster, Options(("a:1", "b:2")))
    play.connect()
    state = opened(play, strength=5)
    cluster.move("t", 0, "b:2")
    (wire,) = [wire for wire in play.wires.values() if wire.address == "a:1"]
    cluster.members["a:1"].say(wire.number, Unregistered(cluster.topics["t"].topic, 0, state.producer, lapsed=False))
    play.settle()
    play.pass_time(3_000_000)
    play.settle()
    assert any(address == "b:2" and isinstance(message, Register) for address, message in play.sent)
    assert not any(isinstance(event, LeaseExpired) for event in play.events)


@pytest.mark.parametrize("acks", ["all", "none"])
def test_what_is_refused_because_the_lease_ran_out_is_sent_again_behind_a_new_registration(acks: Any) -> None:
    play = connected()
    state = opened(play, strength=5, acks=acks)
    play.node.refuse = NotRegistered("t", 0, state.producer)
    send(play, state, b"x")
    play.settle()
    play.node.refuse = None
    play.written.clear()
    play.pass_time(3_000_000)
    play.settle()
    kinds = [type(message).__name__ for message in said(play)]
    # With acks `none` the record is given up, as ever, and only the registration is mended.
    assert kinds == (["Register", "Publish"] if acks == "all" else ["Register"])


def test_a_registration_that_is_refused_for_good_fails_the_opening() -> None:
    play = connected()
    play.node.refuse = LimitExceeded("publishers_per_partition_max", 1)
    _, call = begin(play, strength=1)
    play.settle()
    assert isinstance(play.errors[call], LimitExceeded)


def test_a_registration_for_which_there_is_no_room_just_now_is_tried_again() -> None:
    play = connected()
    play.node.refuse = LimitExceeded("requests_per_connection_max", 1)
    _, call = begin(play, strength=1)
    play.settle()
    assert call not in play.errors
    play.node.refuse = None
    play.pass_time(500_000)
    play.settle()
    assert call in play.results


def test_a_node_that_knows_no_publishers_is_not_asked() -> None:
    play = connected("shared")
    play.node.features = ()
    play.lose()
    play.come_back()
    _, call = begin(play, strength=1)
    play.settle()
    assert isinstance(play.errors[call], NotSupported)
    assert not said(play)


@pytest.mark.parametrize("settings", [{"strength": -1}, {"strength": 2**31}, {"lease_ms": 1}, {"lease_ms": 10**9}])
def test_what_the_wire_cannot_carry_is_refused_at_once(settings: Any) -> None:
    with pytest.raises(InvalidSetting):
        ProducerSettings(**settings)
