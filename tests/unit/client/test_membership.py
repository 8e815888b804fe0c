"""A member of a consumer group: delivery, positions, lease, assignment, leaving."""

from __future__ import annotations

import pytest

from rostra.client.core.events import DeadLettered, MembershipLost, Redelivered, Skipped
from rostra.client.core.groups.dispatcher import COMMIT_MS, COMMIT_RECORDS
from rostra.client.core.groups.membership import REVOKE_MS_MAX
from rostra.client.core.options import MemberSettings, Offset
from rostra.errors import (
    InvalidGroupName,
    InvalidSetting,
    NotAMember,
    NotSupported,
    StaleGeneration,
    TimedOut,
    Unavailable,
)
from rostra.model.decode import Batch
from rostra.wire.groups import CommitPositions, JoinGroup, LeaveGroup, MemberHeartbeat, Position, Released
from rostra.wire.messages import ClientMessage, DeleteTopic, Locate, Located, PartitionLocation, Topic, TopicSettings
from tests.unit.client.core_harness import CoreHarness
from tests.unit.client.member_harness import (
    LEASE_MS,
    MemberDriver,
    advance,
    group_harness,
    messages_of,
    model_group,
    position,
    publish,
    publish_batch,
)
from tests.unit.client.model_node import Reply

# --- joining ---------------------------------------------------------------------------------------


def test_a_member_gets_stored_and_new_records() -> None:
    harness = group_harness(partitions=2)
    publish(harness, b"a", partition=0)
    publish(harness, b"b", partition=1)
    handler = MemberDriver(harness)
    advance(harness)
    assert handler.joined in harness.results
    assert sorted(handler.values(), key=str) == [b"a", b"b"]
    publish(harness, b"c")
    assert handler.values() == [b"c"]


def test_the_start_of_a_new_group_is_committed_before_the_call_returns() -> None:
    harness = group_harness()
    publish(harness, b"a", b"b")
    handler = MemberDriver(harness, start="latest")
    while handler.joined not in harness.results:
        assert position(harness) is None if "billing" in harness.node.coordinator.groups else True
        harness.deliver_to_node()
        harness.push_from_node()
        harness.deliver_to_client()
        harness.pass_time(0)
    assert position(harness) == (2, 0)


def test_a_known_group_continues_at_its_position() -> None:
    harness = group_harness()
    publish(harness, b"a", b"b", b"c")
    first = MemberDriver(harness)
    advance(harness)
    first.take().ack()
    left = first.leave()
    advance(harness)
    assert left in harness.results
    second = MemberDriver(harness, start="latest")
    advance(harness)
    assert second.values() == [b"b", b"c"]


def test_an_offset_to_begin_at_is_followed() -> None:
    harness = group_harness()
    publish(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness, start=Offset(2))
    advance(harness)
    assert handler.values() == [b"c"]


def test_a_waiter_is_woken_once_when_records_are_ready() -> None:
    harness = group_harness()
    handler = MemberDriver(harness)
    advance(harness)
    assert handler.membership.dispatcher.take(harness.now_us) is None
    handler.membership.dispatcher.waiting = True
    publish(harness, b"a", b"b")
    assert harness.ready == [handler.membership.number]


def test_a_node_without_named_subscriptions_refuses_them_at_once() -> None:
    harness = CoreHarness()
    harness.connect()
    handler = MemberDriver(harness)
    advance(harness)
    assert isinstance(harness.errors[handler.joined], NotSupported)


def test_settings_that_cannot_be_are_refused() -> None:
    harness = group_harness()
    with pytest.raises(InvalidGroupName):
        MemberDriver(harness, name="no spaces")
    for wrong in ({"lease_ms": 1}, {"tries_max": -1}, {"patterns": ("t",) * 65}, {"credit_bytes": 0}):
        with pytest.raises(InvalidSetting):
            MemberSettings(**wrong)


def test_a_coordinator_that_does_not_answer_fails_the_caller_in_time() -> None:
    harness = group_harness()
    harness.node.coordinator.refuse = Unavailable("_groups", 0, "no leader")
    handler = MemberDriver(harness)
    advance(harness, 31_000)
    assert isinstance(harness.errors[handler.joined], Unavailable | TimedOut)


