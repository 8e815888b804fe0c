"""The times at which producers want to be woken. Idle producers cost nothing, however many there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from rostra.client.core.effects import ProducerNumber

if TYPE_CHECKING:
    from rostra.client.core.producer.producer_state import ProducerState

NEVER_US = 1 << 62
SPARE = 64
"""Outdated entries to keep before the heap is rebuilt."""


class WakeupQueue:
    """A heap of times. Outdated entries stay in it until they come up, or until most entries are outdated."""

    def __init__(self, producers: Mapping[ProducerNumber, ProducerState]) -> None:
        self._producers = producers
        self._heap: list[tuple[int, ProducerNumber]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due_us: int, number: ProducerNumber) -> None:
        """Add a wakeup, unless the producer is gone."""
        if number not in self._producers:
            return
        if len(self._heap) >= 2 * len(self._producers) + SPARE:
            moments = ((one.wakeup_us, number) for number, one in self._producers.items())
            self._heap = [moment for moment in moments if moment[0] < NEVER_US]
            heapify(self._heap)
        heappush(self._heap, (due_us, number))

    def clear(self) -> None:
        self._heap.clear()

    def first_us(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_us: int) -> Iterator[ProducerState]:
        """The producers whose time has come, one after the other; each has no wakeup afterwards."""
        while self._heap and self._heap[0][0] <= now_us:
            due_us, number = heappop(self._heap)
            producer = self._producers.get(number)
            if producer is not None and producer.wakeup_us == due_us:
                producer.wakeup_us = NEVER_US
                yield producer
