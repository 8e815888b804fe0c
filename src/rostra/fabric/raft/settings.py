"""The bounds and periods of a Raft node."""

from __future__ import annotations

import msgspec

HEARTBEAT_TIMER = "raft/beat"
"""The timer of the heartbeats."""
DEADLINE_TIMER = "raft/wake"
"""The timer of the earliest deadline of all groups."""


class RaftSettings(msgspec.Struct, frozen=True):
    heartbeat_ms: int = 50
    election_timeout_ms_min: int = 300
    election_timeout_ms_max: int = 600
    window_bytes: int = 8 << 20
    """What is on its way to one follower of one group; beyond it the follower is fed from the log."""
    window_messages: int = 256
    read_bytes: int = 1 << 20
    """What one read for a follower that is behind brings."""
    deferred_inputs_max: int = 1024
    """What a group keeps while its hard state is being written; more is dropped, as a network may do."""
    pending_reads_max: int = 4096
    leader_balance_ms: int = 10_000
    """How often it is looked whether leadership can go back to a node that was away."""
    reassignments_max: int = 4
    """Partitions whose copies are on their way to other nodes at a time; the next wait."""
    metadata_log_bytes: int = 4 << 20
    """What the catalogue's log may hold beyond its last snapshot; then another one is written, and the rest goes."""

    @property
    def heartbeat_us(self) -> int:
        return self.heartbeat_ms * 1000

    @property
    def election_min_us(self) -> int:
        """The shortest election timeout: for so long a node that heard its leader elects no other."""
        return self.election_timeout_ms_min * 1000

    @property
    def election_max_us(self) -> int:
        """The longest election timeout: so long an answer is waited for that has to come all the way there and back.

        Were it shorter, slow links would depose every leader before the first word of those who elected it.
        """
        return self.election_timeout_ms_max * 1000
