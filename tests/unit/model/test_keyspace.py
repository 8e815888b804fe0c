import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.model.keyspace import CIRCLE, Key, Keyspace

SMALL = Keyspace(bits=4)
keys = st.integers(min_value=0, max_value=15).map(Key)


def walk(start: Key, end: Key) -> list[Key]:
    """The arc (start, end] step by step; from a key to itself once around."""
    place, passed = start, []
    while True:
        place = Key((place + 1) % 16)
        passed.append(place)
        if place == end:
            return passed


@given(keys, keys, keys)
def test_between_agrees_with_walking_the_circle(after: Key, key: Key, upto: Key) -> None:
    assert SMALL.between(after, key, upto) == (key in walk(after, upto))


@given(keys, keys, keys)
def test_strictly_between_leaves_out_both_ends(after: Key, key: Key, before: Key) -> None:
    inside = key in walk(after, before) and key not in (after, before)
    assert SMALL.strictly_between(after, key, before) == inside


@given(keys, keys)
def test_distance_is_the_number_of_steps_clockwise(start: Key, end: Key) -> None:
    assert (start + SMALL.distance(start, end)) % 16 == end
    assert 0 <= SMALL.distance(start, end) < 16


@given(st.sets(keys, min_size=1), keys)
def test_the_successor_is_the_nearest_clockwise(members: set[Key], key: Key) -> None:
    ascending = sorted(members)
    nearest = min(ascending, key=lambda member: SMALL.distance(key, member))
    assert SMALL.successor(ascending, key) == nearest


@given(st.sets(keys, min_size=1), keys)
def test_the_predecessor_is_the_nearest_strictly_before(members: set[Key], key: Key) -> None:
    ascending = sorted(members)
    nearest = min(ascending, key=lambda member: SMALL.distance(member, key) or 16)
    assert SMALL.predecessor(ascending, key) == nearest


def test_an_empty_circle_has_neither_successor_nor_predecessor() -> None:
    with pytest.raises(ValueError, match="no successor"):
        SMALL.successor([], Key(3))
    with pytest.raises(ValueError, match="no predecessor"):
        SMALL.predecessor([], Key(3))


@given(st.text(), st.integers(min_value=1, max_value=64))
def test_text_and_its_bytes_have_the_same_key_on_the_circle(name: str, bits: int) -> None:
    circle = Keyspace(bits=bits)
    assert circle.key_of(name) == circle.key_of(name.encode())
    assert 0 <= circle.key_of(name) < circle.size


def test_keys_never_change_between_versions() -> None:
    assert CIRCLE.key_of("orders") == 0xA88CCDC9FA4974FB
    assert Keyspace(bits=8).key_of("orders") == CIRCLE.key_of("orders") >> 56


@pytest.mark.parametrize("bits", [0, 65])
def test_a_keyspace_has_1_to_64_bits(bits: int) -> None:
    with pytest.raises(ValueError, match="1 to 64 bits"):
        Keyspace(bits=bits)
