"""The marks that go round with the records: which brokers have them on stable storage.

A broker passes records on at once, but its mark waits for its own sync. A mark that comes back to where it began says
that every broker it has visited holds all below its offset: that is what acks `all` asks for. The origin of a part
begins one for whatever it has; another broker does for what a producer brings along that came to it. Marks are
cumulative and are said again with every beat until the circle has closed, so that none needs to arrive.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rostra.fabric.api import Covered, Send
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, AckMark, AckMarks
from rostra.fabric.flood.origin_partition import OriginLog
from rostra.model.ids import NodeId, Partition
from rostra.model.view import View
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood

TIMED_MAX = 1024

Place = tuple[Partition, NodeId]
"""A part, and the broker where a mark for it began."""


class AckRing:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._waits_for_sync = Safeguard.SYNC_BEFORE_MARK not in flood.without
        self._before: dict[Partition, dict[NodeId, AckMark]] = {}
        """The last mark that came for a part, by where it began."""
        self._passed: dict[Place, tuple[int, NodeId]] = {}
        """How far this broker's word for a mark stands, and to whom it was last passed."""
        self._due: dict[Place, None] = {}
        self._vouched: dict[Partition, int] = {}
        """Of other origins' parts, up to where somebody here waits for the circle."""
        self.covered: dict[Partition, int] = {}
        """How far the circles that began here have closed."""
        self._began: dict[Partition, deque[tuple[int, int]]] = {}
        self.circle_us = 0
        """How long the last circle took."""

    def forget(self, partition: Partition) -> None:
        for starter in self._before.pop(partition, {}):
            self._passed.pop((partition, starter), None)
        self._passed.pop((partition, self._flood.node), None)
        for kept in (self._vouched, self.covered, self._began):
            kept.pop(partition, None)

    # --- beginning -----------------------------------------------------------------------------------

    def synced(self, copy: OriginLog) -> None:
        """This broker's copy has come further: so do its marks."""
        partition, me = copy.partition, self._flood.node
        if copy.part.local:
            self.covered[partition] = copy.synced
            self._flood.out.append(Covered(partition, copy.synced, View.of(self._flood.ring.view.epoch, (me,))))
            return
        if copy.own:
            began = self._began.setdefault(partition, deque(maxlen=TIMED_MAX))
            began.append((copy.synced, self._flood.now.mono_us))
        if copy.own or partition in self._vouched:
            self._close(copy, copy.synced, (me,))
            self._due[partition, me] = None
        for starter in self._before.get(partition, ()):
            self._due[partition, starter] = None

    def vouch(self, partition: Partition, offset: int) -> None:
        """Somebody here waits until every broker has this much of a part, whoever published it."""
        copy = self._flood.copies.get(partition)
        if copy is not None:
            if not copy.own:
                self._vouched[partition] = max(offset, self._vouched.get(partition, 0))
            self._close(copy, copy.synced, (self._flood.node,))
            self._due[partition, self._flood.node] = None

    def beat(self) -> None:
        """Whoever waits for a circle sends its mark again."""
        flood, me = self._flood, self._flood.node
        for partition, copy in flood.copies.items():
            if copy.part.local:
                continue
            wanted = copy.synced if copy.own else self._vouched.get(partition, 0)
            if self.covered.get(partition, 0) < wanted:
                self._close(copy, copy.synced, (me,))
                self._passed.pop((partition, me), None)
                self._due[partition, me] = None
            elif not copy.own:
                self._vouched.pop(partition, None)

    # --- passing -------------------------------------------------------------------------------------

    def received(self, marks: tuple[AckMark, ...]) -> None:
        flood = self._flood
        for mark in marks:
            copy = flood.copies.get(mark.partition)
            if copy is None or copy.damaged_at is not None or not mark.visited:
                continue
            starter = mark.visited[0]
            if starter == flood.node:
                self._close(copy, min(mark.offset, copy.synced), mark.visited)
            elif flood.node not in mark.visited:
                # One that has been here already ends: where it began is gone, and nobody waits for it.
                self._before.setdefault(mark.partition, {})[starter] = mark
                self._passed.pop((mark.partition, starter), None)
                self._due[mark.partition, starter] = None

    def _close(self, copy: OriginLog, offset: int, visited: tuple[NodeId, ...]) -> None:
        """Who is in this broker's view must have been visited: a smaller circle is one of others' views."""
        flood = self._flood
        view = flood.ring.view
        if offset <= self.covered.get(copy.partition, 0) or not set(view.active) <= set(visited):
            return
        self.covered[copy.partition] = offset
        began = self._began.get(copy.partition)
        while began and began[0][0] <= offset:
            self.circle_us = flood.now.mono_us - began.popleft()[1]
        flood.out.append(Covered(copy.partition, offset, View.of(view.epoch, visited)))

    def pass_on(self) -> None:
        """At the end of a step: what is due goes to the next broker, in one message."""
        if not self._due:
            return
        flood = self._flood
        due, self._due = self._due, {}
        following = flood.ring.next
        if following is None:
            return
        marks = [mark for place in due if (mark := self._mark(place, following)) is not None]
        for at in range(0, len(marks), ENTRIES_PER_MESSAGE):
            flood.out.append(Send(following, AckMarks(tuple(marks[at : at + ENTRIES_PER_MESSAGE]))))

    def _mark(self, place: Place, following: NodeId) -> AckMark | None:
        """How far this broker and all before it have come, if that is news to the next one."""
        flood = self._flood
        partition, starter = place
        copy = flood.copies.get(partition)
        if copy is None or copy.damaged_at is not None:
            return None
        reached = copy.synced if self._waits_for_sync else copy.end
        visited: tuple[NodeId, ...] = (flood.node,)
        if starter != flood.node:
            before = self._before.get(partition, {}).get(starter)
            if before is None:
                return None
            reached, visited = min(before.offset, reached), (*before.visited, flood.node)
        if reached <= 0 or self._passed.get(place) == (reached, following):
            return None
        self._passed[place] = reached, following
        return AckMark(partition, reached, visited)