def test_a_join_that_timed_out_leaves_no_member_behind() -> None:
    harness = group_harness()
    handler = MemberDriver(harness, lease_ms=60_000)
    harness.deliver_to_node()
    while not messages_of(harness, JoinGroup):
        harness.deliver_to_client()
        harness.pass_time(0)
        harness.deliver_to_node()
    answer = list(harness.to_client)
    harness.to_client.clear()
    advance(harness, 30_000)
    assert isinstance(harness.errors[handler.joined], TimedOut)
    assert model_group(harness).members
    harness.to_client.extend(answer)
    advance(harness)
    assert model_group(harness).members == {}


# --- positions -------------------------------------------------------------------------------------


def test_the_position_is_the_lowest_offset_that_is_not_acknowledged() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c", b"d")
    handler = MemberDriver(harness)
    advance(harness)
    first, second, third, _ = handler.take_all()
    third.ack()
    second.ack()
    advance(harness, COMMIT_MS)
    assert position(harness) == (0, 0)
    first.ack()
    advance(harness, COMMIT_MS)
    assert position(harness) == (3, 0)


def test_positions_move_together_after_a_while_or_when_many_are_acknowledged() -> None:
    harness = group_harness()
    publish_batch(harness, *(b"%d" % number for number in range(COMMIT_RECORDS + 10)))
    handler = MemberDriver(harness)
    advance(harness)
    before = len(messages_of(harness, CommitPositions))
    records = handler.take_all()
    for record in records[:10]:
        record.ack()
    advance(harness, COMMIT_MS - 1)
    assert len(messages_of(harness, CommitPositions)) == before
    advance(harness, 1)
    assert len(messages_of(harness, CommitPositions)) == before + 1 and position(harness) == (10, 0)
    for record in records[10:]:
        record.ack()
    advance(harness)
    assert position(harness) == (COMMIT_RECORDS + 10, 0)


def test_a_second_settlement_of_a_record_changes_nothing() -> None:
    harness = group_harness()
    publish(harness, b"a", b"b")
    handler = MemberDriver(harness)
    advance(harness)
    first = handler.take()
    first.ack()
    first.retry()
    first.ack()
    advance(harness, 2_000)
    assert position(harness) == (1, 0)
    assert handler.values() == [b"b"]


def test_the_position_passes_batches_without_records_so_that_no_lag_remains() -> None:
    harness = group_harness()
    publish(harness, b"a")
    handler = MemberDriver(harness)
    advance(harness)
    handler.take().ack()
    advance(harness, COMMIT_MS)
    assert handler.membership.lag == 0
    publish(harness, b"b", b"c")
    assert handler.membership.lag == 2


# --- trying again ----------------------------------------------------------------------------------


def test_a_failed_record_is_redelivered_before_later_ones() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    handler.take().retry()
    assert handler.membership.dispatcher.take(harness.now_us) is None
    advance(harness, 100)
    again = handler.take()
    assert (again.value, again.tries) == (b"a", 1)
    assert position(harness) == (0, 1)
    again.ack()
    assert handler.values() == [b"b", b"c"]
    assert Redelivered("t", 0, 0, 1) in harness.events


def test_only_failed_records_are_redelivered() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c", b"d")
    handler = MemberDriver(harness)
    advance(harness)
    a, b, c = handler.take(), handler.take(), handler.take()
    c.ack()
    b.retry()
    advance(harness, 100)
    assert handler.values() == [b"b", b"d"]
    a.ack()
    advance(harness, COMMIT_MS)
    assert position(harness) == (1, 1)


def test_a_record_given_back_is_redelivered_at_once_and_counts_as_no_try() -> None:
    harness = group_harness()
    publish(harness, b"a", b"b")
    handler = MemberDriver(harness)
    advance(harness)
    handler.take().give_back()
    again = handler.take()
    assert (again.value, again.tries) == (b"a", 0)


def test_a_block_acknowledges_at_its_end_and_tries_again_what_failed_in_it() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    with handler.take():
        pass
    with pytest.raises(ZeroDivisionError), handler.take() as failing:
        assert failing.value == b"b"
        raise ZeroDivisionError
    advance(harness, 100)
    with pytest.raises(KeyboardInterrupt), handler.take():
        raise KeyboardInterrupt
    last = handler.take()
    assert (last.value, last.tries) == (b"b", 1)


