"""The group table follows the log."""

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


def table_of(log: list[GroupEntry]) -> GroupTable:
    table = GroupTable()
    for base, entry in enumerate(log):
        table.apply(base, entry)
    return table


def shown(table: GroupTable) -> dict[str, tuple[object, ...]]:
    return {name: _shown(group) for name, group in table.groups.items()} | {"bytes": (table.bytes,)}


def _shown(group: ConsumerGroup) -> tuple[object, ...]:
    return group.settings, group.generation, dict(group.members), dict(group.partitions)


@given(logs, st.integers(0, 25), st.integers(0, 25))
def test_truncated_entries_are_undone(log: list[GroupEntry], commit: int, offset: int) -> None:
    table = table_of(log)
    table.commit(min(commit, offset))
    table.truncate(offset)
    assert shown(table) == shown(table_of(log[:offset]))


@given(logs, logs, st.integers(0, 25))
def test_entries_after_a_truncation_apply(log: list[GroupEntry], other: list[GroupEntry], offset: int) -> None:
    table = table_of(log)
    table.truncate(offset)
    kept = log[:offset]
    for base, entry in enumerate(other, start=len(kept)):
        table.apply(base, entry)
    table.truncate(len(kept))
    assert shown(table) == shown(table_of(kept))


@given(logs)
def test_a_checkpoint_restores_the_same_table(log: list[GroupEntry]) -> None:
    table, other = table_of(log), table_of([GroupConfigured("left over")])
    other.restore(list(table.to_entries()))
    assert shown(other) == shown(table)
    assert list(other.to_entries()) == list(table.to_entries())


@given(logs)
def test_its_size_in_a_checkpoint_is_never_more_than_its_estimate(log: list[GroupEntry]) -> None:
    table = table_of(log)
    assert sum(len(msgspec.msgpack.encode(entry)) for entry in table.to_entries()) <= table.bytes


def test_a_large_group_takes_several_entries() -> None:
    parts = tuple((1, index, GroupPartition(2**62, 2**31, 0, "offset", 2**62, 9)) for index in range(2500))
    table = table_of([GroupConfigured("wide"), AssignmentChanged("wide", 3, parts)])
    entries = list(table.to_entries())
    assert [len(entry.partitions) for entry in entries if isinstance(entry, AssignmentChanged)] == [1000, 1000, 500]
    assert sum(len(msgspec.msgpack.encode(entry)) for entry in entries) <= table.bytes
    other = GroupTable()
    other.restore(entries)
    assert shown(other) == shown(table)


def test_a_position_is_kept_although_the_holder_changes() -> None:
    table = table_of(
        [
            GroupConfigured("g"),
            AssignmentChanged("g", 1, ((1, 0, GroupPartition(7, 1)),)),
            PositionsCommitted("g", ((1, 0, 40, 2),)),
        ]
    )
    assert table.groups["g"].partitions[GroupPartitionKey(1, 0)] == GroupPartition(7, 1, 0, "offset", 40, 2)
