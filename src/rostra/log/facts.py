"""Settings of the log, and what it reports about partitions and segments."""

from __future__ import annotations

import builtins
from typing import NamedTuple

import msgspec

from rostra.model.ids import Partition


class LogSettings(msgspec.Struct, frozen=True):
    """Bounds and granularities. A larger `index_every_bytes` saves memory but makes reads scan more bytes."""

    index_every_bytes: int = 4096
    indexes_cached_max: int = 64
    files_open_max: int = 512
    syncs: bool = True
    """False where nothing waits for stable storage before the store is closed."""
    sync_together_min: int = 64
    """From this many dirty partitions on, one call syncs the whole file system, which then costs less."""
    journal_bytes: int = 1 << 20
    recover_chunk_bytes: int = 1 << 20
    compact_keys_bytes_max: int = 64 << 20
    """Approximate memory for the keys of a compaction; of keys beyond that every record is kept."""
    verifies: bool = True
    """False only in tests that switch the checksum safeguard off."""


class Chunk(NamedTuple):
    """Whole, checked batches; `next` is the offset after them."""

    batches: bytes
    next: int


class Durable(NamedTuple):
    """All of the partition below `offset` is on stable storage, if `generation` is still the partition's."""

    partition: Partition
    generation: int
    offset: int


class EpochRow(NamedTuple):
    """The first offset that an owner epoch wrote."""

    epoch: int
    offset: int


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """Who wrote the batch at `base` to `last`, and its place in that producer's sequence."""

    base: int
    last: int
    producer: int
    epoch: int
    sequence: int
    count: int


class SegmentFacts(msgspec.Struct, frozen=True):
    """A sealed segment; `next` is the first offset of the segment after it."""

    first: int
    next: int
    bytes: int
    max_us: int


class LogFacts(msgspec.Struct, frozen=True):
    """One partition as found on disk; all of it below `end` is fsynced.

    `checkpoint` is the record of the checkpoint batch at `checkpoint_at`, the first batch of the last segment. `stamps`
    describe the record batches after it; `controls` are the control batches after it with their base offsets.
    `segment_bytes` is the size of the active segment. A damaged log ends where its damage begins.
    """

    partition: Partition
    first: int
    end: int
    epochs: tuple[EpochRow, ...]
    damaged_at: int | None
    checkpoint: builtins.bytes | None
    stamps: tuple[Stamp, ...]
    segment_bytes: int
    bytes: int
    controls: tuple[tuple[int, builtins.bytes], ...] = ()
    checkpoint_at: int = 0


class RecoveryNote(msgspec.Struct, frozen=True):
    """Something that recovery found or did, for the log of the node.

    `event` is one of: tail_cut, segment_removed, damage_found, index_rebuilt, journal_cut.
    """

    event: str
    path: str
    position: int
    bytes: int
    offset: int
    detail: str


class Recovery(msgspec.Struct, frozen=True):
    """What a start found: hard state by key, the logs in order of partition, and whether the stop before was clean."""

    hard: dict[str, bytes]
    logs: tuple[LogFacts, ...]
    clean: bool
    notes: tuple[RecoveryNote, ...]
