"""When a partition is compacted: the owner says how far in the log, and every copy carries it out."""

from __future__ import annotations

from rostra.broker.api import ClosedSegment, Compact, Compacted, ListSegments, SegmentsListed
from rostra.broker.broker import RETENTION
from rostra.broker.partition.compaction_mark import CompactBelow
from rostra.broker.partition.control_batch import control_batch
from rostra.fabric.api import Append, Committed, HeldByAll, Serving, TimerFired
from rostra.model.batch import LEDGER, read_header, stamp
from rostra.wire.messages import AlterTopic
from tests.unit.broker.desk import Desk, part
from tests.unit.broker.test_roles import HERE, Scripted, desk_with, tell


def tick(desk: Desk) -> None:
    desk.effects.clear()
    desk.step(TimerFired(RETENTION))


def rolled(**settings: int) -> tuple[Desk, int]:
    desk = Desk().start()
    desk.connect(1)
    topic = desk.make_topic(1, "t", segment_bytes=4096, compaction=True, **settings)
    publish(desk, topic, 30)
    return desk, topic


def publish(desk: Desk, topic: int, count: int) -> None:
    for _ in range(count):
        desk.publish(1, topic, bytes(500), keys=[b"k"])
    desk.settle()


def test_sealed_segments_below_what_all_copies_hold_are_compacted() -> None:
    desk, topic = rolled()
    tick(desk)
    assert desk.of(ListSegments) == [ListSegments(part(topic))]
    desk.settle()
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    told = served.derived.compaction.get(None)
    log = desk.logs[part(topic)]
    assert told is not None and told.offset == served.end - len(log.segments()[-1])
    tick(desk)
    assert desk.of(Compact) == [Compact(part(topic), told.offset, told.tombstones_us)]
    assert told.tombstones_us == desk.now.wall_us - 86_400_000_000
    desk.settle()
    tick(desk)
    desk.settle()
    assert desk.of(Compact) == [], "once is enough"


def test_it_is_done_again_when_half_as_much_is_new_or_tombstones_have_aged() -> None:
    desk, topic = rolled(tombstone_ms=1000)
    served = desk.broker.topic_table.served.get(part(topic))
    assert served is not None
    entries = []
    for count in (0, 8, 20):
        publish(desk, topic, count)
        tick(desk)
        desk.settle()
        entries.append(served.derived.compaction.get(None))
    assert entries[0] == entries[1] != entries[2]
    desk.after_ms(5_000)
    tick(desk)
    desk.settle()
    assert served.derived.compaction.get(None) == entries[2], "not more than once a minute"
    desk.after_ms(60_000)
    tick(desk)
    desk.settle()
    last = served.derived.compaction.get(None)
    assert last is not None and entries[2] is not None
    assert last.offset == entries[2].offset and last.tombstones_us > entries[2].tombstones_us


def test_a_topic_that_is_not_to_be_compacted_is_left_alone() -> None:
    desk, _ = rolled()
    desk.say(1, AlterTopic(desk.request(), "t", {"compaction": 0}))
    desk.settle()
    tick(desk)
    desk.settle()
    assert desk.of(ListSegments) == [] and desk.of(Compact) == []


def told_to(desk: Desk, offset: int, base: int) -> None:
    batch = control_batch([CompactBelow(offset, 5)], 1)
    stamp(batch, partition=HERE, base_offset=base, owner_epoch=1, owner_flags=LEDGER)
    tell(desk, Append(HERE, batch))


def test_a_copy_carries_out_the_word_of_another_owner_once_it_has_committed_so_far_itself() -> None:
    desk = desk_with(Scripted())
    desk.publish(1, 5)
    tell(desk, Serving(HERE, 2, False, 0, 1, 0, "other:1"))
    told_to(desk, 1, 1)
    tick(desk)
    assert desk.of(Compact) == []
    tell(desk, Committed(HERE, 1))
    tick(desk)
    assert desk.of(Compact) == [Compact(HERE, 1, 5)]


def test_one_run_at_a_time() -> None:
    desk, topic = rolled()
    desk.say(1, AlterTopic(desk.request(), "t", {"segment_bytes": 4096}))
    desk.settle()
    other = desk.make_topic(1, "other", segment_bytes=4096, compaction=True)
    publish(desk, other, 30)
    tick(desk)
    desk.settle()
    tick(desk)
    (first,) = desk.of(Compact)
    tick(desk)
    assert desk.of(Compact) == []
    desk.pending.clear()
    desk.step(Compacted(first.partition, 100))
    (second,) = desk.of(Compact)
    assert {first.partition, second.partition} == {part(topic), part(other)}


def test_no_more_is_compacted_than_every_copy_holds() -> None:
    desk = desk_with(Scripted())
    known = desk.broker.topic_table.by_name("t")
    assert known is not None
    for _ in range(6):
        desk.publish(1, 5)
    tell(desk, Committed(HERE, 6))
    served = desk.broker.topic_table.served.get(HERE)
    assert served is not None
    segments = (ClosedSegment(0, 2, 100, 1), ClosedSegment(2, 4, 100, 1), ClosedSegment(4, 6, 100, 1))
    for held in (5, 5, 5, 6):
        desk.broker.compactor.segments_listed(served, SegmentsListed(HERE, segments).segments)
        tell(desk, HeldByAll(HERE, held))
        told = served.derived.compaction.get(None)
        assert told is not None and told.offset == (held if held == 6 else 4)
    entries = [batch for batch in desk.logs[HERE].batches if read_header(batch).owner_flags & LEDGER]
    assert len(entries) == 2, "it is not said again and again while a copy is away"
