"""Threads for blocking calls, lighter than an executor: a node syncs all the time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

Over = Callable[[BaseException | None], None]
"""Called on the loop when all calls have returned, with the first error if there was one."""


class _Group:
    """Calls with a common callback, run after the last of them."""

    __slots__ = ("error", "left", "lock", "over")

    def __init__(self, left: int, over: Over) -> None:
        self.left = left
        self.over = over
        self.lock = threading.Lock()
        self.error: BaseException | None = None


class Workers:
    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, count: int) -> None:
        self._loop = loop
        self._queue: SimpleQueue[tuple[Callable[[], None], _Group] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{n}", daemon=True) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def run(self, calls: Sequence[Callable[[], None]], over: Over) -> None:
        if not calls:
            self._loop.call_soon(over, None)
            return
        group = _Group(len(calls), over)
        for call in calls:
            self._queue.put((call, group))

    def stop(self) -> None:
        """Waits until all queued calls have returned."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            call, group = item
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:
                # Any error has to reach the loop, else the callback would never run.
                error = raised
            with group.lock:
                group.left -= 1
                group.error = group.error or error
                over = group.left == 0
            if over and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(group.over, group.error)
