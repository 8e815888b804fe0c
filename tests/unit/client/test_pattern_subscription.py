"""Subscriptions to several topics and to patterns: which topics they cover, where they start, how they continue."""

from __future__ import annotations

import pytest

from rostra.client.core.events import TopicAppeared, TopicGone
from rostra.client.core.options import Last, Offset, Options, Start
from rostra.client.core.subscription.pattern_subscription import SUSPECT_US, PatternSubscription
from rostra.errors import (
    InvalidPattern,
    InvalidSetting,
    NotSupported,
    OffsetOutOfRange,
    TopicDeleted,
    Unavailable,
    UnknownTopic,
    WatchEnded,
)
from rostra.wire.features import FEATURES, PATTERNS
from rostra.wire.messages import DeleteTopic, Ended, Locate, Subscribe, TopicSettings, Unsubscribe, Unwatch, Watch
from tests.unit.client.core_harness import CoreHarness


def connected(*topics: str, options: Options | None = None) -> CoreHarness:
    harness = CoreHarness(options)
    harness.node.features = FEATURES
    for name in topics:
        harness.node._create(name, TopicSettings())
    harness.connect()
    return harness


def publish(harness: CoreHarness, name: str, *values: bytes) -> None:
    for value in values:
        call = harness.call()
        harness.core.publish(harness.now_us, call, name, value)
        harness.run()
        harness.settle()
        assert call in harness.results


def subscribe(harness: CoreHarness, *names: str, start: Start = "earliest") -> PatternSubscription:
    call = harness.call()
    subscription = harness.core.subscribe_to_several(harness.now_us, call, names, start)
    harness.run()
    harness.settle()
    assert call in harness.results, harness.errors
    return subscription


def delete(harness: CoreHarness, name: str) -> None:
    """Another client creates a topic."""
    harness.node.received(0, DeleteTopic(0, name), None)


def subscribed(harness: CoreHarness) -> list[int]:
    return [message.topic for message in harness.written if isinstance(message, Subscribe)]


@pytest.mark.requirement("CM-6:patterns")
def test_a_topic_that_several_patterns_match_is_delivered_once() -> None:
    harness = connected("sensors/a/temp", "sensors/b/hum", "other")
    for name in ("sensors/a/temp", "sensors/b/hum", "other"):
        publish(harness, name, name.encode())
    subscription = subscribe(harness, "sensors/#", "sensors/+/temp", "sensors/a/temp", "#", "#")
    assert sorted(harness.values(subscription.number), key=str) == [b"other", b"sensors/a/temp", b"sensors/b/hum"]
    assert len(subscribed(harness)) == 3
    assert subscription.by_topic([]) == {"other": {0: 1}, "sensors/a/temp": {0: 1}, "sensors/b/hum": {0: 1}}


@pytest.mark.parametrize(("start", "expected"), [("latest", []), ("earliest", [b"1", b"2", b"3"]), (Last(1), [b"3"])])
def test_topics_there_at_the_beginning_start_as_asked_and_later_ones_with_their_first_record(
    start: Start, expected: list[bytes]
) -> None:
    harness = connected("a/one")
    publish(harness, "a/one", b"1", b"2", b"3")
    subscription = subscribe(harness, "a/+", start=start)
    assert harness.values(subscription.number) == expected
    harness.node._create("a/two", TopicSettings(2))
    for partition in range(2):
        call = harness.call()
        harness.core.publish(harness.now_us, call, "a/two", b"new", partition=partition)
    harness.core.end_turn(harness.now_us)
    harness.run()
    harness.settle()
    assert harness.values(subscription.number) == [*expected, b"new", b"new"]
    assert TopicAppeared("a/two", 2) in harness.events


def test_a_pattern_that_nothing_matches_stands_and_waits() -> None:
    harness = connected("other")
    subscription = subscribe(harness, "a/#", start="latest")
    assert subscription.by_topic([]) == {}
    harness.node._create("a", TopicSettings())
    publish(harness, "a", b"x")
    assert harness.values(subscription.number) == [b"x"]


@pytest.mark.parametrize("feed_first", [True, False])
def test_a_deleted_topic_is_left_with_an_event_and_the_others_go_on(feed_first: bool) -> None:
    harness = connected("a/one", "a/two")
    subscription = subscribe(harness, "a/#")
    publish(harness, "a/one", b"1")
    delete(harness, "a/one")
    if feed_first:
        number = next(feed.number for feed in subscription.parts[1].feeds.values())
        harness.receive(Ended(number, "TopicDeleted", TopicDeleted("a/one").carried()))
    harness.settle()
    assert [event for event in harness.events if isinstance(event, TopicGone)] == [TopicGone("a/one", 1)]
    assert harness.finished == {}
    publish(harness, "a/two", b"2")
    assert harness.values(subscription.number) == [b"1", b"2"]
    assert subscription.by_topic([]) == {"a/two": {0: 1}}
    harness.pass_time(2 * SUSPECT_US)
    harness.settle()
    assert subscribed(harness).count(1) == 1


