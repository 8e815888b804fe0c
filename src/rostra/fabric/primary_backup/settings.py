"""Settings of a partition with a primary and backups."""

from __future__ import annotations

from rostra.fabric.replication.settings import ReplicationSettings


class PartitionSettings(ReplicationSettings, frozen=True):
    answer_ms: int = 500
    """After this time without an answer the outcome of a proposal counts as unknown."""
    silence_ms: int = 2_000
    """A member that has not acknowledged what it was sent for so long is removed."""
    return_ms: int = 1_000
    """How long a member that was removed for silence waits for its return; doubled each time."""
    return_ms_max: int = 60_000
    hand_over_ms: int = 1_000
    """A primary that hands over orders again after this time, if the heir has not caught up or nothing was decided."""
    probe_ms: int = 250
    """After a refused write: when the disk is tried again; doubled each time."""
    probe_ms_max: int = 8_000
