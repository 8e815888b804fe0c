"""The changes of an assignment that follow from new members or topics. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from rostra.broker.groups.assignor import Members, assign
from rostra.broker.groups.group_table import GroupPartition, GroupPartitionKey


class Rebalance(NamedTuple):
    """Partitions that differ from the table, partitions to remove, and members whose set changes."""

    changed: dict[GroupPartitionKey, GroupPartition]
    removed: tuple[GroupPartitionKey, ...]
    affected: tuple[int, ...]


def rebalance(
    before: Mapping[GroupPartitionKey, GroupPartition],
    now: Mapping[GroupPartitionKey, GroupPartition],
    members: Collection[int],
    wanted: Mapping[GroupPartitionKey, Members],
    generation: int,
    begin: Callable[[GroupPartitionKey], GroupPartition],
) -> Rebalance:
    """`before` is the table's state, `now` the same after the current change: released partitions, deleted topics.

    A partition that another member holds is revoked first and reassigned only after its release. Until then it counts
    as free: if it were promised to its holder again, a release could already be on its way.
    """
    held = {key: row.holder for key, row in now.items() if row.holder in members and not row.revoked}
    goal = assign(wanted, held)
    changed: dict[GroupPartitionKey, GroupPartition] = {}
    for key in sorted(now.keys() | wanted.keys()):
        row = now[key] if key in now else begin(key)
        after = _after(row, goal.get(key, 0), members, generation)
        if before.get(key) != after:
            changed[key] = after
    removed = tuple(sorted(before.keys() - now.keys()))
    affected: set[int] = set()
    for key in (*changed, *removed):
        was, is_now = _visible_holder(before.get(key)), _visible_holder(changed.get(key))
        if was != is_now:
            affected |= {was, is_now}
    return Rebalance(changed, removed, tuple(sorted(affected - {0})))


def _after(row: GroupPartition, goal: int, members: Collection[int], generation: int) -> GroupPartition:
    if row.holder not in members:
        since = generation if goal else 0
        if (row.holder, row.revoked) == (goal, 0):
            return row
        return GroupPartition(goal, since, 0, row.start, row.value, row.tries)
    if row.revoked or row.holder == goal:
        return row
    return GroupPartition(row.holder, row.since, generation, row.start, row.value, row.tries)


def _visible_holder(row: GroupPartition | None) -> int:
    """The member in whose assignment the partition appears; 0 for none."""
    return 0 if row is None or row.revoked else row.holder
