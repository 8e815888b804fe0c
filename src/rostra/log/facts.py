"""What the log says about itself, and the bounds it keeps."""

from __future__ import annotations

import builtins
from typing import NamedTuple

import msgspec

from rostra.model.ids import Partition


class LogSettings(msgspec.Struct, frozen=True):
    """Bounds and granularities. `index_every_bytes` trades memory for the bytes a read has to walk over."""

    index_every_bytes: int = 4096
    indexes_cached_max: int = 64
    files_open_max: int = 512
    syncs: bool = True
    """False where nobody waits for stable storage before the store is closed."""
    sync_together_min: int = 64
    """From so many partitions on, one call syncs the whole file system: one by one, each would cost as much."""
    journal_bytes: int = 1 << 20
    recover_chunk_bytes: int = 1 << 20
    compact_keys_bytes_max: int = 64 << 20
    """What compaction remembers of keys, about; of keys beyond that every record stays."""
    verifies: bool = True
    """False only where a test takes the checksum safeguard away."""


class Chunk(NamedTuple):
    """Whole, checked batches; `next` is the offset behind them."""

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
    """A closed segment; `next` is the first offset of the segment behind it."""

    first: int
    next: int
    bytes: int
    max_us: int


class LogFacts(msgspec.Struct, frozen=True):
    """One partition as found on disk; all of it below `end` is fsynced.

    `checkpoint` is the record of the checkpoint batch at `checkpoint_at`, which begins the last segment; `stamps` are
    of the batches of records behind it, `controls` those of the broker itself, with their base offsets. `segment_bytes`
    is the size of the active segment. A damaged log ends where its damage begins.
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
    """Something recovery found or did that a person should be able to read about.

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
