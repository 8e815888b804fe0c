"""Virtual time: a heap of events, and sources of chance that a seed decides."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

SECOND_US = 1_000_000
MS_US = 1_000
EPOCH_US = 1_700_000_000 * SECOND_US
"""The time of day when a simulation begins."""


EVENTS_MAX = 500_000
"""A hundred times what a seed needs: beyond it, something feeds itself."""


class EventLimitExceeded(Exception):
    """Events beget events without end."""


def random_for(seed: int, purpose: str) -> Random:
    """A generator of its own for each purpose: drawing more for one does not disturb the others.

    A text as seed is hashed by SHA-512 and not by `hash()`, so it is the same in every process.
    """
    return Random(f"{seed}/{purpose}")


class Clock:
    """Events in order of time; those of the same time in the order in which they were set."""

    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    @property
    def events(self) -> int:
        """How many have happened."""
        return self._sequence - len(self._heap)

    def at(self, time_us: int, callback: Callable[..., None], *args: Any) -> None:
        self._sequence = number = self._sequence + 1
        if time_us < self.now_us:
            time_us = self.now_us
        heappush(self._heap, (time_us, number, callback, args))

    def after(self, delay_us: int, callback: Callable[..., None], *args: Any) -> None:
        self._sequence = number = self._sequence + 1
        heappush(self._heap, (self.now_us + delay_us, number, callback, args))

    def run_until(self, time_us: int) -> None:
        """Lets events happen up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= time_us:
            self.now_us, number, callback, args = heappop(heap)
            if number > EVENTS_MAX:
                raise EventLimitExceeded(f"{EVENTS_MAX} events and no end, at {self.now_us} us: {callback} {args}")
            callback(*args)
        self.now_us = max(self.now_us, time_us)
