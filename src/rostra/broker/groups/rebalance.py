"""What follows for the parts of a named subscription when members or topics change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from rostra.broker.groups.assignor import Members, assign
from rostra.broker.groups.group_table import GroupPartition, GroupPartitionKey


class Rebalance(NamedTuple):
    """Parts that are different from what the book has, parts that go, and whose set of parts changes by that."""

    parts: dict[GroupPartitionKey, GroupPartition]
    gone: tuple[GroupPartitionKey, ...]
    touched: tuple[int, ...]


def rebalance(
    before: Mapping[GroupPartitionKey, GroupPartition],
    now: Mapping[GroupPartitionKey, GroupPartition],
    members: Collection[int],
    wanted: Mapping[GroupPartitionKey, Members],
    generation: int,
    begin: Callable[[GroupPartitionKey], GroupPartition],
) -> Rebalance:
    """`before` is what the book has, `now` the same with what just happened: parts let go of, parts that are gone.

    A part that somebody holds is revoked first, and given away only when it is let go of. Until then it is as good as
    free: were it promised to its holder again, a word that the holder has let go of it could be on its way.
    """
    held = {key: part.holder for key, part in now.items() if part.holder in members and not part.revoked}
    goal = assign(wanted, held)
    changed: dict[GroupPartitionKey, GroupPartition] = {}
    for key in sorted(now.keys() | wanted.keys()):
        part = now[key] if key in now else begin(key)
        after = _after(part, goal.get(key, 0), members, generation)
        if before.get(key) != after:
            changed[key] = after
    gone = tuple(sorted(before.keys() - now.keys()))
    touched: set[int] = set()
    for key in (*changed, *gone):
        was, is_now = _shown_to(before.get(key)), _shown_to(changed.get(key))
        if was != is_now:
            touched |= {was, is_now}
    return Rebalance(changed, gone, tuple(sorted(touched - {0})))


def _after(part: GroupPartition, goal: int, members: Collection[int], generation: int) -> GroupPartition:
    if part.holder not in members:
        since = generation if goal else 0
        if (part.holder, part.revoked) == (goal, 0):
            return part
        return GroupPartition(goal, since, 0, part.start, part.value, part.tries)
    if part.revoked or part.holder == goal:
        return part
    return GroupPartition(part.holder, part.since, generation, part.start, part.value, part.tries)


def _shown_to(part: GroupPartition | None) -> int:
    """Who is told that it holds the part."""
    return 0 if part is None or part.revoked else part.holder
