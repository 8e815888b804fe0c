"""Assigns partitions to the members of a consumer group: evenly and with as few moves as possible. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import heapify, heapreplace

from rostra.broker.groups.group_table import GroupPartitionKey

Members = tuple[int, ...]
"""The members that may get a partition, in order. Partitions with the same candidates share one tuple: one *kind*."""


def assign(
    wanted: Mapping[GroupPartitionKey, Members], held: Mapping[GroupPartitionKey, int]
) -> dict[GroupPartitionKey, int]:
    """A member for every wanted partition.

    Members keep their partitions as far as that is even: no chain of moves can take a partition from one member and
    give it to another that then still has fewer. If every member may have every partition, loads differ by one at most,
    and no assignment as even as that moves fewer partitions. The result depends on the input alone, so every
    coordinator computes the same.
    """
    kinds = list(dict.fromkeys(wanted.values()))
    if len(kinds) == 1:
        return _assign_uniform(sorted(wanted), kinds[0], held)
    loads = _Loads(wanted)
    free: dict[Members, list[GroupPartitionKey]] = defaultdict(list)
    for key in sorted(wanted):
        members = wanted[key]
        holder = held.get(key)
        if holder is not None and holder in loads.kinds[members]:
            loads.give(key, members, holder)
        elif members:
            free[members].append(key)
    # Partitions with the fewest candidates first: those that every member may have fill the gaps.
    for members in sorted(free, key=lambda members: (len(members), members)):
        heap = [(loads.of[member], member) for member in members]
        heapify(heap)
        for key in free[members]:
            _, member = heap[0]
            loads.give(key, members, member)
            heapreplace(heap, (loads.of[member], member))
    loads.even_out()
    return loads.holders


def _assign_uniform(
    partitions: list[GroupPartitionKey], members: Members, held: Mapping[GroupPartitionKey, int]
) -> dict[GroupPartitionKey, int]:
    """Every member may have every partition, the usual case. Members with the most partitions get the larger shares."""
    has: dict[int, list[GroupPartitionKey]] = {member: [] for member in members}
    spare: list[GroupPartitionKey] = []
    for key in partitions:
        has.get(held.get(key, 0), spare).append(key)
    if not members:
        return {}
    least, larger = divmod(len(partitions), len(members))
    by_load = sorted(members, key=lambda member: (-len(has[member]), member))
    shares = {member: least + (place < larger) for place, member in enumerate(by_load)}
    for member in members:
        spare += has[member][shares[member] :]
        del has[member][shares[member] :]
    spare.sort(reverse=True)
    for member in members:
        while len(has[member]) < shares[member]:
            has[member].append(spare.pop())
    return {key: member for member in members for key in has[member]}


class _Loads:
    """The assignment in progress."""

    def __init__(self, wanted: Mapping[GroupPartitionKey, Members]) -> None:
        self.kinds: dict[Members, frozenset[int]] = {members: frozenset(members) for members in wanted.values()}
        self.of: dict[int, int] = dict.fromkeys(sorted({member for members in self.kinds for member in members}), 0)
        self.holders: dict[GroupPartitionKey, int] = {}
        self._has: dict[int, dict[Members, list[GroupPartitionKey]]] = {member: defaultdict(list) for member in self.of}
        """By member and kind, with partitions it already held in front: partitions are taken from the end."""

    def give(self, key: GroupPartitionKey, members: Members, member: int) -> None:
        self.holders[key] = member
        self.of[member] += 1
        self._has[member][members].append(key)

    def even_out(self) -> None:
        """Moves partitions away from the most loaded members until no move makes loads more even."""
        if not self.of:
            return
        settled: set[int] = set()
        while True:
            least = min(self.of.values())
            donors = [member for member in self.of if self.of[member] >= least + 2 and member not in settled]
            if not donors:
                return
            donor = max(donors, key=lambda member: (self.of[member], -member))
            path, reached = self._path(donor)
            if path:
                self._move(path)
            else:
                # Every member that it could give to, directly or indirectly, has about as many.
                settled |= reached

    def _path(self, donor: int) -> tuple[list[tuple[int, Members, int]], set[int]]:
        """Steps (from, kind, to) that move one partition from `donor` to a member with at least two fewer."""
        reached_from: dict[int, tuple[int, Members] | None] = {donor: None}
        queue = [donor]
        best: int | None = None
        for member in queue:
            # The shortest path; at its end the least loaded member.
            level: list[int] = []
            for members, partitions in self._has[member].items():
                if not partitions:
                    continue
                for other in members:
                    if other not in reached_from:
                        reached_from[other] = (member, members)
                        level.append(other)
            queue += level
            takers = [other for other in level if self.of[other] <= self.of[donor] - 2]
            if takers:
                best = min(takers, key=lambda other: (self.of[other], other))
                break
        if best is None:
            return [], set(reached_from)
        steps: list[tuple[int, Members, int]] = []
        at = best
        while (step := reached_from[at]) is not None:
            steps.append((step[0], step[1], at))
            at = step[0]
        return steps, set(reached_from)

    def _move(self, steps: list[tuple[int, Members, int]]) -> None:
        for source, members, target in steps:
            key = self._has[source][members].pop()
            self._has[target][members].append(key)
            self.holders[key] = target
            self.of[source] -= 1
            self.of[target] += 1
