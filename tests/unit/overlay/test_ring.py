"""Stabilize, rectify, notify, heartbeats, and what the death of neighbours does to a ring."""

from __future__ import annotations

from math import log2

import pytest

from rostra.fabric.overlay.fingers import fix_fingers
from rostra.fabric.overlay.messages import GetNeighbours, Neighbours, OverlayNotify, OverlayPing, Packet
from rostra.fabric.overlay.pending_request import OverlayRequest, Purpose
from rostra.fabric.overlay.ring import candidate_answered, remember, set_successors
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.safeguards import Safeguard
from tests.unit.overlay.rings import Ring


@pytest.mark.requirement("SC-5:stabilize")
def test_a_node_learns_of_a_nearer_successor_from_its_successor_and_notifies_it() -> None:
    ring = Ring()
    ring.lay_out([1000, 3000, 5000])
    ring.join(9, 2000, 2)
    ring.rounds_until_right(4)
    assert [member.key for member in ring[1].successors] == [2000, 3000, 5000]
    asked = [packet for packet in ring.sent if isinstance(packet.body, GetNeighbours) and packet.to.key == 2000]
    told = [packet for packet in ring.sent if isinstance(packet.body, OverlayNotify) and packet.to.key == 2000]
    assert {packet.sender.key for packet in asked} == {packet.sender.key for packet in told} == {1000}


@pytest.mark.requirement("SC-5:fingers")
def test_each_round_looks_up_one_finger_and_all_are_right_after_as_many_rounds_as_there_are() -> None:
    settings = OverlaySettings(bits=16, successors_max=2)
    ring = Ring(settings)
    ring.lay_out(range(0, 1 << 16, 1 << 12))
    overlay = ring[1]
    expected = list(overlay.fingers)
    for other in ring.overlays:
        other.fingers = [None] * settings.bits
    order = []
    for _ in range(settings.bits):
        fix_fingers(overlay)
        order.append(overlay.next_finger)
        overlay.pending.clear()
    far = range(13, 16)
    assert order[: len(far)] == [14, 15, 0] and order[len(far) : 2 * len(far)] == [14, 15, 0], "in turn"
    ring.loop.settle(overlay)
    ring.pass_rounds(settings.bits)
    assert overlay.fingers == expected
    ring.assert_fingers_right()


@pytest.mark.requirement("SC-5:misses")
@pytest.mark.parametrize("missed", [1, 2])
def test_a_neighbour_that_misses_fewer_heartbeats_than_the_limit_stays(missed: int) -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000])
    ring.pass_rounds(2)
    lost: dict[tuple[int, int], int] = {}

    def loses(packet: Packet) -> bool:
        asked = (packet.sender.node, packet.token)
        if (
            packet.to.node != 2
            or not isinstance(packet.body, OverlayPing | GetNeighbours)
            or lost.get(asked, 0) >= missed
        ):
            return False
        lost[asked] = lost.get(asked, 0) + 1
        return True

    ring.loses = loses
    before = {one.me.key: (one.predecessor, one.successors) for one in ring.overlays}
    ring.pass_rounds(6)
    assert len(lost) > 6
    assert {one.me.key: (one.predecessor, one.successors) for one in ring.overlays} == before
    assert not any(one.passive for one in ring.overlays)


@pytest.mark.requirement("SC-5:dead-neighbours")
def test_a_dead_successor_is_replaced_from_the_list_and_a_dead_predecessor_is_forgotten() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000, 5000])
    ring.crash(2)
    # All packets to the next one are lost, so that nobody else can tell it who its predecessor is now.
    ring.loses = lambda packet: packet.to.node == 3 and isinstance(packet.body, OverlayNotify)
    ring.pass_rounds(2)
    assert ring[1].successors[0] == ring[3].me
    assert ring[3].predecessor is None
    ring.loses = lambda _packet: False
    ring.rounds_until_right(3)
    assert ring[3].predecessor == ring[1].me


def test_without_rectify_a_dead_predecessor_stays() -> None:
    ring = Ring(without=frozenset({Safeguard.RECTIFY}))
    ring.lay_out([1000, 2000, 3000, 4000, 5000])
    dead = ring.crash(2)[0].me
    ring.pass_rounds(10)
    assert ring[3].predecessor == dead


def test_a_dead_node_that_the_successor_still_names_is_not_adopted() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000])
    dead = ring.crash(2)[0].me
    ring[1].successors = ring[1].successors[1:]
    ring[3].predecessor = dead
    ring[3].heartbeat_us += 10_000_000
    seen = []
    for _ in range(40):
        ring.pass_rounds(0.05)
        seen.append(ring[1].successors[0].key)
    assert set(seen) == {3000}


