"""Publishing: what is written, what is request_done, and when."""

from __future__ import annotations

import pytest

from rostra.broker.api import Stop, SyncedTogether, SyncFailed
from rostra.broker.settings import BrokerSettings
from rostra.errors import (
    BatchRejected,
    DiskFull,
    DiskUntrusted,
    LimitExceeded,
    NodeStopping,
    ProducerFenced,
    SequenceGap,
    TopicDeleted,
    TopicRecreated,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
)
from rostra.fabric.api import Append, Synced, WriteFailed
from rostra.fabric.raft.metadata.metadata_state import META
from rostra.model.batch import Reason
from rostra.wire.messages import CreateTopic, DeleteTopic, Failed, Publish, Published, TopicSettings
from tests.unit.broker.desk import FIRST, Desk, part


@pytest.fixture
def desk() -> Desk:
    started = Desk().start()
    started.connect(1)
    return started


@pytest.mark.requirement("CM-4:levels")
@pytest.mark.parametrize("acks", ["owner", "all"])
def test_a_publish_is_written_and_synced_and_answered_only_then(desk: Desk, acks: str) -> None:
    topic = desk.make_topic(1)
    desk.effects.clear()
    request = desk.publish(1, topic, b"a", b"b", acks=acks)
    assert [effect.sync for effect in desk.of(Append)] == [True]
    assert desk.heard(1, Published) == []
    desk.settle()
    assert desk.heard(1, Published) == [Published(request, FIRST)]
    assert len(desk.logs[part(topic)].synced) == FIRST + 1


def test_a_publish_with_acks_none_is_never_answered(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, acks="none")
    desk.settle()
    assert desk.heard(1, Published) == []
    assert len(desk.logs[part(topic)].batches) == FIRST + 1


def test_a_refused_publish_with_acks_none_is_answered(desk: Desk) -> None:
    desk.publish(1, 12345, acks="none")
    assert isinstance(desk.error(1), UnknownTopic)


def test_one_sync_answers_every_publish_before_it_and_none_behind_it(desk: Desk) -> None:
    topic = desk.make_topic(1)
    early = [desk.publish(1, topic) for _ in range(3)]
    late_sync = Synced(part(topic), 0, FIRST + 3)
    late = desk.publish(1, topic)
    desk.step(late_sync)
    assert [published.request for published in desk.heard(1, Published)] == early
    desk.settle()
    assert [published.request for published in desk.heard(1, Published)] == [late]


def test_syncs_that_come_together_answer_as_if_they_came_one_after_the_other(desk: Desk) -> None:
    topics = [desk.make_topic(1, name) for name in ("one", "other")]
    waiting = [desk.publish(1, topic) for topic in topics]
    stale = Synced(part(topics[0]), 1, FIRST + 1)
    desk.step(SyncedTogether((stale, Synced(part(topics[1]), 0, FIRST + 1))))
    assert [published.request for published in desk.heard(1, Published)] == waiting[1:]
    desk.step(SyncedTogether(tuple(Synced(part(topic), 0, FIRST + 1) for topic in topics)))
    assert [published.request for published in desk.heard(1, Published)] == waiting[:1]


def test_a_sync_that_began_before_a_cut_vouches_for_nothing_behind_it(desk: Desk) -> None:
    topic = desk.make_topic(1)
    stale = Synced(part(topic), 0, FIRST + 1)
    desk.full = True
    desk.publish(1, topic, b"refused")
    assert isinstance(desk.error(1), DiskFull)
    desk.full = False
    for acks in ("owner", "all"):
        desk.publish(1, topic, b"kept", acks=acks)
    desk.step(stale)
    assert desk.heard(1, Published) == []


@pytest.mark.requirement("CM-5:stored-once")
def test_a_batch_sent_again_is_stored_once_and_answered_with_its_offset(desk: Desk) -> None:
    topic = desk.make_topic(1)
    for sequence in range(3):
        desk.publish(1, topic, producer=9, sequence=sequence)
    desk.settle()
    desk.heard(1, Published)
    again = desk.publish(1, topic, producer=9, sequence=1)
    assert desk.heard(1, Published) == [Published(again, FIRST + 1)]
    assert len(desk.logs[part(topic)].batches) == FIRST + 3


