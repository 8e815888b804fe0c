"""The bounds of a broker. Everything has one, and what happens at it is said here."""

from __future__ import annotations

import msgspec


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
    """One more connection is told LimitExceeded and closed."""
    subscriptions_per_connection_max: int = 16_384
    """One more is refused with LimitExceeded; a subscription to a topic counts once per partition."""
    watches_per_connection_max: int = 256
    """One more watch for topics that match patterns is refused with LimitExceeded."""
    requests_per_connection_max: int = 4096
    """Publishes waiting for their acknowledgement, and topics for their making; one more is refused."""
    topics_max: int = 100_000
    """One more is refused with LimitExceeded; those being made count."""
    producers_per_partition_max: int = 10_000
    """The least recently used producer is forgotten; if it returns it hears UnknownProducer."""
    publishers_per_partition_max: int = 1_000
    """One more is refused with LimitExceeded; those whose lease runs out make room."""
    credit_bytes_max: int = 64 << 20
    """A subscription that grants more is refused."""
    push_bytes_max: int = 1 << 20
    """About how much goes into one push frame."""
    burst_bytes_max: int = 2 << 20
    """About how much is pushed to a connection before its send buffer must have taken it."""
    read_bytes_max: int = 1 << 20
    """About how much a subscriber that fell behind is read from disk at a time."""
    catch_up_bytes_per_s: int = 256 << 20
    """Shared by reads for subscribers that fell behind and by what other partitions commit meanwhile. The reads wait
    when it is used up, but get at least a quarter of what is committed."""
    reads_per_connection_max: int = 4
    """Further subscriptions of the connection wait their turn."""
    tail_bytes_max: int = 32 << 20
    """Recent batches kept in memory for subscribers at the end of their partition; older ones are read from disk."""
    history_max: int = 100_000
    """The largest N of a subscription to the last N records; a topic's history_depth may be less."""
    heartbeat_ms: int = 5_000
    """A connection that is silent for three of these is closed."""
    retention_check_ms: int = 10_000
    """How often the log is searched for segments that retention lets go: they may stay this much longer."""
    replicas: int = 3
    """Copies of each partition of a topic made without saying how many; as many as there are members, if fewer."""
    group_partitions: int = 8
    """Partitions of the topic that named subscriptions are kept in; counts when it is made."""
    group_segment_bytes: int = 4 << 20
    """Size of its segments, of which each begins with the state of all names in it; counts when it is made."""
    groups_max: int = 10_000
    """Named subscriptions in one of those partitions; one more is refused with LimitExceeded."""
    groups_bytes_max: int = 3 << 20
    """What the names of one of those partitions take in a checkpoint, which must fit into one frame. One more name or
    member is refused with LimitExceeded; of topics that come to match nobody gets the parts, and the log says so."""
    members_per_group_max: int = 1000
    """One more member of a named subscription is refused with LimitExceeded."""
    parts_per_group_max: int = 10_000
    """Of the partitions that match a named subscription beyond these nobody gets any, and the log says so."""
    auto_create: bool = True
    """Whether looking up an unknown topic may create it, if the client asks for that."""