def test_a_topic_made_again_is_another_one_and_comes_with_its_first_record() -> None:
    harness = connected("a/one")
    subscription = subscribe(harness, "a/#", start="latest")
    publish(harness, "a/one", b"old")
    harness.core.delete_topic(harness.now_us, harness.call(), "a/one")
    harness.run()
    harness.settle()
    harness.node._create("a/one", TopicSettings())
    publish(harness, "a/one", b"new")
    harness.pass_time(2 * SUSPECT_US)
    harness.settle()
    assert harness.values(subscription.number) == [b"old", b"new"]
    gone_and_come = [event for event in harness.events if isinstance(event, TopicGone | TopicAppeared)]
    assert gone_and_come == [TopicGone("a/one", 1), TopicAppeared("a/one", 2)]


def test_a_topic_wrongly_reported_as_deleted_continues_where_it_stopped() -> None:
    harness = connected("a/one")
    subscription = subscribe(harness, "a/#", start="latest")
    publish(harness, "a/one", b"1")
    number = next(feed.number for feed in subscription.parts[1].feeds.values())
    harness.node.feeds[harness.link or 0].pop(number)
    harness.receive(Ended(number, "TopicDeleted", TopicDeleted("a/one").carried()))
    publish(harness, "a/one", b"2")
    harness.settle()
    assert harness.values(subscription.number) == [b"1"]
    harness.pass_time(2 * SUSPECT_US)
    harness.settle()
    assert harness.values(subscription.number) == [b"1", b"2"]
    assert not [event for event in harness.events if isinstance(event, TopicGone)]


def test_what_comes_and_goes_while_the_connection_is_lost_is_not_missed() -> None:
    harness = connected("a/one", "a/two")
    subscription = subscribe(harness, "a/#", start="latest")
    harness.disconnect()
    harness.node._create("a/three", TopicSettings())
    delete(harness, "a/two")
    harness.reconnect()
    harness.settle()
    publish(harness, "a/three", b"3")
    publish(harness, "a/one", b"1")
    assert harness.values(subscription.number) == [b"3", b"1"]
    gone_and_come = [event for event in harness.events if isinstance(event, TopicGone | TopicAppeared)]
    assert gone_and_come == [TopicAppeared("a/three", 3), TopicGone("a/two", 2)]


def test_many_topics_come_page_by_page() -> None:
    harness = connected(*(f"a/{number:02}" for number in range(25)))
    harness.node.page = 4
    subscription = subscribe(harness, "a/#")
    assert len(subscription.parts) == 25
    assert [message.after for message in harness.written if isinstance(message, Watch)][1:3] == ["a/03", "a/07"]


def test_a_connection_lost_between_two_pages_starts_over_and_takes_nothing_for_gone() -> None:
    harness = connected(*(f"a/{number}" for number in range(6)))
    harness.node.page = 4
    call = harness.call()
    subscription = harness.core.subscribe_to_several(harness.now_us, call, ("a/#",), "earliest")
    harness.run()
    harness.deliver_to_node(1)
    harness.deliver_to_client(1)
    assert len(subscription.parts) == 4
    harness.disconnect()
    harness.reconnect()
    assert call in harness.results
    assert len(subscription.parts) == 6
    assert not [event for event in harness.events if isinstance(event, TopicGone | TopicAppeared)]


def test_a_watch_that_the_node_ends_is_asked_for_again() -> None:
    harness = connected("a/one")
    subscription = subscribe(harness, "a/#")
    assert subscription.watch is not None
    harness.node.watchers.clear()
    harness.receive(Ended(subscription.watch.number, "WatchEnded", WatchEnded("the connection was full").carried()))
    harness.node._create("a/two", TopicSettings())
    harness.settle()
    assert len(subscription.parts) == 1
    harness.pass_time(1_000_000)
    harness.settle()
    assert len(subscription.parts) == 2
    assert harness.finished == {}