def test_after_so_many_tries_a_record_goes_to_the_dead_letter_topic_and_is_done_with() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    handler = MemberDriver(harness, tries_max=2, dead_letter="dead")
    advance(harness)
    handler.take().retry()
    advance(harness, 100)
    handler.take().retry()
    advance(harness, 1_000)
    (_, _, kept) = harness.node.log("dead").batches[0]
    (letter,) = Batch(kept).records("dead", 0)
    assert letter.value == b"a"
    assert dict(letter.headers) == {
        "rostra-subscription": b"billing",
        "rostra-topic": b"t",
        "rostra-partition": b"0",
        "rostra-offset": b"0",
        "rostra-tries": b"2",
    }
    assert DeadLettered("t", 0, 0, 2, "dead") in harness.events
    assert handler.values() == [b"b"]
    assert position(harness) == (1, 0)


def test_a_dead_letter_that_is_not_stored_yet_holds_the_position_back() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    handler = MemberDriver(harness, tries_max=1, dead_letter="dead")
    advance(harness)
    harness.node.refuse = Unavailable("dead", 0, "no leader")
    handler.take().retry()
    handler.take().ack()
    advance(harness, 1_000)
    assert position(harness) == (0, 1)
    harness.node.refuse = None
    advance(harness, 5_000)
    assert position(harness) == (2, 0)
    assert harness.node.log("dead").values() == [b"a"]


def test_without_a_dead_letter_topic_an_event_is_raised_and_the_record_is_acknowledged() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    handler = MemberDriver(harness, tries_max=1)
    advance(harness)
    handler.take().retry()
    assert handler.values() == [b"b"]
    assert DeadLettered("t", 0, 0, 1, "") in harness.events


def test_members_that_died_with_a_record_count_as_tries_of_it() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    first = MemberDriver(harness)
    advance(harness)
    first.leave()
    advance(harness)
    place = harness.node.topics["t"].topic, 0
    model_group(harness).positions[place] = Position(*place, 0, 2)
    second = MemberDriver(harness, tries_max=5)
    advance(harness)
    assert [record.tries for record in second.take_all()] == [2, 0]
    second.leave()
    advance(harness)
    model_group(harness).positions[place] = Position(*place, 0, 5)
    third = MemberDriver(harness, tries_max=5, dead_letter="dead")
    advance(harness)
    assert third.values() == [b"b"]
    advance(harness)
    assert harness.node.log("dead").values() == [b"a"]


def test_members_that_died_before_a_record_was_there_did_not_fail_at_it() -> None:
    harness = group_harness()
    first = MemberDriver(harness)
    advance(harness)
    first.leave()
    advance(harness)
    place = harness.node.topics["t"].topic, 0
    model_group(harness).positions[place] = Position(*place, 0, 3)
    second = MemberDriver(harness)
    advance(harness)
    assert position(harness) == (0, 0)
    publish(harness, b"a")
    assert second.take().tries == 0


# --- parts that move -------------------------------------------------------------------------------


def test_a_revoked_partition_is_released_when_nothing_is_unacked_and_its_position_is_committed() -> None:
    harness = group_harness(partitions=2)
    publish(harness, b"a", b"b", partition=0)
    publish(harness, b"c", partition=1)
    handler = MemberDriver(harness)
    advance(harness)
    a, b = [record for record in handler.take_all() if record.partition == 0]
    a.ack()
    topic = harness.node.topics["t"].topic
    harness.node.coordinator.assign("billing", {(topic, 0): 99, (topic, 1): handler.membership.member})
    model_group(harness).holders[topic, 0] = handler.membership.member
    released = len(messages_of(harness, Released))
    advance(harness, 1_000)
    assert len(messages_of(harness, Released)) == released, "one record of it is still in hand"
    b.ack()
    advance(harness)
    assert position(harness, 0) == (2, 0)
    assert len(messages_of(harness, Released)) == released + 1
    generations = [message.generation for message in messages_of(harness, Released) if isinstance(message, Released)]
    assert generations[-1] == model_group(harness).generation
    kinds = [type(message) for message in harness.node.coordinator.heard]
    assert kinds[-2:] == [CommitPositions, Released]


def test_nothing_more_is_delivered_from_a_revoked_partition() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    handler = MemberDriver(harness)
    advance(harness)
    handler.take()
    harness.node.coordinator.assign("billing", {})
    advance(harness)
    assert handler.take_all() == []
    publish(harness, b"c")
    assert handler.take_all() == []


def test_a_partition_that_another_member_had_starts_at_the_assigned_position() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    place = harness.node.topics["t"].topic, 0
    harness.node.coordinator.assign("billing", {})
    harness.node.coordinator.assign("billing", {place: handler.membership.member})
    advance(harness)
    assert handler.values() == [b"a", b"b"]
    record.ack()
    advance(harness, COMMIT_MS)
    assert position(harness) == (0, 0), "it was in hand before"


