"""Settings of replication: windows and bounds."""

from __future__ import annotations

from rostra.fabric.links.settings import LinkSettings


class ReplicationSettings(LinkSettings, frozen=True):
    window_bytes: int = 8 << 20
    """Bytes in flight to one follower of one partition; beyond it the follower is served from the log."""
    window_messages: int = 256
    read_bytes: int = 1 << 20
    """Bytes of one log read for a follower that is behind."""
    deferred_inputs_max: int = 1024
    """Inputs that a replica defers while its hard state is being written; more messages are dropped."""
