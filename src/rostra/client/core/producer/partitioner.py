"""Which partition a record with a key goes to."""

from __future__ import annotations

import xxhash


def partition_of(key: bytes, partitions: int) -> int:
    """The same key, the same partition, in every client and for ever: part of the protocol."""
    return int(xxhash.xxh3_64_intdigest(key)) % partitions