def test_a_record_that_is_never_settled_does_not_block_a_rebalance_for_ever() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    place = harness.node.topics["t"].topic, 0
    harness.node.coordinator.assign("billing", {})
    model_group(harness).holders[place] = handler.membership.member
    advance(harness, REVOKE_MS_MAX - 1)
    generation = model_group(harness).generation
    assert messages_of(harness, Released)[-1].generation < generation  # type: ignore[union-attr]
    advance(harness, 1)
    assert messages_of(harness, Released)[-1].generation == generation  # type: ignore[union-attr]
    record.ack()
    advance(harness, 1_000)
    assert position(harness) == (0, 0)


def test_a_position_refused_because_it_crossed_an_assignment_is_moved_again() -> None:
    harness = group_harness(partitions=2)
    publish(harness, b"a", partition=0)
    publish(harness, b"b", partition=1)
    handler = MemberDriver(harness)
    advance(harness)
    for record in handler.take_all():
        record.ack()
    harness.pass_time(COMMIT_MS * 1000)
    coordinator = harness.node.coordinator
    coordinator.assign("billing", model_group(harness).holders)
    coordinator.refuse = StaleGeneration("billing", model_group(harness).generation)
    harness.push_from_node()
    harness.deliver_to_node(1)
    coordinator.refuse = None
    advance(harness, COMMIT_MS)
    assert position(harness, 0) == position(harness, 1) == (1, 0)
    assert not [event for event in harness.events if isinstance(event, MembershipLost)]


def test_a_deleted_topic_is_dropped_and_not_created_again() -> None:
    harness = group_harness()
    publish(harness, b"a")
    handler = MemberDriver(harness)
    advance(harness)
    assert harness.link is not None
    harness.node.received(harness.link, DeleteTopic(1, "t"), None)
    harness.to_client.extend(harness.node.end_feeds(harness.link))
    advance(harness, 3_000)
    assert handler.take_all() == []
    assert "t" not in harness.node.topics
    assert handler.membership.number not in harness.finished