@pytest.mark.requirement("CM-5:stored-once")
@pytest.mark.parametrize("acks", ["owner", "all"])
def test_a_repeat_of_what_is_not_yet_safe_waits_with_it(desk: Desk, acks: str) -> None:
    topic = desk.make_topic(1)
    first = desk.publish(1, topic, acks=acks, producer=9)
    again = desk.publish(1, topic, acks=acks, producer=9)
    assert desk.heard(1, Published) == []
    desk.settle()
    assert desk.heard(1, Published) == [Published(first, FIRST), Published(again, FIRST)]
    assert len(desk.logs[part(topic)].batches) == FIRST + 1


def test_a_repeat_parked_behind_later_batches_is_answered_in_its_place(desk: Desk) -> None:
    topic = desk.make_topic(1)
    first = desk.publish(1, topic, producer=9, sequence=0)
    second = desk.publish(1, topic, producer=9, sequence=1)
    again = desk.publish(1, topic, producer=9, sequence=0)
    desk.step(Synced(part(topic), 0, FIRST + 1))
    assert {published.request for published in desk.heard(1, Published)} == {first, again}
    desk.settle()
    assert desk.heard(1, Published) == [Published(second, FIRST + 1)]


@pytest.mark.requirement("CM-5:stored-once")
def test_a_repeat_from_another_connection_is_stored_once(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, producer=9)
    desk.lose(1)
    desk.connect(2)
    again = desk.publish(2, topic, producer=9)
    desk.settle()
    assert desk.heard(2, Published) == [Published(again, FIRST)]
    assert len(desk.logs[part(topic)].batches) == FIRST + 1


def test_a_repeat_too_old_for_its_offset_to_be_known_is_still_not_stored_again(desk: Desk) -> None:
    topic = desk.make_topic(1)
    for sequence in range(100):
        desk.publish(1, topic, producer=9, sequence=sequence)
    desk.settle()
    desk.heard(1, Published)
    again = desk.publish(1, topic, producer=9, sequence=3)
    assert desk.heard(1, Published) == [Published(again, -1)]
    assert len(desk.logs[part(topic)].batches) == FIRST + 100


def test_a_batch_is_refused_while_one_before_it_is_missing(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, producer=9, sequence=0)
    desk.publish(1, topic, producer=9, sequence=2)
    assert isinstance(desk.error(1), SequenceGap)
    assert len(desk.logs[part(topic)].batches) == FIRST + 1


@pytest.mark.parametrize(("sequence", "count"), [(0, 3), (1, 2), (1, 4)])
def test_a_repeat_that_was_cut_differently_is_refused_and_not_taken_for_stored(
    desk: Desk, sequence: int, count: int
) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a", b"b", producer=9, sequence=0)
    desk.publish(1, topic, *[b"x"] * count, producer=9, sequence=sequence)
    assert isinstance(desk.error(1), SequenceGap)


def test_sequences_go_on_beyond_their_largest_number(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, producer=9, sequence=0)
    entry = desk.broker.topic_table.served.get(part(topic))
    assert entry is not None
    table = entry.producers.snapshot()
    table[0][1].expected = 2**32 - 1
    entry.producers.restore(table)
    last = desk.publish(1, topic, producer=9, sequence=2**32 - 1)
    wrapped = desk.publish(1, topic, producer=9, sequence=0)
    desk.settle()
    assert [published.request for published in desk.heard(1, Published)][-2:] == [last, wrapped]


@pytest.mark.requirement("CM-19:producers")
def test_a_producer_that_was_forgotten_hears_so_and_is_not_silently_accepted() -> None:
    desk = Desk(BrokerSettings(producers_per_partition_max=2)).start()
    desk.connect(1)
    topic = desk.make_topic(1)
    for producer in (1, 2, 3):
        desk.publish(1, topic, producer=producer)
    desk.publish(1, topic, producer=1, sequence=1)
    assert isinstance(desk.error(1), UnknownProducer)
    desk.publish(1, topic, producer=3, sequence=1)
    assert desk.heard(1, Failed) == []


