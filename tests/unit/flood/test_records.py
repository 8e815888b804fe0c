"""Records on their way around the ring."""

from __future__ import annotations

import pytest

from rostra.errors import CorruptLog
from rostra.fabric.api import Append, Broken, Forward, PeerReceived, ProposeDrop, ProposeLogStart, ReadFailed, Send
from rostra.fabric.flood.messages import AckMarks, Barrier, FloodMessage, HaveUpTo, Records
from rostra.fabric.flood.origin_partition import VectorEntry
from rostra.fabric.flood.settings import FloodSettings
from rostra.model.encode import encode
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard
from tests.unit.flood.ring_simulation import WALL_US, RingSimulation


def everywhere(sim: RingSimulation, name: str = "t") -> list[object]:
    """The records of a topic at each broker that is up."""
    return [broker.read(name) for broker in sim.up()]


@pytest.mark.requirement("FL-1:passes", "FL-7:incarnations")
def test_a_publish_visits_every_broker_once_and_lies_at_the_same_offsets_everywhere() -> None:
    sim = RingSimulation(4)
    sent: list[FloodMessage] = []
    sim.loses = lambda sender, receiver, message: sent.append(message) or False  # type: ignore[func-returns-value]
    own, _ = sim[2].publish("t", b"a", b"b")
    sim.settle()
    sent.clear()
    sim[2].publish("t", b"c")
    sim.run(100_000)
    assert [message.hops for message in sent if isinstance(message, Records)] == [1, 2, 3]
    assert everywhere(sim) == [{own: [b"a", b"b", b"c"]}] * 4
    assert [broker.logs[own].batches for broker in sim.up()] == [sim[2].logs[own].batches] * 4


@pytest.mark.requirement("CM-4:shown-when-safe", "FL-7:origin-first")
def test_nothing_leaves_its_origin_before_it_is_on_its_disk() -> None:
    sim = RingSimulation(2)
    sim[1].publish("t", b"first")
    sim.settle()
    sim[1].slow_sync_us = 50_000
    own, end = sim[1].publish("t", b"second")
    sim.run(40_000)
    assert sim[2].read("t") == {own: [b"first"]} and sim[1].commits[own] == end - 1
    sim.run(40_000)
    assert sim[2].read("t") == {own: [b"first", b"second"]}


@pytest.mark.requirement("CM-13:no-say")
def test_an_origin_that_finds_its_own_records_damaged_takes_no_more_and_starts_anew_with_a_new_part() -> None:
    sim = RingSimulation(3)
    own, _ = sim[1].publish("t", b"a", b"b")
    sim.settle()
    sim[1].step(ReadFailed(0, own, CorruptLog("segment", 17, "body damaged")))
    assert any(isinstance(said, Broken) for said in sim[1].said)
    sim[1].crash(power=False)
    sim[1].start()
    sim.settle()
    assert sim[1].topics["t"] != own
    new, _ = sim[1].publish("t", b"c")
    sim.settle()
    assert new != own and everywhere(sim) == [{own: [b"a", b"b"], new: [b"c"]}] * 3
    sim[1].crash(power=False)
    sim[1].start()
    sim.settle()
    assert sim[1].topics["t"] == new, "once"


@pytest.mark.requirement("FL-8:marks")
def test_a_broker_passes_a_record_on_at_once_but_its_mark_waits_for_its_sync() -> None:
    sim = RingSimulation(3)
    sim[1].publish("t", b"first")
    sim.settle()
    sim[2].slow_sync_us = 200_000
    own, end = sim[1].publish("t", b"second")
    sim.run(100_000)
    assert sim[3].read("t") == {own: [b"first", b"second"]}
    assert sim[1].covered[own] == (end - 1, (1, 2, 3))
    sim.run(200_000)
    assert sim[1].covered[own] == (end, (1, 2, 3))


def test_without_that_wait_the_circle_closes_early() -> None:
    sim = RingSimulation(3, without=frozenset({Safeguard.SYNC_BEFORE_MARK}))
    sim[1].publish("t", b"first")
    sim.settle()
    sim[2].slow_sync_us = 200_000
    own, end = sim[1].publish("t", b"second")
    sim.run(100_000)
    assert sim[1].covered[own] == (end, (1, 2, 3))


