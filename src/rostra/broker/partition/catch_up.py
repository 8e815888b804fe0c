"""How much is read from disk for subscribers that fell behind, so that records just published do not wait for them."""

from __future__ import annotations

WINDOW_US = 5_000
"""Traffic is weighed over so long; whoever has to wait waits for the end of it."""
QUIET_US = 200_000
"""After so long without a commit nothing is held back; long enough to bridge a slow fsync under a full window."""


class CatchUpThrottle:
    """Reads share the node with live traffic: together they get `bytes_per_s`, and reads at least a quarter of what is
    live, so that they always get on. Where nothing is live they are free.

    Its clock is set by whoever steps it. A read is allowed while the allowance is above zero, and then counted with all
    its bytes, which may leave a debt.
    """

    __slots__ = ("_allowance", "_bytes_per_s", "_since_us", "live_bytes", "live_us", "now_us")

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._allowance = 0
        self.live_bytes = 0
        """Committed in this window."""
        self.live_us = -QUIET_US
        """When there was a commit last."""
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

    def took(self, size: int) -> None:
        self._allowance -= size

    @property
    def next_us(self) -> int:
        """When to ask again."""
        return self._since_us + WINDOW_US

    def is_quiet(self, live_us: int) -> bool:
        return self.now_us - live_us >= QUIET_US
