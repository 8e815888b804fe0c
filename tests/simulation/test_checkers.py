"""Each checker finds the violations it is for, and none in a correct history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rostra.broker.partition.control_batch import Checkpoint
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.errors import OffsetOutOfRange, PartitionDamaged, RemoteError, TimedOut, TopicDeleted
from rostra.model.batch import OwnerFlag
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.simulator import checkers
from rostra.simulator.checkers import CHECKERS, find_violations
from rostra.simulator.checkers.linearizability import is_possible
from rostra.simulator.history import (
    CreatedTopic,
    FinalPartition,
    GroupHistory,
    History,
    LivenessDemand,
    PatternHistory,
    RecordAcked,
    RecordDelivered,
    RecordFailed,
    RecordSent,
    SinkCommitHistory,
    SinkHistory,
    StoredBatch,
    StoredRecord,
    SubscriptionHistory,
    TopicNameRequest,
    TruncatedCommit,
)
from rostra.wire.messages import TopicSettings

TOPIC = 7
PLACE = Partition(TopicId(TOPIC), PartitionIndex(0))
A, B, C = b"a", b"b", b"c"


def good() -> History:
    """Three records of one producer, acknowledged, stored around a control record, read by one subscriber."""
    history = History()
    history.created.append(CreatedTopic(TOPIC, "t"))
    history.listed[TOPIC] = "t"
    final = FinalPartition(TOPIC, "t", 0, TopicSettings())
    final.commit, final.complete, final.bytes = 4, True, 400
    history.final[TOPIC, 0] = final
    seen = SubscriptionHistory("s", "t", "earliest", 0)
    seen.established = True
    history.subscriptions.append(seen)
    feed = seen.feed(TOPIC, 0)
    feed.position = 4
    patterns = PatternHistory("g")
    patterns.established, patterns.topics = True, [TOPIC]
    history.pattern_subscriptions.append(patterns)
    group = history.groups["n"] = GroupHistory("n", ["t"])
    for order, (offset, value) in enumerate(((0, A), (1, B), (3, C))):
        history.sent[value] = RecordSent(value, "p", order, "t", "all")
        history.acked[value] = RecordAcked(value, TOPIC, 0, offset)
        feed.records.append(RecordDelivered(offset, offset, value))
        patterns.feed(TOPIC, 0).records.append(RecordDelivered(offset, offset, value))
        final.stored.append(StoredRecord(offset, value, False))
        group.record_delivery(TOPIC, 0, offset, "h", offset)
        group.acknowledged.add((TOPIC, 0, offset))
        group.commit_position(TOPIC, 0, offset + 1)
    final.stored.insert(2, StoredRecord(2, b"checkpoint", True))
    batches = [StoredBatch(0, 2, 11), StoredBatch(2, 3, 12), StoredBatch(3, 4, 13)]
    history.committed[PLACE] = dict.fromkeys(batches, 1)
    history.final_logs = {(1, PLACE): list(batches), (2, PLACE): batches[:2]}
    history.saw_leader(PLACE, 1, 1)
    history.saw_leader(PLACE, 2, 2)
    history.name_requests = [
        TopicNameRequest("r", "create", "t", 0, 10, TOPIC),
        TopicNameRequest("r", "create", "t", 20, 30, -1),
        TopicNameRequest("q", "describe", "t", 5, 15, TOPIC),
    ]
    history.liveness_demands.append(LivenessDemand("a record", 10, 90, 40))
    return history


def redeliver_an_acknowledged_record(history: History) -> None:
    history.groups["n"].record_delivery(TOPIC, 0, 1, "h", 99)


def leave_a_record_unacknowledged(history: History) -> None:
    history.groups["n"].acknowledged.remove((TOPIC, 0, 1))


def decided(history: History, batch: int, *values: bytes) -> SinkCommitHistory:
    """A commit that its driver believes to be decided."""
    query = history.sinks.setdefault("q", SinkHistory("q"))
    commit = SinkCommitHistory(batch)
    commit.values = dict.fromkeys(values, "t")
    commit.sent = commit.decided = True
    query.commits.append(commit)
    query.decided.add(batch)
    return commit


def show_a_batch_in_part(history: History) -> None:
    decided(history, 0, A, b"never stored")


def lose_a_decided_batch(history: History) -> None:
    decided(history, 0, b"never stored")


def decide_a_batch_twice(history: History) -> None:
    decided(history, 0, A)
    decided(history, 0, B)


def show_a_refused_batch(history: History) -> None:
    decided(history, 0, A).refused = True


def decide_out_of_order(history: History) -> None:
    decided(history, 0, A)
    decided(history, 2, B)


def show_what_was_only_staged(history: History) -> None:
    decided(history, 0, A)
    final_of(history).stored.append(StoredRecord(4, b"q/0/zombie", False))


def final_of(history: History) -> FinalPartition:
    return history.final[TOPIC, 0]


def got_of(history: History) -> list[RecordDelivered]:
    return history.subscriptions[0].feed(TOPIC, 0).records


def lose_one(history: History) -> None:
    del final_of(history).stored[1]


def lose_one_without_offset(history: History) -> None:
    history.acked[B] = RecordAcked(B, TOPIC, 0, -1)
    del final_of(history).stored[1]


def replace_one(history: History) -> None:
    final_of(history).stored[1] = StoredRecord(1, C, False)


def lose_the_partition(history: History) -> None:
    del history.final[TOPIC, 0]


def deliver_a_phantom(history: History) -> None:
    got_of(history).append(RecordDelivered(9, 9, b"ghost"))


def store_a_phantom(history: History) -> None:
    final_of(history).stored.append(StoredRecord(4, b"ghost", False))


def deliver_from_elsewhere(history: History) -> None:
    history.sent[B] = RecordSent(B, "p", 1, "another", "all")


def store_twice(history: History) -> None:
    final_of(history).stored.append(StoredRecord(4, A, False))


def swap(history: History) -> None:
    history.sent[A], history.sent[B] = RecordSent(A, "p", 1, "t", "all"), RecordSent(B, "p", 0, "t", "all")


def repeat_an_offset(history: History) -> None:
    got_of(history).insert(1, RecordDelivered(1, 0, A))


def skip_one(history: History) -> None:
    del got_of(history)[1]


def start_late(history: History) -> None:
    del got_of(history)[0]


def start_before_what_was_asked(history: History) -> None:
    history.subscriptions[0].start, history.subscriptions[0].value = "offset", 1


def begin_elsewhere(history: History) -> None:
    history.subscriptions[0].start, history.subscriptions[0].value = "offset", 0
    history.subscriptions[0].feed(TOPIC, 0).start = (1, 4)


def begin_too_late_for_the_last(history: History) -> None:
    history.subscriptions[0].start, history.subscriptions[0].value = "last", 2
    history.subscriptions[0].feed(TOPIC, 0).start = (3, 4)


def begin_before_the_latest(history: History) -> None:
    history.subscriptions[0].start = "latest"
    history.subscriptions[0].feed(TOPIC, 0).start = (0, 4)


def miss_a_topic(history: History) -> None:
    history.listed[TOPIC + 1] = "unseen"


def keep_a_deleted_topic_in_a_pattern(history: History) -> None:
    history.pattern_subscriptions[0].topics = [TOPIC, TOPIC + 1]


def deliver_twice_to_a_pattern(history: History) -> None:
    history.pattern_subscriptions[0].feed(TOPIC, 0).records.append(RecordDelivered(9, 3, C))


def miss_a_record_of_a_pattern(history: History) -> None:
    del history.pattern_subscriptions[0].feed(TOPIC, 0).records[1]


def deliver_to_a_pattern_after_leaving(history: History) -> None:
    history.pattern_subscriptions[0].unsubscribing, history.pattern_subscriptions[0].unsubscribed_us = True, 1


def deliver_before_the_beginning(history: History) -> None:
    history.subscriptions[0].feed(TOPIC, 0).start = (1, 4)


def show_another_value(history: History) -> None:
    other = SubscriptionHistory("other", "t", "earliest", 0)
    other.feed(TOPIC, 0).records.append(RecordDelivered(5, 0, B))
    history.subscriptions.append(other)


def deliver_a_record_that_is_lost(history: History) -> None:
    final_of(history).commit = 3
    del final_of(history).stored[-1]
    del history.acked[C]


def serve_damage(history: History) -> None:
    final_of(history).served_damage = "body-crc at offset 1"


def report_damage_of_an_intact_log(history: History) -> None:
    history.reported_damage["t", 0, 4] = 0


def acknowledge_behind_damage(history: History) -> None:
    history.flipped.add((TOPIC, 0))
    history.reported_damage["t", 0, 3] = 10
    history.sent[C] = RecordSent(C, "p", 2, "t", "all", at_us=11)


def let_a_client_find_damage(history: History) -> None:
    history.subscriptions[0].ended = PartitionDamaged("t", 0, 4)


def forget_a_topic(history: History) -> None:
    del history.listed[TOPIC]


def keep_a_deleted_topic(history: History) -> None:
    history.delete_asked.add("t")
    history.deleted[TOPIC] = 50
    history.subscriptions[0].ended = TopicDeleted("t")


def give_one_name_to_two(history: History) -> None:
    history.listed[TOPIC + 1] = "t"


def end_with_another_reason(history: History) -> None:
    history.delete_asked.add("t")
    history.deleted[TOPIC] = 50
    del history.listed[TOPIC]
    seen = history.subscriptions[0]
    seen.ended, seen.ended_us = OffsetOutOfRange("t", 0, 1, 2, 3), 60


def deliver_after_leaving(history: History) -> None:
    history.subscriptions[0].unsubscribing = True
    history.subscriptions[0].unsubscribed_us = 1


def expire_what_has_no_retention(history: History) -> None:
    final_of(history).first = 1
    del final_of(history).stored[0]


def expire_too_much(history: History) -> None:
    final = final_of(history)
    final.settings = TopicSettings(retention_bytes=500)
    final.first = 1
    del final.stored[0]


def overflow(history: History) -> None:
    history.record_queue_size("some queue", 11, 10)


def let_an_exception_out(history: History) -> None:
    history.exceptions.append("Traceback: KeyError")


def report_an_unknown_error(history: History) -> None:
    history.failed[C] = RecordFailed(C, RemoteError("Odd", ""))


def leave_a_call_pending(history: History) -> None:
    history.unsettled.append("p: publish of b'c'")


def leave_a_subscriber_behind(history: History) -> None:
    history.subscriptions[0].feed(TOPIC, 0).position = 2


def leave_the_reader_behind(history: History) -> None:
    final_of(history).complete = False


def elect_two(history: History) -> None:
    history.saw_leader(PLACE, 2, 3)


def commit_two_things_at_one_offset(history: History) -> None:
    history.committed[PLACE][StoredBatch(2, 3, 99)] = 3


def commit_across_a_boundary(history: History) -> None:
    history.committed[PLACE][StoredBatch(1, 4, 98)] = 3


def store_another_batch(history: History) -> None:
    history.final_logs[2, PLACE][1] = StoredBatch(2, 3, 99)


def leave_a_hole(history: History) -> None:
    del history.final_logs[1, PLACE][1]


def commit_missing_records(history: History) -> None:
    history.false_claims.append("node 2 calls 7/0 committed up to 9, has less")


def truncate_committed_records(history: History) -> None:
    history.truncated_commits.append(TruncatedCommit(2, PLACE, 2, 50))


def create_it_twice(history: History) -> None:
    history.name_requests.append(TopicNameRequest("q", "create", "t", 40, 50, TOPIC + 1))


def lose_a_created_topic(history: History) -> None:
    history.name_requests.append(TopicNameRequest("q", "describe", "t", 40, 50, 0))


def go_back_in_time(history: History) -> None:
    history.name_requests += [
        TopicNameRequest("r", "delete", "t", 40, 50, -1),
        TopicNameRequest("q", "list", "t", 60, 70, TOPIC),
    ]


def refuse_to_delete_an_existing_topic(history: History) -> None:
    history.name_requests.append(TopicNameRequest("q", "delete", "t", 40, 50, 0))


def make_no_progress(history: History) -> None:
    history.liveness_demands.append(LivenessDemand("a metadata change", 10, 90, 0))


def make_progress_too_late(history: History) -> None:
    history.liveness_demands.append(LivenessDemand("a metadata change", 10, 90, 91))


def exclusive(history: History, *log: StoredRecord) -> History:
    """A partition of exclusive ownership besides, with this log."""
    final = FinalPartition(TOPIC, "t", 1, TopicSettings(2, ownership="exclusive"))
    final.stored = list(log)
    history.final[TOPIC, 1] = final
    return history


def ownership_entries(offset: int, *entries: PublisherJoined | PublisherLeft) -> list[StoredRecord]:
    flag = int(OwnerFlag.BROKER_STATE)
    return [StoredRecord(offset + at, msgspec.msgpack.encode(one), True, 0, flag) for at, one in enumerate(entries)]


def written(offset: int, publisher: int, *, suppressed: bool = False) -> StoredRecord:
    return StoredRecord(offset, b"%d" % offset, False, publisher, int(OwnerFlag.SUPPRESSED) if suppressed else 0)


def carried(offset: int, *entries: PublisherJoined) -> StoredRecord:
    value = msgspec.msgpack.encode(Checkpoint([], [], [msgspec.msgpack.encode(entry) for entry in entries]))
    return StoredRecord(offset, value, True, 0, int(OwnerFlag.CHECKPOINT))


WEAK, STRONG, EQUAL = PublisherJoined(1, 0, 100), PublisherJoined(2, 3, 100), PublisherJoined(3, 3, 100)


def deliver_the_weaker(history: History) -> None:
    exclusive(history, *ownership_entries(0, WEAK, STRONG), written(2, 1))


def deliver_the_higher_of_equals(history: History) -> None:
    exclusive(history, *ownership_entries(0, EQUAL, STRONG), written(2, 3))


def suppress_the_strongest(history: History) -> None:
    exclusive(history, *ownership_entries(0, WEAK, STRONG, PublisherLeft(2, "left")), written(3, 1, suppressed=True))


def deliver_an_unregistered_publisher(history: History) -> None:
    exclusive(history, written(0, 1))


def forget_a_publisher_at_a_checkpoint(history: History) -> None:
    exclusive(history, *ownership_entries(0, WEAK, STRONG), carried(2, WEAK))


def give_a_strength_that_was_not_requested(history: History) -> None:
    history.record_strength(2, 1, 0)
    exclusive(history, *ownership_entries(0, STRONG))


def suppress_in_a_shared_topic(history: History) -> None:
    final_of(history).stored[1] = StoredRecord(1, B, False, 1, int(OwnerFlag.SUPPRESSED))


def deliver_a_suppressed_record(history: History) -> None:
    exclusive(history, *ownership_entries(0, WEAK, STRONG), written(2, 1, suppressed=True))
    history.subscriptions[0].feed(TOPIC, 1).records.append(RecordDelivered(5, 2, b"2"))


SINKS = "a sink's batch is visible once and as a whole"
LEADERS = "one leader per term"
OWNERSHIP = "only the strongest publisher is delivered"
REPLICAS = "replicas agree below commit"
METADATA = "topic metadata is linearizable"
PROGRESS = "a majority makes progress"
LOSS = "nothing acknowledged is lost"
PHANTOM = "nothing is delivered that was not sent"
OFFSETS = "offsets rise without unexplained gaps"
PATTERNS = "pattern subscriptions get every topic once"
STARTS = "subscriptions start where requested"
COMMIT = "delivered records stay"
DAMAGE = "damage is reported, not served"
TOPICS = "topics exist as acknowledged"
RETENTION = "retention removes no more than it may"
ERRORS = "only typed errors"
CONVERGENCE = "everything converges after healing"

BROKEN: list[tuple[Callable[[History], None], str]] = [
    (deliver_the_weaker, OWNERSHIP),
    (deliver_the_higher_of_equals, OWNERSHIP),
    (suppress_the_strongest, OWNERSHIP),
    (deliver_an_unregistered_publisher, OWNERSHIP),
    (forget_a_publisher_at_a_checkpoint, OWNERSHIP),
    (give_a_strength_that_was_not_requested, OWNERSHIP),
    (suppress_in_a_shared_topic, OWNERSHIP),
    (deliver_a_suppressed_record, OWNERSHIP),
    (lose_one, LOSS),
    (lose_one_without_offset, LOSS),
    (replace_one, LOSS),
    (lose_the_partition, LOSS),
    (deliver_a_phantom, PHANTOM),
    (store_a_phantom, PHANTOM),
    (deliver_from_elsewhere, PHANTOM),
    (store_twice, "a record is stored once"),
    (swap, "records keep their producer's order"),
    (repeat_an_offset, OFFSETS),
    (skip_one, OFFSETS),
    (start_late, OFFSETS),
    (start_before_what_was_asked, OFFSETS),
    (begin_elsewhere, STARTS),
    (begin_too_late_for_the_last, STARTS),
    (begin_before_the_latest, STARTS),
    (deliver_before_the_beginning, STARTS),
    (miss_a_topic, PATTERNS),
    (keep_a_deleted_topic_in_a_pattern, PATTERNS),
    (deliver_twice_to_a_pattern, PATTERNS),
    (miss_a_record_of_a_pattern, PATTERNS),
    (deliver_to_a_pattern_after_leaving, PATTERNS),
    (show_another_value, COMMIT),
    (deliver_a_record_that_is_lost, COMMIT),
    (serve_damage, DAMAGE),
    (report_damage_of_an_intact_log, DAMAGE),
    (acknowledge_behind_damage, DAMAGE),
    (let_a_client_find_damage, DAMAGE),
    (forget_a_topic, TOPICS),
    (keep_a_deleted_topic, TOPICS),
    (give_one_name_to_two, TOPICS),
    (end_with_another_reason, TOPICS),
    (deliver_after_leaving, TOPICS),
    (expire_what_has_no_retention, RETENTION),
    (expire_too_much, RETENTION),
    (redeliver_an_acknowledged_record, "a group gets no acknowledged record again"),
    (leave_a_record_unacknowledged, "a group gets every record"),
    (show_a_batch_in_part, SINKS),
    (lose_a_decided_batch, SINKS),
    (decide_a_batch_twice, SINKS),
    (show_a_refused_batch, SINKS),
    (decide_out_of_order, SINKS),
    (show_what_was_only_staged, SINKS),
    (elect_two, LEADERS),
    (commit_two_things_at_one_offset, REPLICAS),
    (commit_across_a_boundary, REPLICAS),
    (store_another_batch, REPLICAS),
    (leave_a_hole, REPLICAS),
    (commit_missing_records, REPLICAS),
    (truncate_committed_records, "committed records are never truncated"),
    (create_it_twice, METADATA),
    (lose_a_created_topic, METADATA),
    (go_back_in_time, METADATA),
    (refuse_to_delete_an_existing_topic, METADATA),
    (make_no_progress, PROGRESS),
    (make_progress_too_late, PROGRESS),
    (overflow, "queues keep their bounds"),
    (let_an_exception_out, ERRORS),
    (report_an_unknown_error, ERRORS),
    (leave_a_call_pending, CONVERGENCE),
    (leave_a_subscriber_behind, CONVERGENCE),
    (leave_the_reader_behind, CONVERGENCE),
]


def test_a_correct_history_has_no_violations() -> None:
    assert find_violations(good()) == []


def test_batches_of_a_sink_that_are_decided_in_order_and_visible_once_are_no_violation() -> None:
    history = good()
    for batch, value in enumerate((A, B, C)):
        decided(history, batch, value)
    # A repeated commit, and one of which the driver heard nothing, with other values.
    decided(history, 2, b"never stored").decided = False
    assert CHECKERS[SINKS](history) == []


def test_deliveries_by_the_rules_of_ownership_are_no_violation() -> None:
    history = good()
    for publisher, strength in ((1, 0), (2, 3), (3, 3)):
        history.record_strength(publisher, strength, 0)
    log = [
        carried(5, WEAK),
        written(6, 1),
        *ownership_entries(7, STRONG),
        written(8, 1, suppressed=True),
        written(9, 2),
    ]
    log += [
        *ownership_entries(10, EQUAL, PublisherLeft(2, "left")),
        written(12, 3),
        carried(13, WEAK, EQUAL),
        written(14, 3),
    ]
    assert CHECKERS[OWNERSHIP](exclusive(history, *log)) == []


@pytest.mark.parametrize(("breach", "promise"), BROKEN, ids=[breach.__name__ for breach, _ in BROKEN])
def test_a_violated_guarantee_is_named(breach: Callable[[History], None], promise: str) -> None:
    history = good()
    breach(history)
    assert CHECKERS[promise](history) != []


def test_every_checker_has_a_history_that_violates_it() -> None:
    assert {promise for _, promise in BROKEN} == set(CHECKERS)


def test_records_after_reported_damage_are_excused_and_those_before_are_not() -> None:
    history = good()
    history.flipped.add((TOPIC, 0))
    history.reported_damage["t", 0, 1] = 50
    final = final_of(history)
    final.damaged_at, final.commit = 1, 1
    del final.stored[1:]
    history.subscriptions[0].ended = PartitionDamaged("t", 0, 1)
    assert find_violations(history) == []
    final.stored.clear()
    assert find_violations(history) != []


def test_a_record_replaced_by_one_that_is_damaged_now_is_excused() -> None:
    history = good()
    for value, key in ((A, b"k"), (B, b"other"), (C, b"k")):
        history.sent[value] = history.sent[value]._replace(key=key)
    history.flipped.add((TOPIC, 0))
    history.reported_damage["t", 0, 3] = 50
    final = final_of(history)
    final.settings = TopicSettings(compaction=True)
    final.damaged_at, final.commit = 3, 3
    del final.stored[3], final.stored[0]
    history.subscriptions[0].ended = PartitionDamaged("t", 0, 3)
    assert CHECKERS[LOSS](history) == []
    del final.stored[0]
    assert CHECKERS[LOSS](history) != [], "nothing replaced that one"


def test_a_reported_duplicate_is_excused() -> None:
    history = good()
    history.maybe_duplicated.add(A)
    store_twice(history)
    history.subscriptions[0].feed(TOPIC, 0).position = 5
    history.pattern_subscriptions[0].feed(TOPIC, 0).records.append(RecordDelivered(9, 4, A))
    history.groups["n"].acknowledged.add((TOPIC, 0, 4))
    assert find_violations(history) == []


def test_records_removed_by_retention_are_excused() -> None:
    history = good()
    expire_too_much(history)
    final_of(history).bytes = 600
    assert find_violations(history) == []


def test_only_records_replaced_by_a_later_one_of_their_key_are_excused() -> None:
    history = good()
    final = history.final[TOPIC, 0]
    for value, key in ((A, b"k"), (B, b"other"), (C, b"k")):
        history.sent[value] = history.sent[value]._replace(key=key)
    gone = final.stored.pop(0)
    assert find_violations(history) != [], "nothing is compacted here"
    final.settings = TopicSettings(compaction=True)
    assert find_violations(history) == []
    final.stored.insert(0, gone)
    final.stored = [stored for stored in final.stored if stored.value != B]
    assert find_violations(history) != [], "no other record has its key"


def test_a_subscriber_may_miss_records_compacted_at_its_replica() -> None:
    history = good()
    for value, key in ((A, b"k"), (B, b"other"), (C, b"k")):
        history.sent[value] = history.sent[value]._replace(key=key)
    final_of(history).settings = TopicSettings(compaction=True)
    passed_over = got_of(history).pop(0)
    assert find_violations(history) == []
    got_of(history).insert(0, passed_over)
    del got_of(history)[1]
    assert find_violations(history) != [], "no other record has its key"


def test_patterns_and_groups_may_miss_records_compacted_at_their_replica() -> None:
    history = good()
    for value, key in ((A, b"k"), (B, b"other"), (C, b"k")):
        history.sent[value] = history.sent[value]._replace(key=key)
    final_of(history).settings = TopicSettings(compaction=True)
    patterns, group = history.pattern_subscriptions[0].feed(TOPIC, 0).records, history.groups["n"].acknowledged
    del patterns[0]
    group.remove((TOPIC, 0, 0))
    assert find_violations(history) == []
    of_other_key = patterns.pop(0)
    assert find_violations(history) != [], "no other record has its key"
    patterns.insert(0, of_other_key)
    group.remove((TOPIC, 0, 1))
    assert find_violations(history) != [], "no other record has its key"


def test_a_group_that_includes_a_deleted_topic_need_not_get_any_record() -> None:
    history = good()
    group = history.groups["n"]
    group.acknowledged.clear()
    assert find_violations(history) != []
    group.topics.append("gone")
    assert find_violations(history) == []


def test_a_subscription_that_was_never_established_need_not_report_the_deletion() -> None:
    history = good()
    history.delete_asked.add("t")
    history.deleted[TOPIC] = 50
    del history.listed[TOPIC]
    history.final.clear()
    history.pattern_subscriptions.clear()
    seen = history.subscriptions[0]
    seen.established = False
    seen.ended, seen.ended_us = TimedOut("subscribe t", 1000), 60
    assert [one for one in find_violations(history) if one.startswith("topics exist as acknowledged")] == []
    seen.established = True
    assert [one for one in find_violations(history) if one.startswith("topics exist as acknowledged")] != []


def test_records_without_a_guarantee_may_be_lost() -> None:
    history = good()
    history.sent[C] = RecordSent(C, "p", 2, "t", "none")
    del final_of(history).stored[-1]
    del got_of(history)[-1]
    final_of(history).commit = 3
    assert find_violations(history) == []


def test_every_checker_module_is_registered() -> None:
    files = Path(checkers.__file__).parent.glob("*.py")
    modules = {f"{checkers.__name__}.{path.stem}" for path in files if path.stem != "__init__"}
    assert {check.__module__ for check in CHECKERS.values()} == modules


def test_in_a_cluster_damage_to_one_node_excuses_nothing() -> None:
    history = good()
    history.replicated = True
    history.flipped.add((TOPIC, 0))
    history.reported_damage["t", 0, 1] = 50
    final = final_of(history)
    final.damaged_at, final.commit = 1, 1
    del final.stored[1:]
    assert CHECKERS[LOSS](history) != []


def test_in_a_cluster_records_that_only_the_owner_had_may_be_lost() -> None:
    history = good()
    history.replicated = True
    history.sent[C] = history.sent[C]._replace(acks="owner")
    del final_of(history).stored[-1]
    assert CHECKERS[LOSS](history) == []


@pytest.mark.parametrize(
    "asked",
    [
        [TopicNameRequest("a", "create", "t", 0, 9, 1), TopicNameRequest("b", "create", "t", 0, 9, -1)],
        [TopicNameRequest("a", "create", "t", 0, 9, None), TopicNameRequest("b", "describe", "t", 20, 29, 5)],
        [TopicNameRequest("a", "create", "t", 0, 9, None), TopicNameRequest("b", "describe", "t", 20, 29, 0)],
        [
            TopicNameRequest("a", "create", "t", 0, 9, -1, sent_once=False),
            TopicNameRequest("b", "describe", "t", 20, 29, 5),
        ],
        [
            TopicNameRequest("a", "create", "t", 0, 9, 5),
            TopicNameRequest("a", "delete", "t", 10, 19, None),
            TopicNameRequest("b", "describe", "t", 20, 29, 5),
            TopicNameRequest("b", "describe", "t", 30, 39, 0),
        ],
        [
            TopicNameRequest("a", "create", "t", 0, 30, 5),
            TopicNameRequest("b", "list", "t", 2, 4, 0),
            TopicNameRequest("b", "list", "t", 6, 8, 5),
        ],
        [TopicNameRequest("a", "delete", "t", 0, 9, -1, sent_once=False), TopicNameRequest("b", "list", "t", 0, 9, 0)],
    ],
    ids=["one wins", "took effect", "did not", "its own", "later", "in between", "nothing left"],
)
def test_replies_that_some_order_explains_are_possible(asked: list[TopicNameRequest]) -> None:
    assert is_possible(asked)


@pytest.mark.parametrize(
    "asked",
    [
        [TopicNameRequest("a", "create", "t", 0, 9, 1), TopicNameRequest("b", "create", "t", 0, 9, 2)],
        [TopicNameRequest("a", "create", "t", 0, 9, 5), TopicNameRequest("b", "describe", "t", 10, 19, 0)],
        [
            TopicNameRequest("a", "create", "t", 0, 30, 5),
            TopicNameRequest("b", "list", "t", 2, 4, 5),
            TopicNameRequest("b", "list", "t", 6, 8, 0),
        ],
        [TopicNameRequest("a", "create", "t", 0, 9, -1)],
        [TopicNameRequest("a", "create", "t", 0, 9, 5), TopicNameRequest("b", "describe", "t", 10, 19, 6)],
        [TopicNameRequest("a", "create", "t", 0, 9, 5), TopicNameRequest("a", "delete", "t", 10, 19, 0)],
    ],
    ids=["both win", "unseen", "seen and gone", "never made", "another", "not found"],
)
def test_replies_that_no_order_explains_are_found(asked: list[TopicNameRequest]) -> None:
    assert not is_possible(asked)
