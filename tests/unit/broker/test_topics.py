"""Topics, connections and their limits; what a start rebuilds; retention."""

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
from tests.unit.broker.desk import FIRST, Desk, part

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
def desk() -> Desk:
    started = Desk().start()
    started.connect(1)
    return started


# --- names and topics ---


@pytest.mark.requirement("CM-2:before-disk", "CM-2:refused")
@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_before_anything_is_written(desk: Desk, name: str) -> None:
    desk.say(1, CreateTopic(1, name, TopicSettings()))
    error = desk.error(1)
    assert isinstance(error, InvalidTopicName)
    assert error.name == name
    desk.say(1, Locate(2, name, create=True))
    assert isinstance(desk.error(1), InvalidTopicName)
    assert (desk.effects, desk.pending) == ([], [])


@pytest.mark.requirement("CM-2:accepted")
@pytest.mark.parametrize("name", ["a", "a" * 249, "a/b/c", "A-1_x.y", "..."])
def test_a_good_name_is_taken(desk: Desk, name: str) -> None:
    assert desk.make_topic(1, name)


def test_a_topic_is_there_only_when_it_is_durable(desk: Desk) -> None:
    desk.say(1, CreateTopic(1, "t", TopicSettings()))
    assert desk.heard(1, TopicCreated) == []
    desk.say(1, Locate(2, "t"))
    assert isinstance(desk.error(1), UnknownTopic)
    desk.settle()
    assert len(desk.heard(1, TopicCreated)) == 1


def test_a_topic_is_made_once_however_many_ask_for_it(desk: Desk) -> None:
    desk.connect(2)
    desk.say(1, Locate(1, "t", create=True))
    desk.say(2, Locate(1, "t", create=True))
    desk.settle()
    (first,), (second,) = desk.heard(1, Located), desk.heard(2, Located)
    assert first == second
    desk.say(1, CreateTopic(3, "t", TopicSettings()))
    assert isinstance(desk.error(1), TopicExists)


def test_a_lookup_makes_no_topic_unless_asked_and_allowed() -> None:
    desk = Desk(BrokerSettings(auto_create=False)).start()
    desk.connect(1)
    desk.say(1, Locate(1, "t", create=True))
    assert isinstance(desk.error(1), UnknownTopic)


def test_deleting_what_does_not_exist_is_refused(desk: Desk) -> None:
    desk.say(1, DeleteTopic(1, "t"))
    assert isinstance(desk.error(1), UnknownTopic)


def test_a_deleted_topic_leaves_nothing_on_disk_and_stays_deleted(desk: Desk) -> None:
    topic = desk.make_topic(1, partitions=2)
    desk.say(1, DeleteTopic(1, "t"))
    desk.settle()
    assert desk.heard(1, TopicDropped) == [TopicDropped(1, topic)]
    assert len(desk.of(Drop)) == 2
    assert part(topic) not in desk.logs
    again = desk.restarted()
    again.connect(1)
    again.say(1, DescribeTopic(1, "t"))
    assert isinstance(again.error(1), UnknownTopic)


def test_two_who_delete_the_same_topic_are_both_answered(desk: Desk) -> None:
    desk.connect(2)
    desk.make_topic(1)
    desk.say(1, DeleteTopic(1, "t"))
    desk.say(2, DeleteTopic(1, "t"))
    desk.settle()
    assert len(desk.heard(1, TopicDropped)) == 1
    # The other is asked for again after a while, as if it had been lost: nothing is left to delete.
    desk.after_ms(1_000)
    desk.settle()
    assert str(desk.error(2)) == str(UnknownTopic("t"))


def test_topics_are_listed_by_name_in_pages(desk: Desk) -> None:
    for name in ("c", "a", "b"):
        desk.make_topic(1, name)
    desk.say(1, ListTopics(1, "", 2))
    desk.say(1, ListTopics(2, "b", 2))
    first, second = desk.heard(1, TopicPage)
    assert [topic.name for topic in first.topics] == ["a", "b"]
    assert (first.more, second.more) == (True, False)
    assert [topic.name for topic in second.topics] == ["c"]


