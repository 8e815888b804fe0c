"""Heartbeats of a blocking client with publishers, while the application makes no calls."""

from __future__ import annotations

from threading import Event, Thread, current_thread
from time import monotonic_ns
from typing import TYPE_CHECKING

from rostra.client.core.links.node_link import PINGS_PER_LEASE

if TYPE_CHECKING:
    from rostra.client.blocking.driver import BlockingDriver


class HeartbeatThread:
    """A thread that steps the driver regularly, as long as there is a publisher with a lease."""

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver
        self._pause_s = 0.0
        self._wake = Event()
        self._thread: Thread | None = None

    def ensure(self, lease_ms: int) -> None:
        """Step at least as often as this lease requires. The caller holds the driver's lock."""
        pause_s = lease_ms / 1000 / PINGS_PER_LEASE
        if self._thread is None:
            self._pause_s = pause_s
            self._thread = Thread(target=self._run, name="rostra-heartbeat", daemon=True)
            self._thread.start()
        elif pause_s < self._pause_s:
            self._pause_s = pause_s
            self._wake.set()

    def _run(self) -> None:
        driver = self._driver
        while not driver.core.closed:
            self._wake.wait(self._pause_s)
            self._wake.clear()
            # A thread that holds the lock for long waits for an answer and steps the driver itself.
            if driver.lock.acquire(blocking=False):
                try:
                    if not driver.core.has_leases:
                        self._thread = None
                        return
                    driver.step(monotonic_ns() // 1000)
                finally:
                    driver.lock.release()

    def stop(self) -> None:
        """Stop the thread; the client is closed."""
        thread = self._thread
        self._wake.set()
        if thread is not None and thread is not current_thread():
            thread.join()
