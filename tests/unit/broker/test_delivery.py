"""Delivery: start offsets, credit, order, end."""

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
from tests.unit.broker.broker_driver import FIRST, WALL_US, BrokerDriver, partition_id

SMALL = BrokerSettings(tail_bytes_max=1000, push_bytes_max=300, read_bytes_max=300)


def filled(count: int, settings: BrokerSettings | None = None) -> tuple[BrokerDriver, int]:
    """A started driver whose topic has records b"0", b"1", … one per batch; a publisher on 1, a subscriber on 2."""
    driver = BrokerDriver(settings).start()
    driver.connect(1)
    driver.connect(2)
    topic = driver.make_topic(1)
    for number in range(count):
        driver.publish(1, topic, b"%d" % number)
    driver.settle()
    driver.effects.clear()
    return driver, topic


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


@pytest.mark.requirement("CM-4:shown-when-safe")
def test_no_record_is_delivered_before_it_is_committed() -> None:
    driver, topic = filled(0)
    driver.subscribe(2, topic)
    driver.publish(1, topic, b"a", acks="none")
    assert driver.pushed(2) == []
    driver.settle()
    assert driver.pushed(2) == [b"a"]


def test_a_subscription_begins_at_the_requested_start() -> None:
    driver, topic = filled(10)
    for number, (start, value, first) in enumerate(
        [("earliest", 0, 0), ("latest", 0, 11), ("offset", 5, 5), ("offset", 11, 11), ("last", 3, 8), ("last", 99, 0)]
    ):
        request = driver.subscribe(2, topic, number, start=start, value=value)
        driver.settle()
        assert driver.received(2, Subscribed) == [Subscribed(request, number, first, FIRST + 10)]
        assert driver.pushed(2, number) == numbers(max(first - FIRST, 0), 10)


@pytest.mark.requirement("CM-6:start-time")
def test_from_a_time_on_begins_with_the_first_committed_record_that_is_not_earlier() -> None:
    driver, topic = filled(0)
    for number in range(5):
        driver.advance_ms(1000)
        driver.publish(1, topic, b"%d" % number)
        driver.settle()
    driver.advance_ms(1000)
    driver.publish(1, topic, b"not committed yet")
    first_us = WALL_US + 1_000_000
    asked = [(0, 0), (first_us, 0), (first_us + 1, 1), (first_us + 3_000_000, 3), (first_us + 4_000_001, 5)]
    held, driver.pending = driver.pending, []
    for number, (value, first) in enumerate(asked):
        driver.subscribe(2, topic, number, start="time", value=value)
        driver.settle()
        (answer,) = driver.received(2, Subscribed)
        assert (answer.next, answer.commit) == (FIRST + first, FIRST + 5)
        assert driver.pushed(2, number) == numbers(first, 5)
    driver.pending = held
    driver.settle()
    assert driver.pushed(2, len(asked) - 1) == [b"not committed yet"]


@pytest.mark.parametrize("offset", [FIRST + 11, 2**62])
def test_an_offset_that_does_not_exist_is_refused(offset: int) -> None:
    driver, topic = filled(10)
    driver.subscribe(2, topic, start="offset", value=offset)
    assert isinstance(driver.error(2), OffsetOutOfRange)


def test_a_topic_that_does_not_exist_is_refused() -> None:
    driver, _ = filled(0)
    driver.subscribe(2, 77)
    assert isinstance(driver.error(2), UnknownTopic)


@pytest.mark.requirement("CM-7:credit")
def test_no_batch_is_pushed_without_credit() -> None:
    driver, topic = filled(20)
    size = len(driver.logs[partition_id(topic)].batches[FIRST])
    driver.subscribe(2, topic, start="offset", value=FIRST, credit=0)
    assert driver.pushed(2) == []
    driver.send(2, Credit(0, size))
    assert driver.pushed(2) == [b"0"]
    driver.send(2, Credit(0, 2 * size))
    assert driver.pushed(2) == [b"1", b"2"]
    driver.send(2, Credit(0, 1))
    driver.send(2, Credit(0, 1))
    assert driver.pushed(2) == [b"3"]


