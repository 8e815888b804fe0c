"""What becomes of records on their way round."""

from __future__ import annotations

import pytest

from rostra.errors import CorruptLog
from rostra.fabric.api import Append, Broken, PassOn, PeerReceived, ProposeDrop, ProposeStart, ReadFailed, Send
from rostra.fabric.flood.messages import AckMarks, Barrier, FloodMessage, HaveUpTo, Records
from rostra.fabric.flood.origin_partition import VectorEntry
from rostra.fabric.flood.settings import FloodSettings
from rostra.model.encode import encode
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard
from tests.unit.flood.brokers import WALL_US, Rig


def everywhere(rig: Rig, name: str = "t") -> list[object]:
    """What each broker that is up has of a topic."""
    return [broker.read(name) for broker in rig.up()]


@pytest.mark.requirement("FL-1:passes", "FL-7:incarnations")
def test_a_publish_visits_every_broker_once_and_lies_at_the_same_offsets_everywhere() -> None:
    rig = Rig(4)
    sent: list[FloodMessage] = []
    rig.loses = lambda sender, receiver, message: sent.append(message) or False  # type: ignore[func-returns-value]
    own, _ = rig[2].publish("t", b"a", b"b")
    rig.settle()
    sent.clear()
    rig[2].publish("t", b"c")
    rig.run(100_000)
    assert [message.hops for message in sent if isinstance(message, Records)] == [1, 2, 3]
    assert everywhere(rig) == [{own: [b"a", b"b", b"c"]}] * 4
    assert [broker.logs[own].batches for broker in rig.up()] == [rig[2].logs[own].batches] * 4


@pytest.mark.requirement("CM-4:shown-when-safe", "FL-7:origin-first")
def test_nothing_leaves_its_origin_before_it_is_on_its_disk() -> None:
    rig = Rig(2)
    rig[1].publish("t", b"first")
    rig.settle()
    rig[1].slow_sync_us = 50_000
    own, end = rig[1].publish("t", b"second")
    rig.run(40_000)
    assert rig[2].read("t") == {own: [b"first"]} and rig[1].commits[own] == end - 1
    rig.run(40_000)
    assert rig[2].read("t") == {own: [b"first", b"second"]}


@pytest.mark.requirement("CM-13:no-say")
def test_an_origin_that_finds_its_own_records_damaged_takes_no_more_and_starts_anew_with_a_new_part() -> None:
    rig = Rig(3)
    own, _ = rig[1].publish("t", b"a", b"b")
    rig.settle()
    rig[1].step(ReadFailed(0, own, CorruptLog("segment", 17, "body damaged")))
    assert any(isinstance(said, Broken) for said in rig[1].said)
    rig[1].crash(power=False)
    rig[1].start()
    rig.settle()
    assert rig[1].topics["t"] != own
    new, _ = rig[1].publish("t", b"c")
    rig.settle()
    assert new != own and everywhere(rig) == [{own: [b"a", b"b"], new: [b"c"]}] * 3
    rig[1].crash(power=False)
    rig[1].start()
    rig.settle()
    assert rig[1].topics["t"] == new, "once"


@pytest.mark.requirement("FL-8:marks")
def test_a_broker_passes_a_record_on_at_once_but_its_mark_waits_for_its_sync() -> None:
    rig = Rig(3)
    rig[1].publish("t", b"first")
    rig.settle()
    rig[2].slow_sync_us = 200_000
    own, end = rig[1].publish("t", b"second")
    rig.run(100_000)
    assert rig[3].read("t") == {own: [b"first", b"second"]}
    assert rig[1].covered[own] == (end - 1, (1, 2, 3))
    rig.run(200_000)
    assert rig[1].covered[own] == (end, (1, 2, 3))


def test_without_that_wait_the_circle_closes_early() -> None:
    rig = Rig(3, without=frozenset({Safeguard.SYNC_BEFORE_MARK}))
    rig[1].publish("t", b"first")
    rig.settle()
    rig[2].slow_sync_us = 200_000
    own, end = rig[1].publish("t", b"second")
    rig.run(100_000)
    assert rig[1].covered[own] == (end, (1, 2, 3))


