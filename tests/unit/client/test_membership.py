"""A member of a named subscription: what it is handed, where it stands, how it stays and goes."""

from __future__ import annotations

import pytest

from rostra.client.core.events import DeadLettered, MembershipLost, Redelivered, Skipped
from rostra.client.core.groups.dispatcher import MOVE_MS, MOVE_RECORDS
from rostra.client.core.groups.membership import HANDOVER_MS_MAX
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
from rostra.wire.groups import JoinGroup, LeaveGroup, MemberHeartbeat, MovePositions, Position, Released
from rostra.wire.messages import ClientMessage, DeleteTopic, Locate, Located, PartitionPlace, Topic, TopicSettings
from tests.unit.client.member_play import (
    LEASE_MS,
    Handler,
    a_play,
    group,
    live,
    position,
    publish,
    publish_batch,
    said,
)
from tests.unit.client.model_node import Reply
from tests.unit.client.play import Play

# --- joining ---------------------------------------------------------------------------------------


def test_a_member_is_handed_what_is_there_and_what_comes() -> None:
    play = a_play(partitions=2)
    publish(play, b"a", partition=0)
    publish(play, b"b", partition=1)
    handler = Handler(play)
    live(play)
    assert handler.joined in play.results
    assert sorted(handler.values(), key=str) == [b"a", b"b"]
    publish(play, b"c")
    assert handler.values() == [b"c"]


def test_where_a_new_name_begins_is_kept_before_the_caller_is_told() -> None:
    play = a_play()
    publish(play, b"a", b"b")
    handler = Handler(play, start="latest")
    while handler.joined not in play.results:
        assert position(play) is None if "billing" in play.node.coordinator.groups else True
        play.node_hears()
        play.node_pushes()
        play.client_hears()
        play.pass_time(0)
    assert position(play) == (2, 0)


def test_a_name_that_is_known_goes_on_where_it_stands() -> None:
    play = a_play()
    publish(play, b"a", b"b", b"c")
    first = Handler(play)
    live(play)
    first.take().ack()
    left = first.leave()
    live(play)
    assert left in play.results
    second = Handler(play, start="latest")
    live(play)
    assert second.values() == [b"b", b"c"]


def test_an_offset_to_begin_at_is_followed() -> None:
    play = a_play()
    publish(play, b"a", b"b", b"c")
    handler = Handler(play, start=Offset(2))
    live(play)
    assert handler.values() == [b"c"]


def test_whoever_waits_is_told_once_when_there_is_something_to_take() -> None:
    play = a_play()
    handler = Handler(play)
    live(play)
    assert handler.membership.hands.take(play.now_us) is None
    handler.membership.hands.waiting = True
    publish(play, b"a", b"b")
    assert play.ready == [handler.membership.number]


def test_a_node_without_named_subscriptions_refuses_them_at_once() -> None:
    play = Play()
    play.connect()
    handler = Handler(play)
    live(play)
    assert isinstance(play.errors[handler.joined], NotSupported)


def test_settings_that_cannot_be_are_refused() -> None:
    play = a_play()
    with pytest.raises(InvalidGroupName):
        Handler(play, name="no spaces")
    for wrong in ({"lease_ms": 1}, {"tries_max": -1}, {"patterns": ("t",) * 65}, {"credit_bytes": 0}):
        with pytest.raises(InvalidSetting):
            MemberSettings(**wrong)


def test_a_coordinator_that_does_not_answer_fails_the_caller_in_time() -> None:
    play = a_play()
    play.node.coordinator.refuse = Unavailable("_groups", 0, "no leader")
    handler = Handler(play)
    live(play, 31_000)
    assert isinstance(play.errors[handler.joined], Unavailable | TimedOut)


def test_whoever_gives_up_joining_is_no_member_although_its_connection_lives_on() -> None:
    play = a_play()
    handler = Handler(play, lease_ms=60_000)
    play.node_hears()
    while not said(play, JoinGroup):
        play.client_hears()
        play.pass_time(0)
        play.node_hears()
    answer = list(play.towards_client)
    play.towards_client.clear()
    live(play, 30_000)
    assert isinstance(play.errors[handler.joined], TimedOut)
    assert group(play).members
    play.towards_client.extend(answer)
    live(play)
    assert group(play).members == {}


