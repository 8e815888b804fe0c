"""How nodes become members: founding, joining, restarting, and ids that are taken."""

from __future__ import annotations

import pytest

from rostra.fabric.overlay import join
from rostra.fabric.overlay.messages import OverlayNotify
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.safeguards import Safeguard
from rostra.simulator.overlay.ideal import wrong_neighbours
from tests.unit.overlay.rings import Ring, keys_of


@pytest.mark.requirement("SC-4:create")
def test_the_first_node_is_a_ring_of_one() -> None:
    ring = Ring()
    overlay = ring.create(1, 100)
    assert overlay.joined and overlay.lone
    assert (overlay.successors, overlay.predecessor) == ((), None)
    ring.pass_rounds(3)
    assert overlay.lone


@pytest.mark.requirement("SC-4:join")
@pytest.mark.parametrize("contact", [1, 2, 3, 4, 5])
def test_a_node_joins_through_any_member(contact: int) -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000, 5000])
    joined = ring.join(9, 2500, contact)
    assert not joined.joined
    ring.rounds_until_right(4)
    assert joined.predecessor == ring[2].me
    assert [member.key for member in joined.successors] == [3000, 4000, 5000]


def test_nodes_that_join_at_once_in_one_gap_are_all_found() -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=3))
    ring.create(1, 0)
    for node in range(2, 12):
        ring.join(node, node * 100, 1)
    ring.rounds_until_right(20)
    ring.pass_rounds(16)
    ring.assert_fingers_right()


@pytest.mark.requirement("SC-4:collision")
def test_an_id_that_is_taken_is_given_up_for_a_new_one() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000])
    joined = ring.join(9, 2000, 1)
    ring.rounds_until_right(6)
    assert joined.me.key != 2000
    assert len(set(keys_of(ring.overlays))) == 4
    assert ring[2].me.key == 2000, "the one who had it keeps it"


def test_of_two_that_join_with_the_same_id_at_once_one_takes_another() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000])
    ring.join(8, 2500, 1)
    ring.join(9, 2500, 4)
    ring.rounds_until_right(8)
    assert len(set(keys_of(ring.overlays))) == 6


def test_without_the_check_two_members_share_an_id() -> None:
    ring = Ring(without=frozenset({Safeguard.ID_COLLISION}))
    ring.lay_out([1000, 2000, 3000])
    ring.join(9, 2000, 1)
    ring.pass_rounds(6)
    assert keys_of(ring.overlays).count(2000) == 2


def test_a_joining_node_goes_on_to_its_next_contact_when_one_is_dead() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000])
    joined = ring.new(9, 2500)
    contacts = (ring[1].me, ring[2].me)
    ring.crash(1)
    join.join(joined, ring.loop.now_us, contacts)
    ring.loop.start(joined)
    ring.rounds_until_right(8)


def test_a_contact_that_restarted_since_it_was_named_still_leads_to_the_ring() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000])
    named = ring[1].me
    ring.restart(ring.crash(1)[0])
    ring.rounds_until_right(8)
    joined = ring.new(9, 2500)
    join.join(joined, ring.loop.now_us, (named,))
    ring.loop.start(joined)
    ring.rounds_until_right(4)


def test_a_node_without_a_contact_is_refused() -> None:
    ring = Ring()
    with pytest.raises(ValueError, match="contact"):
        join.join(ring.new(1, 5), 0, ())


def test_a_restarted_node_is_a_ring_of_one_until_it_has_joined_its_former_neighbours() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000, 5000])
    (before,) = ring.crash(3)
    restarted = ring.restart(before)
    assert restarted.lone and restarted.me.key == 3000 and restarted.me.boot == 2
    assert {member.key for member in restarted.passive.values()} == {1000, 2000, 4000, 5000}
    ring.rounds_until_right(8)
    assert restarted.predecessor == ring[2].me


def test_of_two_rings_of_one_that_meet_the_higher_id_joins_the_lower() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000])
    low, high = ring.crash(1, 2)
    ring.restart(high)
    ring.restart(low)
    ring.rounds_until_right(6)
    introduced = [packet for packet in ring.sent if isinstance(packet.body, OverlayNotify) and packet.token]
    assert {packet.sender.key for packet in introduced} == {2000}


def test_a_whole_ring_that_restarts_becomes_one_ring_again() -> None:
    ring = Ring()
    ring.lay_out([1000 * node for node in range(1, 13)])
    for before in ring.crash(*range(1, 13)):
        ring.restart(before)
    ring.rounds_until_right(40)
    assert wrong_neighbours(ring.overlays) == []


def test_a_node_that_joined_a_ring_of_one_finds_the_ring_of_its_other_contacts_when_that_one_dies() -> None:
    ring = Ring()
    ring.lay_out([1000, 2000, 3000, 4000, 5000])
    # Its packets to the others are lost, so that it stays a ring of one and they do not hear of it.
    restarted = ring.restart(ring.crash(3)[0])
    ring.loses = lambda packet: (
        {packet.sender.node, packet.to.node} not in ({3}, {3, 9})
        and 3
        in (
            packet.sender.node,
            packet.to.node,
        )
    )
    ring.pass_rounds(2)
    joined = ring.new(9, 2500)
    join.join(joined, ring.loop.now_us, (restarted.me, ring[1].me))
    ring.loop.start(joined)
    ring.pass_rounds(1)
    assert joined.successors == (restarted.me,)
    ring.crash(3)
    ring.rounds_until_right(12)
    assert joined.predecessor == ring[2].me
