"""The limits of a broker, and what happens when each is reached."""

from __future__ import annotations

import msgspec

from rostra.model.check import BatchLimits


class BrokerSettings(msgspec.Struct, frozen=True):
    """Defaults suit one node on a laptop."""

    frame_bytes_max: int = 8 << 20
    """A larger frame closes its connection."""
    batch_bytes_max: int = 4 << 20
    """A larger batch is rejected."""
    batch_inflated_bytes_max: int = 64 << 20
    """A compressed batch that would inflate to more is rejected."""
    batch_records_max: int = 1 << 20
    """A batch of more records is rejected."""
    timestamp_ahead_max_ms: int = 3_600_000
    """A batch with a timestamp further ahead of the node's clock is rejected."""
    connections_max: int = 20_000
    """One more connection gets LimitExceeded and is closed."""
    subscriptions_per_connection_max: int = 16_384
    """One more is refused with LimitExceeded; a subscription to a topic counts once per partition."""
    watches_per_connection_max: int = 256
    """One more watch for topics that match patterns is refused with LimitExceeded."""
    requests_per_connection_max: int = 4096
    """Publishes that wait for their acknowledgement, and other pending requests; one more is refused."""
    topics_max: int = 100_000
    """One more is refused with LimitExceeded; topics being created count."""
    producers_per_partition_max: int = 10_000
    """The least recently used producer is evicted; if it returns it gets UnknownProducer."""
    publishers_per_partition_max: int = 1_000
    """One more is refused with LimitExceeded; publishers whose lease expires are removed."""
    credit_bytes_max: int = 64 << 20
    """A subscription that grants more is refused."""
    push_bytes_max: int = 1 << 20
    """About how much goes into one push frame."""
    burst_bytes_max: int = 2 << 20
    """About how much is pushed to a connection before its send buffer must have drained."""
    read_bytes_max: int = 1 << 20
    """About how much one read from disk returns for a subscriber that fell behind."""
    catch_up_bytes_per_s: int = 256 << 20
    """Shared by reads for subscribers that fell behind and by the commits of other partitions. Reads wait when it is
    used up, but get at least a quarter of what is committed."""
    reads_per_connection_max: int = 4
    """Further subscriptions of the connection wait their turn."""
    tail_bytes_max: int = 32 << 20
    """Recent batches kept in memory for subscribers at the end of their partition; older ones are read from disk."""
    history_max: int = 100_000
    """The largest N of a subscription to the last N records; a topic's history_depth may be less."""
    heartbeat_ms: int = 5_000
    """A connection that is silent for three of these is closed."""
    retention_check_ms: int = 10_000
    """How often logs are searched for segments past their retention: they may stay this much longer."""
    replicas: int = 3
    """Replicas of each partition of a topic created without a number; as many as there are members, if fewer."""
    group_partitions: int = 8
    """Partitions of the internal topic `_groups`, which stores named subscriptions; applies when it is created."""
    group_segment_bytes: int = 4 << 20
    """Segment size of `_groups`; each segment begins with the state of all groups in it. Applies when it is created."""
    groups_max: int = 10_000
    """Named subscriptions per partition of `_groups`; one more is refused with LimitExceeded."""
    groups_bytes_max: int = 3 << 20
    """Checkpoint size of the groups in one partition of `_groups`, which must fit into one frame. One more group or
    member is refused with LimitExceeded; partitions of topics that match later stay unassigned, with an error in the
    log."""
    members_per_group_max: int = 1000
    """One more member of a named subscription is refused with LimitExceeded."""
    partitions_per_group_max: int = 10_000
    """Partitions that match a named subscription beyond this number stay unassigned, with an error in the log."""
    sink_partitions: int = 8
    """Partitions of the internal topic `_sinks`, which stores what exactly-once sinks decided; applies when it is
    created."""
    sink_segment_bytes: int = 4 << 20
    """Segment size of `_sinks`; each segment begins with the state of all its queries. Applies when it is created."""
    sinks_max: int = 10_000
    """Queries of exactly-once sinks per partition of `_sinks`; one more is refused with LimitExceeded."""
    sinks_bytes_max: int = 3 << 20
    """Checkpoint size of the queries in one partition of `_sinks`; a commit that needs more is refused with
    LimitExceeded."""
    sink_query_bytes_max: int = 4 << 30
    """Bytes that one query has staged in the partitions that this node owns; more are refused with LimitExceeded."""
    sink_bytes_max: int = 16 << 30
    """Bytes that all queries have staged in the partitions that this node owns; more are refused with LimitExceeded."""
    sink_lease_ms: int = 600_000
    """Staged batches that nobody adds to or commits for this time are dropped."""
    sink_retention_ms: int = 604_800_000
    """A query that commits nothing for this time is forgotten, one that consists of a single batch after a 168th of it
    (an hour of a week); a commit of it that comes later counts as its first."""
    auto_create: bool = True
    """Whether looking up an unknown topic may create it, if the client asks for that."""

    def batch_limits(self) -> BatchLimits:
        return BatchLimits(
            batch_bytes_max=self.batch_bytes_max,
            raw_body_bytes_max=self.batch_inflated_bytes_max,
            records_max=self.batch_records_max,
            timestamp_ahead_us_max=self.timestamp_ahead_max_ms * 1000,
        )
