"""Settings of a Raft node: timeouts, windows, bounds."""

from __future__ import annotations

import msgspec

HEARTBEAT_TIMER = "raft/heartbeat"
"""The heartbeat timer."""
DEADLINE_TIMER = "raft/deadline"
"""The timer set to the earliest deadline of all groups."""


class RaftSettings(msgspec.Struct, frozen=True):
    heartbeat_ms: int = 50
    election_timeout_ms_min: int = 300
    election_timeout_ms_max: int = 600
    window_bytes: int = 8 << 20
    """Bytes in flight to one follower of one group; beyond it the follower is served from the log."""
    window_messages: int = 256
    read_bytes: int = 1 << 20
    """Bytes of one log read for a follower that is behind."""
    deferred_inputs_max: int = 1024
    """Inputs that a group defers while its hard state is being written; more messages are dropped."""
    pending_reads_max: int = 4096
    leader_balance_ms: int = 10_000
    """How often leadership may return to preferred leaders that were down."""
    reassignments_max: int = 4
    """Partitions that are reassigned at a time."""
    metadata_log_bytes: int = 4 << 20
    """How much the metadata log grows after a snapshot before the next one is written and the log trimmed."""

    @property
    def heartbeat_us(self) -> int:
        return self.heartbeat_ms * 1000

    @property
    def election_min_us(self) -> int:
        """The shortest election timeout: within it a node that heard its leader grants no vote."""
        return self.election_timeout_ms_min * 1000

    @property
    def election_max_us(self) -> int:
        """The longest election timeout: how long a first reply, a full round trip, is waited for.

        With a shorter one, slow links would depose every leader before its voters' first reply.
        """
        return self.election_timeout_ms_max * 1000