# --- positions -------------------------------------------------------------------------------------


def test_the_position_is_the_lowest_offset_that_is_not_acknowledged() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c", b"d")
    handler = Handler(play)
    live(play)
    first, second, third, _ = handler.take_all()
    third.ack()
    second.ack()
    live(play, MOVE_MS)
    assert position(play) == (0, 0)
    first.ack()
    live(play, MOVE_MS)
    assert position(play) == (3, 0)


def test_positions_move_together_after_a_while_or_when_many_are_acknowledged() -> None:
    play = a_play()
    publish_batch(play, *(b"%d" % number for number in range(MOVE_RECORDS + 10)))
    handler = Handler(play)
    live(play)
    before = len(said(play, MovePositions))
    records = handler.take_all()
    for record in records[:10]:
        record.ack()
    live(play, MOVE_MS - 1)
    assert len(said(play, MovePositions)) == before
    live(play, 1)
    assert len(said(play, MovePositions)) == before + 1 and position(play) == (10, 0)
    for record in records[10:]:
        record.ack()
    live(play)
    assert position(play) == (MOVE_RECORDS + 10, 0)


def test_a_record_settled_once_is_settled_and_later_words_change_nothing() -> None:
    play = a_play()
    publish(play, b"a", b"b")
    handler = Handler(play)
    live(play)
    first = handler.take()
    first.ack()
    first.retry()
    first.ack()
    live(play, 2_000)
    assert position(play) == (1, 0)
    assert handler.values() == [b"b"]


def test_what_is_no_record_is_passed_over_so_that_no_lag_remains() -> None:
    play = a_play()
    publish(play, b"a")
    handler = Handler(play)
    live(play)
    handler.take().ack()
    live(play, MOVE_MS)
    assert handler.membership.lag == 0
    publish(play, b"b", b"c")
    assert handler.membership.lag == 2


# --- trying again ----------------------------------------------------------------------------------


def test_what_failed_is_handed_out_again_before_what_comes_behind_it() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    handler.take().retry()
    assert handler.membership.hands.take(play.now_us) is None
    live(play, 100)
    again = handler.take()
    assert (again.value, again.tries) == (b"a", 1)
    assert position(play) == (0, 1)
    again.ack()
    assert handler.values() == [b"b", b"c"]
    assert Redelivered("t", 0, 0, 1) in play.events


def test_only_what_failed_is_handed_out_again() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c", b"d")
    handler = Handler(play)
    live(play)
    a, b, c = handler.take(), handler.take(), handler.take()
    c.ack()
    b.retry()
    live(play, 100)
    assert handler.values() == [b"b", b"d"]
    a.ack()
    live(play, MOVE_MS)
    assert position(play) == (1, 1)


def test_what_is_given_back_comes_again_at_once_and_counts_as_no_try() -> None:
    play = a_play()
    publish(play, b"a", b"b")
    handler = Handler(play)
    live(play)
    handler.take().give_back()
    again = handler.take()
    assert (again.value, again.tries) == (b"a", 0)


def test_a_block_acknowledges_at_its_end_and_tries_again_what_failed_in_it() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    with handler.take():
        pass
    with pytest.raises(ZeroDivisionError), handler.take() as failing:
        assert failing.value == b"b"
        raise ZeroDivisionError
    live(play, 100)
    with pytest.raises(KeyboardInterrupt), handler.take():
        raise KeyboardInterrupt
    last = handler.take()
    assert (last.value, last.tries) == (b"b", 1)


def test_after_so_many_tries_a_record_goes_to_the_dead_letter_topic_and_is_done_with() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    handler = Handler(play, tries_max=2, dead_letter="dead")
    live(play)
    handler.take().retry()
    live(play, 100)
    handler.take().retry()
    live(play, 1_000)
    (_, _, kept) = play.node.log("dead").batches[0]
    (letter,) = Batch(kept).records("dead", 0)
    assert letter.value == b"a"
    assert dict(letter.headers) == {
        "rostra-subscription": b"billing",
        "rostra-topic": b"t",
        "rostra-partition": b"0",
        "rostra-offset": b"0",
        "rostra-tries": b"2",
    }
    assert DeadLettered("t", 0, 0, 2, "dead") in play.events
    assert handler.values() == [b"b"]
    assert position(play) == (1, 0)


