"""When a partition is compacted: the owner logs how far, and every copy carries it out."""

from __future__ import annotations

from rostra.broker.api import ClosedSegment, Compact, Compacted, ListSegments, SegmentsListed
from rostra.broker.broker import RETENTION
from rostra.broker.partition.compaction_mark import CompactBelow
from rostra.broker.partition.control_batch import control_batch
from rostra.fabric.api import Append, Committed, HeldByAll, Serving, TimerFired
from rostra.model.batch import BROKER_STATE, read_header, stamp
from rostra.wire.messages import AlterTopic
from tests.unit.broker.broker_driver import BrokerDriver, partition_id
from tests.unit.broker.test_ownership_changes import HERE, ScriptedFabric, desk_with, emit


def tick(driver: BrokerDriver) -> None:
    driver.effects.clear()
    driver.step(TimerFired(RETENTION))


def rolled(**settings: int) -> tuple[BrokerDriver, int]:
    driver = BrokerDriver().start()
    driver.connect(1)
    topic = driver.make_topic(1, "t", segment_bytes=4096, compaction=True, **settings)
    publish(driver, topic, 30)
    return driver, topic


def publish(driver: BrokerDriver, topic: int, count: int) -> None:
    for _ in range(count):
        driver.publish(1, topic, bytes(500), keys=[b"k"])
    driver.settle()


def test_closed_segments_held_by_all_copies_are_compacted() -> None:
    driver, topic = rolled()
    tick(driver)
    assert driver.of(ListSegments) == [ListSegments(partition_id(topic))]
    driver.settle()
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    mark = served.derived.compaction.get(None)
    log = driver.logs[partition_id(topic)]
    assert mark is not None and mark.offset == served.end - len(log.segments()[-1])
    tick(driver)
    assert driver.of(Compact) == [Compact(partition_id(topic), mark.offset, mark.tombstones_us)]
    assert mark.tombstones_us == driver.now.wall_us - 86_400_000_000
    driver.settle()
    tick(driver)
    driver.settle()
    assert driver.of(Compact) == [], "once is enough"


def test_compaction_repeats_when_half_as_much_is_new_or_tombstones_expired() -> None:
    driver, topic = rolled(tombstone_ms=1000)
    served = driver.broker.topic_table.served.get(partition_id(topic))
    assert served is not None
    entries = []
    for count in (0, 8, 20):
        publish(driver, topic, count)
        tick(driver)
        driver.settle()
        entries.append(served.derived.compaction.get(None))
    assert entries[0] == entries[1] != entries[2]
    driver.advance_ms(5_000)
    tick(driver)
    driver.settle()
    assert served.derived.compaction.get(None) == entries[2], "not more than once a minute"
    driver.advance_ms(60_000)
    tick(driver)
    driver.settle()
    last = served.derived.compaction.get(None)
    assert last is not None and entries[2] is not None
    assert last.offset == entries[2].offset and last.tombstones_us > entries[2].tombstones_us


def test_a_topic_without_compaction_is_not_compacted() -> None:
    driver, _ = rolled()
    driver.send(1, AlterTopic(driver.request(), "t", {"compaction": 0}))
    driver.settle()
    tick(driver)
    driver.settle()
    assert driver.of(ListSegments) == [] and driver.of(Compact) == []


def log_mark(driver: BrokerDriver, offset: int, base: int) -> None:
    batch = control_batch([CompactBelow(offset, 5)], 1)
    stamp(batch, partition=HERE, base_offset=base, owner_epoch=1, owner_flags=BROKER_STATE)
    emit(driver, Append(HERE, batch))


def test_a_copy_compacts_only_below_its_own_commit() -> None:
    driver = desk_with(ScriptedFabric())
    driver.publish(1, 5)
    emit(driver, Serving(HERE, 2, False, 0, 1, 0, "other:1"))
    log_mark(driver, 1, 1)
    tick(driver)
    assert driver.of(Compact) == []
    emit(driver, Committed(HERE, 1))
    tick(driver)
    assert driver.of(Compact) == [Compact(HERE, 1, 5)]


def test_one_compaction_runs_at_a_time() -> None:
    driver, topic = rolled()
    driver.send(1, AlterTopic(driver.request(), "t", {"segment_bytes": 4096}))
    driver.settle()
    other = driver.make_topic(1, "other", segment_bytes=4096, compaction=True)
    publish(driver, other, 30)
    tick(driver)
    driver.settle()
    tick(driver)
    (first,) = driver.of(Compact)
    tick(driver)
    assert driver.of(Compact) == []
    driver.pending.clear()
    driver.step(Compacted(first.partition, 100))
    (second,) = driver.of(Compact)
    assert {first.partition, second.partition} == {partition_id(topic), partition_id(other)}


def test_no_more_is_compacted_than_every_copy_holds() -> None:
    driver = desk_with(ScriptedFabric())
    known = driver.broker.topic_table.by_name("t")
    assert known is not None
    for _ in range(6):
        driver.publish(1, 5)
    emit(driver, Committed(HERE, 6))
    served = driver.broker.topic_table.served.get(HERE)
    assert served is not None
    segments = (ClosedSegment(0, 2, 100, 1), ClosedSegment(2, 4, 100, 1), ClosedSegment(4, 6, 100, 1))
    for held in (5, 5, 5, 6):
        driver.broker.compactor.segments_listed(served, SegmentsListed(HERE, segments).segments)
        emit(driver, HeldByAll(HERE, held))
        mark = served.derived.compaction.get(None)
        assert mark is not None and mark.offset == (held if held == 6 else 4)
    entries = [batch for batch in driver.logs[HERE].batches if read_header(batch).owner_flags & BROKER_STATE]
    assert len(entries) == 2, "the mark is not repeated while a copy is offline"