@pytest.mark.requirement("CM-7:credit")
def test_credit_limits_reads_from_the_log_too() -> None:
    driver, topic = filled(50, SMALL)
    size = len(driver.logs[partition_id(topic)].batches[FIRST])
    driver.subscribe(2, topic, start="offset", value=FIRST, credit=2 * size)
    driver.settle()
    assert driver.pushed(2) == [b"0", b"1"]


@pytest.mark.requirement("CM-7:memory", "CM-7:slow-alone")
def test_a_slow_subscriber_slows_only_itself_and_loses_nothing() -> None:
    driver, topic = filled(0, SMALL)
    driver.connect(3)
    driver.subscribe(2, topic, start="latest", credit=1)
    driver.subscribe(3, topic, credit=1 << 20)
    for number in range(100):
        driver.publish(1, topic, b"%d" % number)
        driver.settle()
        assert driver.pushed(3) == [b"%d" % number]
    assert driver.broker.tail_cache.bytes <= SMALL.tail_bytes_max
    slow = driver.pushed(2)
    assert len(slow) == 1
    while len(slow) < 100:
        driver.send(2, Credit(0, 150))
        driver.settle()
        got = driver.pushed(2)
        assert got
        slow += got
    assert slow == numbers(0, 100)


def test_a_reader_behind_is_read_from_the_log_and_then_served_from_memory() -> None:
    driver, topic = filled(50, SMALL)
    driver.subscribe(2, topic)
    assert driver.of(Read)
    driver.settle()
    assert driver.pushed(2) == numbers(0, 50)
    driver.effects.clear()
    driver.publish(1, topic, b"live")
    driver.settle()
    assert driver.of(Read) == []
    assert driver.pushed(2) == [b"live"]


HELD = BrokerSettings(tail_bytes_max=1000, push_bytes_max=300, read_bytes_max=300, catch_up_bytes_per_s=1000)
"""One batch is more than what a window allows."""


def reads_beside(driver: BrokerDriver, live: int) -> int:
    """How often the log is read for the subscriber on 2 within 100 ms of steady publishing; time passes in between."""
    reads = 0
    for _ in range(100):
        driver.publish(1, live, b"live")
        driver.settle()
        reads += len(driver.of(Read))
        driver.effects = [effect for effect in driver.effects if not isinstance(effect, Read)]
        driver.advance_ms(1)
        due = [timer for timer, at_us in driver.timers.items() if at_us <= driver.now.mono_us]
        for timer in due:
            del driver.timers[timer]
            driver.step(TimerFired(timer))
    return reads


def test_a_reader_behind_is_throttled_by_other_partitions_and_still_gets_all() -> None:
    driver, topic = filled(500, HELD)
    live = driver.make_topic(1, "live")
    driver.advance_ms(1000)
    driver.publish(1, live)
    driver.settle()
    driver.advance_ms(5)
    driver.subscribe(2, topic)
    reads = reads_beside(driver, live)
    assert 0 < reads < 30, "a window's worth at a time"
    driver.advance_ms(1000)
    driver.step(TimerFired("broker/catch-up"))
    driver.settle()
    assert driver.pushed(2) == numbers(0, 500), "nothing is live any more: the rest is read at once"


def test_a_reader_behind_in_a_live_partition_is_not_throttled() -> None:
    driver, topic = filled(500, HELD)
    driver.subscribe(2, topic)
    driver.settle()
    assert driver.pushed(2) == numbers(0, 500)


def test_a_throttled_reader_that_disconnects_is_dropped() -> None:
    driver, topic = filled(500, HELD)
    live = driver.make_topic(1, "live")
    driver.advance_ms(1000)
    driver.publish(1, live)
    driver.settle()
    driver.advance_ms(5)
    driver.subscribe(2, topic)
    reads_beside(driver, live)
    driver.disconnect(2)
    driver.effects.clear()
    driver.advance_ms(1000)
    driver.step(TimerFired("broker/catch-up"))
    driver.settle()
    assert not driver.of(Read)