def test_a_dead_letter_that_is_not_stored_yet_holds_the_position_back() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    handler = Handler(play, tries_max=1, dead_letter="dead")
    live(play)
    play.node.refuse = Unavailable("dead", 0, "no leader")
    handler.take().retry()
    handler.take().ack()
    live(play, 1_000)
    assert position(play) == (0, 1)
    play.node.refuse = None
    live(play, 5_000)
    assert position(play) == (2, 0)
    assert play.node.log("dead").values() == [b"a"]


def test_without_a_dead_letter_topic_it_is_told_and_done_with() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    handler = Handler(play, tries_max=1)
    live(play)
    handler.take().retry()
    assert handler.values() == [b"b"]
    assert DeadLettered("t", 0, 0, 1, "") in play.events


def test_members_that_died_with_a_record_count_as_tries_of_it() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    first = Handler(play)
    live(play)
    first.leave()
    live(play)
    place = play.node.topics["t"].topic, 0
    group(play).positions[place] = Position(*place, 0, 2)
    second = Handler(play, tries_max=5)
    live(play)
    assert [record.tries for record in second.take_all()] == [2, 0]
    second.leave()
    live(play)
    group(play).positions[place] = Position(*place, 0, 5)
    third = Handler(play, tries_max=5, dead_letter="dead")
    live(play)
    assert third.values() == [b"b"]
    live(play)
    assert play.node.log("dead").values() == [b"a"]


def test_members_that_died_before_a_record_was_there_did_not_fail_at_it() -> None:
    play = a_play()
    first = Handler(play)
    live(play)
    first.leave()
    live(play)
    place = play.node.topics["t"].topic, 0
    group(play).positions[place] = Position(*place, 0, 3)
    second = Handler(play)
    live(play)
    assert position(play) == (0, 0)
    publish(play, b"a")
    assert second.take().tries == 0


# --- parts that move -------------------------------------------------------------------------------


def test_a_part_taken_away_is_released_when_nothing_of_it_is_in_hand_and_its_position_has_moved() -> None:
    play = a_play(partitions=2)
    publish(play, b"a", b"b", partition=0)
    publish(play, b"c", partition=1)
    handler = Handler(play)
    live(play)
    a, b = [record for record in handler.take_all() if record.partition == 0]
    a.ack()
    topic = play.node.topics["t"].topic
    play.node.coordinator.hand_out("billing", {(topic, 0): 99, (topic, 1): handler.membership.member})
    group(play).holders[topic, 0] = handler.membership.member
    released = len(said(play, Released))
    live(play, 1_000)
    assert len(said(play, Released)) == released, "one record of it is still in hand"
    b.ack()
    live(play)
    assert position(play, 0) == (2, 0)
    assert len(said(play, Released)) == released + 1
    generations = [message.generation for message in said(play, Released) if isinstance(message, Released)]
    assert generations[-1] == group(play).generation
    kinds = [type(message) for message in play.node.coordinator.heard]
    assert kinds[-2:] == [MovePositions, Released]


def test_nothing_more_is_handed_out_of_a_part_that_was_taken_away() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    handler = Handler(play)
    live(play)
    handler.take()
    play.node.coordinator.hand_out("billing", {})
    live(play)
    assert handler.take_all() == []
    publish(play, b"c")
    assert handler.take_all() == []


def test_a_part_that_was_anothers_meanwhile_begins_where_it_is_told_to() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    handler = Handler(play)
    live(play)
    record = handler.take()
    place = play.node.topics["t"].topic, 0
    play.node.coordinator.hand_out("billing", {})
    play.node.coordinator.hand_out("billing", {place: handler.membership.member})
    live(play)
    assert handler.values() == [b"a", b"b"]
    record.ack()
    live(play, MOVE_MS)
    assert position(play) == (0, 0), "it was in hand before"