@pytest.mark.requirement("CM-9:unsubscribed")
def test_unsubscribing_is_done_when_every_feed_and_the_watch_are_acknowledged() -> None:
    harness = connected("a/one", "a/two")
    subscription = subscribe(harness, "a/#")
    call = harness.call()
    harness.core.unsubscribe(harness.now_us, call, subscription)
    harness.run()
    goodbyes = [message for message in harness.written if isinstance(message, Unsubscribe | Unwatch)]
    assert [type(message) for message in goodbyes] == [Unsubscribe, Unsubscribe, Unwatch]
    harness.deliver_to_node(3)
    harness.deliver_to_client(2)
    assert call not in harness.results
    harness.deliver_to_client(1)
    assert call in harness.results
    harness.node._create("a/three", TopicSettings())
    publish(harness, "a/one", b"late")
    publish(harness, "a/three", b"late")
    assert harness.values(subscription.number) == []
    assert not any(harness.node.watchers.values()) and not any(harness.node.feeds.values())


def test_topics_that_are_named_are_made_if_the_client_may_and_fail_the_subscription_if_not() -> None:
    harness = connected("a/one")
    subscription = subscribe(harness, "b", "a/#")
    assert set(subscription.by_topic([])) == {"a/one", "b"}
    strict = connected("a/one", options=Options(auto_create=False))
    call = strict.call()
    strict.core.subscribe_to_several(strict.now_us, call, ("b", "a/#"), "earliest")
    strict.run()
    strict.settle()
    assert isinstance(strict.errors[call], UnknownTopic)


def test_what_ends_one_of_the_topics_for_good_ends_the_subscription_with_the_reason() -> None:
    harness = connected("a/one", "a/two")
    subscription = subscribe(harness, "a/#")
    number = next(feed.number for feed in subscription.parts[1].feeds.values())
    gone = OffsetOutOfRange("a/one", 0, 0, 5, 9)
    harness.node.feeds[harness.link or 0].pop(number)
    harness.receive(Ended(number, "OffsetOutOfRange", gone.carried()))
    assert str(harness.finished[subscription.number]) == str(gone)
    harness.settle()
    assert not any(harness.node.watchers.values()) and not any(harness.node.feeds[harness.link or 0])


def test_a_subscription_that_is_not_live_in_time_fails_with_the_last_error() -> None:
    harness = connected("a/one", options=Options(call_timeout_ms=1000))
    harness.node.refuse_watch = Unavailable("metadata", 0, "its leader did not answer in time")
    call = harness.call()
    harness.core.subscribe_to_several(harness.now_us, call, ("a/#",), "earliest")
    harness.run()
    harness.settle()
    harness.pass_time(2_000_000)
    assert isinstance(harness.errors[call], Unavailable)


def test_a_node_that_is_too_old_for_patterns_is_not_asked() -> None:
    harness = connected("a/one")
    harness.disconnect()
    harness.node.features = tuple(feature for feature in FEATURES if feature != PATTERNS)
    harness.reconnect()
    call = harness.call()
    harness.core.subscribe_to_several(harness.now_us, call, ("a/#",), "earliest")
    harness.run()
    harness.settle()
    assert isinstance(harness.errors[call], NotSupported)
    assert not any(isinstance(message, Watch) for message in harness.written)


def test_what_makes_no_sense_is_refused_at_once() -> None:
    harness = connected()
    with pytest.raises(InvalidPattern):
        harness.core.subscribe_to_several(harness.now_us, 1, ("a/#/b",))
    with pytest.raises(InvalidSetting, match="offset"):
        harness.core.subscribe_to_several(harness.now_us, 1, ("a/#",), Offset(4))
    with pytest.raises(InvalidSetting, match="credit_bytes"):
        harness.core.subscribe_to_several(harness.now_us, 1, ("a/#",), credit_bytes=0)
    with pytest.raises(InvalidSetting, match="partition"):
        harness.core.subscribe_to(harness.now_us, 1, ("a/#",), "latest", 0, 1)
    with pytest.raises(InvalidSetting, match="topics"):
        harness.core.subscribe_to_several(harness.now_us, 1, ())


def test_a_batch_that_was_taken_gives_credit_to_its_own_topic_only() -> None:
    harness = connected("a/one", "a/two")
    call = harness.call()
    subscription = harness.core.subscribe_to_several(harness.now_us, call, ("a/#",), "earliest", 1)
    harness.run()
    harness.settle()
    publish(harness, "a/one", b"1", b"2")
    publish(harness, "a/two", b"3", b"4")
    assert harness.values(subscription.number) == [b"1", b"3"]
    (first, _) = harness.delivered[subscription.number]
    harness.core.consumed(subscription, first.partition, first.bytes, first.topic_id)
    harness.run()
    harness.settle()
    assert harness.values(subscription.number) == [b"1", b"3", b"2"]


def test_locating_many_new_topics_asks_once_for_each() -> None:
    harness = connected(*(f"a/{number:02}" for number in range(20)))
    subscribe(harness, "a/#", "a/+")
    assert len([message for message in harness.written if isinstance(message, Locate)]) == 20
