"""Patterns of topic names, against a matcher that knows nothing of tries."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.errors import InvalidPattern
from rostra.model.patterns import Pattern, PatternTrie, is_wild

LEVELS = st.sampled_from(["a", "b", "sensors", "_a", "-", "A.b"])
NAMES = st.lists(LEVELS, min_size=1, max_size=5).map("/".join)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVELS, st.just("+")), max_size=4))
    rest = draw(st.booleans())
    if rest or not levels:
        levels.append("#")
    return "/".join(levels)


def naive(pattern: str, name: str) -> bool:
    """By the book: a regular expression over the whole name."""
    if name.startswith("_") and is_wild(pattern):
        return False
    if pattern == "#":
        return True
    spelled, rest = (pattern[:-2], True) if pattern.endswith("/#") else (pattern, False)
    levels = ["[^/]+" if level == "+" else re.escape(level) for level in spelled.split("/")]
    return re.fullmatch("/".join(levels) + ("(/.*)?" if rest else ""), name) is not None


@pytest.mark.requirement("CM-6:patterns")
@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("sensors/+/temp", ["sensors/a/temp"], ["sensors/temp", "sensors/a/b/temp", "sensors/a/temp/x", "a/b/temp"]),
        ("sensors/#", ["sensors", "sensors/a", "sensors/a/b/c"], ["sensor", "sensors2", "x/sensors"]),
        ("#", ["a", "a/b"], ["_groups", "_groups/a"]),
        ("+", ["a"], ["a/b", "_a"]),
        ("+/#", ["a", "a/b"], ["_a/b"]),
        ("a/_b", ["a/_b"], ["a/b"]),
        ("a/+", ["a/_b"], ["a"]),
        ("orders", ["orders"], ["orders/eu", "order"]),
        ("_groups", ["_groups"], ["_groups/a"]),
        ("_groups/#", [], ["_groups", "_groups/a"]),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, matching: list[str], other: list[str]) -> None:
    parsed = Pattern.parse(pattern)
    assert str(parsed) == pattern
    assert [name for name in matching + other if parsed.matches(name)] == matching


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "empty"),
        ("a+/b", "stand alone"),
        ("a/b#", "stand alone"),
        ("++", "stand alone"),
        ("#/a", "at the end only"),
        ("a/#/#", "at the end only"),
        ("a//+", "empty level"),
        ("/#", "empty level"),
        ("a/+/", "empty level"),
        ("../#", "not allowed as a level"),
        ("a b/+", "not one of the letters"),
        ("a/*", "not one of the letters"),
        ("a/" * 130 + "#", "characters"),
    ],
)
def test_what_could_match_nothing_is_refused_with_the_reason(written: str, why: str) -> None:
    with pytest.raises(InvalidPattern, match=why):
        Pattern.parse(written)


@given(patterns(), NAMES)
def test_a_pattern_agrees_with_a_matcher_by_the_book(pattern: str, name: str) -> None:
    parsed = Pattern.parse(pattern)
    assert parsed.matches(name) == naive(pattern, name)
    assert parsed.is_wild == is_wild(pattern)


@given(NAMES)
def test_a_name_is_a_pattern_that_matches_itself_alone(name: str) -> None:
    parsed = Pattern.parse(name)
    assert parsed.matches(name)
    assert not parsed.matches(name + "/x")
    assert parsed.fixed == name


@given(patterns(), NAMES)
def test_every_name_that_matches_begins_with_what_is_fixed(pattern: str, name: str) -> None:
    parsed = Pattern.parse(pattern)
    if parsed.matches(name):
        assert name == parsed.fixed or not parsed.fixed or name.startswith(parsed.fixed + "/")


@given(
    st.lists(st.tuples(patterns() | NAMES, st.integers(0, 3), st.booleans())),
    st.lists(NAMES, min_size=1),
)
def test_the_trie_finds_each_value_once_as_looking_at_every_pattern_would(
    changes: list[tuple[str, int, bool]], names: list[str]
) -> None:
    trie: PatternTrie[int] = PatternTrie()
    there: set[tuple[str, int]] = set()
    for pattern, value, comes in changes:
        if comes:
            trie.add(Pattern.parse(pattern), value)
            there.add((pattern, value))
        else:
            trie.remove(Pattern.parse(pattern), value)
            there.discard((pattern, value))
    assert bool(trie) == bool(there)
    for name in names:
        found = trie.match(name)
        assert len(found) == len(set(found))
        assert set(found) == {value for pattern, value in there if naive(pattern, name)}


@given(st.lists(st.tuples(patterns() | NAMES, st.integers(0, 3))))
def test_what_was_removed_leaves_nothing_behind(entries: list[tuple[str, int]]) -> None:
    trie: PatternTrie[int] = PatternTrie()
    for pattern, value in entries:
        trie.add(Pattern.parse(pattern), value)
    for pattern, value in reversed(entries):
        trie.remove(Pattern.parse(pattern), value)
    assert not trie


def test_a_name_costs_nothing_for_patterns_that_have_nothing_to_do_with_it() -> None:
    class Counted(str):
        """A level that counts how often it is looked at."""

        looked_at = 0

        def __hash__(self) -> int:
            Counted.looked_at += 1
            return super().__hash__()

        def __eq__(self, other: object) -> bool:
            Counted.looked_at += 1
            return super().__eq__(other)

    trie: PatternTrie[int] = PatternTrie()
    for number in range(1000):
        for pattern in (f"elsewhere{number}/+/#", f"sensors/{number}/temp"):
            trie.add(Pattern(tuple(Counted(level) for level in pattern.split("/"))), number)
    trie.add(Pattern.parse("sensors/+/temp"), -1)
    Counted.looked_at = 0
    assert trie.match("sensors/x/temp") == [-1]
    assert Counted.looked_at <= 3