def test_a_record_that_is_never_settled_does_not_hold_back_a_move_for_ever() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    handler = Handler(play)
    live(play)
    record = handler.take()
    place = play.node.topics["t"].topic, 0
    play.node.coordinator.hand_out("billing", {})
    group(play).holders[place] = handler.membership.member
    live(play, HANDOVER_MS_MAX - 1)
    generation = group(play).generation
    assert said(play, Released)[-1].generation < generation  # type: ignore[union-attr]
    live(play, 1)
    assert said(play, Released)[-1].generation == generation  # type: ignore[union-attr]
    record.ack()
    live(play, 1_000)
    assert position(play) == (0, 0)


def test_a_position_refused_because_it_crossed_an_assignment_is_moved_again() -> None:
    play = a_play(partitions=2)
    publish(play, b"a", partition=0)
    publish(play, b"b", partition=1)
    handler = Handler(play)
    live(play)
    for record in handler.take_all():
        record.ack()
    play.pass_time(MOVE_MS * 1000)
    coordinator = play.node.coordinator
    coordinator.hand_out("billing", group(play).holders)
    coordinator.refuse = StaleGeneration("billing", group(play).generation)
    play.node_pushes()
    play.node_hears(1)
    coordinator.refuse = None
    live(play, MOVE_MS)
    assert position(play, 0) == position(play, 1) == (1, 0)
    assert not [event for event in play.events if isinstance(event, MembershipLost)]


def test_a_deleted_topic_is_let_go_of_and_not_made_anew() -> None:
    play = a_play()
    publish(play, b"a")
    handler = Handler(play)
    live(play)
    assert play.link is not None
    play.node.received(play.link, DeleteTopic(1, "t"), None)
    play.towards_client.extend(play.node.end_feeds(play.link))
    live(play, 3_000)
    assert handler.take_all() == []
    assert "t" not in play.node.topics
    assert handler.membership.number not in play.finished