def test_a_partition_is_looked_up_again_when_its_topic_was_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer as a node that knows only an earlier topic of this name."""
    harness = group_harness()
    publish(harness, b"a")
    received = harness.node.received
    stale: list[Locate] = []

    def receive(link: int, message: ClientMessage, payload: bytearray | None) -> list[Reply]:
        if isinstance(message, Locate) and message.name == "t" and not message.create and not stale:
            stale.append(message)
            former = Topic(999, "t", TopicSettings())
            return [(Located(message.request, former, (PartitionLocation(0, "", 1),)), None)]
        return received(link, message, payload)

    monkeypatch.setattr(harness.node, "received", receive)
    handler = MemberDriver(harness)
    advance(harness)
    assert stale and handler.joined not in harness.results
    advance(harness, 3_000)
    assert handler.joined in harness.results and handler.values() == [b"a"]


def test_what_retention_removed_is_skipped_with_an_event() -> None:
    harness = group_harness()
    publish(harness, b"a", b"b", b"c")
    first = MemberDriver(harness)
    advance(harness)
    first.leave()
    advance(harness)
    log = harness.node.log("t")
    log.first = 2
    del log.batches[:2]
    second = MemberDriver(harness)
    advance(harness)
    assert second.values() == [b"c"]
    assert Skipped("t", 0, 0, 2) in harness.events


# --- staying a member ------------------------------------------------------------------------------


def test_a_slow_handler_keeps_its_lease() -> None:
    harness = group_harness()
    publish(harness, b"a")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    advance(harness, 10 * LEASE_MS)
    assert len(messages_of(harness, MemberHeartbeat)) >= 40
    record.ack()
    advance(harness, COMMIT_MS)
    assert position(harness) == (1, 0)
    assert len(messages_of(harness, JoinGroup)) == 1


def test_a_member_keeps_its_partitions_over_a_new_connection() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    harness.disconnect()
    record.ack()
    assert handler.values() == [b"b", b"c"]
    harness.reconnect()
    publish(harness, b"d")
    advance(harness, 1_000)
    assert handler.values() == [b"d"]
    assert position(harness) == (1, 0)
    members = {message.member for message in messages_of(harness, JoinGroup)}  # type: ignore[union-attr]
    assert members == {handler.membership.member}


def test_a_member_whose_lease_may_have_expired_delivers_nothing_until_it_is_confirmed() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    harness.now_us += 2 * LEASE_MS * 1000
    assert handler.membership.dispatcher.take(harness.now_us) is None, "everything stood still for two leases"
    handler.membership.dispatcher.waiting = True
    record.ack()
    advance(harness, COMMIT_MS)
    assert harness.ready == [handler.membership.number]
    assert handler.values() == [b"b", b"c"]
    assert position(harness) == (1, 0)
    assert len(messages_of(harness, JoinGroup)) == 1


def test_a_member_without_answers_for_its_lease_waits_for_a_new_assignment() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    harness.disconnect()
    harness.reachable = False
    harness.pass_time(LEASE_MS * 1000)
    assert handler.take_all() == []
    record.ack()
    harness.reachable = True
    harness.reconnect()
    advance(harness, 1_000)
    assert handler.values() == [b"b", b"c"], "it was a member all the time"
    assert position(harness) == (1, 0)


def test_a_partition_that_others_had_meanwhile_starts_at_their_position() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    harness.disconnect()
    place = harness.node.topics["t"].topic, 0
    harness.node.coordinator.remove_member("billing", handler.membership.member)
    model_group(harness).positions[place] = Position(*place, 2)
    harness.reconnect()
    advance(harness, 1_000)
    record.retry()
    assert handler.values() == [b"c"]


def test_a_stale_commit_is_refused_and_does_not_delay_the_others() -> None:
    harness = group_harness(partitions=2)
    publish(harness, b"a", partition=0)
    publish(harness, b"b", partition=1)
    handler = MemberDriver(harness)
    advance(harness)
    records = handler.take_all()
    harness.disconnect()
    topic = harness.node.topics["t"].topic
    harness.node.coordinator.assign("billing", {(topic, 0): 99, (topic, 1): handler.membership.member})
    for record in records:
        record.ack()
    harness.reconnect()
    advance(harness, 1_000)
    assert position(harness, 0) == (0, 0) and position(harness, 1) == (1, 0)
    assert messages_of(harness, Released)[-1].generation == model_group(harness).generation  # type: ignore[union-attr]


def test_a_removed_member_rejoins_at_the_committed_position() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    first = handler.take()
    first.ack()
    advance(harness, COMMIT_MS)
    handler.take()
    harness.node.coordinator.remove_member("billing", handler.membership.member)
    model_group(harness).holders.clear()
    advance(harness, LEASE_MS)
    assert [event for event in harness.events if isinstance(event, MembershipLost)]
    assert handler.values() == [b"b", b"c"]


def test_a_member_finds_the_new_coordinator_and_keeps_its_partitions() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b")
    handler = MemberDriver(harness)
    advance(harness)
    record = handler.take()
    harness.node.coordinator.end_members("billing", Unavailable("_groups", 0, "no leader"))
    harness.node.coordinator.refuse = Unavailable("_groups", 0, "no leader")
    advance(harness, 500)
    record.ack()
    harness.node.coordinator.refuse = None
    advance(harness, 3_000)
    assert handler.values() == [b"b"]
    assert position(harness) == (1, 0)
    assert len(messages_of(harness, JoinGroup)) >= 2


# --- leaving ---------------------------------------------------------------------------------------


def test_a_member_leaves_when_its_positions_are_kept() -> None:
    harness = group_harness()
    publish_batch(harness, b"a", b"b", b"c")
    handler = MemberDriver(harness)
    advance(harness)
    handler.take().ack()
    unacked = handler.take()
    left = handler.leave()
    advance(harness)
    assert left in harness.results
    assert position(harness) == (1, 0)
    assert model_group(harness).members == {}
    assert [type(message) for message in harness.node.coordinator.heard][-2:] == [CommitPositions, LeaveGroup]
    unacked.ack()
    assert handler.take_all() == []


def test_leaving_without_a_coordinator_fails_in_time() -> None:
    harness = group_harness()
    publish(harness, b"a")
    handler = MemberDriver(harness, lease_ms=60_000)
    advance(harness)
    handler.take().ack()
    harness.disconnect()
    harness.reachable = False
    left = handler.leave()
    harness.pass_time(31_000_000)
    assert isinstance(harness.errors[left], TimedOut)


def test_a_member_that_is_no_member_has_left() -> None:
    harness = group_harness()
    handler = MemberDriver(harness)
    advance(harness)
    harness.node.coordinator.remove_member("billing", handler.membership.member)
    harness.node.coordinator.end_members("billing", NotAMember("billing", handler.membership.member))
    left = handler.leave()
    advance(harness, 1_000)
    assert left in harness.results
