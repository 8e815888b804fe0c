"""Safeguards that tests can switch off, one by one, where they act.

A checker that stays silent while a safeguard is off sees nothing. Nothing but tests and `rostra sim --without` passes a
non-empty set.
"""

from __future__ import annotations

from enum import StrEnum


class Safeguard(StrEnum):
    DEDUP = "dedup"
    """A repeated batch is stored once."""
    SYNC_BEFORE_ACK = "sync-before-ack"
    """Nothing is acknowledged or shown before it is on stable storage."""
    CHECKSUM = "checksum"
    """Batches read from disk are checked before they are served, and a damaged end is not kept."""
    SEQUENCE = "sequence"
    """A batch is refused while one before it is missing."""


Without = frozenset[Safeguard]
ALL_ON: Without = frozenset()
