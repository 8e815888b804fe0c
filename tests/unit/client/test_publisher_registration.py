"""A producer with a strength: when it registers, how its lease is renewed, how it resigns."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.client.core.events import LeaseExpired
from rostra.client.core.options import Options, ProducerSettings
from rostra.client.core.producer.producer_state import ProducerState
from rostra.errors import InvalidSetting, LimitExceeded, NotRegistered, NotSupported, TimedOut
from rostra.wire.features import FEATURES
from rostra.wire.messages import ClientMessage, Ping, Publish, Register, TopicSettings, Unregister, Unregistered
from tests.unit.client.cluster_harness import ClusterHarness
from tests.unit.client.core_harness import CoreHarness
from tests.unit.client.model_cluster import ModelCluster


def connected(ownership: Any = "exclusive", partitions: int = 1) -> CoreHarness:
    harness = CoreHarness()
    harness.node.features = FEATURES
    harness.node._create("t", TopicSettings(partitions, ownership=ownership))
    harness.connect()
    return harness


def begin(harness: CoreHarness, **settings: Any) -> tuple[ProducerState, int]:
    call = harness.call()
    state = harness.core.open_producer(harness.now_us, call, "t", ProducerSettings(**settings))
    harness.run()
    return state, call


def opened(harness: CoreHarness, **settings: Any) -> ProducerState:
    state, call = begin(harness, **settings)
    harness.settle()
    assert call in harness.results
    return state


def publishers(harness: CoreHarness, partition: int = 0) -> dict[int, int]:
    return harness.node.publishers.get((harness.node.topics["t"].topic, partition), {})


def send(harness: CoreHarness, state: ProducerState, value: bytes) -> None:
    state.add(harness.now_us, value)
    state.close(harness.now_us)
    harness.run()


def said(harness: CoreHarness) -> list[ClientMessage]:
    return [message for message in harness.written if isinstance(message, Register | Unregister | Publish)]


def test_a_producer_with_a_strength_is_open_when_the_owners_of_all_partitions_know_it() -> None:
    harness = connected("shared", partitions=3)
    state, call = begin(harness, strength=5, lease_ms=2_000)
    harness.deliver_to_node(10)
    harness.deliver_to_client(1)
    harness.deliver_to_node(10)
    assert call not in harness.results
    harness.settle()
    assert call in harness.results
    assert [publishers(harness, partition) for partition in range(3)] == [{state.producer_id: 5}] * 3
    assert {message.lease_ms for message in harness.node.registers} == {2_000}


def test_a_producer_with_a_partition_registers_at_that_partition_only() -> None:
    harness = connected(partitions=3)
    state = opened(harness, strength=5, partition=1)
    assert [publishers(harness, partition) for partition in range(3)] == [{}, {state.producer_id: 5}, {}]


def test_only_where_ownership_is_exclusive_a_plain_producer_registers_and_as_the_weakest() -> None:
    shared, exclusive = connected("shared"), connected("exclusive")
    opened(shared)
    state = opened(exclusive)
    assert not shared.node.registers
    assert publishers(exclusive) == {state.producer_id: 0}


def test_publishing_single_records_to_an_exclusive_topic_registers_and_closing_the_client_takes_it_back() -> None:
    harness = connected()
    call = harness.call()
    harness.core.publish(harness.now_us, call, "t", b"x")
    harness.run()
    harness.settle()
    assert call in harness.results and list(publishers(harness).values()) == [0]
    harness.core.close(harness.now_us)
    messages = [type(message).__name__ for message in harness.written]
    for effect in harness.core.take():
        for buffer in getattr(effect, "buffers", ()):
            messages += [type(message).__name__ for message, _ in harness._reader.feed(buffer)]
    assert messages[-2:] == ["Unregister", "Goodbye"]


def test_a_topic_that_is_forgotten_is_left() -> None:
    harness = connected()
    call = harness.call()
    harness.core.publish(harness.now_us, call, "t", b"x")
    harness.run()
    harness.settle()
    harness.core._producers.forget_topic("t")
    harness.run()
    harness.settle()
    assert publishers(harness) == {}


def test_a_change_of_strength_stands_between_the_records_before_it_and_those_after() -> None:
    harness = connected()
    state = opened(harness, strength=5)
    state.add(harness.now_us, b"before")
    call = harness.call()
    state.set_strength(harness.now_us, call, 9)
    harness.run()
    send(harness, state, b"after")
    assert call not in harness.results
    assert [type(message).__name__ for message in said(harness)] == ["Register", "Publish", "Register", "Publish"]
    harness.settle()
    assert call in harness.results and publishers(harness) == {state.producer_id: 9}


def test_a_plain_producer_may_take_a_strength_later() -> None:
    harness = connected("shared")
    state = opened(harness)
    call = harness.call()
    state.set_strength(harness.now_us, call, 3)
    harness.run()
    harness.settle()
    assert call in harness.results and publishers(harness) == {state.producer_id: 3}


def test_leaving_is_done_when_the_owners_know_it() -> None:
    harness = connected(partitions=2)
    state = opened(harness, strength=5)
    call = harness.call()
    state.resign(harness.now_us, call)
    harness.run()
    assert call not in harness.results
    harness.settle()
    assert call in harness.results and publishers(harness, 0) == publishers(harness, 1) == {}


def test_leaving_without_a_connection_waits_no_longer_than_the_lease() -> None:
    harness = connected()
    state = opened(harness, strength=5, lease_ms=500)
    harness.reachable = False
    harness.disconnect()
    call = harness.call()
    state.resign(harness.now_us, call)
    harness.pass_time(499_000)
    assert call not in harness.errors
    harness.pass_time(1_000)
    assert isinstance(harness.errors[call], TimedOut)


def test_on_a_new_connection_it_registers_before_it_sends_again() -> None:
    harness = connected()
    state = opened(harness, strength=5)
    send(harness, state, b"x")
    harness.disconnect()
    harness.written.clear()
    harness.reconnect()
    assert [type(message).__name__ for message in said(harness)] == ["Register", "Publish"]
    assert state.acked == 1


def test_it_registers_with_the_new_owner_when_a_partition_moves() -> None:
    cluster = ModelCluster("a:1", "b:2")
    cluster.create("t", TopicSettings(ownership="exclusive"))
    harness = ClusterHarness(cluster, Options(("a:1", "b:2")))
    harness.connect()
    state = opened(harness, strength=5)
    cluster.move("t", 0, "b:2")
    send(harness, state, b"x")
    harness.settle()
    harness.pass_time(3_000_000)
    harness.settle()
    there = [
        message for address, message in harness.sent if address == "b:2" and isinstance(message, Register | Publish)
    ]
    assert [type(message).__name__ for message in there][:2] == ["Register", "Publish"]
    assert state.acked == 1


def test_a_short_lease_makes_pings_more_frequent_and_counts_missed_heartbeats_as_before() -> None:
    harness = connected()
    harness.written.clear()
    opened(harness, strength=5, lease_ms=400)
    for _ in range(10):
        harness.pass_time(100_000)
        harness.settle()
    assert sum(isinstance(message, Ping) for message in harness.written) >= 10
    harness.reachable = False
    # The node is silent: that is detected after three heartbeats of a second, not after three pings.
    harness.pass_time(1_500_000)
    assert harness.core.link.up
    harness.pass_time(1_600_000)
    assert not harness.core.link.up


def test_an_expired_lease_raises_an_event_and_is_renewed() -> None:
    harness = connected()
    state = opened(harness, strength=5)
    publishers(harness).clear()
    harness.receive(Unregistered(harness.node.topics["t"].topic, 0, state.producer_id, lapsed=True))
    assert LeaseExpired("t", 0) in harness.events
    harness.settle()
    assert publishers(harness) == {state.producer_id: 5}


def test_an_idle_producer_registers_at_the_new_owner_when_told_of_it() -> None:
    cluster = ModelCluster("a:1", "b:2")
    cluster.create("t", TopicSettings(ownership="exclusive"))
    harness = ClusterHarness(cluster, Options(("a:1", "b:2")))
    harness.connect()
    state = opened(harness, strength=5)
    cluster.move("t", 0, "b:2")
    (connection,) = [connection for connection in harness.connections.values() if connection.address == "a:1"]
    cluster.members["a:1"].say(
        connection.number, Unregistered(cluster.topics["t"].topic, 0, state.producer_id, lapsed=False)
    )
    harness.settle()
    harness.pass_time(3_000_000)
    harness.settle()
    assert any(address == "b:2" and isinstance(message, Register) for address, message in harness.sent)
    assert not any(isinstance(event, LeaseExpired) for event in harness.events)


@pytest.mark.parametrize("acks", ["all", "none"])
def test_what_is_refused_because_the_lease_ran_out_is_sent_again_behind_a_new_registration(acks: Any) -> None:
    harness = connected()
    state = opened(harness, strength=5, acks=acks)
    harness.node.refuse = NotRegistered("t", 0, state.producer_id)
    send(harness, state, b"x")
    harness.settle()
    harness.node.refuse = None
    harness.written.clear()
    harness.pass_time(3_000_000)
    harness.settle()
    kinds = [type(message).__name__ for message in said(harness)]
    # With acks `none` the record is lost as usual; only the registration is renewed.
    assert kinds == (["Register", "Publish"] if acks == "all" else ["Register"])


def test_a_registration_that_is_refused_for_good_fails_the_opening() -> None:
    harness = connected()
    harness.node.refuse = LimitExceeded("publishers_per_partition_max", 1)
    _, call = begin(harness, strength=1)
    harness.settle()
    assert isinstance(harness.errors[call], LimitExceeded)


def test_a_registration_refused_by_a_limit_is_retried() -> None:
    harness = connected()
    harness.node.refuse = LimitExceeded("requests_per_connection_max", 1)
    _, call = begin(harness, strength=1)
    harness.settle()
    assert call not in harness.errors
    harness.node.refuse = None
    harness.pass_time(500_000)
    harness.settle()
    assert call in harness.results


def test_a_node_that_knows_no_publishers_is_not_asked() -> None:
    harness = connected("shared")
    harness.node.features = ()
    harness.disconnect()
    harness.reconnect()
    _, call = begin(harness, strength=1)
    harness.settle()
    assert isinstance(harness.errors[call], NotSupported)
    assert not said(harness)


@pytest.mark.parametrize("settings", [{"strength": -1}, {"strength": 2**31}, {"lease_ms": 1}, {"lease_ms": 10**9}])
def test_what_the_wire_cannot_carry_is_refused_at_once(settings: Any) -> None:
    with pytest.raises(InvalidSetting):
        ProducerSettings(**settings)