@pytest.mark.requirement("FL-21:resent")
def test_what_is_under_way_when_a_broker_dies_is_sent_again_by_its_last_holder() -> None:
    rig = Rig(4)
    own, _ = rig[1].publish("t", b"0")
    rig.settle()
    rig.loses = lambda sender, receiver, message: receiver == 2 and isinstance(message, Records)
    for number in range(1, 20):
        rig[1].publish("t", b"%d" % number)
    rig.run(20_000)
    rig[2].crash()
    rig.settle()
    assert everywhere(rig) == [{own: [b"%d" % number for number in range(20)]}] * 3
    offset, view = rig[1].covered[own]
    assert offset == 20 and view == (1, 3, 4)


@pytest.mark.requirement("FL-21:rejoins")
def test_a_broker_that_returns_is_sent_what_it_missed() -> None:
    rig = Rig(3)
    own, _ = rig[1].publish("t", b"before")
    rig.settle()
    rig[3].crash()
    rig.settle()
    other, _ = rig[2].publish("t", b"meanwhile")
    for number in range(10):
        rig[1].publish("t", b"%d" % number)
    rig.settle()
    rig[3].start()
    rig.settle()
    rig.settle()
    wanted = {own: [b"before", *(b"%d" % number for number in range(10))], other: [b"meanwhile"]}
    assert rig[3].read("t") == dict(sorted(wanted.items()))


@pytest.mark.requirement("FL-26")
def test_both_sides_of_a_split_go_on_and_have_everything_once_after_healing() -> None:
    rig = Rig(4)
    for broker in rig.up():
        broker.publish("t", b"before %d" % broker.id)
    rig.settle()
    rig.split([1, 2], [3, 4])
    rig.settle()
    for broker in rig.up():
        own, end = broker.publish("t", b"meanwhile %d" % broker.id)
        rig.run(50_000)
        assert broker.covered[own] == (end, (1, 2) if broker.id < 3 else (3, 4))
    rig.heal()
    rig.settle()
    rig.settle()
    (first, *others) = everywhere(rig)
    assert isinstance(first, dict) and len(first) == 4
    assert sorted(map(tuple, first.values())) == [(b"before %d" % at, b"meanwhile %d" % at) for at in range(1, 5)]
    assert others == [first] * 3


@pytest.mark.requirement("FL-22:bounded")
def test_what_its_origin_can_no_longer_end_ends_all_the_same() -> None:
    rig = Rig(4)
    rig[1].publish("t", b"x")
    rig.settle()
    sent: list[FloodMessage] = []

    def dies(sender: NodeId, receiver: NodeId, message: FloodMessage) -> bool:
        sent.append(message)
        return False

    own = rig[1].topics["t"]
    batch = encode([b"y"], timestamp_us=WALL_US, producer=7, sequence=3)
    rig[1].step(PassOn(2, own, bytearray(batch), "all"))
    rig.run(1_500)
    rig[1].crash()
    rig.loses = dies
    rig.settle()
    barriers = [message for message in sent if isinstance(message, Barrier)]
    assert barriers and max(message.hops for message in barriers) <= 5
    rig.settle()
    sent.clear()
    rig.settle()
    assert not [message for message in sent if isinstance(message, Barrier | Records | AckMarks)]


@pytest.mark.requirement("FL-25")
@pytest.mark.parametrize("count", [4, 7, 8])
def test_passing_both_ways_halves_the_distance(count: int) -> None:
    for both_ways in (False, True):
        rig = Rig(count, settings=FloodSettings(both_ways=both_ways))
        for broker in rig.up():
            broker.publish("t", b"first")
        rig.settle()
        rig.hops.clear()
        for _ in range(3):
            for broker in rig.up():
                broker.publish("t", b"traced")
            rig.run(60_000)
        origins = {rig[number].topics["t"]: NodeId(number) for number in range(1, count + 1)}
        hops = [hops for (broker, part, _), hops in rig.hops.items() if origins[part] != broker]
        records = 3 * count
        assert len(hops) == records * (count - 1)
        if both_ways:
            # Over all brokers, the origin included, to whom it is no way at all.
            assert max(hops) == count // 2
            assert sum(hops) / records / count == pytest.approx(count / 4, abs=0.04)
        else:
            assert max(hops) == count - 1
            assert sum(hops) / len(hops) == pytest.approx(count / 2)


