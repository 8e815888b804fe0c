"""The assignment of partitions to group members."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.broker.groups.assignor import Members, assign
from rostra.broker.groups.group_table import GroupPartitionKey

Wanted = dict[GroupPartitionKey, Members]
Held = dict[GroupPartitionKey, int]

members = st.lists(st.integers(1, 12), min_size=1, max_size=8, unique=True).map(lambda drawn: tuple(sorted(drawn)))
parts = st.lists(st.builds(GroupPartitionKey, st.integers(1, 4), st.integers(0, 9)), max_size=30, unique=True)


@st.composite
def alike(draw: st.DrawFn) -> tuple[Wanted, Held]:
    """All members may have all partitions; some are held, by current members or former ones."""
    kind = draw(members)
    wanted = dict.fromkeys(draw(parts), kind)
    return wanted, {part: draw(st.integers(1, 12)) for part in wanted if draw(st.booleans())}


@st.composite
def mixed(draw: st.DrawFn) -> tuple[Wanted, Held]:
    """Members that may have some partitions and not others."""
    kinds = draw(st.lists(members, min_size=1, max_size=4))
    wanted = {part: draw(st.sampled_from(kinds)) for part in draw(parts)}
    return wanted, {part: draw(st.integers(1, 12)) for part in wanted if draw(st.booleans())}


def loads_of(wanted: Wanted, holders: Held) -> Counter[int]:
    loads = Counter({member: 0 for kind in wanted.values() for member in kind})
    loads.update(holders.values())
    return loads


@given(mixed())
def test_every_partition_has_one_holder_among_its_candidates(drawn: tuple[Wanted, Held]) -> None:
    wanted, held = drawn
    holders = assign(wanted, held)
    assert holders.keys() == wanted.keys()
    assert all(holders[part] in wanted[part] for part in wanted)


@given(alike())
def test_loads_of_equal_members_differ_by_one_at_most(drawn: tuple[Wanted, Held]) -> None:
    wanted, held = drawn
    loads = loads_of(wanted, assign(wanted, held))
    assert not loads or max(loads.values()) - min(loads.values()) <= 1


@given(alike())
def test_no_even_assignment_moves_fewer_partitions(drawn: tuple[Wanted, Held]) -> None:
    wanted, held = drawn
    if not wanted:
        return
    kind = next(iter(wanted.values()))
    kept = {part: member for part, member in held.items() if member in kind}
    moved = sum(1 for part, member in assign(wanted, held).items() if kept.get(part, member) != member)
    # Only what exceeds the shares must move; the larger shares go to the members with the most partitions.
    least, larger = divmod(len(wanted), len(kind))
    had = sorted((Counter(kept.values())[member] for member in kind), reverse=True)
    shares = [least + 1] * larger + [least] * (len(kind) - larger)
    assert moved == sum(max(0, mine - share) for mine, share in zip(had, shares, strict=True))


@given(mixed())
def test_no_move_makes_the_assignment_more_even(drawn: tuple[Wanted, Held]) -> None:
    wanted, held = drawn
    holders = assign(wanted, held)
    loads = loads_of(wanted, holders)
    for part, holder in holders.items():
        assert all(loads[other] >= loads[holder] - 1 for other in wanted[part])


@given(mixed())
def test_an_even_assignment_stays_as_it_is(drawn: tuple[Wanted, Held]) -> None:
    wanted, held = drawn
    once = assign(wanted, held)
    assert assign(wanted, once) == once


@given(mixed())
def test_the_order_of_the_input_does_not_matter(drawn: tuple[Wanted, Held]) -> None:
    wanted, held = drawn
    other = dict(reversed(wanted.items()))
    assert assign(other, dict(reversed(held.items()))) == assign(wanted, held)


@given(alike(), st.data())
def test_partitions_that_move_in_steps_move_once(drawn: tuple[Wanted, Held], data: st.DataObject) -> None:
    """Between two steps of a move the result stays the same: no partition just given is taken away."""
    wanted, held = drawn
    held = {part: member for part, member in held.items() if member in wanted[part]}
    goal = assign(wanted, held)
    for part in data.draw(st.permutations(sorted(wanted))):
        held[part] = goal[part]
        after = assign(wanted, held)
        given_now = {part for part in wanted if held.get(part) == goal[part]}
        assert all(after[part] == goal[part] for part in given_now)


def test_a_new_member_takes_its_share_from_those_with_most() -> None:
    parts = [GroupPartitionKey(1, index) for index in range(6)]
    held = dict.fromkeys(parts[:4], 1) | dict.fromkeys(parts[4:], 2)
    holders = assign(dict.fromkeys(parts, (1, 2, 3)), held)
    assert Counter(holders.values()) == {1: 2, 2: 2, 3: 2}
    assert [part for part in parts if holders[part] != held[part]] == parts[2:4]


def test_a_partition_reaches_the_least_loaded_member_through_another() -> None:
    """3 may have only what 2 holds, 2 may have what 1 holds: both give one on."""
    ones, twos = (
        [GroupPartitionKey(1, index) for index in range(3)],
        [GroupPartitionKey(2, index) for index in range(2)],
    )
    wanted = dict.fromkeys(ones, (1, 2)) | dict.fromkeys(twos, (2, 3))
    holders = assign(wanted, dict.fromkeys(ones, 1) | dict.fromkeys(twos, 2))
    assert sorted(Counter(holders.values()).values()) == [1, 2, 2]


@pytest.mark.parametrize("kind", [(), (7,)])
def test_a_partition_without_candidates_has_no_holder(kind: Members) -> None:
    holders = assign({GroupPartitionKey(1, 0): kind}, {GroupPartitionKey(1, 0): 9})
    assert holders == dict.fromkeys([GroupPartitionKey(1, 0)] if kind else [], 7)
