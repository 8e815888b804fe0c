"""Delivery: from where, within credit, in order, and until it ends."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rostra.broker.api import ConnectionCongested, ConnectionDrained, FindLast, PushTo, RequestDrain
from rostra.broker.settings import BrokerSettings
from rostra.errors import (
    CorruptLog,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionDamaged,
    TopicDeleted,
    Unavailable,
    UnknownTopic,
    from_wire,
)
from rostra.fabric.api import Append, Read, ReadFailed, Synced, TimerFired
from rostra.wire.messages import (
    Credit,
    DeleteTopic,
    Ended,
    Failed,
    Published,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from tests.unit.broker.desk import FIRST, WALL_US, Desk, part

SMALL = BrokerSettings(tail_bytes_max=1000, push_bytes_max=300, read_bytes_max=300)


def filled(count: int, settings: BrokerSettings | None = None) -> tuple[Desk, int]:
    """A started desk whose topic has records b"0", b"1", … one per batch; a publisher on 1, a subscriber on 2."""
    desk = Desk(settings).start()
    desk.connect(1)
    desk.connect(2)
    topic = desk.make_topic(1)
    for number in range(count):
        desk.publish(1, topic, b"%d" % number)
    desk.settle()
    desk.effects.clear()
    return desk, topic


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


@pytest.mark.requirement("CM-4:shown-when-safe")
def test_nobody_is_shown_a_record_before_it_is_safe() -> None:
    desk, topic = filled(0)
    desk.subscribe(2, topic)
    desk.publish(1, topic, b"a", acks="none")
    assert desk.pushed(2) == []
    desk.settle()
    assert desk.pushed(2) == [b"a"]


def test_the_start_of_a_subscription_is_where_it_was_asked_for() -> None:
    desk, topic = filled(10)
    for number, (start, value, first) in enumerate(
        [("earliest", 0, 0), ("latest", 0, 11), ("offset", 5, 5), ("offset", 11, 11), ("last", 3, 8), ("last", 99, 0)]
    ):
        request = desk.subscribe(2, topic, number, start=start, value=value)
        desk.settle()
        assert desk.heard(2, Subscribed) == [Subscribed(request, number, first, FIRST + 10)]
        assert desk.pushed(2, number) == numbers(max(first - FIRST, 0), 10)


@pytest.mark.requirement("CM-6:start-time")
def test_from_a_time_on_begins_with_the_first_committed_record_that_is_not_earlier() -> None:
    desk, topic = filled(0)
    for number in range(5):
        desk.after_ms(1000)
        desk.publish(1, topic, b"%d" % number)
        desk.settle()
    desk.after_ms(1000)
    desk.publish(1, topic, b"not committed yet")
    first_us = WALL_US + 1_000_000
    asked = [(0, 0), (first_us, 0), (first_us + 1, 1), (first_us + 3_000_000, 3), (first_us + 4_000_001, 5)]
    held, desk.pending = desk.pending, []
    for number, (value, first) in enumerate(asked):
        desk.subscribe(2, topic, number, start="time", value=value)
        desk.settle()
        (answer,) = desk.heard(2, Subscribed)
        assert (answer.next, answer.commit) == (FIRST + first, FIRST + 5)
        assert desk.pushed(2, number) == numbers(first, 5)
    desk.pending = held
    desk.settle()
    assert desk.pushed(2, len(asked) - 1) == [b"not committed yet"]


@pytest.mark.parametrize("offset", [FIRST + 11, 2**62])
def test_an_offset_that_does_not_exist_is_refused(offset: int) -> None:
    desk, topic = filled(10)
    desk.subscribe(2, topic, start="offset", value=offset)
    assert isinstance(desk.error(2), OffsetOutOfRange)


def test_a_topic_that_does_not_exist_is_refused() -> None:
    desk, _ = filled(0)
    desk.subscribe(2, 77)
    assert isinstance(desk.error(2), UnknownTopic)


@pytest.mark.requirement("CM-7:credit")
def test_no_batch_is_pushed_without_credit() -> None:
    desk, topic = filled(20)
    size = len(desk.logs[part(topic)].batches[FIRST])
    desk.subscribe(2, topic, start="offset", value=FIRST, credit=0)
    assert desk.pushed(2) == []
    desk.say(2, Credit(0, size))
    assert desk.pushed(2) == [b"0"]
    desk.say(2, Credit(0, 2 * size))
    assert desk.pushed(2) == [b"1", b"2"]
    desk.say(2, Credit(0, 1))
    desk.say(2, Credit(0, 1))
    assert desk.pushed(2) == [b"3"]


@pytest.mark.requirement("CM-7:credit")
def test_credit_holds_for_what_is_read_from_the_log_too() -> None:
    desk, topic = filled(50, SMALL)
    size = len(desk.logs[part(topic)].batches[FIRST])
    desk.subscribe(2, topic, start="offset", value=FIRST, credit=2 * size)
    desk.settle()
    assert desk.pushed(2) == [b"0", b"1"]


@pytest.mark.requirement("CM-7:memory", "CM-7:slow-alone")
def test_a_slow_subscriber_slows_only_itself_and_loses_nothing() -> None:
    desk, topic = filled(0, SMALL)
    desk.connect(3)
    desk.subscribe(2, topic, start="latest", credit=1)
    desk.subscribe(3, topic, credit=1 << 20)
    for number in range(100):
        desk.publish(1, topic, b"%d" % number)
        desk.settle()
        assert desk.pushed(3) == [b"%d" % number]
    assert desk.broker.tail_cache.bytes <= SMALL.tail_bytes_max
    slow = desk.pushed(2)
    assert len(slow) == 1
    while len(slow) < 100:
        desk.say(2, Credit(0, 150))
        desk.settle()
        got = desk.pushed(2)
        assert got
        slow += got
    assert slow == numbers(0, 100)


def test_who_fell_behind_is_read_from_the_log_and_then_served_from_memory() -> None:
    desk, topic = filled(50, SMALL)
    desk.subscribe(2, topic)
    assert desk.of(Read)
    desk.settle()
    assert desk.pushed(2) == numbers(0, 50)
    desk.effects.clear()
    desk.publish(1, topic, b"live")
    desk.settle()
    assert desk.of(Read) == []
    assert desk.pushed(2) == [b"live"]


HELD = BrokerSettings(tail_bytes_max=1000, push_bytes_max=300, read_bytes_max=300, catch_up_bytes_per_s=1000)
"""One batch is more than what a window allows."""


def reads_beside(desk: Desk, live: int) -> int:
    """How often the log is read for the subscriber on 2 within 100 ms of steady publishing; time passes in between."""
    reads = 0
    for _ in range(100):
        desk.publish(1, live, b"live")
        desk.settle()
        reads += len(desk.of(Read))
        desk.effects = [effect for effect in desk.effects if not isinstance(effect, Read)]
        desk.after_ms(1)
        due = [timer for timer, at_us in desk.timers.items() if at_us <= desk.now.mono_us]
        for timer in due:
            del desk.timers[timer]
            desk.step(TimerFired(timer))
    return reads


def test_who_fell_behind_waits_while_other_partitions_are_published_to_and_still_gets_all() -> None:
    desk, topic = filled(500, HELD)
    live = desk.make_topic(1, "live")
    desk.after_ms(1000)
    desk.publish(1, live)
    desk.settle()
    desk.after_ms(5)
    desk.subscribe(2, topic)
    reads = reads_beside(desk, live)
    assert 0 < reads < 30, "a window's worth at a time"
    desk.after_ms(1000)
    desk.step(TimerFired("broker/catch-up"))
    desk.settle()
    assert desk.pushed(2) == numbers(0, 500), "nothing is live any more: the rest is read at once"


def test_who_fell_behind_where_it_is_published_does_not_wait() -> None:
    desk, topic = filled(500, HELD)
    desk.subscribe(2, topic)
    desk.settle()
    assert desk.pushed(2) == numbers(0, 500)


def test_one_who_left_while_waiting_for_the_disk_is_forgotten() -> None:
    desk, topic = filled(500, HELD)
    live = desk.make_topic(1, "live")
    desk.after_ms(1000)
    desk.publish(1, live)
    desk.settle()
    desk.after_ms(5)
    desk.subscribe(2, topic)
    reads_beside(desk, live)
    desk.lose(2)
    desk.effects.clear()
    desk.after_ms(1000)
    desk.step(TimerFired("broker/catch-up"))
    desk.settle()
    assert not desk.of(Read)


def test_a_read_shows_nothing_beyond_commit() -> None:
    desk, topic = filled(50, SMALL)
    desk.publish(1, topic, b"unsafe")
    desk.subscribe(2, topic)
    pending, desk.pending = desk.pending, []
    desk.pending = [effect for effect in pending if isinstance(effect, Read)]
    while desk.pending:
        asked, desk.pending = desk.pending, []
        for effect in asked:
            assert isinstance(effect, Read)
            for answer in desk.answer(effect):
                desk.step(answer)
    assert desk.pushed(2) == numbers(0, 50)


@pytest.mark.requirement("CM-19:output")
def test_a_congested_connection_gets_nothing_until_it_drains() -> None:
    desk, topic = filled(0)
    desk.subscribe(2, topic)
    desk.step(ConnectionCongested(2))
    desk.publish(1, topic, b"a")
    desk.settle()
    assert desk.pushed(2) == []
    desk.step(ConnectionDrained(2))
    assert desk.pushed(2) == [b"a"]


def test_subscribers_at_the_same_place_share_the_same_bytes() -> None:
    desk, topic = filled(0)
    desk.connect(3)
    desk.subscribe(2, topic, start="latest")
    desk.subscribe(3, topic, start="latest")
    desk.publish(1, topic, b"a")
    (batch,) = [append.batch for append in desk.of(Append)]
    desk.settle()
    pushes = desk.of(PushTo)
    assert len(pushes) == 2
    assert all(push.batches[0] is batch for push in pushes)


@pytest.mark.requirement("CM-19:output")
def test_a_burst_waits_for_the_connection_to_drain() -> None:
    desk, topic = filled(0, BrokerSettings(burst_bytes_max=1000))
    desk.subscribe(2, topic)
    for number in range(40):
        desk.publish(1, topic, b"%d" % number)
        desk.step(Synced(part(topic), 0, number + 1))
    assert 0 < len(desk.pushed(2)) < 40
    assert len(desk.of(RequestDrain)) == 1
    desk.settle()
    desk.subscribe(2, topic, 1)
    desk.settle()
    assert desk.pushed(2, 1) == numbers(0, 40)


@pytest.mark.requirement("CM-9:unsubscribed")
def test_unsubscribe_ends_delivery_once_acknowledged() -> None:
    desk, topic = filled(0)
    desk.subscribe(2, topic)
    desk.publish(1, topic, b"on its way")
    desk.say(2, Unsubscribe(9, 0))
    assert desk.heard(2, Unsubscribed) == [Unsubscribed(9, 0)]
    desk.settle()
    assert desk.pushed(2) == []


@pytest.mark.requirement("CM-9:unsubscribed")
def test_an_answer_from_the_log_to_one_who_unsubscribed_is_not_pushed() -> None:
    desk, topic = filled(50, SMALL)
    desk.subscribe(2, topic)
    desk.say(2, Unsubscribe(9, 0))
    desk.settle()
    assert desk.pushed(2) == []


def test_a_subscription_number_is_free_again_after_unsubscribing_even_while_a_read_is_under_way() -> None:
    desk, topic = filled(50, SMALL)
    desk.subscribe(2, topic)
    desk.say(2, Unsubscribe(9, 0))
    desk.subscribe(2, topic, start="offset", value=FIRST + 40)
    desk.settle()
    assert desk.pushed(2) == numbers(40, 50)


@pytest.mark.requirement("CM-9:deleted")
def test_deleting_a_topic_ends_its_subscriptions_with_a_reason() -> None:
    desk, topic = filled(1)
    desk.subscribe(2, topic, 4)
    desk.say(1, DeleteTopic(9, "t"))
    desk.settle()
    (ended,) = desk.heard(2, Ended)
    assert ended.subscription == 4
    error = from_wire(ended.code, ended.carried)
    assert isinstance(error, TopicDeleted)
    assert error.topic == "t"
    desk.say(2, Credit(4, 100))
    assert desk.closed == {}


@pytest.mark.requirement("CM-19:subscriptions")
def test_subscriptions_are_bounded_per_connection() -> None:
    desk, topic = filled(1, BrokerSettings(subscriptions_per_connection_max=2))
    for number in range(3):
        desk.subscribe(2, topic, number)
    assert isinstance(desk.error(2), LimitExceeded)
    desk.say(2, Unsubscribe(9, 0))
    desk.subscribe(2, topic, 3)
    assert desk.heard(2, Failed) == []


def test_the_last_n_are_bounded() -> None:
    desk, topic = filled(10, BrokerSettings(history_max=4))
    desk.subscribe(2, topic, start="last", value=2**40)
    (asked,) = desk.of(FindLast)
    assert asked.count == 4


@pytest.mark.requirement("CM-19:credit")
def test_credit_beyond_the_bound_is_refused_at_first_and_capped_later() -> None:
    desk, topic = filled(0, BrokerSettings(credit_bytes_max=500))
    desk.subscribe(2, topic, credit=501)
    assert isinstance(desk.error(2), LimitExceeded)
    desk.subscribe(2, topic, credit=500)
    desk.say(2, Credit(0, 2**62))
    for _ in range(20):
        desk.publish(1, topic, b"x" * 100)
    desk.settle()
    assert 0 < len(desk.pushed(2)) < 5


def test_a_lost_subscriber_leaves_nothing_behind() -> None:
    desk, topic = filled(50, SMALL)
    desk.subscribe(2, topic)
    desk.lose(2)
    desk.settle()
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    assert served.readers == {}
    desk.publish(1, topic)
    desk.settle()
    assert desk.of(PushTo) == []


def test_the_tail_lets_go_of_shared_answers_with_the_batches() -> None:
    desk, topic = filled(0, SMALL)
    desk.subscribe(2, topic)
    other = desk.make_topic(1, "other")
    desk.publish(1, topic, b"held")
    desk.settle()
    assert desk.pushed(2) == [b"held"]
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    for _ in range(20):
        desk.publish(1, other)
    desk.settle()
    assert served.tail.take(0, served.commit, 300) == ((), 0, 0)


@pytest.mark.requirement("CM-13:reported")
def test_damage_that_a_reader_comes_upon_is_told_and_ends_publishing() -> None:
    desk, topic = filled(50, SMALL)
    desk.subscribe(2, topic)
    (read,) = desk.of(Read)
    desk.pending.clear()
    desk.step(ReadFailed(read.token, read.partition, CorruptLog("segment", 17, "body damaged")))
    (ended,) = desk.heard(2, Ended)
    assert (ended.code, ended.carried["offset"]) == ("PartitionDamaged", 0)
    desk.publish(1, topic, b"more")
    assert isinstance(desk.error(1), PartitionDamaged)


def test_a_log_that_is_not_there_yet_is_not_called_damaged() -> None:
    desk, topic = filled(50, SMALL)
    desk.subscribe(2, topic)
    (read,) = desk.of(Read)
    desk.pending.clear()
    desk.step(ReadFailed(read.token, read.partition, Unavailable("t", 0, "its log is not there yet")))
    (ended,) = desk.heard(2, Ended)
    assert ended.code == "Unavailable"
    desk.publish(1, topic, b"more")
    desk.settle()
    assert desk.heard(1, Published)


def test_every_reader_of_a_connection_has_its_turn_at_the_disk() -> None:
    """Far more of them than may read at once, all behind what is in memory, the connection full again and again."""
    desk, topic = filled(60, replace(SMALL, reads_per_connection_max=2, burst_bytes_max=600))
    readers = range(20)
    for number in readers:
        desk.subscribe(2, topic, number, start="earliest")
    desk.settle()
    assert [desk.pushed(2, number) for number in readers] == [numbers(0, 60)] * 20
