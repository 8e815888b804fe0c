"""Settings of a broker of the ring: timeouts, windows, bounds."""

from __future__ import annotations

import msgspec

HEARTBEAT_TIMER = "flood/heartbeat"
"""The heartbeat timer."""


class FloodSettings(msgspec.Struct, frozen=True):
    heartbeat_ms: int = 50
    failure_timeout_ms: int = 400
    """A broker that is silent for so long leaves the view, and the ring closes around it."""
    resend_ms: int = 250
    """Records that a neighbour has not confirmed for so long are sent again."""
    recovery_timeout_ms: int = 1_000
    """How long a start waits for the others to report what they have of this broker's own records."""
    window_bytes: int = 8 << 20
    """Bytes in flight to one neighbour; beyond it the neighbour is served from the log."""
    read_bytes: int = 1 << 20
    """Bytes of one log read for a neighbour that is behind."""
    stop_timeout_ms: int = 1_000
    """How long a stopping broker waits until its neighbour has all its records."""
    removal_timeout_ms: int = 10_000
    """How long a broker that is removed has to forward its records; then the removal is refused."""
    early_max: int = 1024
    """Publishes of migrating producers that may wait for a barrier; further ones are refused."""
    both_ways: bool = False
    """Whether records are also forwarded to the previous broker, which halves the longest distance."""