def test_a_topic_is_described_with_its_ends(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a", b"b")
    desk.settle()
    desk.publish(1, topic, b"c")
    desk.say(1, DescribeTopic(1, "t"))
    (described,) = desk.heard(1, TopicDescribed)
    (state,) = described.partitions
    assert (state.first, state.commit, state.end, state.state) == (0, FIRST + 2, FIRST + 3, "serving")


# --- connections ---


@pytest.mark.requirement("CM-19:connections")
def test_one_connection_too_many_is_told_so_and_closed() -> None:
    desk = Desk(BrokerSettings(connections_max=1)).start()
    desk.connect(1)
    desk.step(ConnectionAccepted(2))
    assert isinstance(desk.error(2), LimitExceeded)
    assert 2 in desk.closed
    desk.lose(2)
    desk.lose(1)
    desk.connect(3)
    assert 3 in desk.greeted


@pytest.mark.requirement("CM-19:topics")
def test_topics_are_bounded() -> None:
    desk = Desk(BrokerSettings(topics_max=2)).start()
    desk.connect(1)
    desk.make_topic(1, "a")
    desk.say(1, CreateTopic(1, "b", TopicSettings()))
    desk.say(1, CreateTopic(2, "c", TopicSettings()))
    assert isinstance(desk.error(1), LimitExceeded)


def test_hello_chooses_the_highest_version_both_know(desk: Desk) -> None:
    desk.step(ConnectionAccepted(2))
    desk.say(2, Hello(4, 1, 99, ("unheard of",)))
    (welcome,) = desk.heard(2, Welcome)
    assert (welcome.request, welcome.version, welcome.features, welcome.fabric) == (4, 1, (), "raft")


def test_no_common_version_closes_the_connection_with_the_reason(desk: Desk) -> None:
    desk.step(ConnectionAccepted(2))
    desk.say(2, Hello(4, 50, 99))
    assert isinstance(desk.error(2), IncompatibleVersion)
    assert 2 in desk.closed


def test_whoever_speaks_before_hello_is_hung_up_on_and_not_heard_any_more(desk: Desk) -> None:
    desk.step(ConnectionAccepted(2))
    desk.say(2, Ping(1))
    error = desk.error(2)
    assert isinstance(error, PeerViolation)
    assert error.reason == Violation.NOT_GREETED
    assert 2 in desk.closed
    assert any("first message was not Hello" in str(note.about.get("reason")) for note in desk.notes)
    desk.say(2, Hello(1, 1, 1))
    assert desk.heard(2, Welcome) == []


def test_a_message_out_of_order_closes_that_connection_only(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.connect(2)
    desk.connect(3)
    desk.say(2, Hello(1, 1, 1))
    desk.subscribe(3, topic, 5)
    desk.say(3, Subscribe(9, 5, topic, 0, "earliest", 0, 100))
    for conn in (2, 3):
        error = desk.error(conn)
        assert isinstance(error, PeerViolation)
        assert error.reason == Violation.OUT_OF_ORDER
    assert sorted(desk.closed) == [2, 3]
    desk.say(1, Ping(8))
    assert desk.heard(1, Pong) == [Pong(8)]


def test_goodbye_closes_the_connection(desk: Desk) -> None:
    desk.say(1, Goodbye("done"))
    assert desk.closed == {1: "done"}


def test_a_silent_connection_is_closed_and_a_talking_one_is_not(desk: Desk) -> None:
    desk.connect(2)
    for _ in range(4):
        desk.after_ms(5_000)
        desk.say(2, Ping(1))
        desk.step(TimerFired(SWEEP))
    assert list(desk.closed) == [1]


def test_a_stopping_node_says_goodbye_to_everyone_and_greets_nobody(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.step(ConnectionAccepted(2))
    desk.publish(1, topic)
    desk.step(Stop())
    desk.say(2, Hello(1, 1, 1))
    assert isinstance(desk.error(2), NodeStopping)
    desk.settle()
    assert len(desk.heard(1, Goodbye)) == 1
    assert sorted(desk.closed) == [1, 2]


# --- segments, checkpoints, retention ---


def filled_segments(settings: BrokerSettings | None = None, **topic_settings: Any) -> tuple[Desk, int]:
    desk = Desk(settings).start()
    desk.connect(1)
    topic = desk.make_topic(1, segment_bytes=4096, **topic_settings)
    for sequence in range(40):
        desk.after_ms(1000)
        desk.publish(1, topic, bytes(500), producer=9, sequence=sequence)
    desk.settle()
    desk.effects.clear()
    return desk, topic


def test_a_full_segment_is_followed_by_one_that_begins_with_a_checkpoint() -> None:
    desk, topic = filled_segments()
    segments = desk.logs[part(topic)].segments()
    assert len(segments) > 2
    for segment in segments[1:]:
        assert read_header(segment[0]).owner_flags == OwnerFlag.CHECKPOINT
        assert read_header(segment[0]).is_control
    for segment in segments[:-1]:
        assert sum(map(len, segment)) >= 4096


def test_a_topic_begins_without_a_checkpoint() -> None:
    desk, topic = filled_segments()
    beginning, first = map(read_header, desk.logs[part(topic)].batches[:2])
    assert (beginning.base_offset, beginning.owner_flags) == (0, 0)
    assert (first.base_offset, first.is_control) == (FIRST, False)


@pytest.mark.requirement("CM-5:stored-once")
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_start_knows_from_checkpoint_and_log_what_was_stored(trimmed: bool) -> None:
    desk, topic = filled_segments()
    log = desk.logs[part(topic)]
    if trimmed:
        log.trim(base_offset(log.segments()[-1][0]))
    again = desk.restarted()
    again.connect(1)
    batches = len(log.batches)
    for sequence in (39, 20, 0):
        request = again.publish(1, topic, bytes(500), producer=9, sequence=sequence)
        assert [published.request for published in again.heard(1, Published)] == [request]
    assert len(log.batches) == batches
    again.publish(1, topic, bytes(500), producer=9, sequence=41)
    assert isinstance(again.error(1), SequenceGap)


def test_every_start_writes_under_a_higher_owner_epoch() -> None:
    desk, topic = filled_segments()
    again = desk.restarted()
    again.connect(1)
    again.publish(1, topic)
    epochs = [owner_epoch(batch) for batch in again.logs[part(topic)].batches]
    assert epochs[-1] == epochs[0] + 1


def test_the_epoch_before_log_start_is_remembered_by_the_checkpoint() -> None:
    desk, topic = filled_segments()
    for _ in range(2):
        desk = desk.restarted()
        desk.connect(1)
        for sequence in range(40):
            desk.publish(1, topic, bytes(500), sequence=sequence)
        desk.settle()
    log = desk.logs[part(topic)]
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    assert [epoch for epoch, _ in served.epochs] == [1, 2, 3]
    log.trim(base_offset(log.segments()[-1][0]))
    again = desk.restarted()
    kept = again.broker.topic_table.served.get(part(topic))
    assert kept is not None
    assert kept.epochs[0][0] == 3
    assert kept.epochs[0][1] < log.first
    assert EpochStart(*kept.epochs[0]).offset == served.epochs[-1][1]


def test_a_checkpoint_of_many_producers_fits_into_a_frame() -> None:
    desk = Desk().start()
    desk.connect(1)
    topic = desk.make_topic(1, segment_bytes=4096)
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    latest = tuple((number, 2**40 + number, 2**40 + number) for number in range(64))
    served.producers.restore([(2**62 + number, ProducerEntry(1, 2**31, latest)) for number in range(10_000)])
    for _ in range(10):
        desk.publish(1, topic, bytes(1000))
    checkpoints = [append.batch for append in desk.of(Append) if read_header(append.batch).is_control]
    large = [len(batch) for batch in checkpoints if len(batch) > 4096]
    assert large
    assert max(large) < desk.broker.settings.frame_bytes_max // 2
    assert len(large) == 2, "a checkpoint larger than a segment does not begin one with every batch"


@pytest.mark.requirement("CM-3:retention-age")
def test_retention_by_age_drops_whole_segments_that_are_too_old() -> None:
    desk, topic = filled_segments(retention_ms=20_000)
    log = desk.logs[part(topic)]
    boundaries = [base_offset(segment[0]) for segment in log.segments()]
    desk.step(TimerFired(RETENTION))
    assert desk.of(ListSegments) == [ListSegments(part(topic))]
    desk.settle()
    (trim,) = desk.of(Trim)
    assert trim.first in boundaries
    kept_us = [max(read_header(batch).max_timestamp_us for batch in segment) for segment in log.segments()]
    assert min(kept_us) >= desk.now.wall_us - 20_000_000
    assert trim.first < log.end


@pytest.mark.requirement("CM-3:retention-size")
def test_retention_by_bytes_keeps_at_least_that_much() -> None:
    desk, topic = filled_segments(retention_bytes=10_000)
    desk.step(TimerFired(RETENTION))
    desk.settle()
    assert len(desk.of(Trim)) == 1
    kept = sum(map(len, desk.logs[part(topic)].batches))
    assert 10_000 <= kept < 10_000 + 2 * 4096 + 1000


def test_retention_believes_the_log_about_its_size_and_not_a_count_of_its_own() -> None:
    desk, topic = filled_segments(retention_bytes=30_000)
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    served.bytes += 1_000_000
    desk.step(TimerFired(RETENTION))
    desk.settle()
    assert desk.of(Trim) == []
    assert served.bytes < 30_000


def test_retention_without_a_bound_asks_nothing() -> None:
    desk, _ = filled_segments()
    desk.step(TimerFired(RETENTION))
    assert desk.of(ListSegments) == []


@pytest.mark.requirement("CM-15:nothing-deleted")
def test_a_full_disk_deletes_nothing_that_retention_would_keep() -> None:
    desk, topic = filled_segments(retention_bytes=30_000)
    desk.full = True
    for _ in range(200):
        desk.publish(1, topic, bytes(500))
    desk.step(TimerFired(RETENTION))
    desk.settle()
    assert desk.of(Trim) == []
    assert {failed.code for failed in desk.heard(1, Failed)} == {"DiskFull"}
