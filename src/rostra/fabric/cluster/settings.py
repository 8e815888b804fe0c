"""Settings of a cluster with one metadata group."""

from __future__ import annotations

from rostra.fabric.consensus.settings import ConsensusSettings


class ClusterSettings(ConsensusSettings, frozen=True):
    metadata_log_bytes: int = 4 << 20
    """How much the metadata log grows after a snapshot before the next one is written and the log trimmed."""
