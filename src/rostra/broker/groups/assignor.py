"""Who of the members of a named subscription gets which part: evenly, and with as few moves as possible. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from heapq import heapify, heapreplace

from rostra.broker.groups.group_table import GroupPartitionKey

Members = tuple[int, ...]
"""Those who may have a part, in order. Parts that the same may have share one tuple: they are one *kind*."""


def assign(
    wanted: Mapping[GroupPartitionKey, Members], held: Mapping[GroupPartitionKey, int]
) -> dict[GroupPartitionKey, int]:
    """A holder for every part that is wanted by anyone.

    Holders keep what they hold as far as that is even: nobody could take a part from another, directly or through
    others, and still have fewer. Where all may have everything, loads differ by one at most, and no assignment as even
    as that moves fewer parts. The same input gives the same answer, at any coordinator.
    """
    kinds = list(dict.fromkeys(wanted.values()))
    if len(kinds) == 1:
        return _alike(sorted(wanted), kinds[0], held)
    loads = _Loads(wanted)
    free: dict[Members, list[GroupPartitionKey]] = defaultdict(list)
    for part in sorted(wanted):
        members = wanted[part]
        holder = held.get(part)
        if holder is not None and holder in loads.kinds[members]:
            loads.give(part, members, holder)
        elif members:
            free[members].append(part)
    # The fewer may have a part, the earlier it finds its holder: those that all may have fill the gaps.
    for members in sorted(free, key=lambda members: (len(members), members)):
        heap = [(loads.of[member], member) for member in members]
        heapify(heap)
        for part in free[members]:
            _, member = heap[0]
            loads.give(part, members, member)
            heapreplace(heap, (loads.of[member], member))
    loads.even_out()
    return loads.holders


def _alike(
    parts: list[GroupPartitionKey], members: Members, held: Mapping[GroupPartitionKey, int]
) -> dict[GroupPartitionKey, int]:
    """All may have everything, which is the rule. Whoever has most already gets the larger shares."""
    has: dict[int, list[GroupPartitionKey]] = {member: [] for member in members}
    spare: list[GroupPartitionKey] = []
    for part in parts:
        has.get(held.get(part, 0), spare).append(part)
    if not members:
        return {}
    least, larger = divmod(len(parts), len(members))
    by_load = sorted(members, key=lambda member: (-len(has[member]), member))
    shares = {member: least + (place < larger) for place, member in enumerate(by_load)}
    for member in members:
        spare += has[member][shares[member] :]
        del has[member][shares[member] :]
    spare.sort(reverse=True)
    for member in members:
        while len(has[member]) < shares[member]:
            has[member].append(spare.pop())
    return {part: member for member in members for part in has[member]}


class _Loads:
    """Who has what while it is worked out."""

    def __init__(self, wanted: Mapping[GroupPartitionKey, Members]) -> None:
        self.kinds: dict[Members, frozenset[int]] = {members: frozenset(members) for members in wanted.values()}
        self.of: dict[int, int] = dict.fromkeys(sorted({member for members in self.kinds for member in members}), 0)
        self.holders: dict[GroupPartitionKey, int] = {}
        self._has: dict[int, dict[Members, list[GroupPartitionKey]]] = {member: defaultdict(list) for member in self.of}
        """By member and kind, what it holds already in front: parts are taken from the end."""

    def give(self, part: GroupPartitionKey, members: Members, member: int) -> None:
        self.holders[part] = member
        self.of[member] += 1
        self._has[member][members].append(part)

    def even_out(self) -> None:
        """Moves parts from those who have most until that makes nothing more even."""
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
                # Whoever it could give to has as much, and so has whoever those could give to.
                settled |= reached

    def _path(self, donor: int) -> tuple[list[tuple[int, Members, int]], set[int]]:
        """Steps (from, kind, to) by which one part less is at `donor` and one more at somebody with two fewer."""
        came: dict[int, tuple[int, Members] | None] = {donor: None}
        queue = [donor]
        best: int | None = None
        for member in queue:
            # The shortest way, and at its end whoever has least.
            level: list[int] = []
            for members, parts in self._has[member].items():
                if not parts:
                    continue
                for other in members:
                    if other not in came:
                        came[other] = (member, members)
                        level.append(other)
            queue += level
            takers = [other for other in level if self.of[other] <= self.of[donor] - 2]
            if takers:
                best = min(takers, key=lambda other: (self.of[other], other))
                break
        if best is None:
            return [], set(came)
        steps: list[tuple[int, Members, int]] = []
        at = best
        while (step := came[at]) is not None:
            steps.append((step[0], step[1], at))
            at = step[0]
        return steps, set(came)

    def _move(self, steps: list[tuple[int, Members, int]]) -> None:
        for source, members, target in steps:
            part = self._has[source][members].pop()
            self._has[target][members].append(part)
            self.holders[part] = target
            self.of[source] -= 1
            self.of[target] += 1
