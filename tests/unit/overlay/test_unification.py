"""Rings that were apart, and what brings them together."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import pytest

from rostra.fabric.overlay.messages import Detected, MergeLookup, Packet, TryMerge
from rostra.fabric.overlay.ring import remember
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.safeguards import Safeguard, Without
from rostra.simulator.overlay.ideal import acquainted, wrong_neighbours
from tests.unit.overlay.rings import Ring

SETTINGS = OverlaySettings(bits=16, successors_max=3)
KEYS = [at << 11 for at in range(32)]


def split(ring: Ring, side: Sequence[int]) -> None:
    ring.loses = lambda packet: (packet.sender.node in side) != (packet.to.node in side)


def is_merge(packet: Packet) -> bool:
    return isinstance(packet.body, MergeLookup | TryMerge | Detected)


@pytest.mark.parametrize("side", [range(1, 33, 2), range(1, 17)], ids=["interleaved", "halves"])
def test_a_ring_that_was_split_becomes_one_again_by_itself(side: range) -> None:
    ring = Ring(SETTINGS)
    ring.lay_out(KEYS)
    split(ring, side)
    ring.pass_rounds(30)
    ours = [one for one in ring.overlays if one.me.node in side]
    assert wrong_neighbours(ours) == [], "each side is a ring"
    ring.loses = lambda _packet: False
    ring.rounds_until_right(3 * int(log2(len(KEYS))) + SETTINGS.successors_max)
    ring.pass_rounds(20)
    ring.assert_fingers_right()


@pytest.mark.parametrize("off", [Safeguard.PASSIVE_LIST, Safeguard.UNIFICATION])
def test_without_what_brings_them_together_two_rings_stay_two(off: Safeguard) -> None:
    without: Without = frozenset({off})
    ring = Ring(SETTINGS, without)
    ring.lay_out(KEYS)
    side = range(1, 33, 2)
    split(ring, side)
    ring.pass_rounds(30)
    ring.loses = lambda _packet: False
    ring.pass_rounds(40)
    assert wrong_neighbours([one for one in ring.overlays if one.me.node in side]) == []


@pytest.mark.parametrize("fanout", [1, 3])
def test_one_contact_is_enough_for_two_rings_that_never_knew_each_other(fanout: int) -> None:
    ring = Ring(OverlaySettings(bits=16, successors_max=3, merge_fanout=fanout))
    ring.lay_out(KEYS[::2])
    ring.lay_out(KEYS[1::2], first_node=100)
    remember(ring[1], ring[100].me)
    ring.rounds_until_right(40)
    ring.pass_rounds(4)
    ring.sent.clear()
    ring.pass_rounds(5)
    assert not any(map(is_merge, ring.sent)), "and then there is nothing left to search"


def test_a_member_found_again_in_the_same_ring_changes_nothing() -> None:
    ring = Ring(SETTINGS)
    ring.lay_out(KEYS)
    remember(ring[1], ring[17].me)
    ring.pass_rounds(6)
    assert wrong_neighbours(ring.overlays) == []
    assert not ring[1].passive
    assert 0 < sum(map(is_merge, ring.sent)) < 8 * len(KEYS)
    ring.sent.clear()
    ring.pass_rounds(5)
    assert not any(map(is_merge, ring.sent)), "a false alarm ends by itself"


def test_members_of_two_rings_with_the_same_id_end_with_different_ones() -> None:
    ring = Ring(SETTINGS)
    ring.lay_out(KEYS[::4])
    ring.lay_out([*KEYS[::4][1:3], KEYS[5]], first_node=100)
    remember(ring[1], ring[100].me)
    ring.rounds_until_right(60)


def test_the_passive_list_forgets_the_oldest_at_its_bound() -> None:
    ring = Ring(OverlaySettings(bits=16, passive_max=4))
    ring.lay_out(KEYS)
    overlay = ring[1]
    for node in range(2, 9):
        remember(overlay, ring[node].me)
    assert [member.node for member in overlay.passive.values()] == [5, 6, 7, 8]


def test_a_node_that_lost_its_ring_while_it_was_searched_for_joins_instead() -> None:
    ring = Ring(SETTINGS)
    ring.lay_out(KEYS)
    lone = ring.create(99, KEYS[8] + 5)
    ring.loop.send(Packet(lone.me, ring[9].me, 0, TryMerge(ring[9].me, ring[10].me)))
    seen = set()
    for _ in range(20):
        ring.pass_rounds(0.05)
        seen.add(lone.successors)
    assert seen == {(), tuple(ring[node].me for node in (10, 11, 12))}
    ring.rounds_until_right(4)


def test_groups_of_nodes_that_know_nobody_of_each_other_are_told_apart() -> None:
    ring = Ring(SETTINGS)
    ring.lay_out(KEYS[:3])
    ring.lay_out(KEYS[5:7], first_node=10)
    ring.create(20, KEYS[9])
    assert acquainted(ring.overlays) == [{1, 2, 3}, {10, 11}, {20}]
    remember(ring[20], ring[11].me)
    assert acquainted(ring.overlays) == [{1, 2, 3}, {10, 11, 20}]
    remember(ring[2], ring[20].me)
    assert acquainted(ring.overlays) == [{1, 2, 3, 10, 11, 20}]
