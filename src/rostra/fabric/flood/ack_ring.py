"""Acknowledgement marks that travel round the ring: which brokers have records on stable storage.

A broker forwards records at once, but its mark waits for its own sync. A mark that returns to where it started proves
that every broker it visited has everything below its offset: that is acks `all`. The origin starts marks for its own
partitions; another broker starts one for batches that a migrated producer waits for. Marks are cumulative and repeated
with every heartbeat until the round is complete, so losing one does no harm.
"""

from __future__ import annotations

from collections import deque

from rostra.fabric.api import Covered, Send
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, AckMark, AckMarks
from rostra.fabric.flood.origin_partition import OriginLog
from rostra.fabric.flood.ring import Ring
from rostra.model.ids import NodeId, Partition
from rostra.model.view import View
from rostra.safeguards import Safeguard

TIMED_MAX = 1024

MarkKey = tuple[Partition, NodeId]
"""A partition, and the broker that started the mark."""


class AckRing:
    def __init__(self, context: FloodContext, ring: Ring) -> None:
        self._context = context
        self._ring = ring
        self._waits_for_sync = Safeguard.SYNC_BEFORE_MARK not in context.without
        self._received: dict[Partition, dict[NodeId, AckMark]] = {}
        """The last mark received per partition, by the broker that started it."""
        self._sent: dict[MarkKey, tuple[int, NodeId]] = {}
        """The offset last sent for a mark, and to which broker."""
        self._due: dict[MarkKey, None] = {}
        self._awaited: dict[Partition, int] = {}
        """Offsets of other origins' partitions that a publish here waits for."""
        self.covered: dict[Partition, int] = {}
        """The offsets up to which marks started here have come back."""
        self._started: dict[Partition, deque[tuple[int, int]]] = {}
        self.round_trip_us = 0
        """How long the last round took."""

    def forget(self, partition: Partition) -> None:
        for started_by in self._received.pop(partition, {}):
            self._sent.pop((partition, started_by), None)
        self._sent.pop((partition, self._context.node), None)
        for table in (self._awaited, self.covered, self._started):
            table.pop(partition, None)

    # --- starting marks -----------------------------------------------------------------------------------

    def synced(self, log: OriginLog) -> None:
        """The local log was synced further: its marks advance."""
        partition, me = log.partition, self._context.node
        if log.origin_partition.local:
            self.covered[partition] = log.synced
            self._context.out.append(Covered(partition, log.synced, View.of(self._ring.view.epoch, (me,))))
            return
        if log.is_origin:
            started = self._started.setdefault(partition, deque(maxlen=TIMED_MAX))
            started.append((log.synced, self._context.now.mono_us))
        if log.is_origin or partition in self._awaited:
            self._complete(log, log.synced, (me,))
            self._due[partition, me] = None
        for started_by in self._received.get(partition, ()):
            self._due[partition, started_by] = None

    def await_coverage(self, partition: Partition, offset: int) -> None:
        """A publish here waits until every broker has the partition up to this offset, whatever its origin."""
        log = self._context.logs.get(partition)
        if log is not None:
            if not log.is_origin:
                self._awaited[partition] = max(offset, self._awaited.get(partition, 0))
            self._complete(log, log.synced, (self._context.node,))
            self._due[partition, self._context.node] = None

    def tick(self) -> None:
        """Sends marks again whose round is not complete."""
        context, me = self._context, self._context.node
        for partition, log in context.logs.items():
            if log.origin_partition.local:
                continue
            wanted = log.synced if log.is_origin else self._awaited.get(partition, 0)
            if self.covered.get(partition, 0) < wanted:
                self._complete(log, log.synced, (me,))
                self._sent.pop((partition, me), None)
                self._due[partition, me] = None
            elif not log.is_origin:
                self._awaited.pop(partition, None)

    # --- forwarding marks -------------------------------------------------------------------------------------

    def received(self, marks: tuple[AckMark, ...]) -> None:
        context = self._context
        for mark in marks:
            log = context.logs.get(mark.partition)
            if log is None or log.damaged_at is not None or not mark.visited:
                continue
            started_by = mark.visited[0]
            if started_by == context.node:
                self._complete(log, min(mark.offset, log.synced), mark.visited)
            elif context.node not in mark.visited:
                # A mark that was here before ends: the broker that started it is gone.
                self._received.setdefault(mark.partition, {})[started_by] = mark
                self._sent.pop((mark.partition, started_by), None)
                self._due[mark.partition, started_by] = None

    def _complete(self, log: OriginLog, offset: int, visited: tuple[NodeId, ...]) -> None:
        """Completes a round if the mark visited every broker of this broker's view."""
        context = self._context
        view = self._ring.view
        if offset <= self.covered.get(log.partition, 0) or not set(view.active) <= set(visited):
            return
        self.covered[log.partition] = offset
        started = self._started.get(log.partition)
        while started and started[0][0] <= offset:
            self.round_trip_us = context.now.mono_us - started.popleft()[1]
        context.out.append(Covered(log.partition, offset, View.of(view.epoch, visited)))

    def flush(self) -> None:
        """Sends due marks to the next broker, at the end of a step."""
        if not self._due:
            return
        context = self._context
        due, self._due = self._due, {}
        following = self._ring.next
        if following is None:
            return
        marks = [mark for key in due if (mark := self._next_mark(key, following)) is not None]
        for at in range(0, len(marks), ENTRIES_PER_MESSAGE):
            context.out.append(Send(following, AckMarks(tuple(marks[at : at + ENTRIES_PER_MESSAGE]))))

    def _next_mark(self, key: MarkKey, following: NodeId) -> AckMark | None:
        """The mark to send: the minimum of this broker and those before it, if it is new to the next broker."""
        context = self._context
        partition, started_by = key
        log = context.logs.get(partition)
        if log is None or log.damaged_at is not None:
            return None
        reached = log.synced if self._waits_for_sync else log.end
        visited: tuple[NodeId, ...] = (context.node,)
        if started_by != context.node:
            before = self._received.get(partition, {}).get(started_by)
            if before is None:
                return None
            reached, visited = min(before.offset, reached), (*before.visited, context.node)
        if reached <= 0 or self._sent.get(key) == (reached, following):
            return None
        self._sent[key] = reached, following
        return AckMark(partition, reached, visited)
