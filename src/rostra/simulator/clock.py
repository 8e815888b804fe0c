"""Virtual time: a heap of scheduled callbacks, and the random generators of a seed."""

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
"""Far more than a seed needs: beyond it, events schedule each other endlessly."""


class EventLimitExceeded(Exception):
    """A seed scheduled more events than its bound."""


def random_for(seed: int, purpose: str) -> Random:
    """The generator of a seed for one purpose; drawing more for one purpose does not change the others.

    A text as seed is hashed by SHA-512 and not by `hash()`, so it is the same in every process. Purposes, and the names
    of clients and nodes in them, are part of the seed: renaming one changes the course of every seed.
    """
    return Random(f"{seed}/{purpose}")


class Clock:
    """Runs callbacks in order of time; those of the same time in the order in which they were scheduled."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self.now_us = 0
        self._events_max = events_max
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    @property
    def events(self) -> int:
        """How many events have run."""
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
        """Runs all events up to this time."""
        heap = self._heap
        while heap and heap[0][0] <= time_us:
            self.now_us, number, callback, args = heappop(heap)
            if number > self._events_max:
                raise EventLimitExceeded(f"more than {self._events_max} events at {self.now_us} us: {callback} {args}")
            callback(*args)
        self.now_us = max(self.now_us, time_us)
