"""Settings of a Raft node: timeouts, windows, bounds."""

from __future__ import annotations

from rostra.fabric.cluster.settings import ClusterSettings

HEARTBEAT_TIMER = "raft/heartbeat"
"""The heartbeat timer."""
DEADLINE_TIMER = "raft/deadline"
"""The timer set to the earliest deadline of all groups."""


class RaftSettings(ClusterSettings, frozen=True):
    leader_balance_ms: int = 10_000
    """How often leadership may return to preferred leaders that were down."""
    reassignments_max: int = 4
    """Partitions that are reassigned at a time."""
