"""Throttles disk reads for subscribers that fell behind, so that they do not delay live records."""

from __future__ import annotations

WINDOW_US = 5_000
"""Traffic is measured over this time; a throttled read waits until it ends."""
QUIET_US = 200_000
"""After this time without a commit reads are not throttled; long enough to bridge a slow fsync under load."""


class CatchUpThrottle:
    """Reads and live traffic share `bytes_per_s`; reads get at least a quarter of the live bytes, so that they always
    progress. Without live traffic they are unlimited.

    The caller sets `now_us`. A read is allowed while the allowance is positive, and then charged with all its bytes,
    which may leave a debt.
    """

    __slots__ = ("_allowance", "_bytes_per_s", "_since_us", "live_bytes", "live_us", "now_us")

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._allowance = 0
        self.live_bytes = 0
        """Committed in this window."""
        self.live_us = -QUIET_US
        """Time of the last commit."""
        self._since_us = 0
        self.now_us = 0

    def allows(self) -> bool:
        elapsed_us = self.now_us - self._since_us
        if self.is_quiet(self.live_us):
            self._begin_window(0)
            return True
        if elapsed_us >= WINDOW_US:
            share = elapsed_us * self._bytes_per_s // 1_000_000 - self.live_bytes
            most = WINDOW_US * self._bytes_per_s // 1_000_000
            self._begin_window(min(self._allowance + max(share, self.live_bytes // 4), most))
        return self._allowance > 0

    def _begin_window(self, allowance: int) -> None:
        self._allowance = allowance
        self.live_bytes = 0
        self._since_us = self.now_us

    def charge(self, size: int) -> None:
        self._allowance -= size

    @property
    def next_us(self) -> int:
        """When to try again."""
        return self._since_us + WINDOW_US

    def is_quiet(self, live_us: int) -> bool:
        return self.now_us - live_us >= QUIET_US
