"""Topics, connections and their limits; recovery; retention."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.broker.api import ConnectionAccepted, ListSegments, Stop
from rostra.broker.broker import RETENTION, SWEEP
from rostra.broker.publish.producer_table import ProducerEntry
from rostra.broker.settings import BrokerSettings
from rostra.errors import (
    IncompatibleVersion,
    InvalidTopicName,
    LimitExceeded,
    NodeStopping,
    PeerViolation,
    SequenceGap,
    TopicExists,
    UnknownTopic,
)
from rostra.fabric.api import Append, Drop, EpochStart, TimerFired, Trim
from rostra.model.batch import OwnerFlag, base_offset, owner_epoch, read_header
from rostra.wire.frames import Violation
from rostra.wire.messages import (
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    Failed,
    Goodbye,
    Hello,
    ListTopics,
    Locate,
    Located,
    Ping,
    Pong,
    Published,
    Subscribe,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
    TopicSettings,
    Welcome,
)
from tests.unit.broker.broker_driver import FIRST, BrokerDriver, partition_id

BAD_NAMES = [
    "",
    "a" * 250,
    "../../etc/passwd",
    "a//b",
    "/a",
    "a/",
    ".",
    "a/..",
    "a b",
    "ä",
    "a\0b",
    "a\\b",
    "_internal",
]


@pytest.fixture
def driver() -> BrokerDriver:
    started = BrokerDriver().start()
    started.connect(1)
    return started


# --- names and topics ---


@pytest.mark.requirement("CM-2:before-disk", "CM-2:refused")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_invalid_name_is_refused_before_anything_is_written(driver: BrokerDriver, name: str) -> None:
    driver.send(1, CreateTopic(1, name, TopicSettings()))
    error = driver.error(1)
    assert isinstance(error, InvalidTopicName)
    assert error.name == name
    driver.send(1, Locate(2, name, create=True))
    assert isinstance(driver.error(1), InvalidTopicName)
    assert (driver.effects, driver.pending) == ([], [])


@pytest.mark.requirement("CM-2:accepted")
@pytest.mark.parametrize("name", ["a", "a" * 249, "a/b/c", "A-1_x.y", "..."])
def test_a_valid_name_is_accepted(driver: BrokerDriver, name: str) -> None:
    assert driver.make_topic(1, name)


def test_a_topic_exists_only_when_it_is_durable(driver: BrokerDriver) -> None:
    driver.send(1, CreateTopic(1, "t", TopicSettings()))
    assert driver.received(1, TopicCreated) == []
    driver.send(1, Locate(2, "t"))
    assert isinstance(driver.error(1), UnknownTopic)
    driver.settle()
    assert len(driver.received(1, TopicCreated)) == 1


def test_a_topic_is_created_once_however_many_request_it(driver: BrokerDriver) -> None:
    driver.connect(2)
    driver.send(1, Locate(1, "t", create=True))
    driver.send(2, Locate(1, "t", create=True))
    driver.settle()
    (first,), (second,) = driver.received(1, Located), driver.received(2, Located)
    assert first == second
    driver.send(1, CreateTopic(3, "t", TopicSettings()))
    assert isinstance(driver.error(1), TopicExists)


def test_a_lookup_creates_no_topic_unless_requested_and_allowed() -> None:
    driver = BrokerDriver(BrokerSettings(auto_create=False)).start()
    driver.connect(1)
    driver.send(1, Locate(1, "t", create=True))
    assert isinstance(driver.error(1), UnknownTopic)


def test_deleting_an_unknown_topic_is_refused(driver: BrokerDriver) -> None:
    driver.send(1, DeleteTopic(1, "t"))
    assert isinstance(driver.error(1), UnknownTopic)


def test_a_deleted_topic_leaves_nothing_on_disk_and_stays_deleted(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1, partitions=2)
    driver.send(1, DeleteTopic(1, "t"))
    driver.settle()
    assert driver.received(1, TopicDropped) == [TopicDropped(1, topic)]
    assert len(driver.of(Drop)) == 2
    assert partition_id(topic) not in driver.logs
    again = driver.restarted()
    again.connect(1)
    again.send(1, DescribeTopic(1, "t"))
    assert isinstance(again.error(1), UnknownTopic)


def test_two_deletions_of_the_same_topic_are_both_answered(driver: BrokerDriver) -> None:
    driver.connect(2)
    driver.make_topic(1)
    driver.send(1, DeleteTopic(1, "t"))
    driver.send(2, DeleteTopic(1, "t"))
    driver.settle()
    assert len(driver.received(1, TopicDropped)) == 1
    # The second request is repeated later, as if it had been lost: nothing is left to delete.
    driver.advance_ms(1_000)
    driver.settle()
    assert str(driver.error(2)) == str(UnknownTopic("t"))


def test_topics_are_listed_by_name_in_pages(driver: BrokerDriver) -> None:
    for name in ("c", "a", "b"):
        driver.make_topic(1, name)
    driver.send(1, ListTopics(1, "", 2))
    driver.send(1, ListTopics(2, "b", 2))
    first, second = driver.received(1, TopicPage)
    assert [topic.name for topic in first.topics] == ["a", "b"]
    assert (first.more, second.more) == (True, False)
    assert [topic.name for topic in second.topics] == ["c"]


def test_a_topic_is_described_with_its_ends(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, b"a", b"b")
    driver.settle()
    driver.publish(1, topic, b"c")
    driver.send(1, DescribeTopic(1, "t"))
    (described,) = driver.received(1, TopicDescribed)
    (state,) = described.partitions
    assert (state.first, state.commit, state.end, state.state) == (0, FIRST + 2, FIRST + 3, "serving")


# --- connections ---


@pytest.mark.requirement("CM-19:connections")
def test_a_connection_beyond_the_limit_is_refused_and_closed() -> None:
    driver = BrokerDriver(BrokerSettings(connections_max=1)).start()
    driver.connect(1)
    driver.step(ConnectionAccepted(2))
    assert isinstance(driver.error(2), LimitExceeded)
    assert 2 in driver.closed
    driver.disconnect(2)
    driver.disconnect(1)
    driver.connect(3)
    assert 3 in driver.greeted


@pytest.mark.requirement("CM-19:topics")
def test_topics_are_limited() -> None:
    driver = BrokerDriver(BrokerSettings(topics_max=2)).start()
    driver.connect(1)
    driver.make_topic(1, "a")
    driver.send(1, CreateTopic(1, "b", TopicSettings()))
    driver.send(1, CreateTopic(2, "c", TopicSettings()))
    assert isinstance(driver.error(1), LimitExceeded)


def test_hello_chooses_the_highest_version_both_know(driver: BrokerDriver) -> None:
    driver.step(ConnectionAccepted(2))
    driver.send(2, Hello(4, 1, 99, ("unheard of",)))
    (welcome,) = driver.received(2, Welcome)
    assert (welcome.request, welcome.version, welcome.features, welcome.fabric) == (4, 1, (), "raft")


def test_no_common_version_closes_the_connection_with_the_reason(driver: BrokerDriver) -> None:
    driver.step(ConnectionAccepted(2))
    driver.send(2, Hello(4, 50, 99))
    assert isinstance(driver.error(2), IncompatibleVersion)
    assert 2 in driver.closed


def test_a_message_before_hello_closes_the_connection_and_later_ones_are_ignored(driver: BrokerDriver) -> None:
    driver.step(ConnectionAccepted(2))
    driver.send(2, Ping(1))
    error = driver.error(2)
    assert isinstance(error, PeerViolation)
    assert error.reason == Violation.NOT_GREETED
    assert 2 in driver.closed
    assert any("first message was not Hello" in str(note.about.get("reason")) for note in driver.log_lines)
    driver.send(2, Hello(1, 1, 1))
    assert driver.received(2, Welcome) == []


def test_a_message_out_of_order_closes_that_connection_only(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.connect(2)
    driver.connect(3)
    driver.send(2, Hello(1, 1, 1))
    driver.subscribe(3, topic, 5)
    driver.send(3, Subscribe(9, 5, topic, 0, "earliest", 0, 100))
    for conn in (2, 3):
        error = driver.error(conn)
        assert isinstance(error, PeerViolation)
        assert error.reason == Violation.OUT_OF_ORDER
    assert sorted(driver.closed) == [2, 3]
    driver.send(1, Ping(8))
    assert driver.received(1, Pong) == [Pong(8)]


def test_goodbye_closes_the_connection(driver: BrokerDriver) -> None:
    driver.send(1, Goodbye("done"))
    assert driver.closed == {1: "done"}


def test_a_silent_connection_is_closed_and_an_active_one_is_not(driver: BrokerDriver) -> None:
    driver.connect(2)
    for _ in range(4):
        driver.advance_ms(5_000)
        driver.send(2, Ping(1))
        driver.step(TimerFired(SWEEP))
    assert list(driver.closed) == [1]


def test_a_stopping_node_sends_goodbye_and_accepts_no_client(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.step(ConnectionAccepted(2))
    driver.publish(1, topic)
    driver.step(Stop())
    driver.send(2, Hello(1, 1, 1))
    assert isinstance(driver.error(2), NodeStopping)
    driver.settle()
    assert len(driver.received(1, Goodbye)) == 1
    assert sorted(driver.closed) == [1, 2]


# --- segments, checkpoints, retention ---


def filled_segments(settings: BrokerSettings | None = None, **topic_settings: Any) -> tuple[BrokerDriver, int]:
    driver = BrokerDriver(settings).start()
    driver.connect(1)
    topic = driver.make_topic(1, segment_bytes=4096, **topic_settings)
    for sequence in range(40):
        driver.advance_ms(1000)
        driver.publish(1, topic, bytes(500), producer=9, sequence=sequence)
    driver.settle()
    driver.effects.clear()
    return driver, topic


def test_a_full_segment_is_followed_by_one_that_begins_with_a_checkpoint() -> None:
    driver, topic = filled_segments()
    segments = driver.logs[partition_id(topic)].segments()
    assert len(segments) > 2
    for segment in segments[1:]:
        assert read_header(segment[0]).owner_flags == OwnerFlag.CHECKPOINT
        assert read_header(segment[0]).is_control
    for segment in segments[:-1]:
        assert sum(map(len, segment)) >= 4096


def test_a_topic_begins_without_a_checkpoint() -> None:
    driver, topic = filled_segments()
    beginning, first = map(read_header, driver.logs[partition_id(topic)].batches[:2])
    assert (beginning.base_offset, beginning.owner_flags) == (0, 0)
    assert (first.base_offset, first.is_control) == (FIRST, False)


@pytest.mark.requirement("CM-5:stored-once")
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_start_recovers_producers_from_checkpoint_and_log(trimmed: bool) -> None:
    driver, topic = filled_segments()
    log = driver.logs[partition_id(topic)]
    if trimmed:
        log.trim(base_offset(log.segments()[-1][0]))
    again = driver.restarted()
    again.connect(1)
    batches = len(log.batches)
    for sequence in (39, 20, 0):
        request = again.publish(1, topic, bytes(500), producer=9, sequence=sequence)
        assert [published.request for published in again.received(1, Published)] == [request]
    assert len(log.batches) == batches
    again.publish(1, topic, bytes(500), producer=9, sequence=41)
    assert isinstance(again.error(1), SequenceGap)


def test_every_start_writes_under_a_higher_owner_epoch() -> None:
    driver, topic = filled_segments()
    again = driver.restarted()
    again.connect(1)
    again.publish(1, topic)
    epochs = [owner_epoch(batch) for batch in again.logs[partition_id(topic)].batches]
    assert epochs[-1] == epochs[0] + 1


def test_the_checkpoint_holds_the_epoch_before_log_start() -> None:
    driver, topic = filled_segments()
    for _ in range(2):
        driver = driver.restarted()
        driver.connect(1)
        for sequence in range(40):
            driver.publish(1, topic, bytes(500), sequence=sequence)
        driver.settle()
    log = driver.logs[partition_id(topic)]
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    assert [epoch for epoch, _ in served.epochs] == [1, 2, 3]
    log.trim(base_offset(log.segments()[-1][0]))
    again = driver.restarted()
    kept = again.broker.topic_table.served.get(partition_id(topic))
    assert kept is not None
    assert kept.epochs[0][0] == 3
    assert kept.epochs[0][1] < log.first
    assert EpochStart(*kept.epochs[0]).offset == served.epochs[-1][1]


def test_a_checkpoint_of_many_producers_fits_into_a_frame() -> None:
    driver = BrokerDriver().start()
    driver.connect(1)
    topic = driver.make_topic(1, segment_bytes=4096)
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    latest = tuple((number, 2**40 + number, 2**40 + number) for number in range(64))
    served.producers.restore([(2**62 + number, ProducerEntry(1, 2**31, latest)) for number in range(10_000)])
    for _ in range(10):
        driver.publish(1, topic, bytes(1000))
    checkpoints = [append.batch for append in driver.of(Append) if read_header(append.batch).is_control]
    large = [len(batch) for batch in checkpoints if len(batch) > 4096]
    assert large
    assert max(large) < driver.broker.settings.frame_bytes_max // 2
    assert len(large) == 2, "a checkpoint larger than a segment does not begin one with every batch"


@pytest.mark.requirement("CM-3:retention-age")
def test_retention_by_age_drops_whole_segments_that_are_too_old() -> None:
    driver, topic = filled_segments(retention_ms=20_000)
    log = driver.logs[partition_id(topic)]
    boundaries = [base_offset(segment[0]) for segment in log.segments()]
    driver.step(TimerFired(RETENTION))
    assert driver.of(ListSegments) == [ListSegments(partition_id(topic))]
    driver.settle()
    (trim,) = driver.of(Trim)
    assert trim.first in boundaries
    kept_us = [max(read_header(batch).max_timestamp_us for batch in segment) for segment in log.segments()]
    assert min(kept_us) >= driver.now.wall_us - 20_000_000
    assert trim.first < log.end


@pytest.mark.requirement("CM-3:retention-size")
def test_retention_by_bytes_keeps_at_least_that_much() -> None:
    driver, topic = filled_segments(retention_bytes=10_000)
    driver.step(TimerFired(RETENTION))
    driver.settle()
    assert len(driver.of(Trim)) == 1
    kept = sum(map(len, driver.logs[partition_id(topic)].batches))
    assert 10_000 <= kept < 10_000 + 2 * 4096 + 1000


def test_retention_uses_the_logs_own_size() -> None:
    driver, topic = filled_segments(retention_bytes=30_000)
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    served.bytes += 1_000_000
    driver.step(TimerFired(RETENTION))
    driver.settle()
    assert driver.of(Trim) == []
    assert served.bytes < 30_000


def test_retention_without_a_limit_lists_no_segments() -> None:
    driver, _ = filled_segments()
    driver.step(TimerFired(RETENTION))
    assert driver.of(ListSegments) == []


@pytest.mark.requirement("CM-15:nothing-deleted")
def test_a_full_disk_deletes_nothing_that_retention_would_keep() -> None:
    driver, topic = filled_segments(retention_bytes=30_000)
    driver.full = True
    for _ in range(200):
        driver.publish(1, topic, bytes(500))
    driver.step(TimerFired(RETENTION))
    driver.settle()
    assert driver.of(Trim) == []
    assert {failed.code for failed in driver.received(1, Failed)} == {"DiskFull"}