def test_a_successor_list_ends_where_the_node_itself_would_come() -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=8))
    ring.create(1, 1000)
    for node in range(2, 5):
        ring.join(node, node * 1000, 1)
    ring.rounds_until_right(12)
    assert all(len(one.successors) == 3 and one.me not in one.successors for one in ring.overlays)


@pytest.mark.requirement("SC-30")
@pytest.mark.parametrize("successors_max", [2, 5, OverlaySettings().successors_max])
@pytest.mark.parametrize("first", [1, 17, 60])
def test_any_r_minus_1_consecutive_nodes_may_fail(successors_max: int, first: int) -> None:
    assert OverlaySettings().successors_max == 8
    nodes = 64
    ring = Ring(OverlaySettings(successors_max=successors_max))
    ring.lay_out([(at << 58) + at for at in range(nodes)])
    ring.crash(*((first + at - 1) % nodes + 1 for at in range(successors_max - 1)))
    ring.rounds_until_right(3 * int(log2(nodes)) + successors_max + successors_max - 1)
    ring.pass_rounds(64)
    ring.assert_fingers_right()


@pytest.mark.requirement("SC-6")
@pytest.mark.parametrize("odd", [0, 1])
def test_an_interleaved_half_of_sixty_four_nodes_may_fail_at_once(odd: int) -> None:
    nodes = 64
    ring = Ring(OverlaySettings(successors_max=8))
    ring.lay_out([(at << 58) + at * 977 for at in range(nodes)])
    ring.crash(*range(1 + odd, nodes + 1, 2))
    ring.rounds_until_right(3 * int(log2(nodes)) + 8 + 1)
    ring.pass_rounds(64)
    ring.assert_fingers_right()
    assert len(ring.overlays) == nodes // 2


def test_more_successors_than_the_list_holds_may_fail_and_a_finger_leads_back() -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=2))
    ring.lay_out(range(0, 1 << 16, 1 << 12))
    ring.crash(2, 3, 4)
    ring.rounds_until_right(30)


def test_what_was_meant_for_an_earlier_life_is_not_answered() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000])
    former = ring[2].me
    restarted = ring.restart(ring.crash(2)[0])
    ring.loop.send(Packet(former, ring[1].me, 77, OverlayPing()))
    ring.loses = lambda packet: packet.token == 77 and packet.to.node == 2
    ring.sent.clear()
    ring.pass_rounds(0.1)
    assert not [packet for packet in ring.sent if packet.sender == restarted.me and packet.token == 77]


def test_a_lookup_passes_dead_nodes_and_names_the_living_owner() -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=4))
    ring.lay_out(range(0, 1 << 16, 1 << 12))
    ring.crash(9, 10)
    done = ring.look_up(1, (8 << 12) + 5)
    assert done.owner == ring[11].me and done.predecessor == ring[8].me
    assert done.timeouts >= 1


def test_a_node_passes_many_that_joined_before_its_successor_in_one_round() -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=3))
    ring.lay_out(range(0, 1 << 16, 1 << 11))
    first = ring[1]
    first.successors = tuple(ring[node].me for node in (30, 31, 32))
    ring.rounds_until_right(3)
    assert [member.node for member in first.successors] == [2, 3, 4]


def test_a_node_that_lost_its_list_learns_from_its_predecessor_who_comes_next() -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=3))
    ring.lay_out([1000, 2000, 3000, 4000, 5000, 6000])
    lost = ring[3]
    set_successors(lost, ())
    lost.fingers = [None] * 16
    seen = set()
    for _ in range(40):
        ring.pass_rounds(0.05)
        seen.add(tuple(member.key for member in lost.successors))
    assert seen == {(), (4000, 5000, 6000)}, "never its predecessor, which would skip everybody"
    ring.rounds_until_right(2)


def test_a_node_whose_predecessor_lists_only_the_dead_takes_the_predecessor() -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=2))
    ring.lay_out([1000, 2000, 3000])
    first, lost, dead = ring.overlays
    set_successors(lost, ())
    remember(lost, dead.me)
    asked = OverlayRequest(first.me, GetNeighbours(), Purpose.ADOPT, 0, None)
    candidate_answered(lost, asked, Neighbours(None, (lost.me, dead.me)))
    assert lost.successors == (first.me,)
