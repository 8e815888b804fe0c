"""Subscriptions to several topics and to patterns: which topics they get, from where on, and how they go on."""

from __future__ import annotations

import pytest

from rostra.client.core.events import TopicAppeared, TopicGone
from rostra.client.core.options import Last, Offset, Options, Start
from rostra.client.core.subscription.pattern_subscription import DOUBT_US, PatternSubscription
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
from tests.unit.client.play import Play


def connected(*topics: str, options: Options | None = None) -> Play:
    play = Play(options)
    play.node.features = FEATURES
    for name in topics:
        play.node._create(name, TopicSettings())
    play.connect()
    return play


def publish(play: Play, name: str, *values: bytes) -> None:
    for value in values:
        call = play.call()
        play.core.publish(play.now_us, call, name, value)
        play.run()
        play.settle()
        assert call in play.results


def subscribe(play: Play, *names: str, start: Start = "earliest") -> PatternSubscription:
    call = play.call()
    gathering = play.core.subscribe_to_several(play.now_us, call, names, start)
    play.run()
    play.settle()
    assert call in play.results, play.errors
    return gathering


def delete(play: Play, name: str) -> None:
    """By somebody else."""
    play.node.received(0, DeleteTopic(0, name), None)


def subscribed(play: Play) -> list[int]:
    return [message.topic for message in play.written if isinstance(message, Subscribe)]


@pytest.mark.requirement("CM-6")
def test_a_topic_that_several_patterns_match_is_delivered_once() -> None:
    play = connected("sensors/a/temp", "sensors/b/hum", "other")
    for name in ("sensors/a/temp", "sensors/b/hum", "other"):
        publish(play, name, name.encode())
    gathering = subscribe(play, "sensors/#", "sensors/+/temp", "sensors/a/temp", "#", "#")
    assert sorted(play.values(gathering.number), key=str) == [b"other", b"sensors/a/temp", b"sensors/b/hum"]
    assert len(subscribed(play)) == 3
    assert gathering.by_topic([]) == {"other": {0: 1}, "sensors/a/temp": {0: 1}, "sensors/b/hum": {0: 1}}


@pytest.mark.requirement("CM-6")
@pytest.mark.parametrize(("start", "expected"), [("latest", []), ("earliest", [b"1", b"2", b"3"]), (Last(1), [b"3"])])
def test_topics_there_at_the_beginning_start_as_asked_and_later_ones_with_their_first_record(
    start: Start, expected: list[bytes]
) -> None:
    play = connected("a/one")
    publish(play, "a/one", b"1", b"2", b"3")
    gathering = subscribe(play, "a/+", start=start)
    assert play.values(gathering.number) == expected
    play.node._create("a/two", TopicSettings(2))
    for partition in range(2):
        call = play.call()
        play.core.publish(play.now_us, call, "a/two", b"new", partition=partition)
    play.core.turn_publishers(play.now_us)
    play.run()
    play.settle()
    assert play.values(gathering.number) == [*expected, b"new", b"new"]
    assert TopicAppeared("a/two", 2) in play.events


def test_a_pattern_that_nothing_matches_stands_and_waits() -> None:
    play = connected("other")
    gathering = subscribe(play, "a/#", start="latest")
    assert gathering.by_topic([]) == {}
    play.node._create("a", TopicSettings())
    publish(play, "a", b"x")
    assert play.values(gathering.number) == [b"x"]


@pytest.mark.requirement("CM-9")
@pytest.mark.parametrize("feed_first", [True, False])
def test_a_deleted_topic_is_left_with_an_event_and_the_others_go_on(feed_first: bool) -> None:
    play = connected("a/one", "a/two")
    gathering = subscribe(play, "a/#")
    publish(play, "a/one", b"1")
    delete(play, "a/one")
    if feed_first:
        number = next(feed.number for feed in gathering.parts[1].feeds.values())
        play.hear(Ended(number, "TopicDeleted", TopicDeleted("a/one").carried()))
    play.settle()
    assert [event for event in play.events if isinstance(event, TopicGone)] == [TopicGone("a/one", 1)]
    assert play.finished == {}
    publish(play, "a/two", b"2")
    assert play.values(gathering.number) == [b"1", b"2"]
    assert gathering.by_topic([]) == {"a/two": {0: 1}}
    play.pass_time(2 * DOUBT_US)
    play.settle()
    assert subscribed(play).count(1) == 1


