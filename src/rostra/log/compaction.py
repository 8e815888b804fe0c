"""Compaction by key: only the latest record of each key is kept.

A run reads sealed segments and writes compacted ones beside them; the log then replaces the old files by the new ones.
Every batch keeps its position in the sequence, its offsets, its owner epoch and its producer's stamp, even if none of
its records is left. So replicas of a partition that are compacted at different times still agree batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from rostra.errors import BatchRejected, CodecUnavailable, CorruptLog
from rostra.log.facts import LogSettings
from rostra.log.files import Buffer, File, Files
from rostra.log.index import Index
from rostra.log.open_files import OpenFiles
from rostra.log.scan import Damage, ScannedBatch, scan
from rostra.log.segment import Segment
from rostra.model.batch import Codec, Header, OwnerFlag, read_header, stamp
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import Partition
from rostra.model.layout import CONTROL, KEYS

SUPPRESSED = int(OwnerFlag.SUPPRESSED)
KEY_BYTES_MORE = 160
"""Approximate memory per remembered key, beyond the key itself."""
WRITE_BYTES = 1 << 20


class LatestOffsets:
    """The latest offset of each key. At its bound it takes no further keys; records of unknown keys are all kept."""

    def __init__(self, bytes_max: int) -> None:
        self._offsets: dict[bytes, tuple[int, bool]] = {}
        """Latest offset of the key, and whether it is the only record of that key."""
        self._bytes = 0
        self._bytes_max = bytes_max
        self.knows_all = True
        """False if the keys of some records could not be read: a tombstone may still be needed to hide one of them."""

    def add(self, key: bytes, offset: int) -> None:
        known = self._offsets.get(key)
        if known is None and self._bytes >= self._bytes_max:
            return
        if known is None:
            self._bytes += len(key) + KEY_BYTES_MORE
        if known is None or known[0] < offset:
            self._offsets[key] = offset, known is None

    def outdates(self, key: bytes, offset: int) -> bool:
        known = self._offsets.get(key)
        return known is not None and known[0] > offset

    def is_alone(self, key: bytes, offset: int) -> bool:
        return self.knows_all and self._offsets.get(key) == (offset, True)


class CompactionRun:
    """One run over the sealed segments of a log. `rewritten` pairs each segment that shrank with its replacement.

    After a crash the old segments are still complete; the next start removes unfinished files beside them.
    """

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        settings: LogSettings,
        partition: Partition,
        segments: tuple[Segment, ...],
        tombstones_us: int,
    ) -> None:
        self._files = files
        self._open_files = open_files
        self._settings = settings
        self._partition = partition
        self._tombstones_us = tombstones_us
        self.segments = segments
        self._latest = LatestOffsets(settings.compact_keys_bytes_max)
        self.rewritten: list[tuple[Segment, Segment]] = []

    # --- first pass: all keys ---

    def learn(self, segment: Segment) -> None:
        for _, batch in self._batches(segment):
            if not _has_keys(batch.header):
                continue
            try:
                for key, offset in zip(batch.keys(), batch.offsets(), strict=True):
                    if key is not None:
                        self._latest.add(key, offset)
            except (BatchRejected, CodecUnavailable):
                self._latest.knows_all = False

    # --- second pass: segment by segment ---

    def rewrite(self, segment: Segment) -> None:
        """Writes a compacted copy if that is smaller. The copy has a temporary name until the log replaces the
        segment."""
        fresh = Segment.successor(segment, Index(self._settings.index_every_bytes))
        file: File | None = None
        pending: list[Buffer] = []
        pending_bytes = 0
        for found, batch in self._batches(segment):
            changed = self._left_of(batch)
            if changed is not None and file is None:
                file = self._begin(segment, fresh, found.position)
            left: Buffer = batch.buffer if changed is None else changed
            fresh.note(fresh.bytes, read_header(left))
            if file is not None:
                pending.append(left)
                pending_bytes += len(left)
                if pending_bytes >= WRITE_BYTES:
                    file.append(pending)
                    pending, pending_bytes = [], 0
        if file is None:
            return
        file.append(pending)
        file.begin_sync()()
        if fresh.bytes < segment.bytes:
            self.rewritten.append((segment, fresh))
        else:
            self._files.remove(fresh.temporary_path)

    def _begin(self, segment: Segment, fresh: Segment, position: int) -> File:
        """Copies the bytes before the first batch that changes."""
        file = self._files.open(fresh.temporary_path, create=True)
        file.truncate(0)
        old = self._open_files.get(segment.path)
        for at in range(0, position, WRITE_BYTES):
            file.append([old.read(at, min(WRITE_BYTES, position - at))])
        return file

    def _left_of(self, batch: Batch) -> bytearray | None:
        """The batch without its outdated records; None if it has none."""
        header = batch.header
        if not _has_keys(header):
            return None
        try:
            kept = [place for place, stays in enumerate(self._stays(batch)) if stays]
            if len(kept) == header.count:
                return None
            return _only(batch, kept, self._partition)
        except (BatchRejected, CodecUnavailable):
            return None

    def _stays(self, batch: Batch) -> Iterator[bool]:
        latest, tombstones_us = self._latest, self._tombstones_us
        for key, value, offset, stamp_us in zip(
            batch.keys(), batch.values(), batch.offsets(), batch.timestamps(), strict=True
        ):
            if key is None:
                yield True
            elif value is None and stamp_us < tombstones_us:
                # Only when the records it hides are gone from disk: after a crash they could reappear without it.
                yield not latest.outdates(key, offset) and not latest.is_alone(key, offset)
            else:
                yield not latest.outdates(key, offset)

    def _batches(self, segment: Segment) -> Iterator[tuple[ScannedBatch, Batch]]:
        file = self._open_files.get(segment.path)
        settings = self._settings
        try:
            for found in scan(
                file, self._partition, segment.first, segment.bytes, settings.recover_chunk_bytes, settings.verifies
            ):
                yield found, Batch(file.read(found.position, found.header.length))
        except Damage as damage:
            raise CorruptLog(segment.path, damage.position, damage.detail) from None

    def abandon(self) -> None:
        """Removes the files that were written."""
        for segment in self.segments:
            path = Segment.successor(segment, None).temporary_path
            if self._files.exists(path):
                self._files.remove(path)


def _has_keys(header: Header) -> bool:
    """Batches that are never delivered (control, suppressed) replace nothing and are not compacted."""
    return bool(header.flags & KEYS and header.count) and not header.flags & CONTROL and not header.owner_flags


def _only(batch: Batch, kept: list[int], partition: Partition) -> bytearray:
    header = batch.header
    offsets, values, keys = batch.offsets(), batch.values(), batch.keys()
    headers, timestamps = batch.headers(), batch.timestamps()
    left = encode(
        [values[place] for place in kept],
        keys=[keys[place] for place in kept],
        headers=[headers[place] for place in kept],
        timestamp_us=header.base_timestamp_us,
        timestamps_us=[timestamps[place] for place in kept],
        producer=header.producer,
        producer_epoch=header.producer_epoch,
        sequence=header.sequence,
        codec=Codec(header.codec),
        offset_deltas=[offsets[place] - header.base_offset for place in kept],
    )
    stamp(
        left,
        partition=partition,
        base_offset=header.base_offset,
        owner_epoch=header.owner_epoch,
        owner_flags=header.owner_flags,
        last_offset_delta=header.last_offset_delta,
    )
    return left
