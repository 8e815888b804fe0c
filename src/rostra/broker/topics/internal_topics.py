"""The internal topics: their names, and which of their partitions a name belongs to."""

from __future__ import annotations

import xxhash

from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.topics.topic_table import KnownTopic

GROUPS_TOPIC = "_groups"
SINKS_TOPIC = "_sinks"
RESERVED_NAME = "names that begin with '_' are for Rostra itself"


def coordinating_partition(known: KnownTopic, name: str) -> ServedPartition:
    """The partition of an internal topic that a name belongs to, by the hash that also partitions records."""
    return known.partitions[xxhash.xxh3_64_intdigest(name.encode()) % len(known.partitions)]
