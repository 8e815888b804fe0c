"""Clients that watch for topics: what they are told, when, and when a node says that it no longer can."""

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
from tests.unit.broker.desk import IDENTITY, Desk


class Hesitant(Raft):
    """A fabric that confirms, or refuses to, when the test says so."""

    def __init__(self) -> None:
        super().__init__(IDENTITY.node, "here:1", random=Random(1))
        self.asked: list[int] = []

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        if isinstance(given, Confirm):
            self.asked.append(given.token)
            return []
        return super().step(now, given)


def watching(*topics: str, settings: BrokerSettings | None = None, fabric: Fabric | None = None) -> Desk:
    desk = Desk(settings, fabric=fabric).start()
    desk.connect(1)
    desk.connect(2)
    for name in topics:
        desk.make_topic(1, name)
    return desk


def watch(desk: Desk, *patterns: str, conn: int = 2, number: int = 7) -> list[str]:
    """The names that the answer has."""
    desk.say(conn, Watch(desk.request(), number, patterns))
    (answer,) = desk.heard(conn, Watched)
    assert answer.watch == number
    return [topic.name for topic in answer.topics]


@pytest.mark.requirement("CM-6:new-topics")
def test_a_watch_is_told_of_what_is_there_and_of_what_comes_and_goes() -> None:
    desk = watching("a/one", "b", "a")
    assert watch(desk, "a/#", "a/+", "a/one") == ["a", "a/one"]
    made = desk.make_topic(1, "a/two")
    desk.make_topic(1, "c")
    (told,) = desk.heard(2, TopicsAppeared)
    assert (told.watch, [(topic.topic, topic.name) for topic in told.topics]) == (7, [(made, "a/two")])
    desk.say(1, DeleteTopic(desk.request(), "a/two"))
    desk.say(1, DeleteTopic(desk.request(), "b"))
    desk.settle()
    assert desk.heard(2, TopicsGone) == [TopicsGone(7, (made,))]
    assert desk.heard(1, TopicsAppeared) == []


def test_many_topics_come_in_pages_and_none_is_left_out_or_told_twice() -> None:
    names = [f"{level}/{number}" for level in ("a", "b", "c") for number in range(10)]
    desk = watching(*names)
    patterns = ("a/+", "c/#", "c/3", "b/4", "+/5")
    found: list[str] = []
    after = ""
    while True:
        desk.say(2, Watch(desk.request(), 7, patterns, after, 4))
        (page,) = desk.heard(2, Watched)
        assert len(page.topics) <= 4
        found += [topic.name for topic in page.topics]
        after = page.after
        if not after:
            break
    assert found == sorted({*names[:10], *names[20:], "b/4", "b/5"})


def test_a_page_is_cut_short_rather_than_looking_at_all_names_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_table, "NAMES_SCANNED_MAX", 3)
    desk = watching("a/x", "b/y", "c/x", "d/y", "e/x")
    desk.say(2, Watch(1, 7, ("+/x",)))
    (page,) = desk.heard(2, Watched)
    assert ([topic.name for topic in page.topics], page.after) == (["a/x", "c/x"], "c/x")
    desk.say(2, Watch(2, 7, ("+/x",), page.after))
    (page,) = desk.heard(2, Watched)
    assert ([topic.name for topic in page.topics], page.after) == (["e/x"], "")


def test_after_unwatch_is_agreed_nothing_more_is_told() -> None:
    desk = watching()
    watch(desk, "#")
    watch(desk, "a/#", number=8)
    desk.say(2, Unwatch(99, 7))
    assert desk.heard(2, Agreed) == [Agreed(99)]
    desk.make_topic(1, "a/one")
    assert [told.watch for told in desk.heard(2, TopicsAppeared)] == [8]


def test_a_lost_connection_leaves_no_watch_behind() -> None:
    desk = watching()
    watch(desk, "#", "a/+")
    desk.lose(2)
    desk.make_topic(1, "a/one")
    assert desk.heard(2, TopicsAppeared) == []
    assert not desk.broker.pattern_watches._trie


def test_a_watch_begins_only_when_the_catalogue_is_confirmed() -> None:
    fabric = Hesitant()
    desk = watching("a/one", fabric=fabric)
    desk.say(2, Watch(5, 7, ("#",)))
    desk.make_topic(1, "a/two")
    assert (desk.heard(2, Watched), desk.heard(2, TopicsAppeared)) == ([], [])
    desk.broker.carry_out([Confirmed(fabric.asked.pop())])
    desk.effects += desk.broker.out
    (answer,) = desk.heard(2, Watched)
    assert [topic.name for topic in answer.topics] == ["a/one", "a/two"]


def test_a_watch_given_up_before_it_was_answered_does_not_begin() -> None:
    fabric = Hesitant()
    desk = watching(fabric=fabric)
    desk.say(2, Watch(5, 7, ("#",)))
    desk.say(2, Unwatch(6, 7))
    desk.broker.out = []
    desk.broker.carry_out([Confirmed(fabric.asked.pop())])
    desk.effects += desk.broker.out
    assert isinstance(desk.error(2), WatchEnded)
    assert not desk.broker.pattern_watches._trie


