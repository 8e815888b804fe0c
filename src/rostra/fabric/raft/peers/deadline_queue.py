"""The deadlines of all groups behind one timer: only the earliest is set."""

from __future__ import annotations

from heapq import heappop, heappush

from rostra.model.ids import Partition

NEVER_US = 1 << 62
"""When a group's alarm goes off that is not set."""


class DeadlineQueue:
    """A deadline that moves away is not looked for: its old alarm goes off, finds nothing due, and is set anew.

    Each group knows when its alarm goes off (`armed_us`); one that was set anew to an earlier time goes off twice.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, Partition]] = []
        self.next_us: int | None = None
        """The earliest of all."""

    def push(self, partition: Partition, at_us: int) -> None:
        heappush(self._heap, (at_us, partition))
        self.next_us = self._heap[0][0]

    def pop_due(self, now_us: int) -> tuple[int, Partition] | None:
        """When one was due, and whose; None when no more is."""
        if not self._heap or self._heap[0][0] > now_us:
            return None
        due = heappop(self._heap)
        self.next_us = self._heap[0][0] if self._heap else None
        return due
