"""Watches: their notifications, and when a node ends them."""

from __future__ import annotations

from random import Random

import pytest

from rostra.broker.api import ConnectionCongested, ConnectionDrained
from rostra.broker.broker import SWEEP
from rostra.broker.settings import BrokerSettings
from rostra.broker.topics import topic_table
from rostra.broker.topics.pattern_watches import ConnectionWatch
from rostra.errors import InvalidPattern, LimitExceeded, Unavailable, WatchEnded
from rostra.fabric.api import (
    Confirm,
    Confirmed,
    Fabric,
    FabricEffect,
    FabricInput,
    Now,
    Refused,
    TimerFired,
)
from rostra.fabric.raft.machine import Raft
from rostra.model.patterns import PatternTrie
from rostra.wire.messages import (
    Agreed,
    DeleteTopic,
    Ended,
    Failed,
    TopicsAppeared,
    TopicsGone,
    Unwatch,
    Watch,
    Watched,
)
from tests.unit.broker.broker_driver import IDENTITY, BrokerDriver


class UnconfirmingRaft(Raft):
    """A fabric that confirms or refuses when the test says so."""

    def __init__(self) -> None:
        super().__init__(IDENTITY.node, "here:1", random=Random(1))
        self.asked: list[int] = []

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        if isinstance(given, Confirm):
            self.asked.append(given.token)
            return []
        return super().step(now, given)


def driver_with_topics(
    *topics: str, settings: BrokerSettings | None = None, fabric: Fabric | None = None
) -> BrokerDriver:
    driver = BrokerDriver(settings, fabric=fabric).start()
    driver.connect(1)
    driver.connect(2)
    for name in topics:
        driver.make_topic(1, name)
    return driver


def watch(driver: BrokerDriver, *patterns: str, conn: int = 2, number: int = 7) -> list[str]:
    """The topic names in the reply."""
    driver.send(conn, Watch(driver.request(), number, patterns))
    (answer,) = driver.received(conn, Watched)
    assert answer.watch == number
    return [topic.name for topic in answer.topics]


@pytest.mark.requirement("CM-6:new-topics")
def test_a_watch_reports_topics_that_exist_and_changes() -> None:
    driver = driver_with_topics("a/one", "b", "a")
    assert watch(driver, "a/#", "a/+", "a/one") == ["a", "a/one"]
    made = driver.make_topic(1, "a/two")
    driver.make_topic(1, "c")
    (message,) = driver.received(2, TopicsAppeared)
    assert (message.watch, [(topic.topic, topic.name) for topic in message.topics]) == (7, [(made, "a/two")])
    driver.send(1, DeleteTopic(driver.request(), "a/two"))
    driver.send(1, DeleteTopic(driver.request(), "b"))
    driver.settle()
    assert driver.received(2, TopicsGone) == [TopicsGone(7, (made,))]
    assert driver.received(1, TopicsAppeared) == []


def test_many_topics_come_in_pages_without_gap_or_repeat() -> None:
    names = [f"{level}/{number}" for level in ("a", "b", "c") for number in range(10)]
    driver = driver_with_topics(*names)
    patterns = ("a/+", "c/#", "c/3", "b/4", "+/5")
    found: list[str] = []
    after = ""
    while True:
        driver.send(2, Watch(driver.request(), 7, patterns, after, 4))
        (page,) = driver.received(2, Watched)
        assert len(page.topics) <= 4
        found += [topic.name for topic in page.topics]
        after = page.after
        if not after:
            break
    assert found == sorted({*names[:10], *names[20:], "b/4", "b/5"})


def test_a_page_ends_early_rather_than_scanning_all_names_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_table, "NAMES_SCANNED_MAX", 3)
    driver = driver_with_topics("a/x", "b/y", "c/x", "d/y", "e/x")
    driver.send(2, Watch(1, 7, ("+/x",)))
    (page,) = driver.received(2, Watched)
    assert ([topic.name for topic in page.topics], page.after) == (["a/x", "c/x"], "c/x")
    driver.send(2, Watch(2, 7, ("+/x",), page.after))
    (page,) = driver.received(2, Watched)
    assert ([topic.name for topic in page.topics], page.after) == (["e/x"], "")


def test_nothing_is_sent_after_unwatch_is_confirmed() -> None:
    driver = driver_with_topics()
    watch(driver, "#")
    watch(driver, "a/#", number=8)
    driver.send(2, Unwatch(99, 7))
    assert driver.received(2, Agreed) == [Agreed(99)]
    driver.make_topic(1, "a/one")
    assert [message.watch for message in driver.received(2, TopicsAppeared)] == [8]


def test_a_lost_connection_leaves_no_watch_behind() -> None:
    driver = driver_with_topics()
    watch(driver, "#", "a/+")
    driver.disconnect(2)
    driver.make_topic(1, "a/one")
    assert driver.received(2, TopicsAppeared) == []
    assert not driver.broker.pattern_watches._trie


def test_a_watch_starts_only_when_the_topic_table_is_confirmed() -> None:
    fabric = UnconfirmingRaft()
    driver = driver_with_topics("a/one", fabric=fabric)
    driver.send(2, Watch(5, 7, ("#",)))
    driver.make_topic(1, "a/two")
    assert (driver.received(2, Watched), driver.received(2, TopicsAppeared)) == ([], [])
    driver.broker.carry_out([Confirmed(fabric.asked.pop())])
    driver.effects += driver.broker.out
    (answer,) = driver.received(2, Watched)
    assert [topic.name for topic in answer.topics] == ["a/one", "a/two"]


