"""Runs kazoo's callbacks on an event loop, in one order.

Kazoo's own handlers call completions and watches from two threads, so that a watch may be seen after the answer that
shows its change. Here both go through the loop's queue, in the order in which the connection's thread read them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """The only thread besides the loop's is that of the connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.completion_queue = self
        self._loop = loop

    @property
    def running(self) -> bool:
        # Kazoo would call back from the connection's thread if this were false.
        return True

    def start(self) -> None:
        """Nothing to start: the loop runs."""

    def stop(self) -> None:
        """Nothing to stop."""

    def put(self, callback: Callable[[], object]) -> None:
        """Takes a completion, in place of kazoo's queue."""
        # A closed loop belongs to a node that has stopped.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def dispatch_callback(self, callback: Any) -> None:
        self.put(lambda: callback.func(*callback.args))