def test_a_read_shows_nothing_beyond_commit() -> None:
    driver, topic = filled(50, SMALL)
    driver.publish(1, topic, b"unsafe")
    driver.subscribe(2, topic)
    pending, driver.pending = driver.pending, []
    driver.pending = [effect for effect in pending if isinstance(effect, Read)]
    while driver.pending:
        asked, driver.pending = driver.pending, []
        for effect in asked:
            assert isinstance(effect, Read)
            for answer in driver.answer(effect):
                driver.step(answer)
    assert driver.pushed(2) == numbers(0, 50)


@pytest.mark.requirement("CM-19:output")
def test_a_congested_connection_gets_nothing_until_it_drains() -> None:
    driver, topic = filled(0)
    driver.subscribe(2, topic)
    driver.step(ConnectionCongested(2))
    driver.publish(1, topic, b"a")
    driver.settle()
    assert driver.pushed(2) == []
    driver.step(ConnectionDrained(2))
    assert driver.pushed(2) == [b"a"]


def test_subscribers_at_the_same_offset_share_the_same_bytes() -> None:
    driver, topic = filled(0)
    driver.connect(3)
    driver.subscribe(2, topic, start="latest")
    driver.subscribe(3, topic, start="latest")
    driver.publish(1, topic, b"a")
    (batch,) = [append.batch for append in driver.of(Append)]
    driver.settle()
    pushes = driver.of(PushTo)
    assert len(pushes) == 2
    assert all(push.batches[0] is batch for push in pushes)


@pytest.mark.requirement("CM-19:output")
def test_a_burst_waits_for_the_connection_to_drain() -> None:
    driver, topic = filled(0, BrokerSettings(burst_bytes_max=1000))
    driver.subscribe(2, topic)
    for number in range(40):
        driver.publish(1, topic, b"%d" % number)
        driver.step(Synced(partition_id(topic), 0, number + 1))
    assert 0 < len(driver.pushed(2)) < 40
    assert len(driver.of(RequestDrain)) == 1
    driver.settle()
    driver.subscribe(2, topic, 1)
    driver.settle()
    assert driver.pushed(2, 1) == numbers(0, 40)


@pytest.mark.requirement("CM-9:unsubscribed")
def test_unsubscribe_ends_delivery_once_acknowledged() -> None:
    driver, topic = filled(0)
    driver.subscribe(2, topic)
    driver.publish(1, topic, b"on its way")
    driver.send(2, Unsubscribe(9, 0))
    assert driver.received(2, Unsubscribed) == [Unsubscribed(9, 0)]
    driver.settle()
    assert driver.pushed(2) == []


@pytest.mark.requirement("CM-9:unsubscribed")
def test_a_read_that_ends_after_unsubscribing_is_not_pushed() -> None:
    driver, topic = filled(50, SMALL)
    driver.subscribe(2, topic)
    driver.send(2, Unsubscribe(9, 0))
    driver.settle()
    assert driver.pushed(2) == []


def test_a_subscription_number_is_free_after_unsubscribing_even_during_a_read() -> None:
    driver, topic = filled(50, SMALL)
    driver.subscribe(2, topic)
    driver.send(2, Unsubscribe(9, 0))
    driver.subscribe(2, topic, start="offset", value=FIRST + 40)
    driver.settle()
    assert driver.pushed(2) == numbers(40, 50)


@pytest.mark.requirement("CM-9:deleted")
def test_deleting_a_topic_ends_its_subscriptions_with_a_reason() -> None:
    driver, topic = filled(1)
    driver.subscribe(2, topic, 4)
    driver.send(1, DeleteTopic(9, "t"))
    driver.settle()
    (ended,) = driver.received(2, Ended)
    assert ended.subscription == 4
    error = from_wire(ended.code, ended.carried)
    assert isinstance(error, TopicDeleted)
    assert error.topic == "t"
    driver.send(2, Credit(4, 100))
    assert driver.closed == {}


