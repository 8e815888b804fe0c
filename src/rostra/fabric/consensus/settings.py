"""Settings of consensus groups: election timeouts and bounds."""

from __future__ import annotations

from rostra.fabric.replication.settings import ReplicationSettings


class ConsensusSettings(ReplicationSettings, frozen=True):
    election_timeout_ms_min: int = 300
    election_timeout_ms_max: int = 600
    pending_reads_max: int = 4096

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
