"""Polling instead of sleeping, for those who pay a core for a shorter delay."""

from __future__ import annotations

import asyncio
import os
import time


class BusyPoll:
    """Keeps a loop turning for a while after bytes came in: the next ones find it awake, and its code in the caches.

    Waking a core that sleeps, and reading everything into its caches again, costs more than all that a node does for a
    record. Every turn gives way to whoever else wants the core.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, for_ms: int) -> None:
        self._loop = loop
        self._for_s = for_ms / 1000
        self._until_s = 0.0
        self._turning = False

    def stir(self) -> None:
        """Bytes came in."""
        if self._for_s:
            self._until_s = time.monotonic() + self._for_s
            if not self._turning:
                self._turning = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if time.monotonic() < self._until_s:
            os.sched_yield()
            self._loop.call_soon(self._turn)
        else:
            self._turning = False
