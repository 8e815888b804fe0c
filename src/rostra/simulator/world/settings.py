"""Draws the broker and Raft settings of a seed: small bounds, rare heartbeats, short timeouts."""

from __future__ import annotations

from random import Random

import msgspec

from rostra.broker.settings import BrokerSettings
from rostra.fabric.raft.settings import RaftSettings
from rostra.simulator.faults.fault_plan import FaultPlan


def raft_settings_for(plan: FaultPlan, random: Random) -> RaftSettings:
    """Raft settings with rare heartbeats, because idle ones test nothing, and small windows, so that followers lag.

    An election timeout is only two to four heartbeats, so that one lost heartbeat can start an election.
    """
    return RaftSettings(
        heartbeat_ms=plan.heartbeat_ms,
        election_timeout_ms_min=2 * plan.heartbeat_ms,
        election_timeout_ms_max=4 * plan.heartbeat_ms,
        window_bytes=random.choice((2_000, 8 << 20)),
        window_messages=random.choice((4, 256)),
        read_bytes=random.choice((1_000, 1 << 20)),
        leader_balance_ms=random.choice((2_000, 10_000)),
    )


def settings_for(random: Random) -> BrokerSettings:
    """Broker settings with bounds small enough that a short run reaches them."""
    return msgspec.structs.replace(
        BrokerSettings(),
        tail_bytes_max=random.choice((1 << 10, 8 << 10, 1 << 20)),
        push_bytes_max=random.choice((1 << 9, 4 << 10)),
        catch_up_bytes_per_s=1 << 18,
        read_bytes_max=random.choice((1 << 9, 4 << 10)),
        producers_per_partition_max=random.choice((2, 100)),
        connections_max=random.choice((24, 100)),
        timestamp_ahead_max_ms=random.choice((5_000, 3_600_000)),
        requests_per_connection_max=random.choice((3, 4096, 4096)),
        burst_bytes_max=random.choice((1 << 10, 2 << 20)),
        # Rare, because pings test nothing.
        heartbeat_ms=random.choice((2_000, 3_000, 5_000)),
        retention_check_ms=1_500,
        group_partitions=1,
        sink_partitions=1,
        sink_segment_bytes=4096,
        sink_lease_ms=1_000,
    )