def test_a_part_is_looked_for_again_where_its_topic_was_not_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a node that knows only the topic that had the name before."""
    play = a_play()
    publish(play, b"a")
    received = play.node.received
    stale: list[Locate] = []

    def hear(link: int, message: ClientMessage, payload: bytearray | None) -> list[Reply]:
        if isinstance(message, Locate) and message.name == "t" and not message.create and not stale:
            stale.append(message)
            former = Topic(999, "t", TopicSettings())
            return [(Located(message.request, former, (PartitionPlace(0, "", 1),)), None)]
        return received(link, message, payload)

    monkeypatch.setattr(play.node, "received", hear)
    handler = Handler(play)
    live(play)
    assert stale and handler.joined not in play.results
    live(play, 3_000)
    assert handler.joined in play.results and handler.values() == [b"a"]


def test_what_retention_removed_is_skipped_and_told() -> None:
    play = a_play()
    publish(play, b"a", b"b", b"c")
    first = Handler(play)
    live(play)
    first.leave()
    live(play)
    log = play.node.log("t")
    log.first = 2
    del log.batches[:2]
    second = Handler(play)
    live(play)
    assert second.values() == [b"c"]
    assert Skipped("t", 0, 0, 2) in play.events


# --- staying a member ------------------------------------------------------------------------------


def test_a_slow_handler_keeps_its_lease() -> None:
    play = a_play()
    publish(play, b"a")
    handler = Handler(play)
    live(play)
    record = handler.take()
    live(play, 10 * LEASE_MS)
    assert len(said(play, MemberHeartbeat)) >= 40
    record.ack()
    live(play, MOVE_MS)
    assert position(play) == (1, 0)
    assert len(said(play, JoinGroup)) == 1


def test_a_member_goes_on_over_another_connection_with_what_it_holds() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    record = handler.take()
    play.lose()
    record.ack()
    assert handler.values() == [b"b", b"c"]
    play.come_back()
    publish(play, b"d")
    live(play, 1_000)
    assert handler.values() == [b"d"]
    assert position(play) == (1, 0)
    members = {message.member for message in said(play, JoinGroup)}  # type: ignore[union-attr]
    assert members == {handler.membership.member}


def test_a_member_in_doubt_hands_out_nothing_until_it_hears_that_it_still_is_one() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    record = handler.take()
    play.now_us += 2 * LEASE_MS * 1000
    assert handler.membership.hands.take(play.now_us) is None, "everything stood still for two leases"
    handler.membership.hands.waiting = True
    record.ack()
    live(play, MOVE_MS)
    assert play.ready == [handler.membership.number]
    assert handler.values() == [b"b", b"c"]
    assert position(play) == (1, 0)
    assert len(said(play, JoinGroup)) == 1


def test_a_member_that_hears_nothing_for_its_lease_waits_to_be_told_anew_what_it_holds() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    record = handler.take()
    play.lose()
    play.reachable = False
    play.pass_time(LEASE_MS * 1000)
    assert handler.take_all() == []
    record.ack()
    play.reachable = True
    play.come_back()
    live(play, 1_000)
    assert handler.values() == [b"b", b"c"], "it was a member all the time"
    assert position(play) == (1, 0)


def test_what_others_had_while_a_member_was_away_begins_where_they_left_it() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    record = handler.take()
    play.lose()
    place = play.node.topics["t"].topic, 0
    play.node.coordinator.expel("billing", handler.membership.member)
    group(play).positions[place] = Position(*place, 2)
    play.come_back()
    live(play, 1_000)
    record.retry()
    assert handler.values() == [b"c"]


def test_a_word_about_what_another_has_by_now_is_refused_and_does_not_hold_up_the_rest() -> None:
    play = a_play(partitions=2)
    publish(play, b"a", partition=0)
    publish(play, b"b", partition=1)
    handler = Handler(play)
    live(play)
    records = handler.take_all()
    play.lose()
    topic = play.node.topics["t"].topic
    play.node.coordinator.hand_out("billing", {(topic, 0): 99, (topic, 1): handler.membership.member})
    for record in records:
        record.ack()
    play.come_back()
    live(play, 1_000)
    assert position(play, 0) == (0, 0) and position(play, 1) == (1, 0)
    assert said(play, Released)[-1].generation == group(play).generation  # type: ignore[union-attr]


def test_a_member_that_was_taken_for_dead_begins_anew_where_the_position_is() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    first = handler.take()
    first.ack()
    live(play, MOVE_MS)
    handler.take()
    play.node.coordinator.expel("billing", handler.membership.member)
    group(play).holders.clear()
    live(play, LEASE_MS)
    assert [event for event in play.events if isinstance(event, MembershipLost)]
    assert handler.values() == [b"b", b"c"]


def test_a_member_finds_the_new_coordinator_and_keeps_what_it_holds() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b")
    handler = Handler(play)
    live(play)
    record = handler.take()
    play.node.coordinator.hand_off("billing", Unavailable("_groups", 0, "no leader"))
    play.node.coordinator.refuse = Unavailable("_groups", 0, "no leader")
    live(play, 500)
    record.ack()
    play.node.coordinator.refuse = None
    live(play, 3_000)
    assert handler.values() == [b"b"]
    assert position(play) == (1, 0)
    assert len(said(play, JoinGroup)) >= 2


# --- leaving ---------------------------------------------------------------------------------------


def test_a_member_leaves_when_its_positions_are_kept() -> None:
    play = a_play()
    publish_batch(play, b"a", b"b", b"c")
    handler = Handler(play)
    live(play)
    handler.take().ack()
    in_hand = handler.take()
    left = handler.leave()
    live(play)
    assert left in play.results
    assert position(play) == (1, 0)
    assert group(play).members == {}
    assert [type(message) for message in play.node.coordinator.heard][-2:] == [MovePositions, LeaveGroup]
    in_hand.ack()
    assert handler.take_all() == []


def test_leaving_without_a_coordinator_fails_in_time() -> None:
    play = a_play()
    publish(play, b"a")
    handler = Handler(play, lease_ms=60_000)
    live(play)
    handler.take().ack()
    play.lose()
    play.reachable = False
    left = handler.leave()
    play.pass_time(31_000_000)
    assert isinstance(play.errors[left], TimedOut)


def test_a_member_that_is_no_member_has_left() -> None:
    play = a_play()
    handler = Handler(play)
    live(play)
    play.node.coordinator.expel("billing", handler.membership.member)
    play.node.coordinator.hand_off("billing", NotAMember("billing", handler.membership.member))
    left = handler.leave()
    live(play, 1_000)
    assert left in play.results