@pytest.mark.parametrize("late", ["refused", "confirmed"])
def test_a_late_word_about_a_watch_that_was_given_up_does_not_concern_the_next_one_of_its_number(late: str) -> None:
    fabric = Hesitant()
    desk = watching("a/one", fabric=fabric)
    desk.say(2, Watch(5, 7, ("#",)))
    desk.say(2, Unwatch(6, 7))
    desk.say(2, Watch(8, 7, ("#",)))
    first, second = fabric.asked

    def answer(effect: FabricEffect) -> None:
        desk.broker.out = []
        desk.broker.carry_out([effect])
        desk.effects += desk.broker.out

    if late == "confirmed":
        answer(Confirmed(first))
        assert desk.heard(2, Watched) == [], "what was asked later may know more"
    answer(Confirmed(second))
    assert [watched.request for watched in desk.heard(2, Watched)] == [8]
    if late == "refused":
        answer(Refused(first, Unavailable("topic_table", 0, "nobody answers")))
    desk.make_topic(1, "a/two")
    assert len(desk.heard(2, TopicsAppeared)) == 1


def test_a_node_that_cannot_confirm_what_it_knows_refuses_a_watch_and_ends_those_it_has() -> None:
    fabric = Hesitant()
    desk = watching(fabric=fabric)
    lost = Unavailable("topic_table", 0, "nobody answers")

    def answer(effect: FabricEffect) -> None:
        desk.broker.out = []
        desk.broker.carry_out([effect])
        desk.effects += desk.broker.out

    desk.say(2, Watch(5, 7, ("#",)))
    answer(Refused(fabric.asked.pop(), lost))
    assert isinstance(desk.error(2), Unavailable)
    desk.say(2, Watch(6, 7, ("#",)))
    answer(Confirmed(fabric.asked.pop()))
    assert len(desk.heard(2, Watched)) == 1
    desk.step(TimerFired(SWEEP))
    (doubt,) = fabric.asked
    desk.step(TimerFired(SWEEP))
    assert fabric.asked == [doubt]
    answer(Confirmed(doubt))
    desk.step(TimerFired(SWEEP))
    answer(Refused(fabric.asked[-1], lost))
    (ended,) = desk.heard(2, Ended)
    assert (ended.subscription, ended.code) == (7, "WatchEnded")
    assert not desk.broker.pattern_watches._trie


def test_nobody_watching_means_nobody_asked() -> None:
    fabric = Hesitant()
    desk = watching(fabric=fabric)
    desk.step(TimerFired(SWEEP))
    assert fabric.asked == []


@pytest.mark.requirement("CM-19:output")
def test_a_client_that_reads_nothing_is_told_nothing_and_its_watch_ends_when_it_reads_again() -> None:
    desk = watching()
    watch(desk, "#")
    watch(desk, "elsewhere", number=8)
    desk.step(ConnectionCongested(2))
    for name in ("a", "b", "c"):
        desk.make_topic(1, name)
    assert desk.heard(2, TopicsAppeared) == []
    desk.step(ConnectionDrained(2))
    (ended,) = desk.heard(2, Ended)
    assert (ended.subscription, ended.code) == (7, "WatchEnded")
    desk.make_topic(1, "d")
    assert desk.heard(2, TopicsAppeared) == []
    assert watch(desk, "#") == ["a", "b", "c", "d"]


@pytest.mark.requirement("CM-19:watches")
def test_watches_have_a_bound() -> None:
    desk = watching(settings=BrokerSettings(watches_per_connection_max=2))
    watch(desk, "#", number=1)
    watch(desk, "#", number=2)
    desk.say(2, Watch(9, 3, ("#",)))
    assert isinstance(desk.error(2), LimitExceeded)
    assert watch(desk, "#", number=2) == [], "the same one again"
    watch(desk, "#", conn=1)


def test_what_is_no_pattern_is_refused_and_the_connection_goes_on() -> None:
    desk = watching()
    desk.say(2, Watch(5, 7, ("a/#", "b+")))
    assert isinstance(desk.error(2), InvalidPattern)
    desk.say(2, Watch(6, 7, ("a/#",), "a/one"))
    assert isinstance(desk.error(2), WatchEnded)
    assert desk.closed == {} and desk.heard(2, Failed) == []


def test_a_new_topic_costs_the_same_however_many_watch_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = watching()
    for number in range(200):
        watch(desk, f"elsewhere/{number}/#", f"e{number}/+", number=number)
    walks: list[str] = []
    match = PatternTrie.match

    def counted(trie: PatternTrie[ConnectionWatch], name: str) -> list[ConnectionWatch]:
        walks.append(name)
        return match(trie, name)

    monkeypatch.setattr(PatternTrie, "match", counted)
    desk.make_topic(1, "here")
    assert walks == ["here"], "one walk through one trie"
    assert desk.heard(2, TopicsAppeared) == []