@pytest.mark.requirement("FL-21:resent")
def test_what_is_under_way_when_a_broker_dies_is_sent_again_by_its_last_holder() -> None:
    sim = RingSimulation(4)
    own, _ = sim[1].publish("t", b"0")
    sim.settle()
    sim.loses = lambda sender, receiver, message: receiver == 2 and isinstance(message, Records)
    for number in range(1, 20):
        sim[1].publish("t", b"%d" % number)
    sim.run(20_000)
    sim[2].crash()
    sim.settle()
    assert everywhere(sim) == [{own: [b"%d" % number for number in range(20)]}] * 3
    offset, view = sim[1].covered[own]
    assert offset == 20 and view == (1, 3, 4)


@pytest.mark.requirement("FL-21:rejoins")
def test_a_broker_that_returns_is_sent_what_it_missed() -> None:
    sim = RingSimulation(3)
    own, _ = sim[1].publish("t", b"before")
    sim.settle()
    sim[3].crash()
    sim.settle()
    other, _ = sim[2].publish("t", b"meanwhile")
    for number in range(10):
        sim[1].publish("t", b"%d" % number)
    sim.settle()
    sim[3].start()
    sim.settle()
    sim.settle()
    wanted = {own: [b"before", *(b"%d" % number for number in range(10))], other: [b"meanwhile"]}
    assert sim[3].read("t") == dict(sorted(wanted.items()))


@pytest.mark.requirement("FL-26")
def test_both_sides_of_a_split_go_on_and_have_everything_once_after_healing() -> None:
    sim = RingSimulation(4)
    for broker in sim.up():
        broker.publish("t", b"before %d" % broker.id)
    sim.settle()
    sim.split([1, 2], [3, 4])
    sim.settle()
    for broker in sim.up():
        own, end = broker.publish("t", b"meanwhile %d" % broker.id)
        sim.run(50_000)
        assert broker.covered[own] == (end, (1, 2) if broker.id < 3 else (3, 4))
    sim.heal()
    sim.settle()
    sim.settle()
    (first, *others) = everywhere(sim)
    assert isinstance(first, dict) and len(first) == 4
    assert sorted(map(tuple, first.values())) == [(b"before %d" % at, b"meanwhile %d" % at) for at in range(1, 5)]
    assert others == [first] * 3


@pytest.mark.requirement("FL-22:bounded")
def test_what_its_origin_can_no_longer_end_ends_all_the_same() -> None:
    sim = RingSimulation(4)
    sim[1].publish("t", b"x")
    sim.settle()
    sent: list[FloodMessage] = []

    def dies(sender: NodeId, receiver: NodeId, message: FloodMessage) -> bool:
        sent.append(message)
        return False

    own = sim[1].topics["t"]
    batch = encode([b"y"], timestamp_us=WALL_US, producer=7, sequence=3)
    sim[1].step(Forward(2, own, bytearray(batch), "all"))
    sim.run(1_500)
    sim[1].crash()
    sim.loses = dies
    sim.settle()
    barriers = [message for message in sent if isinstance(message, Barrier)]
    assert barriers and max(message.hops for message in barriers) <= 5
    sim.settle()
    sent.clear()
    sim.settle()
    assert not [message for message in sent if isinstance(message, Barrier | Records | AckMarks)]