def test_a_watch_cancelled_before_the_reply_does_not_start() -> None:
    fabric = UnconfirmingRaft()
    driver = driver_with_topics(fabric=fabric)
    driver.send(2, Watch(5, 7, ("#",)))
    driver.send(2, Unwatch(6, 7))
    driver.broker.out = []
    driver.broker.carry_out([Confirmed(fabric.asked.pop())])
    driver.effects += driver.broker.out
    assert isinstance(driver.error(2), WatchEnded)
    assert not driver.broker.pattern_watches._trie


@pytest.mark.parametrize("late", ["refused", "confirmed"])
def test_a_late_answer_to_a_cancelled_watch_does_not_affect_the_next_one_of_its_number(late: str) -> None:
    fabric = UnconfirmingRaft()
    driver = driver_with_topics("a/one", fabric=fabric)
    driver.send(2, Watch(5, 7, ("#",)))
    driver.send(2, Unwatch(6, 7))
    driver.send(2, Watch(8, 7, ("#",)))
    first, second = fabric.asked

    def answer(effect: FabricEffect) -> None:
        driver.broker.out = []
        driver.broker.carry_out([effect])
        driver.effects += driver.broker.out

    if late == "confirmed":
        answer(Confirmed(first))
        assert driver.received(2, Watched) == [], "what was asked later may know more"
    answer(Confirmed(second))
    assert [watched.request for watched in driver.received(2, Watched)] == [8]
    if late == "refused":
        answer(Refused(first, Unavailable("t", 0, "no answer")))
    driver.make_topic(1, "a/two")
    assert len(driver.received(2, TopicsAppeared)) == 1


def test_a_node_that_cannot_confirm_its_topic_table_refuses_and_ends_watches() -> None:
    fabric = UnconfirmingRaft()
    driver = driver_with_topics(fabric=fabric)
    lost = Unavailable("t", 0, "no answer")

    def answer(effect: FabricEffect) -> None:
        driver.broker.out = []
        driver.broker.carry_out([effect])
        driver.effects += driver.broker.out

    driver.send(2, Watch(5, 7, ("#",)))
    answer(Refused(fabric.asked.pop(), lost))
    assert isinstance(driver.error(2), Unavailable)
    driver.send(2, Watch(6, 7, ("#",)))
    answer(Confirmed(fabric.asked.pop()))
    assert len(driver.received(2, Watched)) == 1
    driver.step(TimerFired(SWEEP))
    (doubt,) = fabric.asked
    driver.step(TimerFired(SWEEP))
    assert fabric.asked == [doubt]
    answer(Confirmed(doubt))
    driver.step(TimerFired(SWEEP))
    answer(Refused(fabric.asked[-1], lost))
    (ended,) = driver.received(2, Ended)
    assert (ended.subscription, ended.code) == (7, "WatchEnded")
    assert not driver.broker.pattern_watches._trie


def test_without_watches_nothing_is_rechecked() -> None:
    fabric = UnconfirmingRaft()
    driver = driver_with_topics(fabric=fabric)
    driver.step(TimerFired(SWEEP))
    assert fabric.asked == []


@pytest.mark.requirement("CM-19:output")
def test_the_watch_of_a_congested_connection_ends_when_it_drains() -> None:
    driver = driver_with_topics()
    watch(driver, "#")
    watch(driver, "elsewhere", number=8)
    driver.step(ConnectionCongested(2))
    for name in ("a", "b", "c"):
        driver.make_topic(1, name)
    assert driver.received(2, TopicsAppeared) == []
    driver.step(ConnectionDrained(2))
    (ended,) = driver.received(2, Ended)
    assert (ended.subscription, ended.code) == (7, "WatchEnded")
    driver.make_topic(1, "d")
    assert driver.received(2, TopicsAppeared) == []
    assert watch(driver, "#") == ["a", "b", "c", "d"]


@pytest.mark.requirement("CM-19:watches")
def test_watches_are_limited() -> None:
    driver = driver_with_topics(settings=BrokerSettings(watches_per_connection_max=2))
    watch(driver, "#", number=1)
    watch(driver, "#", number=2)
    driver.send(2, Watch(9, 3, ("#",)))
    assert isinstance(driver.error(2), LimitExceeded)
    assert watch(driver, "#", number=2) == [], "the same one again"
    watch(driver, "#", conn=1)


def test_an_invalid_pattern_is_refused_and_the_connection_goes_on() -> None:
    driver = driver_with_topics()
    driver.send(2, Watch(5, 7, ("a/#", "b+")))
    assert isinstance(driver.error(2), InvalidPattern)
    driver.send(2, Watch(6, 7, ("a/#",), "a/one"))
    assert isinstance(driver.error(2), WatchEnded)
    assert driver.closed == {} and driver.received(2, Failed) == []


def test_a_new_topic_costs_the_same_however_many_watch_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_with_topics()
    for number in range(200):
        watch(driver, f"elsewhere/{number}/#", f"e{number}/+", number=number)
    walks: list[str] = []
    match = PatternTrie.match

    def counted(trie: PatternTrie[ConnectionWatch], name: str) -> list[ConnectionWatch]:
        walks.append(name)
        return match(trie, name)

    monkeypatch.setattr(PatternTrie, "match", counted)
    driver.make_topic(1, "here")
    assert walks == ["here"], "one walk through one trie"
    assert driver.received(2, TopicsAppeared) == []
