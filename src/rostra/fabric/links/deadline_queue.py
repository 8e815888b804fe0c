"""The deadlines of all groups behind one timer, set to the earliest."""

from __future__ import annotations

from heapq import heappop, heappush

from rostra.model.ids import Partition

NEVER_US = 1 << 62
"""The queued time of a group that is not in the queue."""


class DeadlineQueue:
    """A heap with lazy updates: a deadline that moved later is popped at its old time, found not due, and pushed again.

    Each group knows its queued time (`queued_us`); entries with another time are obsolete and ignored.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Partition]] = []
        self.next_us: int | None = None
        """The earliest deadline."""

    def push(self, partition: Partition, at_us: int) -> None:
        heappush(self._heap, (at_us, partition))
        self.next_us = self._heap[0][0]

    def pop_due(self, now_us: int) -> tuple[int, Partition] | None:
        """Pops the next deadline that is due, with its partition; None if none is."""
        if not self._heap or self._heap[0][0] > now_us:
            return None
        due = heappop(self._heap)
        self.next_us = self._heap[0][0] if self._heap else None
        return due
