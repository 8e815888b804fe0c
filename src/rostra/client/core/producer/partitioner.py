"""The partition of a record with a key."""

from __future__ import annotations

import xxhash


def partition_of(key: bytes, partitions: int) -> int:
    """Hash a key to a partition. Part of the protocol: it must be the same in every client, for ever."""
    return int(xxhash.xxh3_64_intdigest(key)) % partitions