def test_a_topic_made_again_is_another_one_and_comes_with_its_first_record() -> None:
    play = connected("a/one")
    gathering = subscribe(play, "a/#", start="latest")
    publish(play, "a/one", b"old")
    play.core.delete_topic(play.now_us, play.call(), "a/one")
    play.run()
    play.settle()
    play.node._create("a/one", TopicSettings())
    publish(play, "a/one", b"new")
    play.pass_time(2 * DOUBT_US)
    play.settle()
    assert play.values(gathering.number) == [b"old", b"new"]
    gone_and_come = [event for event in play.events if isinstance(event, TopicGone | TopicAppeared)]
    assert gone_and_come == [TopicGone("a/one", 1), TopicAppeared("a/one", 2)]


def test_a_topic_that_somebody_wrongly_calls_gone_goes_on_where_it_stopped() -> None:
    play = connected("a/one")
    gathering = subscribe(play, "a/#", start="latest")
    publish(play, "a/one", b"1")
    number = next(feed.number for feed in gathering.parts[1].feeds.values())
    play.node.feeds[play.link or 0].pop(number)
    play.hear(Ended(number, "TopicDeleted", TopicDeleted("a/one").carried()))
    publish(play, "a/one", b"2")
    play.settle()
    assert play.values(gathering.number) == [b"1"]
    play.pass_time(2 * DOUBT_US)
    play.settle()
    assert play.values(gathering.number) == [b"1", b"2"]
    assert not [event for event in play.events if isinstance(event, TopicGone)]


@pytest.mark.requirement("CM-10")
def test_what_comes_and_goes_while_the_connection_is_lost_is_not_missed() -> None:
    play = connected("a/one", "a/two")
    gathering = subscribe(play, "a/#", start="latest")
    play.lose()
    play.node._create("a/three", TopicSettings())
    delete(play, "a/two")
    play.come_back()
    play.settle()
    publish(play, "a/three", b"3")
    publish(play, "a/one", b"1")
    assert play.values(gathering.number) == [b"3", b"1"]
    gone_and_come = [event for event in play.events if isinstance(event, TopicGone | TopicAppeared)]
    assert gone_and_come == [TopicAppeared("a/three", 3), TopicGone("a/two", 2)]


def test_many_topics_come_page_by_page() -> None:
    play = connected(*(f"a/{number:02}" for number in range(25)))
    play.node.page = 4
    gathering = subscribe(play, "a/#")
    assert len(gathering.parts) == 25
    assert [message.after for message in play.written if isinstance(message, Watch)][1:3] == ["a/03", "a/07"]


def test_a_connection_lost_between_two_pages_starts_over_and_takes_nothing_for_gone() -> None:
    play = connected(*(f"a/{number}" for number in range(6)))
    play.node.page = 4
    call = play.call()
    gathering = play.core.subscribe_to_several(play.now_us, call, ("a/#",), "earliest")
    play.run()
    play.node_hears(1)
    play.client_hears(1)
    assert len(gathering.parts) == 4
    play.lose()
    play.come_back()
    assert call in play.results
    assert len(gathering.parts) == 6
    assert not [event for event in play.events if isinstance(event, TopicGone | TopicAppeared)]


def test_a_watch_that_the_node_ends_is_asked_for_again() -> None:
    play = connected("a/one")
    gathering = subscribe(play, "a/#")
    assert gathering.lookout is not None
    play.node.watchers.clear()
    play.hear(Ended(gathering.lookout.number, "WatchEnded", WatchEnded("the connection was full").carried()))
    play.node._create("a/two", TopicSettings())
    play.settle()
    assert len(gathering.parts) == 1
    play.pass_time(1_000_000)
    play.settle()
    assert len(gathering.parts) == 2
    assert play.finished == {}


@pytest.mark.requirement("CM-9")
def test_unsubscribing_is_done_when_every_feed_and_the_watch_are_acknowledged() -> None:
    play = connected("a/one", "a/two")
    gathering = subscribe(play, "a/#")
    call = play.call()
    play.core.unsubscribe(play.now_us, call, gathering)
    play.run()
    goodbyes = [message for message in play.written if isinstance(message, Unsubscribe | Unwatch)]
    assert [type(message) for message in goodbyes] == [Unsubscribe, Unsubscribe, Unwatch]
    play.node_hears(3)
    play.client_hears(2)
    assert call not in play.results
    play.client_hears(1)
    assert call in play.results
    play.node._create("a/three", TopicSettings())
    publish(play, "a/one", b"late")
    publish(play, "a/three", b"late")
    assert play.values(gathering.number) == []
    assert not any(play.node.watchers.values()) and not any(play.node.feeds.values())


