"""Who owns a key, what a finger points at, and where a message goes next."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.fabric.overlay.routing import finger_start, next_hop, owns, preceding_hop
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.fabric.overlay.state import Overlay
from rostra.model.keyspace import Key, Keyspace
from rostra.simulator.overlay.ideal import owner_of, wrong_fingers
from rostra.simulator.papers.layout import lay_out, walk

BITS = 8
SIZE = 1 << BITS

rings = st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=20, unique=True).map(sorted)
keys = st.integers(0, SIZE - 1)


def laid_out(ids: list[int], successors_max: int = 3) -> list[Overlay]:
    settings = OverlaySettings(bits=BITS, successors_max=successors_max)
    return lay_out([Key(one) for one in ids], settings, Random(1))


def first_at_or_after(ids: list[int], key: int) -> int:
    """The definition, step by step round the circle."""
    return next((key + ahead) % SIZE for ahead in range(SIZE) if (key + ahead) % SIZE in ids)


@pytest.mark.requirement("SC-2")
@given(ids=rings, key=keys)
def test_a_key_belongs_to_the_first_node_at_or_after_it_and_to_no_other(ids: list[int], key: int) -> None:
    ring = laid_out(ids)
    owner = first_at_or_after(ids, key)
    assert [overlay.me.key for overlay in ring if owns(overlay, Key(key))] == [owner]
    members = [overlay.me for overlay in ring]
    assert owner_of(members, [member.key for member in members], Key(key)).key == owner
    nodes = {overlay.me.node: overlay for overlay in ring}
    assert all(walk(origin, Key(key), nodes).owners[0].key == owner for origin in ring)


@given(ids=rings, key=keys, excluded=st.integers(0, 3))
def test_every_hop_is_nearer_to_the_key_and_the_last_one_owns_it(ids: list[int], key: int, excluded: int) -> None:
    ring = laid_out(ids)
    nodes = {overlay.me.key: overlay for overlay in ring}
    at, passed = ring[excluded % len(ring)], 0
    while (hop := next_hop(at, Key(key))) is not None:
        last = hop.key == first_at_or_after(ids, key)
        assert last or (key - hop.key) % SIZE < (key - at.me.key) % SIZE or (key - at.me.key) % SIZE == 0
        at, passed = nodes[hop.key], passed + 1
    assert at.me.key == first_at_or_after(ids, key)
    assert passed <= len(ids)


@pytest.mark.requirement("SC-3")
def test_finger_k_is_the_successor_of_the_id_plus_two_to_the_k_minus_one() -> None:
    ids = [5, 60, 130, 250]
    for overlay in laid_out(ids):
        for k in range(1, BITS + 1):
            start = (overlay.me.key + 2 ** (k - 1)) % 2**BITS
            assert finger_start(overlay, k - 1) == start
            finger = overlay.fingers[k - 1]
            assert finger is not None and finger.key == first_at_or_after(ids, start)
    assert OverlaySettings().bits >= 64, "the default"
    assert len(laid_out(ids)[0].fingers) == BITS, "m is configurable"


@given(ids=rings)
def test_a_laid_out_ring_has_no_wrong_finger(ids: list[int]) -> None:
    assert wrong_fingers(laid_out(ids)) == []


def test_members_that_are_excluded_are_passed_over_in_the_list_too() -> None:
    ring = laid_out([10, 20, 30, 40])
    first = ring[0]
    assert preceding_hop(first, Key(15)) is None, "10 is the predecessor of 15"
    gone = (ring[1].me,)
    assert preceding_hop(first, Key(25), gone) is None, "without 20 it is that of 25 too"
    hop = preceding_hop(first, Key(35), gone)
    assert hop is not None and hop.key == 30


def test_a_node_alone_owns_every_key() -> None:
    (lone,) = laid_out([77])
    assert all(owns(lone, Key(key)) for key in (0, 76, 77, 78, 255))
    assert next_hop(lone, Key(3)) is None


@given(a=keys, b=keys, c=keys)
def test_arcs_of_the_keyspace_agree_with_steps_round_the_circle(a: int, b: int, c: int) -> None:
    space = Keyspace(BITS)
    steps = range(1, (c - a) % SIZE + 1) if a != c else range(1, SIZE + 1)
    arc = [(a + step) % SIZE for step in steps]
    assert space.between(Key(a), Key(b), Key(c)) == (b in arc)
    assert space.strictly_between(Key(a), Key(b), Key(c)) == (b in arc and b not in (a, c))


@given(a=keys, b=keys, c=keys)
def test_a_member_lies_between_two_others_exactly_if_it_is_passed_on_the_way(a: int, b: int, c: int) -> None:
    ring = laid_out(sorted({a, b, c}))
    by_key: dict[int, Overlay] = {overlay.me.key: overlay for overlay in ring}
    passed = [(a + step) % SIZE for step in range(1, (c - a) % SIZE or SIZE)]
    assert by_key[a].between(by_key[b].me, by_key[c].me) == (b in passed)


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"bits": 0}, {"bits": 65}, {"successors_max": 0}, {"misses_max": 0}, {"stabilize_ms_min": 9_999}):
        with pytest.raises(ValueError, match=r".+"):
            OverlaySettings(**wrong)
