"""Polling instead of sleeping, for those who pay a core for a shorter delay."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from time import monotonic

SLICE_S = 0.0002
"""So long at most the loop's timers wait for those who look."""


class BusyPoll:
    """Keeps a loop turning for a while after bytes came in: the next ones find it awake, and its code in the caches.

    Waking a core that sleeps, and reading everything into its caches again, costs more than all that a node does for a
    record. Every look gives way to whoever else wants the core.

    Whoever has a loop of its own (`owns_loop`) looks many times in each turn, since a turn takes several times as long
    as a look. Where others use the loop too, what they have to do would wait for that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, for_ms: int, *, owns_loop: bool = False) -> None:
        self._loop = loop
        self._for_s = for_ms / 1000
        self._until_s = 0.0
        self.polling = False
        """Whether it does so now."""
        self._ready = _readiness_poll(loop) if for_ms and owns_loop else None

    def extend(self) -> None:
        """Bytes came in."""
        if self._for_s:
            self._until_s = monotonic() + self._for_s
            if not self.polling:
                self.polling = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now_s = monotonic()
        if now_s >= self._until_s:
            self.polling = False
            return
        os.sched_yield()
        ready = self._ready
        if ready is not None:
            until_s = min(now_s + SLICE_S, self._until_s)
            while not ready(0) and monotonic() < until_s:
                os.sched_yield()
        self._loop.call_soon(self._turn)


def _readiness_poll(loop: asyncio.AbstractEventLoop) -> Callable[[float], list[tuple[int, int]]] | None:
    """What tells of anything that the loop waits for; None where the loop lets nobody look."""
    backend: Callable[[], int] | None = getattr(loop, "_get_backend_id", None)
    if backend is None:
        return None
    poll = select.poll()
    poll.register(backend(), select.POLLIN)
    return poll.poll
