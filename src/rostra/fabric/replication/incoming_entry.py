"""Entries that arrive at a follower: each batch is checked, so that damage does not spread between copies."""

from __future__ import annotations

import msgspec

from rostra.errors import BatchRejected, PeerViolation
from rostra.model.batch import ARRIVED
from rostra.model.check import check_stored, read_intact
from rostra.model.ids import Partition


class IncomingEntry(msgspec.Struct, frozen=True, gc=False):
    batch: bytearray
    base: int
    end: int
    epoch: int
    flags: int


def read_entries(payload: bytearray, partition: Partition, checksum_seed: int) -> list[IncomingEntry]:
    """Splits a payload into checked batches; `checksum_seed` is the partition's."""
    found = read_intact(payload, checksum_seed)
    if found is not None:
        # One batch, as long as the follower keeps up.
        return [IncomingEntry(payload, *found)]
    at = 0
    whole = len(payload)
    entries: list[IncomingEntry] = []
    while at < whole:
        try:
            length = check_stored(payload, at, partition)
        except BatchRejected as rejected:
            raise PeerViolation("entries", rejected.detail) from None
        batch = payload if length == whole else payload[at : at + length]
        base, epoch, delta, flags = ARRIVED.unpack_from(batch, 8)
        entries.append(IncomingEntry(batch, base, base + delta + 1, epoch, flags))
        at += length
    return entries