@pytest.mark.requirement("FL-25")
@pytest.mark.parametrize("count", [4, 7, 8])
def test_passing_both_ways_halves_the_distance(count: int) -> None:
    for both_ways in (False, True):
        sim = RingSimulation(count, settings=FloodSettings(both_ways=both_ways))
        for broker in sim.up():
            broker.publish("t", b"first")
        sim.settle()
        sim.hops.clear()
        for _ in range(3):
            for broker in sim.up():
                broker.publish("t", b"traced")
            sim.run(60_000)
        origins = {sim[number].topics["t"]: NodeId(number) for number in range(1, count + 1)}
        hops = [hops for (broker, part, _), hops in sim.hops.items() if origins[part] != broker]
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
    sim = RingSimulation(3)
    sim[1].create("mine")
    sim.settle()
    assert [sorted(broker.topics) for broker in sim.up()] == [["mine"], [], []]
    sim[2].publish("t", b"x")
    sim.settle()
    assert [sorted(broker.topics) for broker in sim.up()] == [["mine", "t"], ["t"], ["t"]]
    assert len({broker.topics["t"] for broker in sim.up()}) == 3
    sim[3].step(ProposeDrop(100, sim[3].topics["t"].topic))
    sim.settle()
    assert [sorted(broker.topics) for broker in sim.up()] == [["mine", "t"], ["t"], []]


def test_a_record_of_a_topic_that_was_deleted_here_makes_it_anew_without_what_was_before() -> None:
    sim = RingSimulation(3)
    own, _ = sim[2].publish("t", b"old")
    sim.settle()
    sim[3].step(ProposeDrop(100, sim[3].topics["t"].topic))
    sim.settle()
    sim[2].publish("t", b"new")
    sim.settle()
    assert sim[3].read("t") == {own: [b"new"]}
    assert sim[1].read("t") == {own: [b"old", b"new"]}


def test_a_copy_that_is_behind_what_retention_has_left_begins_there() -> None:
    sim = RingSimulation(2)
    sim[1].publish("t", b"0")
    sim.settle()
    sim[2].crash()
    sim.settle()
    for number in range(1, 9):
        own, _ = sim[1].publish("t", b"%d" % number)
    sim.settle()
    sim[1].step(ProposeLogStart(own, 6))
    del sim[1].logs[own].batches[:6]
    sim[2].start()
    sim.settle()
    sim.settle()
    assert sim[2].read("t") == {own: [b"6", b"7", b"8"]}


@pytest.mark.requirement("FL-7:once")
def test_a_record_that_comes_again_is_neither_kept_nor_passed_on() -> None:
    sim = RingSimulation(3)
    own, _ = sim[1].publish("t", b"x")
    sim.settle()
    sim[2].said.clear()
    message = Records(1, own, 0, 0, 2)
    sim.send(sim[1], NodeId(2), message, sim[1].logs[own].batches[0])
    sim.run(30_000)
    assert not [effect for effect in sim[2].said if isinstance(effect, Append)]
    sent = [effect.message for effect in sim[2].said if isinstance(effect, Send)]
    assert not [message for message in sent if isinstance(message, Records)]


# --- incarnations ---


def test_an_origin_that_restarts_among_others_goes_on_where_it_was() -> None:
    sim = RingSimulation(3)
    own, _ = sim[1].publish("t", b"x")
    sim.settle()
    sim[1].crash()
    sim[1].start()
    sim.settle()
    assert sim[1].topics["t"] == own
    assert sim[1].publish("t", b"y") == (own, 2)
    sim.settle()
    assert everywhere(sim) == [{own: [b"x", b"y"]}] * 3


@pytest.mark.requirement("FL-7:incarnations")
def test_an_origin_that_restarts_alone_publishes_to_a_new_part() -> None:
    sim = RingSimulation(3)
    own, _ = sim[1].publish("t", b"x")
    sim.settle()
    for broker in sim.up():
        broker.crash()
    sim[1].start()
    sim.settle()
    assert sim[1].topics["t"] != own
    new, _ = sim[1].publish("t", b"y")
    sim[2].start()
    sim[3].start()
    sim.settle()
    sim.settle()
    assert everywhere(sim) == [dict(sorted({own: [b"x"], new: [b"y"]}.items()))] * 3


def test_an_origin_that_has_lost_what_others_have_publishes_to_a_new_part_and_is_sent_the_old_one() -> None:
    sim = RingSimulation(3)
    own, _ = sim[1].publish("t", b"x")
    sim[1].publish("t", b"y")
    sim.settle()
    sim[1].crash()
    del sim[1].logs[own].batches[1:]
    sim[1].start()
    sim.settle()
    new, _ = sim[1].publish("t", b"z")
    sim.settle()
    sim.settle()
    assert new != own
    assert everywhere(sim) == [dict(sorted({own: [b"x", b"y"], new: [b"z"]}.items()))] * 3


