"""The deadlines of all groups behind one timer: only the earliest is set."""

from __future__ import annotations

from heapq import heappop, heappush

from rostra.model.ids import Partition


class Alarms:
    """A deadline that moves away is not looked for: its old alarm goes off, finds nothing due, and is set anew."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Partition]] = []
        self.next_us: int | None = None
        """The earliest of all."""
        self._armed: dict[Partition, int] = {}

    def arm(self, partition: Partition, at_us: int | None) -> None:
        armed_us = self._armed.get(partition)
        if at_us is not None and (armed_us is None or at_us < armed_us):
            self._armed[partition] = at_us
            heappush(self._heap, (at_us, partition))
            self.next_us = self._heap[0][0]

    def forget(self, partition: Partition) -> None:
        self._armed.pop(partition, None)

    def gone_off(self, now_us: int) -> Partition | None:
        """One partition whose alarm is due; None when there is no more."""
        while self._heap and self._heap[0][0] <= now_us:
            at_us, partition = heappop(self._heap)
            self.next_us = self._heap[0][0] if self._heap else None
            if self._armed.get(partition) == at_us:
                del self._armed[partition]
                return partition
        return None
