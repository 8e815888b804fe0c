"""Exclusive ownership: what the owner logs, when, and what subscribers see of it."""

from __future__ import annotations

import pytest

from rostra.broker.publish.ownership import LEASES
from rostra.broker.settings import BrokerSettings
from rostra.errors import (
    BatchRejected,
    DiskFull,
    InvalidSetting,
    LimitExceeded,
    NodeStopping,
    NotRegistered,
    TopicDeleted,
)
from rostra.model.batch import read_header
from rostra.wire.messages import (
    Agreed,
    AlterTopic,
    DeleteTopic,
    DescribeTopic,
    Ping,
    Published,
    PublisherRegistered,
    PublisherState,
    Register,
    TopicDescribed,
    Unregister,
    Unregistered,
)
from tests.unit.broker.broker_driver import partition_id
from tests.unit.broker.exclusive_topic_driver import LEASE_MS, STRONG, THIRD, WEAK, ExclusiveTopicDriver


@pytest.fixture
def driver() -> ExclusiveTopicDriver:
    return ExclusiveTopicDriver().begin()


@pytest.mark.requirement("HR-12")
def test_only_the_strongest_is_delivered_and_the_weaker_are_stored_and_marked(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.write(3, WEAK, b"w")
    driver.write(2, STRONG, b"s")
    assert driver.story() == ["30 has 5", "20 has 4", "-w", "+s"]
    assert driver.delivered() == [b"s"]
    assert len(driver.received(3, Published)) == 1


def test_of_equals_the_lowest_id_is_delivered(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 5)
    driver.write(2, STRONG, b"a")
    driver.write(3, WEAK, b"b")
    assert driver.delivered() == [b"b"]


@pytest.mark.requirement("HR-14:lowers", "HR-15")
def test_a_change_of_strength_counts_from_its_offset_on(driver: ExclusiveTopicDriver) -> None:
    driver.connect(3)
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.write(3, WEAK, b"w1")
    driver.register(2, STRONG, 3)
    driver.write(3, WEAK, b"w2")
    driver.register(2, STRONG, 6)
    driver.write(3, WEAK, b"w3")
    driver.write(2, STRONG, b"s3")
    assert driver.story() == ["30 has 5", "20 has 4", "-w1", "30 has 3", "+w2", "30 has 6", "-w3", "+s3"]
    assert [answer.strongest for answer in driver.received(2, PublisherRegistered)] == [STRONG, WEAK, STRONG]


@pytest.mark.requirement("HR-14:drops")
def test_when_the_strongest_leaves_the_next_takes_over_at_once(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.resign(2, STRONG)
    assert driver.received(2, Agreed)
    driver.write(3, WEAK, b"w")
    assert driver.story()[2:] == ["30 went: left", "+w"]


@pytest.mark.requirement("HR-14:dies")
def test_the_next_publisher_takes_over_when_a_lease_expires(
    driver: ExclusiveTopicDriver,
) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.pass_ms(LEASE_MS - 20, 3)
    driver.write(3, WEAK, b"early")
    driver.pass_ms(40, 3)
    driver.write(3, WEAK, b"late")
    assert driver.story()[2:] == ["-early", "30 went: silent for its lease", "+late"]


def test_the_departure_is_logged_when_the_lease_expires_also_without_writes(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.pass_ms(LEASE_MS + 20)
    assert driver.story() == ["30 has 5", "30 went: silent for its lease"]
    assert not driver.timers.get(LEASES)


def test_an_expired_lease_counts_before_the_next_batch_however_late_the_timer(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4, 60_000)
    driver.advance_ms(LEASE_MS)
    driver.write(3, WEAK, b"w")
    assert driver.story()[2:] == ["30 went: silent for its lease", "+w"]


@pytest.mark.parametrize("sign", ["a heartbeat", "a write"])
def test_a_heartbeat_or_a_write_renews_the_lease(driver: ExclusiveTopicDriver, sign: str) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    for turn in range(3):
        driver.pass_ms(LEASE_MS - 100, 3)
        if sign == "a write":
            driver.write(2, STRONG, b"s%d" % turn)
        else:
            driver.send(2, Ping(driver.request()))
    driver.write(3, WEAK, b"w")
    assert driver.story()[-1] == "-w"
    assert not any("went" in line for line in driver.story())


def test_a_lost_connection_is_no_departure_before_the_lease_ends(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.pass_ms(400, 2, 3)
    driver.disconnect(2)
    driver.pass_ms(LEASE_MS - 50, 3)
    driver.register(4, STRONG, 5)
    driver.pass_ms(LEASE_MS - 50, 3)
    driver.write(3, WEAK, b"w")
    # The same registration on another connection needs no log entry.
    assert driver.story() == ["30 has 5", "20 has 4", "-w"]


def test_an_unregistered_publisher_is_the_weakest_and_is_logged_first(driver: ExclusiveTopicDriver) -> None:
    driver.connect(2)
    driver.connect(3)
    driver.write(2, STRONG, b"alone")
    driver.write(3, WEAK, b"lower id")
    driver.write(2, STRONG, b"higher id")
    assert driver.story() == ["30 has 0", "+alone", "20 has 0", "+lower id", "-higher id"]


def test_a_publisher_whose_registration_expired_must_register_before_it_writes(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.pass_ms(LEASE_MS + 20, 3)
    assert driver.received(2, Unregistered) == [Unregistered(driver.topic, 0, STRONG, lapsed=True)]
    driver.write(2, STRONG, b"s")
    assert isinstance(driver.error(2), NotRegistered)
    driver.sequences.clear()
    driver.register(2, STRONG, 5)
    driver.write(2, STRONG, b"s")
    assert driver.story()[2:] == ["30 went: silent for its lease", "30 has 5", "+s"]


def test_suppressed_records_are_not_delivered_later_nor_as_history(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.write(3, WEAK, b"w1", b"w2")
    driver.write(2, STRONG, b"s1")
    driver.write(3, WEAK, b"w3")
    driver.resign(2, STRONG)
    driver.write(3, WEAK, b"w4")
    assert driver.delivered() == [b"s1", b"w4"]
    driver.effects.clear()
    driver.connect(4)
    driver.subscribe(4, driver.topic, start="last", value=2)
    driver.settle()
    assert driver.delivered() == [b"s1", b"w4"]


@pytest.mark.requirement("CM-3:history-depth", "HR-11")
def test_history_is_limited_by_the_topics_depth_and_continues_live_without_gap_or_repeat() -> None:
    driver = ExclusiveTopicDriver().begin(history_depth=3)
    driver.connect(2)
    for number in range(5):
        driver.write(2, STRONG, b"%d" % number)
    driver.effects.clear()
    driver.disconnect(1)
    driver.connect(4)
    driver.subscribe(4, driver.topic, start="last", value=10)
    # Records stored during the search are live: they come after the history, once.
    driver.publish(2, driver.topic, b"5", producer=STRONG, sequence=5)
    driver.settle()
    driver.sequences[STRONG] = 6
    driver.write(2, STRONG, b"6")
    assert driver.delivered() == [b"2", b"3", b"4", b"5", b"6"]


def test_a_shared_topic_delivers_every_publisher_and_keeps_registrations() -> None:
    driver = ExclusiveTopicDriver().begin()
    driver.topic = driver.make_topic(1, "shared", ownership="shared")
    driver.subscribe(1, driver.topic, 7)
    driver.register(2, STRONG, 5)
    driver.connect(3)
    driver.write(3, WEAK, b"w")
    driver.write(2, STRONG, b"s")
    assert driver.story() == ["30 has 5", "+w", "+s"]
    assert driver.delivered() == [b"w", b"s"]


def test_deleting_a_topic_ends_its_registrations(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.send(2, DeleteTopic(driver.request(), "t"))
    driver.settle()
    driver.register(2, STRONG, 5)
    assert isinstance(driver.error(2), TopicDeleted)
    driver.topic = driver.make_topic(1, "t", ownership="exclusive")
    driver.send(1, DescribeTopic(driver.request(), "t"))
    driver.settle()
    (described,) = driver.received(1, TopicDescribed)
    assert described.partitions[0].publishers == ()
    driver.pass_ms(LEASE_MS + 20)
    assert driver.story() == []


def test_describing_a_topic_shows_its_publishers_the_strongest_first(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 8)
    driver.register(4, THIRD, 5)
    driver.send(1, DescribeTopic(driver.request(), "t"))
    driver.settle()
    (described,) = driver.received(1, TopicDescribed)
    ranked = ((WEAK, 8), (THIRD, 5), (STRONG, 5))
    wanted = tuple(PublisherState(publisher, strength, LEASE_MS) for publisher, strength in ranked)
    assert described.partitions[0].publishers == wanted


def test_a_start_restores_the_publishers_with_a_whole_lease_each(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    driver.pass_ms(LEASE_MS - 50)
    again = ExclusiveTopicDriver(logs=driver.logs, hard=driver.hard)
    again.now, again.topic, again.sequences = driver.now, driver.topic, {}
    again.start()
    again.connect(3)
    again.pass_ms(LEASE_MS - 20, 3)
    again.write(3, WEAK, b"early")
    again.pass_ms(40, 3)
    again.write(3, WEAK, b"late")
    assert again.story()[2:] == ["-early", "30 went: silent for its lease", "+late"]


def test_registrations_survive_in_the_checkpoint() -> None:
    driver = ExclusiveTopicDriver().begin(segment_bytes=4096)
    driver.register(2, STRONG, 5)
    driver.connect(3)
    for number in range(40):
        driver.write(3, WEAK, b"%d" % number * 100)
    log = driver.logs[partition_id(driver.topic)]
    assert len(log.segments()) > 1
    log.trim(read_header(log.segments()[-1][0]).base_offset)
    again = ExclusiveTopicDriver(logs=driver.logs, hard=driver.hard)
    again.topic, again.sequences, again.now = driver.topic, dict(driver.sequences), driver.now
    again.start()
    again.connect(2)
    again.connect(3)
    again.write(3, WEAK, b"w")
    again.write(2, STRONG, b"s")
    assert again.story()[-2:] == ["-w", "+s"]


def test_the_reply_to_a_registration_waits_for_the_commit(driver: ExclusiveTopicDriver) -> None:
    driver.connect(2)
    for message in (Register(1, driver.topic, 0, STRONG, 5), Register(2, driver.topic, 0, STRONG, 5)):
        driver.send(2, message)
    assert not driver.received(2, PublisherRegistered)
    driver.settle()
    assert [answer.request for answer in driver.received(2, PublisherRegistered)] == [1, 2]
    for resign in (Unregister(3, driver.topic, 0, STRONG), Unregister(4, driver.topic, 0, STRONG)):
        driver.send(2, resign)
    assert not driver.received(2, Agreed)
    driver.settle()
    assert [answer.request for answer in driver.received(2, Agreed)] == [3, 4]


def test_a_registration_that_the_disk_refuses_is_undone(driver: ExclusiveTopicDriver) -> None:
    driver.register(2, STRONG, 5)
    driver.full = True
    driver.register(3, WEAK, 9)
    assert isinstance(driver.error(3), DiskFull)
    driver.full = False
    driver.register(3, WEAK, 4)
    driver.write(2, STRONG, b"s")
    assert driver.story() == ["30 has 5", "20 has 4", "+s"]


@pytest.mark.requirement("CM-19:publishers")
def test_publishers_beyond_the_limit_are_refused_until_one_departs() -> None:
    driver = ExclusiveTopicDriver(BrokerSettings(publishers_per_partition_max=1)).begin()
    driver.register(2, STRONG, 5)
    driver.register(3, WEAK, 4)
    assert isinstance(driver.error(3), LimitExceeded)
    driver.write(3, WEAK, b"w")
    assert isinstance(driver.error(3), LimitExceeded)
    driver.sequences.clear()
    driver.resign(2, STRONG)
    driver.write(3, WEAK, b"w")
    assert driver.story() == ["30 has 5", "30 went: left", "20 has 0", "+w"]


def test_an_exclusive_topic_refuses_batches_without_a_producer(driver: ExclusiveTopicDriver) -> None:
    driver.connect(2)
    driver.publish(2, driver.topic, b"x")
    assert isinstance(driver.error(2), BatchRejected)


def test_ownership_cannot_be_altered_and_history_depth_can(driver: ExclusiveTopicDriver) -> None:
    driver.connect(2)
    for number in range(5):
        driver.write(2, STRONG, b"%d" % number)
    driver.send(2, AlterTopic(driver.request(), "t", {"ownership": "shared"}))
    driver.settle()
    assert isinstance(driver.error(2), InvalidSetting)
    driver.send(2, AlterTopic(driver.request(), "t", {"history_depth": 2}))
    driver.settle()
    driver.effects.clear()
    driver.subscribe(2, driver.topic, 5, start="last", value=9)
    driver.settle()
    assert driver.delivered() == [b"3", b"4"]


def test_a_stopping_node_refuses_registrations(driver: ExclusiveTopicDriver) -> None:
    driver.connect(2)
    driver.broker.stopping = True
    driver.register(2, STRONG, 5)
    assert isinstance(driver.error(2), NodeStopping)
