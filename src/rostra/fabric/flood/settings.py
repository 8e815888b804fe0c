"""The bounds and periods of a broker of the ring."""

from __future__ import annotations

import msgspec

HEARTBEAT_TIMER = "flood/beat"
"""The timer of the heartbeats."""


class FloodSettings(msgspec.Struct, frozen=True):
    heartbeat_ms: int = 50
    failure_timeout_ms: int = 400
    """Whoever is not heard for so long is closed around."""
    resend_ms: int = 250
    """What the next broker has not confirmed after so long is sent again."""
    recovery_timeout_ms: int = 1_000
    """How long a start waits for the others to say what they have of this broker's own records."""
    window_bytes: int = 8 << 20
    """What is on its way to one neighbour; beyond it the neighbour is fed from the log."""
    read_bytes: int = 1 << 20
    """What one read for a neighbour that is behind brings."""
    stop_timeout_ms: int = 1_000
    """How long a broker that stops waits for the next one to have what it has."""
    removal_timeout_ms: int = 10_000
    """How long a broker that is removed has to pass on what it has; then it stays, and the order is refused."""
    early_max: int = 1024
    """Publishes of arriving producers that wait for their barrier; one more is refused."""
    both_ways: bool = False
    """Whether records are passed to the previous broker too, which halves the distance."""
