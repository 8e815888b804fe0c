"""The book of named subscriptions follows the log."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from rostra.broker.groups.group_table import (
    AssignmentChanged,
    ConsumerGroup,
    GroupConfigured,
    GroupDeleted,
    GroupEntry,
    GroupPartition,
    GroupPartitionKey,
    GroupTable,
    MemberJoined,
    MemberLeft,
    PositionsCommitted,
)

names = st.sampled_from(["billing", "audit", "mail"])
numbers = st.integers(1, 3)
keys = st.tuples(numbers, numbers)
rows = st.builds(GroupPartition, holder=numbers, since=numbers, value=numbers, tries=numbers)
texts = st.lists(st.sampled_from(["a", "b/+", "c/#"]), max_size=2).map(tuple)

entries: st.SearchStrategy[GroupEntry] = st.one_of(
    st.builds(GroupConfigured, names, texts),
    st.builds(MemberJoined, names, numbers, texts, st.just(1000), st.just("kéy")),
    st.builds(MemberLeft, names, numbers),
    st.builds(
        AssignmentChanged,
        names,
        st.integers(1, 99),
        st.lists(st.tuples(numbers, numbers, rows), max_size=3).map(tuple),
        st.lists(keys, max_size=2).map(tuple),
    ),
    st.builds(
        PositionsCommitted, names, st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=3).map(tuple)
    ),
    st.builds(GroupDeleted, names),
)
logs = st.lists(entries, max_size=25)


def book_of(log: list[GroupEntry]) -> GroupTable:
    book = GroupTable()
    for base, entry in enumerate(log):
        book.apply(base, entry)
    return book


def shown(book: GroupTable) -> dict[str, tuple[object, ...]]:
    return {name: _shown(group) for name, group in book.groups.items()} | {"bytes": (book.bytes,)}


def _shown(group: ConsumerGroup) -> tuple[object, ...]:
    return group.settings, group.generation, dict(group.members), dict(group.partitions)


@given(logs, st.integers(0, 25), st.integers(0, 25))
def test_what_is_cut_from_the_log_is_undone(log: list[GroupEntry], commit: int, offset: int) -> None:
    book = book_of(log)
    book.commit(min(commit, offset))
    book.truncate(offset)
    assert shown(book) == shown(book_of(log[:offset]))


@given(logs, logs, st.integers(0, 25))
def test_the_log_goes_on_after_a_cut(log: list[GroupEntry], other: list[GroupEntry], offset: int) -> None:
    book = book_of(log)
    book.truncate(offset)
    kept = log[:offset]
    for base, entry in enumerate(other, start=len(kept)):
        book.apply(base, entry)
    book.truncate(len(kept))
    assert shown(book) == shown(book_of(kept))


@given(logs)
def test_a_checkpoint_makes_the_same_book(log: list[GroupEntry]) -> None:
    book, other = book_of(log), book_of([GroupConfigured("left over")])
    other.restore(list(book.entries()))
    assert shown(other) == shown(book)
    assert list(other.entries()) == list(book.entries())


@given(logs)
def test_its_size_in_a_checkpoint_is_never_more_than_it_says(log: list[GroupEntry]) -> None:
    book = book_of(log)
    assert sum(len(msgspec.msgpack.encode(entry)) for entry in book.entries()) <= book.bytes


def test_a_large_group_is_told_in_several_entries() -> None:
    parts = tuple((1, index, GroupPartition(2**62, 2**31, 0, "offset", 2**62, 9)) for index in range(2500))
    book = book_of([GroupConfigured("wide"), AssignmentChanged("wide", 3, parts)])
    told = list(book.entries())
    assert [len(entry.partitions) for entry in told if isinstance(entry, AssignmentChanged)] == [1000, 1000, 500]
    assert sum(len(msgspec.msgpack.encode(entry)) for entry in told) <= book.bytes
    other = GroupTable()
    other.restore(told)
    assert shown(other) == shown(book)


def test_a_position_is_kept_although_the_holder_changes() -> None:
    book = book_of(
        [
            GroupConfigured("g"),
            AssignmentChanged("g", 1, ((1, 0, GroupPartition(7, 1)),)),
            PositionsCommitted("g", ((1, 0, 40, 2),)),
        ]
    )
    assert book.groups["g"].partitions[GroupPartitionKey(1, 0)] == GroupPartition(7, 1, 0, "offset", 40, 2)