@pytest.mark.requirement("FL-2:topics", "FL-4:topics")
def test_making_and_deleting_a_topic_touches_one_broker_only() -> None:
    rig = Rig(3)
    rig[1].create("mine")
    rig.settle()
    assert [sorted(broker.topics) for broker in rig.up()] == [["mine"], [], []]
    rig[2].publish("t", b"x")
    rig.settle()
    assert [sorted(broker.topics) for broker in rig.up()] == [["mine", "t"], ["t"], ["t"]]
    assert len({broker.topics["t"] for broker in rig.up()}) == 3
    rig[3].step(ProposeDrop(100, rig[3].topics["t"].topic))
    rig.settle()
    assert [sorted(broker.topics) for broker in rig.up()] == [["mine", "t"], ["t"], []]


def test_a_record_of_a_topic_that_was_deleted_here_makes_it_anew_without_what_was_before() -> None:
    rig = Rig(3)
    own, _ = rig[2].publish("t", b"old")
    rig.settle()
    rig[3].step(ProposeDrop(100, rig[3].topics["t"].topic))
    rig.settle()
    rig[2].publish("t", b"new")
    rig.settle()
    assert rig[3].read("t") == {own: [b"new"]}
    assert rig[1].read("t") == {own: [b"old", b"new"]}


def test_a_copy_that_is_behind_what_retention_has_left_begins_there() -> None:
    rig = Rig(2)
    rig[1].publish("t", b"0")
    rig.settle()
    rig[2].crash()
    rig.settle()
    for number in range(1, 9):
        own, _ = rig[1].publish("t", b"%d" % number)
    rig.settle()
    rig[1].step(ProposeStart(own, 6))
    del rig[1].logs[own].batches[:6]
    rig[2].start()
    rig.settle()
    rig.settle()
    assert rig[2].read("t") == {own: [b"6", b"7", b"8"]}


@pytest.mark.requirement("FL-7:once")
def test_a_record_that_comes_again_is_neither_kept_nor_passed_on() -> None:
    rig = Rig(3)
    own, _ = rig[1].publish("t", b"x")
    rig.settle()
    rig[2].said.clear()
    message = Records(1, own, 0, 0, 2)
    rig.send(rig[1], NodeId(2), message, rig[1].logs[own].batches[0])
    rig.run(30_000)
    assert not [effect for effect in rig[2].said if isinstance(effect, Append)]
    sent = [effect.message for effect in rig[2].said if isinstance(effect, Send)]
    assert not [message for message in sent if isinstance(message, Records)]


# --- incarnations ---


def test_an_origin_that_restarts_among_others_goes_on_where_it_was() -> None:
    rig = Rig(3)
    own, _ = rig[1].publish("t", b"x")
    rig.settle()
    rig[1].crash()
    rig[1].start()
    rig.settle()
    assert rig[1].topics["t"] == own
    assert rig[1].publish("t", b"y") == (own, 2)
    rig.settle()
    assert everywhere(rig) == [{own: [b"x", b"y"]}] * 3


@pytest.mark.requirement("FL-7:incarnations")
def test_an_origin_that_restarts_alone_publishes_to_a_new_part() -> None:
    rig = Rig(3)
    own, _ = rig[1].publish("t", b"x")
    rig.settle()
    for broker in rig.up():
        broker.crash()
    rig[1].start()
    rig.settle()
    assert rig[1].topics["t"] != own
    new, _ = rig[1].publish("t", b"y")
    rig[2].start()
    rig[3].start()
    rig.settle()
    rig.settle()
    assert everywhere(rig) == [dict(sorted({own: [b"x"], new: [b"y"]}.items()))] * 3


def test_an_origin_that_has_lost_what_others_have_publishes_to_a_new_part_and_is_sent_the_old_one() -> None:
    rig = Rig(3)
    own, _ = rig[1].publish("t", b"x")
    rig[1].publish("t", b"y")
    rig.settle()
    rig[1].crash()
    del rig[1].logs[own].batches[1:]
    rig[1].start()
    rig.settle()
    new, _ = rig[1].publish("t", b"z")
    rig.settle()
    rig.settle()
    assert new != own
    assert everywhere(rig) == [dict(sorted({own: [b"x", b"y"], new: [b"z"]}.items()))] * 3