def test_topics_that_are_named_are_made_if_the_client_may_and_fail_the_subscription_if_not() -> None:
    play = connected("a/one")
    gathering = subscribe(play, "b", "a/#")
    assert set(gathering.by_topic([])) == {"a/one", "b"}
    strict = connected("a/one", options=Options(auto_create=False))
    call = strict.call()
    strict.core.subscribe_to_several(strict.now_us, call, ("b", "a/#"), "earliest")
    strict.run()
    strict.settle()
    assert isinstance(strict.errors[call], UnknownTopic)


def test_what_ends_one_of_the_topics_for_good_ends_the_subscription_with_the_reason() -> None:
    play = connected("a/one", "a/two")
    gathering = subscribe(play, "a/#")
    number = next(feed.number for feed in gathering.parts[1].feeds.values())
    gone = OffsetOutOfRange("a/one", 0, 0, 5, 9)
    play.node.feeds[play.link or 0].pop(number)
    play.hear(Ended(number, "OffsetOutOfRange", gone.carried()))
    assert str(play.finished[gathering.number]) == str(gone)
    play.settle()
    assert not any(play.node.watchers.values()) and not any(play.node.feeds[play.link or 0])


def test_a_subscription_that_cannot_stand_in_time_fails_with_what_was_heard() -> None:
    play = connected("a/one", options=Options(call_timeout_ms=1000))
    play.node.refuse_watch = Unavailable("catalogue", 0, "its leader did not answer in time")
    call = play.call()
    play.core.subscribe_to_several(play.now_us, call, ("a/#",), "earliest")
    play.run()
    play.settle()
    play.pass_time(2_000_000)
    assert isinstance(play.errors[call], Unavailable)


def test_a_node_that_is_too_old_for_patterns_is_not_asked() -> None:
    play = connected("a/one")
    play.lose()
    play.node.features = tuple(feature for feature in FEATURES if feature != PATTERNS)
    play.come_back()
    call = play.call()
    play.core.subscribe_to_several(play.now_us, call, ("a/#",), "earliest")
    play.run()
    play.settle()
    assert isinstance(play.errors[call], NotSupported)
    assert not any(isinstance(message, Watch) for message in play.written)


def test_what_makes_no_sense_is_refused_at_once() -> None:
    play = connected()
    with pytest.raises(InvalidPattern):
        play.core.subscribe_to_several(play.now_us, 1, ("a/#/b",))
    with pytest.raises(InvalidSetting, match="offset"):
        play.core.subscribe_to_several(play.now_us, 1, ("a/#",), Offset(4))
    with pytest.raises(InvalidSetting, match="credit_bytes"):
        play.core.subscribe_to_several(play.now_us, 1, ("a/#",), credit_bytes=0)
    with pytest.raises(InvalidSetting, match="partition"):
        play.core.subscribe_to(play.now_us, 1, ("a/#",), "latest", 0, 1)
    with pytest.raises(InvalidSetting, match="topics"):
        play.core.subscribe_to_several(play.now_us, 1, ())


def test_a_batch_that_was_taken_gives_credit_to_its_own_topic_only() -> None:
    play = connected("a/one", "a/two")
    call = play.call()
    gathering = play.core.subscribe_to_several(play.now_us, call, ("a/#",), "earliest", 1)
    play.run()
    play.settle()
    publish(play, "a/one", b"1", b"2")
    publish(play, "a/two", b"3", b"4")
    assert play.values(gathering.number) == [b"1", b"3"]
    (first, _) = play.delivered[gathering.number]
    play.core.taken(gathering, first.partition, first.bytes, first.topic_id)
    play.run()
    play.settle()
    assert play.values(gathering.number) == [b"1", b"3", b"2"]


def test_locating_many_new_topics_asks_once_for_each() -> None:
    play = connected(*(f"a/{number:02}" for number in range(20)))
    subscribe(play, "a/#", "a/+")
    assert len([message for message in play.written if isinstance(message, Locate)]) == 20
