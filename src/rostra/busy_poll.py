"""Busy polling: lower latency at the cost of a CPU core."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from time import monotonic

SLICE_S = 0.0002
"""How long the loop's timers may be delayed by polling."""


class BusyPoll:
    """Keeps an event loop running for a while after bytes were received, so that the next ones find it awake and its
    code in the caches.

    Waking a sleeping core and reloading its caches costs more than all that a node does for a record. Every poll yields
    to other processes that want the core.

    With a loop of its own (`owns_loop`) it polls many times per turn, since a turn takes several times as long as a
    poll. On a shared loop that would delay the others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, for_ms: int, *, owns_loop: bool = False) -> None:
        self._loop = loop
        self._for_s = for_ms / 1000
        self._until_s = 0.0
        self.polling = False
        """Whether it polls now."""
        self._ready = _readiness_poll(loop) if for_ms and owns_loop else None

    def extend(self) -> None:
        """Bytes were received: poll for a while."""
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
    """A poll that reports anything the loop waits for; None if the loop does not expose its file descriptor."""
    backend: Callable[[], int] | None = getattr(loop, "_get_backend_id", None)
    if backend is None:
        return None
    poll = select.poll()
    poll.register(backend(), select.POLLIN)
    return poll.poll
