"""How long the phases of a seed last, and how much its clients do."""

from __future__ import annotations

import msgspec

from rostra.simulator.clock import EVENTS_MAX, SECOND_US


class WorldBounds(msgspec.Struct, frozen=True):
    calm_us: int = SECOND_US
    """Time without faults after the first election: topics are created and clients connect."""
    heal_us: int = 25 * SECOND_US
    """When faults end."""
    publish_until_us: int = 29 * SECOND_US
    end_us: int = 30 * SECOND_US
    """No seed ends before."""
    converge_us: int = 50 * SECOND_US
    """How long after healing everything may take to converge."""
    extra_time_us: int = 25 * SECOND_US
    """How long publishers may continue after healing to reach the wanted operations."""
    events_max: int = EVENTS_MAX
    """A seed with more is a loop."""
    operations_wanted: int = 320
    records: int = 900
    records_in_cluster: int = 320
    """Fewer than for one node, because each record is replicated."""
    group_share: float = 0.25
    """Share of the seeds that have a consumer group."""
    elections: int = 10
    """A majority must serve again within this many election timeouts."""
