"""Publishing: what is written, what is acknowledged, and when."""

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
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.model.batch import Reason
from rostra.wire.messages import CreateTopic, DeleteTopic, Failed, Publish, Published, TopicSettings
from tests.unit.broker.broker_driver import FIRST, BrokerDriver, partition_id


@pytest.fixture
def driver() -> BrokerDriver:
    started = BrokerDriver().start()
    started.connect(1)
    return started


@pytest.mark.requirement("CM-4:levels")
@pytest.mark.parametrize("acks", ["owner", "all"])
def test_a_publish_is_written_and_synced_and_answered_only_then(driver: BrokerDriver, acks: str) -> None:
    topic = driver.make_topic(1)
    driver.effects.clear()
    request = driver.publish(1, topic, b"a", b"b", acks=acks)
    assert [effect.sync for effect in driver.of(Append)] == [True]
    assert driver.received(1, Published) == []
    driver.settle()
    assert driver.received(1, Published) == [Published(request, FIRST)]
    assert len(driver.logs[partition_id(topic)].synced) == FIRST + 1


def test_a_publish_with_acks_none_is_never_answered(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, acks="none")
    driver.settle()
    assert driver.received(1, Published) == []
    assert len(driver.logs[partition_id(topic)].batches) == FIRST + 1


def test_a_refused_publish_with_acks_none_is_answered(driver: BrokerDriver) -> None:
    driver.publish(1, 12345, acks="none")
    assert isinstance(driver.error(1), UnknownTopic)