def test_a_producer_of_an_older_epoch_is_fenced(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, producer=9, producer_epoch=2)
    desk.publish(1, topic, producer=9, producer_epoch=1, sequence=0)
    assert isinstance(desk.error(1), ProducerFenced)


def test_a_new_producer_epoch_begins_with_sequence_zero(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, producer=9, producer_epoch=1, sequence=0)
    desk.publish(1, topic, producer=9, producer_epoch=2, sequence=1)
    assert isinstance(desk.error(1), SequenceGap)
    desk.publish(1, topic, producer=9, producer_epoch=2, sequence=0)
    assert desk.heard(1, Failed) == []


@pytest.mark.requirement("CM-15:full")
def test_a_full_disk_refuses_the_publish_and_takes_its_repeat_as_new(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a", producer=9, sequence=0)
    desk.settle()
    desk.full = True
    desk.publish(1, topic, b"b", producer=9, sequence=1)
    assert isinstance(desk.error(1), DiskFull)
    desk.heard(1, Published)
    desk.full = False
    again = desk.publish(1, topic, b"b", producer=9, sequence=1)
    desk.settle()
    assert desk.heard(1, Published) == [Published(again, FIRST + 1)]


@pytest.mark.requirement("CM-15:full")
def test_while_the_disk_is_full_reads_go_on(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a")
    desk.settle()
    desk.full = True
    desk.publish(1, topic, b"b")
    desk.connect(2)
    desk.subscribe(2, topic)
    assert desk.pushed(2) == [b"a"]


def test_a_full_disk_answers_all_publishes_of_the_cut(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.full = True
    for acks in ("owner", "all"):
        desk.publish(1, topic, acks=acks)
    assert [failed.code for failed in desk.heard(1, Failed)] == ["DiskFull", "DiskFull"]


def test_a_refused_write_does_not_count_as_bytes_stored(desk: Desk) -> None:
    topic = desk.make_topic(1)
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    desk.publish(1, topic)
    before = served.bytes, served.segment_bytes
    desk.full = True
    for _ in range(10):
        desk.publish(1, topic)
    assert (served.bytes, served.segment_bytes) == before


@pytest.mark.requirement("CM-15:fsync")
def test_after_a_failed_fsync_nothing_is_acknowledged_any_more(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a")
    desk.publish(1, topic, b"b", acks="owner")
    desk.step(SyncFailed(DiskUntrusted("EIO")))
    assert [failed.code for failed in desk.heard(1, Failed)] == ["DiskUntrusted", "DiskUntrusted"]
    desk.settle()
    desk.step(Synced(part(topic), 0, 2))
    desk.publish(1, topic, b"c")
    assert isinstance(desk.error(1), DiskUntrusted)
    desk.say(1, CreateTopic(99, "other", TopicSettings()))
    assert isinstance(desk.error(1), DiskUntrusted)
    desk.say(1, DeleteTopic(100, "t"))
    assert isinstance(desk.error(1), DiskUntrusted)
    assert desk.heard(1, Published) == []


@pytest.mark.requirement("CM-15:fsync")
def test_after_a_failed_fsync_what_was_committed_is_still_read(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, b"a")
    desk.settle()
    desk.publish(1, topic, b"unsynced")
    desk.step(SyncFailed(DiskUntrusted("EIO")))
    desk.connect(2)
    desk.subscribe(2, topic)
    desk.settle()
    assert desk.pushed(2) == [b"a"]


@pytest.mark.requirement("CM-15:fsync")
def test_topics_being_made_are_refused_when_the_fsync_fails(desk: Desk) -> None:
    desk.say(1, CreateTopic(5, "t", TopicSettings()))
    desk.step(SyncFailed(DiskUntrusted("EIO")))
    assert isinstance(desk.error(1), DiskUntrusted)
    # Its entry was still on its way to the disk, which refuses it now as well: nobody is told twice.
    assert desk.step(WriteFailed(META, 0, 1, DiskFull())) == []


@pytest.mark.requirement("CM-19:requests")
def test_publishes_that_wait_are_bounded_per_connection() -> None:
    desk = Desk(BrokerSettings(requests_per_connection_max=3)).start()
    desk.connect(1)
    topic = desk.make_topic(1)
    for _ in range(3):
        desk.publish(1, topic)
    desk.publish(1, topic)
    assert isinstance(desk.error(1), LimitExceeded)
    desk.settle()
    desk.publish(1, topic)
    assert desk.heard(1, Failed) == []


@pytest.mark.requirement("CM-19:requests")
def test_lookups_that_wait_for_a_topic_are_bounded_per_connection() -> None:
    desk = Desk(BrokerSettings(requests_per_connection_max=3)).start()
    desk.connect(1)
    for number in range(4):
        desk.say(1, CreateTopic(number, f"t{number}", TopicSettings()))
    assert isinstance(desk.error(1), LimitExceeded)


@pytest.mark.requirement("CM-19:batch")
def test_a_batch_over_the_limit_is_rejected_and_nothing_is_written() -> None:
    desk = Desk(BrokerSettings(batch_bytes_max=1000)).start()
    desk.connect(1)
    topic = desk.make_topic(1)
    desk.effects.clear()
    desk.publish(1, topic, bytes(2000))
    error = desk.error(1)
    assert isinstance(error, BatchRejected)
    assert error.reason == Reason.TOO_LARGE
    assert desk.of(Append) == []


def test_a_damaged_batch_is_rejected_and_the_connection_goes_on(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.say(1, Publish(7, topic, 0, "all"), b"not a batch")
    error = desk.error(1)
    assert isinstance(error, BatchRejected)
    assert error.reason == Reason.TRUNCATED
    assert desk.closed == {}


def test_a_partition_that_does_not_exist_is_refused(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic, partition=1)
    assert isinstance(desk.error(1), UnknownPartition)


def test_the_id_of_a_deleted_topic_says_what_became_of_it(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.say(1, DeleteTopic(5, "t"))
    desk.settle()
    desk.publish(1, topic)
    assert isinstance(desk.error(1), TopicDeleted)
    assert desk.make_topic(1) != topic
    desk.publish(1, topic)
    assert isinstance(desk.error(1), TopicRecreated)


def test_deleting_a_topic_answers_the_publishes_that_waited(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.publish(1, topic)
    desk.pending.clear()
    desk.say(1, DeleteTopic(5, "t"))
    desk.settle()
    assert isinstance(desk.error(1), TopicDeleted)


@pytest.mark.requirement("CM-16:in-flight")
def test_a_graceful_stop_waits_for_what_is_promised_and_refuses_what_is_new(desk: Desk) -> None:
    topic = desk.make_topic(1)
    parked = desk.publish(1, topic)
    desk.step(Stop())
    assert not desk.stopped
    desk.publish(1, topic)
    assert isinstance(desk.error(1), NodeStopping)
    desk.settle()
    assert desk.heard(1, Published) == [Published(parked, FIRST)]
    assert desk.stopped
    assert 1 in desk.closed


@pytest.mark.requirement("CM-16:in-flight")
def test_a_graceful_stop_waits_for_topics_being_made(desk: Desk) -> None:
    desk.say(1, CreateTopic(5, "t", TopicSettings()))
    desk.step(Stop())
    assert not desk.stopped
    desk.settle()
    assert desk.stopped


def test_a_write_that_fails_after_its_topic_was_dropped_is_forgotten(desk: Desk) -> None:
    topic = desk.make_topic(1)
    desk.say(1, DeleteTopic(5, "t"))
    desk.settle()
    assert desk.step(WriteFailed(part(topic), 0, 1, DiskFull())) == []