# --- barriers ---


@pytest.mark.requirement("FL-27:once")
def test_a_producer_is_admitted_when_all_that_any_broker_had_of_the_topic_is_here() -> None:
    rig = Rig(4)
    own, _ = rig[1].publish("t", b"a", producer=7)
    mine, _ = rig[3].publish("t", b"b")
    rig.settle()
    rig.loses = lambda sender, receiver, message: receiver == 3 and isinstance(message, Records)
    rig[1].publish("t", b"c", producer=7, sequence=1)
    rig.run(20_000)
    batch = encode([b"d"], timestamp_us=WALL_US, producer=7, sequence=2)
    rig[3].step(PassOn(2, mine, bytearray(batch), "all"))
    rig.run(100_000)
    assert not rig[3].admitted
    assert [one.producer for one in rig[1].departed] == [7]
    rig.loses = lambda *_: False
    rig.settle()
    (admitted,) = rig[3].admitted
    assert rig[3].logs[own].end == 2
    assert admitted.batch == batch and admitted.token == 2


def test_a_producer_is_admitted_at_once_by_a_broker_that_is_alone() -> None:
    rig = Rig(1)
    own = rig[1].create("t")
    batch = encode([b"d"], timestamp_us=WALL_US, producer=7, sequence=2)
    rig[1].step(PassOn(2, own, bytearray(batch), "all"))
    assert [one.token for one in rig[1].admitted] == [2]


def test_a_barrier_goes_round_again_when_one_is_lost() -> None:
    rig = Rig(3)
    own = rig[1].create("t")
    lost: list[FloodMessage] = []

    def loses(sender: NodeId, receiver: NodeId, message: FloodMessage) -> bool:
        if isinstance(message, Barrier) and not lost:
            lost.append(message)
            return True
        return False

    rig.loses = loses
    batch = encode([b"d"], timestamp_us=WALL_US, producer=7, sequence=2)
    rig[1].step(PassOn(2, own, bytearray(batch), "all"))
    rig.run(100_000)
    assert lost and not rig[1].admitted
    rig.settle()
    assert [one.token for one in rig[1].admitted] == [2]


def test_gap_notices_of_one_partition_do_not_keep_another_from_being_sent_again() -> None:
    """Seed 7000136 of 35febbd: a full disk refused records of one partition, and the link resent nothing any more."""
    rig = Rig(2)
    refused, _ = rig[1].publish("refused", b"0")
    own, _ = rig[1].publish("t", b"first")
    rig.settle()
    rig.loses = lambda sender, receiver, message: isinstance(message, Records)
    rig[1].publish("t", b"lost on its way")
    rig.run(10_000)
    rig.loses = lambda *_: False
    notice = HaveUpTo(rig[1].machine.links[NodeId(2)].number, (VectorEntry(refused, 1, False),), True)
    for _ in range(2 * rig.settings.resend_ms // 50):
        rig[1].step(PeerReceived(NodeId(2), notice, None))
        rig.run(50_000)
    assert rig[2].read("t") == {own: [b"first", b"lost on its way"]}


@pytest.mark.requirement("FL-22")
def test_a_publish_whose_origin_dies_while_it_goes_round_ends_at_every_broker() -> None:
    rig = Rig(5)
    own, _ = rig[1].publish("t", b"x")
    rig.settle()
    sent: list[FloodMessage] = []
    rig.loses = lambda sender, receiver, message: sent.append(message) or False  # type: ignore[func-returns-value]
    rig[1].publish("t", b"y")
    while not any(isinstance(message, Records) for message in sent):
        rig.run(100)
    rig[1].crash()
    rig.settle()
    rig.settle()
    assert everywhere(rig) == [{own: [b"x", b"y"]}] * 4
    assert max(message.hops for message in sent if isinstance(message, Records)) <= 5
    sent.clear()
    rig.settle()
    assert not [message for message in sent if isinstance(message, Records | AckMarks)]