def test_one_sync_answers_every_publish_before_it_and_none_after_it(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    early = [driver.publish(1, topic) for _ in range(3)]
    late_sync = Synced(partition_id(topic), 0, FIRST + 3)
    late = driver.publish(1, topic)
    driver.step(late_sync)
    assert [published.request for published in driver.received(1, Published)] == early
    driver.settle()
    assert [published.request for published in driver.received(1, Published)] == [late]


def test_syncs_that_come_together_answer_as_if_they_came_one_after_the_other(driver: BrokerDriver) -> None:
    topics = [driver.make_topic(1, name) for name in ("one", "other")]
    waiting = [driver.publish(1, topic) for topic in topics]
    stale = Synced(partition_id(topics[0]), 1, FIRST + 1)
    driver.step(SyncedTogether((stale, Synced(partition_id(topics[1]), 0, FIRST + 1))))
    assert [published.request for published in driver.received(1, Published)] == waiting[1:]
    driver.step(SyncedTogether(tuple(Synced(partition_id(topic), 0, FIRST + 1) for topic in topics)))
    assert [published.request for published in driver.received(1, Published)] == waiting[:1]


def test_a_sync_that_began_before_a_truncation_covers_nothing_after_it(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    stale = Synced(partition_id(topic), 0, FIRST + 1)
    driver.full = True
    driver.publish(1, topic, b"refused")
    assert isinstance(driver.error(1), DiskFull)
    driver.full = False
    for acks in ("owner", "all"):
        driver.publish(1, topic, b"kept", acks=acks)
    driver.step(stale)
    assert driver.received(1, Published) == []


@pytest.mark.requirement("CM-5:stored-once")
def test_a_batch_sent_again_is_stored_once_and_answered_with_its_offset(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    for sequence in range(3):
        driver.publish(1, topic, producer=9, sequence=sequence)
    driver.settle()
    driver.received(1, Published)
    again = driver.publish(1, topic, producer=9, sequence=1)
    assert driver.received(1, Published) == [Published(again, FIRST + 1)]
    assert len(driver.logs[partition_id(topic)].batches) == FIRST + 3


@pytest.mark.requirement("CM-5:stored-once")
@pytest.mark.parametrize("acks", ["owner", "all"])
def test_a_repeat_of_an_uncommitted_batch_waits_with_it(driver: BrokerDriver, acks: str) -> None:
    topic = driver.make_topic(1)
    first = driver.publish(1, topic, acks=acks, producer=9)
    again = driver.publish(1, topic, acks=acks, producer=9)
    assert driver.received(1, Published) == []
    driver.settle()
    assert driver.received(1, Published) == [Published(first, FIRST), Published(again, FIRST)]
    assert len(driver.logs[partition_id(topic)].batches) == FIRST + 1


def test_a_repeat_parked_after_later_batches_is_answered_in_order(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    first = driver.publish(1, topic, producer=9, sequence=0)
    second = driver.publish(1, topic, producer=9, sequence=1)
    again = driver.publish(1, topic, producer=9, sequence=0)
    driver.step(Synced(partition_id(topic), 0, FIRST + 1))
    assert {published.request for published in driver.received(1, Published)} == {first, again}
    driver.settle()
    assert driver.received(1, Published) == [Published(second, FIRST + 1)]


@pytest.mark.requirement("CM-5:stored-once")
def test_a_repeat_from_another_connection_is_stored_once(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, producer=9)
    driver.disconnect(1)
    driver.connect(2)
    again = driver.publish(2, topic, producer=9)
    driver.settle()
    assert driver.received(2, Published) == [Published(again, FIRST)]
    assert len(driver.logs[partition_id(topic)].batches) == FIRST + 1


def test_a_repeat_too_old_for_its_offset_to_be_known_is_still_not_stored_again(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    for sequence in range(100):
        driver.publish(1, topic, producer=9, sequence=sequence)
    driver.settle()
    driver.received(1, Published)
    again = driver.publish(1, topic, producer=9, sequence=3)
    assert driver.received(1, Published) == [Published(again, -1)]
    assert len(driver.logs[partition_id(topic)].batches) == FIRST + 100


def test_a_batch_is_refused_while_one_before_it_is_missing(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, producer=9, sequence=0)
    driver.publish(1, topic, producer=9, sequence=2)
    assert isinstance(driver.error(1), SequenceGap)
    assert len(driver.logs[partition_id(topic)].batches) == FIRST + 1


@pytest.mark.parametrize(("sequence", "count"), [(0, 3), (1, 2), (1, 4)])
def test_a_repeat_that_was_split_differently_is_refused(driver: BrokerDriver, sequence: int, count: int) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, b"a", b"b", producer=9, sequence=0)
    driver.publish(1, topic, *[b"x"] * count, producer=9, sequence=sequence)
    assert isinstance(driver.error(1), SequenceGap)


def test_sequences_go_on_beyond_their_largest_number(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, producer=9, sequence=0)
    entry = driver.broker.topic_table.served.get(partition_id(topic))
    assert entry is not None
    table = entry.producers.snapshot()
    table[0][1].expected = 2**32 - 1
    entry.producers.restore(table)
    last = driver.publish(1, topic, producer=9, sequence=2**32 - 1)
    wrapped = driver.publish(1, topic, producer=9, sequence=0)
    driver.settle()
    assert [published.request for published in driver.received(1, Published)][-2:] == [last, wrapped]


@pytest.mark.requirement("CM-19:producers")
def test_an_evicted_producer_is_refused_and_not_silently_accepted() -> None:
    driver = BrokerDriver(BrokerSettings(producers_per_partition_max=2)).start()
    driver.connect(1)
    topic = driver.make_topic(1)
    for producer in (1, 2, 3):
        driver.publish(1, topic, producer=producer)
    driver.publish(1, topic, producer=1, sequence=1)
    assert isinstance(driver.error(1), UnknownProducer)
    driver.publish(1, topic, producer=3, sequence=1)
    assert driver.received(1, Failed) == []


def test_a_producer_of_an_older_epoch_is_fenced(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, producer=9, producer_epoch=2)
    driver.publish(1, topic, producer=9, producer_epoch=1, sequence=0)
    assert isinstance(driver.error(1), ProducerFenced)


def test_a_new_producer_epoch_begins_with_sequence_zero(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, producer=9, producer_epoch=1, sequence=0)
    driver.publish(1, topic, producer=9, producer_epoch=2, sequence=1)
    assert isinstance(driver.error(1), SequenceGap)
    driver.publish(1, topic, producer=9, producer_epoch=2, sequence=0)
    assert driver.received(1, Failed) == []


@pytest.mark.requirement("CM-15:full")
def test_a_full_disk_refuses_the_publish_and_takes_its_repeat_as_new(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, b"a", producer=9, sequence=0)
    driver.settle()
    driver.full = True
    driver.publish(1, topic, b"b", producer=9, sequence=1)
    assert isinstance(driver.error(1), DiskFull)
    driver.received(1, Published)
    driver.full = False
    again = driver.publish(1, topic, b"b", producer=9, sequence=1)
    driver.settle()
    assert driver.received(1, Published) == [Published(again, FIRST + 1)]


@pytest.mark.requirement("CM-15:full")
def test_while_the_disk_is_full_reads_go_on(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, b"a")
    driver.settle()
    driver.full = True
    driver.publish(1, topic, b"b")
    driver.connect(2)
    driver.subscribe(2, topic)
    assert driver.pushed(2) == [b"a"]


def test_a_full_disk_answers_all_truncated_publishes(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.full = True
    for acks in ("owner", "all"):
        driver.publish(1, topic, acks=acks)
    assert [failed.code for failed in driver.received(1, Failed)] == ["DiskFull", "DiskFull"]


def test_a_refused_write_does_not_count_as_bytes_stored(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    driver.publish(1, topic)
    before = served.bytes, served.segment_bytes
    driver.full = True
    for _ in range(10):
        driver.publish(1, topic)
    assert (served.bytes, served.segment_bytes) == before


@pytest.mark.requirement("CM-15:fsync")
def test_after_a_failed_fsync_nothing_is_acknowledged_any_more(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, b"a")
    driver.publish(1, topic, b"b", acks="owner")
    driver.step(SyncFailed(DiskUntrusted("EIO")))
    assert [failed.code for failed in driver.received(1, Failed)] == ["DiskUntrusted", "DiskUntrusted"]
    driver.settle()
    driver.step(Synced(partition_id(topic), 0, 2))
    driver.publish(1, topic, b"c")
    assert isinstance(driver.error(1), DiskUntrusted)
    driver.send(1, CreateTopic(99, "other", TopicSettings()))
    assert isinstance(driver.error(1), DiskUntrusted)
    driver.send(1, DeleteTopic(100, "t"))
    assert isinstance(driver.error(1), DiskUntrusted)
    assert driver.received(1, Published) == []


@pytest.mark.requirement("CM-15:fsync")
def test_after_a_failed_fsync_what_was_committed_is_still_read(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, b"a")
    driver.settle()
    driver.publish(1, topic, b"unsynced")
    driver.step(SyncFailed(DiskUntrusted("EIO")))
    driver.connect(2)
    driver.subscribe(2, topic)
    driver.settle()
    assert driver.pushed(2) == [b"a"]


@pytest.mark.requirement("CM-15:fsync")
def test_topics_being_created_are_refused_when_the_fsync_fails(driver: BrokerDriver) -> None:
    driver.send(1, CreateTopic(5, "t", TopicSettings()))
    driver.step(SyncFailed(DiskUntrusted("EIO")))
    assert isinstance(driver.error(1), DiskUntrusted)
    # Its entry was not on disk yet, which refuses it now as well: no second answer.
    assert driver.step(WriteFailed(METADATA_PARTITION, 0, 1, DiskFull())) == []


@pytest.mark.requirement("CM-19:requests")
def test_pending_publishes_are_limited_per_connection() -> None:
    driver = BrokerDriver(BrokerSettings(requests_per_connection_max=3)).start()
    driver.connect(1)
    topic = driver.make_topic(1)
    for _ in range(3):
        driver.publish(1, topic)
    driver.publish(1, topic)
    assert isinstance(driver.error(1), LimitExceeded)
    driver.settle()
    driver.publish(1, topic)
    assert driver.received(1, Failed) == []


@pytest.mark.requirement("CM-19:requests")
def test_lookups_that_wait_for_a_topic_are_limited_per_connection() -> None:
    driver = BrokerDriver(BrokerSettings(requests_per_connection_max=3)).start()
    driver.connect(1)
    for number in range(4):
        driver.send(1, CreateTopic(number, f"t{number}", TopicSettings()))
    assert isinstance(driver.error(1), LimitExceeded)


@pytest.mark.requirement("CM-19:batch")
def test_a_batch_over_the_limit_is_rejected_and_nothing_is_written() -> None:
    driver = BrokerDriver(BrokerSettings(batch_bytes_max=1000)).start()
    driver.connect(1)
    topic = driver.make_topic(1)
    driver.effects.clear()
    driver.publish(1, topic, bytes(2000))
    error = driver.error(1)
    assert isinstance(error, BatchRejected)
    assert error.reason == Reason.TOO_LARGE
    assert driver.of(Append) == []


def test_a_damaged_batch_is_rejected_and_the_connection_goes_on(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.send(1, Publish(7, topic, 0, "all"), b"not a batch")
    error = driver.error(1)
    assert isinstance(error, BatchRejected)
    assert error.reason == Reason.TRUNCATED
    assert driver.closed == {}


def test_a_partition_that_does_not_exist_is_refused(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic, partition=1)
    assert isinstance(driver.error(1), UnknownPartition)


def test_the_id_of_a_deleted_topic_is_reported_as_deleted_or_recreated(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.send(1, DeleteTopic(5, "t"))
    driver.settle()
    driver.publish(1, topic)
    assert isinstance(driver.error(1), TopicDeleted)
    assert driver.make_topic(1) != topic
    driver.publish(1, topic)
    assert isinstance(driver.error(1), TopicRecreated)


def test_deleting_a_topic_answers_the_publishes_that_waited(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.publish(1, topic)
    driver.pending.clear()
    driver.send(1, DeleteTopic(5, "t"))
    driver.settle()
    assert isinstance(driver.error(1), TopicDeleted)


@pytest.mark.requirement("CM-16:in-flight")
def test_a_graceful_stop_waits_for_pending_publishes_and_refuses_new_ones(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    parked = driver.publish(1, topic)
    driver.step(Stop())
    assert not driver.stopped
    driver.publish(1, topic)
    assert isinstance(driver.error(1), NodeStopping)
    driver.settle()
    assert driver.received(1, Published) == [Published(parked, FIRST)]
    assert driver.stopped
    assert 1 in driver.closed


@pytest.mark.requirement("CM-16:in-flight")
def test_a_graceful_stop_waits_for_topics_being_created(driver: BrokerDriver) -> None:
    driver.send(1, CreateTopic(5, "t", TopicSettings()))
    driver.step(Stop())
    assert not driver.stopped
    driver.settle()
    assert driver.stopped


def test_a_write_that_fails_after_its_topic_was_deleted_is_ignored(driver: BrokerDriver) -> None:
    topic = driver.make_topic(1)
    driver.send(1, DeleteTopic(5, "t"))
    driver.settle()
    assert driver.step(WriteFailed(partition_id(topic), 0, 1, DiskFull())) == []