# --- barriers ---


@pytest.mark.requirement("FL-27:once")
def test_a_producer_is_admitted_when_all_that_any_broker_had_of_the_topic_is_here() -> None:
    sim = RingSimulation(4)
    own, _ = sim[1].publish("t", b"a", producer=7)
    mine, _ = sim[3].publish("t", b"b")
    sim.settle()
    sim.loses = lambda sender, receiver, message: receiver == 3 and isinstance(message, Records)
    sim[1].publish("t", b"c", producer=7, sequence=1)
    sim.run(20_000)
    batch = encode([b"d"], timestamp_us=WALL_US, producer=7, sequence=2)
    sim[3].step(Forward(2, mine, bytearray(batch), "all"))
    sim.run(100_000)
    assert not sim[3].admitted
    assert [one.producer for one in sim[1].departed] == [7]
    sim.loses = lambda *_: False
    sim.settle()
    (admitted,) = sim[3].admitted
    assert sim[3].logs[own].end == 2
    assert admitted.batch == batch and admitted.token == 2


def test_a_producer_is_admitted_at_once_by_a_broker_that_is_alone() -> None:
    sim = RingSimulation(1)
    own = sim[1].create("t")
    batch = encode([b"d"], timestamp_us=WALL_US, producer=7, sequence=2)
    sim[1].step(Forward(2, own, bytearray(batch), "all"))
    assert [one.token for one in sim[1].admitted] == [2]


def test_a_barrier_goes_round_again_when_one_is_lost() -> None:
    sim = RingSimulation(3)
    own = sim[1].create("t")
    lost: list[FloodMessage] = []

    def loses(sender: NodeId, receiver: NodeId, message: FloodMessage) -> bool:
        if isinstance(message, Barrier) and not lost:
            lost.append(message)
            return True
        return False

    sim.loses = loses
    batch = encode([b"d"], timestamp_us=WALL_US, producer=7, sequence=2)
    sim[1].step(Forward(2, own, bytearray(batch), "all"))
    sim.run(100_000)
    assert lost and not sim[1].admitted
    sim.settle()
    assert [one.token for one in sim[1].admitted] == [2]


def test_gap_notices_of_one_partition_do_not_keep_another_from_being_sent_again() -> None:
    """Seed 7000136 of 35febbd: a full disk refused records of one partition, and the link resent nothing any more."""
    sim = RingSimulation(2)
    refused, _ = sim[1].publish("refused", b"0")
    own, _ = sim[1].publish("t", b"first")
    sim.settle()
    sim.loses = lambda sender, receiver, message: isinstance(message, Records)
    sim[1].publish("t", b"lost on its way")
    sim.run(10_000)
    sim.loses = lambda *_: False
    notice = HaveUpTo(sim[1].machine.links[NodeId(2)].number, (VectorEntry(refused, 1, False),), True)
    for _ in range(2 * sim.settings.resend_ms // 50):
        sim[1].step(PeerReceived(NodeId(2), notice, None))
        sim.run(50_000)
    assert sim[2].read("t") == {own: [b"first", b"lost on its way"]}


@pytest.mark.requirement("FL-22")
def test_a_publish_whose_origin_dies_while_it_goes_round_ends_at_every_broker() -> None:
    sim = RingSimulation(5)
    own, _ = sim[1].publish("t", b"x")
    sim.settle()
    sent: list[FloodMessage] = []
    sim.loses = lambda sender, receiver, message: sent.append(message) or False  # type: ignore[func-returns-value]
    sim[1].publish("t", b"y")
    while not any(isinstance(message, Records) for message in sent):
        sim.run(100)
    sim[1].crash()
    sim.settle()
    sim.settle()
    assert everywhere(sim) == [{own: [b"x", b"y"]}] * 4
    assert max(message.hops for message in sent if isinstance(message, Records)) <= 5
    sent.clear()
    sim.settle()
    assert not [message for message in sent if isinstance(message, Records | AckMarks)]