@pytest.mark.requirement("CM-19:subscriptions")
def test_subscriptions_are_bounded_per_connection() -> None:
    driver, topic = filled(1, BrokerSettings(subscriptions_per_connection_max=2))
    for number in range(3):
        driver.subscribe(2, topic, number)
    assert isinstance(driver.error(2), LimitExceeded)
    driver.send(2, Unsubscribe(9, 0))
    driver.subscribe(2, topic, 3)
    assert driver.received(2, Failed) == []


def test_the_last_n_are_limited() -> None:
    driver, topic = filled(10, BrokerSettings(history_max=4))
    driver.subscribe(2, topic, start="last", value=2**40)
    (asked,) = driver.of(FindLast)
    assert asked.count == 4


@pytest.mark.requirement("CM-19:credit")
def test_credit_beyond_the_bound_is_refused_at_first_and_capped_later() -> None:
    driver, topic = filled(0, BrokerSettings(credit_bytes_max=500))
    driver.subscribe(2, topic, credit=501)
    assert isinstance(driver.error(2), LimitExceeded)
    driver.subscribe(2, topic, credit=500)
    driver.send(2, Credit(0, 2**62))
    for _ in range(20):
        driver.publish(1, topic, b"x" * 100)
    driver.settle()
    assert 0 < len(driver.pushed(2)) < 5


def test_a_lost_subscriber_leaves_nothing_behind() -> None:
    driver, topic = filled(50, SMALL)
    driver.subscribe(2, topic)
    driver.disconnect(2)
    driver.settle()
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    assert served.readers == {}
    driver.publish(1, topic)
    driver.settle()
    assert driver.of(PushTo) == []


def test_the_tail_drops_shared_results_with_the_batches() -> None:
    driver, topic = filled(0, SMALL)
    driver.subscribe(2, topic)
    other = driver.make_topic(1, "other")
    driver.publish(1, topic, b"held")
    driver.settle()
    assert driver.pushed(2) == [b"held"]
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    for _ in range(20):
        driver.publish(1, other)
    driver.settle()
    assert served.tail.take(0, served.commit, 300) == ((), 0, 0)


@pytest.mark.requirement("CM-13:reported")
def test_damage_found_by_a_reader_is_reported_and_ends_publishing() -> None:
    driver, topic = filled(50, SMALL)
    driver.subscribe(2, topic)
    (read,) = driver.of(Read)
    driver.pending.clear()
    driver.step(ReadFailed(read.token, read.partition, CorruptLog("segment", 17, "body damaged")))
    (ended,) = driver.received(2, Ended)
    assert (ended.code, ended.carried["offset"]) == ("PartitionDamaged", 0)
    driver.publish(1, topic, b"more")
    assert isinstance(driver.error(1), PartitionDamaged)


def test_a_log_that_is_not_created_yet_is_not_reported_damaged() -> None:
    driver, topic = filled(50, SMALL)
    driver.subscribe(2, topic)
    (read,) = driver.of(Read)
    driver.pending.clear()
    driver.step(ReadFailed(read.token, read.partition, Unavailable("t", 0, "its log is not there yet")))
    (ended,) = driver.received(2, Ended)
    assert ended.code == "Unavailable"
    driver.publish(1, topic, b"more")
    driver.settle()
    assert driver.received(1, Published)


def test_every_reader_of_a_connection_has_its_turn_at_the_disk() -> None:
    """Far more readers than may read at once, all behind the cache, the connection congested again and again."""
    driver, topic = filled(60, replace(SMALL, reads_per_connection_max=2, burst_bytes_max=600))
    readers = range(20)
    for number in readers:
        driver.subscribe(2, topic, number, start="earliest")
    driver.settle()
    assert [driver.pushed(2, number) for number in readers] == [numbers(0, 60)] * 20
