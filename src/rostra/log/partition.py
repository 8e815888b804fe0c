"""The log of one partition: a list of segments, of which the last one is appended to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from errno import EDQUOT, ENOSPC
from operator import attrgetter
from struct import Struct
from typing import TypeVar

import msgspec
from crc32c import crc32c

from rostra.errors import BatchRejected, CorruptLog, DiskFailed, DiskFull, DiskUntrusted, OffsetTrimmed, StorageError
from rostra.log.compaction import CompactionRun
from rostra.log.facts import Chunk, EpochRow, LogFacts, LogSettings, SegmentFacts
from rostra.log.files import Buffer, File, Files
from rostra.log.index import NO_TIME_US, Index
from rostra.log.last_segment import LastSegment
from rostra.log.open_files import OpenFiles
from rostra.log.scan import Damage, scan, stored_length
from rostra.log.segment import CONTROL, Indexes, Segment
from rostra.model.batch import HEADER_BYTES, SUPPRESSED, OwnerFlag, last_offset
from rostra.model.decode import Batch
from rostra.model.ids import Partition, text

CHECKPOINT = int(OwnerFlag.CHECKPOINT)
_PLACED = Struct("<4xIQQIH30xH10xq")
"""length, base offset, owner epoch, last offset delta, owner flags, flags, maximum timestamp."""
_first = attrgetter("first")
T = TypeVar("T")


def directory_of(partition: Partition) -> str:
    return f"topics/{text(partition.topic)}-{partition.index}"


def storage_error(error: OSError) -> StorageError:
    """The error of the operating system as a typed error."""
    if error.errno in (ENOSPC, EDQUOT):
        return DiskFull()
    return DiskFailed(str(error))


class PartitionLog:
    """One thread, the owner, changes it; other threads read it at the same time without a lock.

    This is safe because readers only follow what is replaced as a whole or grows at its end: the tuple of segments is
    never changed in place, an index only gains entries, and `end` moves after the bytes below it are written and
    indexed. Truncation never goes below an `end` that a reader was given.
    """

    __slots__ = (
        "_files",
        "_indexes",
        "_open_files",
        "_refusal",
        "_replacements",
        "_settings",
        "damage",
        "damaged_at",
        "directory",
        "dirty",
        "dirty_directories",
        "end",
        "generation",
        "kept_open",
        "partition",
        "releases",
        "segments",
        "synced",
        "writes",
    )

    def __init__(
        self, files: Files, open_files: OpenFiles, indexes: Indexes, settings: LogSettings, partition: Partition
    ) -> None:
        self._files = files
        self._open_files = open_files
        self._indexes = indexes
        self._settings = settings
        self.partition = partition
        self.kept_open = False
        """Whether the store has it in its list of dirty logs with open files."""
        self.directory = directory_of(partition)
        self.segments: tuple[Segment, ...] = ()
        self.end = 0
        self.generation = 0
        self.synced = 0
        self.damage: CorruptLog | None = None
        self.damaged_at: int | None = None
        self._refusal: StorageError | None = None
        self.dirty: dict[str, tuple[File | None, int]] = {}
        """Files to sync, oldest first, each with the number of the last write to it; None if the file was released."""
        self.releases = 0
        """How often dirty files were released since the last sync of everything, which alone reports their write
        errors."""
        self.dirty_directories: list[str] = []
        self.writes = 0
        self._replacements = 0
        """Incremented when segments were compacted, before their old files are removed."""

    @property
    def first(self) -> int:
        return self.segments[0].first

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def epochs(self) -> tuple[EpochRow, ...]:
        rows: list[EpochRow] = []
        for segment in self.segments:
            for row in segment.epochs:
                if not rows or rows[-1].epoch != row.epoch:
                    rows.append(row)
        return tuple(rows)

    def sealed(self) -> tuple[SegmentFacts, ...]:
        return tuple(segment.facts() for segment in self.segments[:-1])

    def facts(self) -> LogFacts:
        """The log as a whole, without the content of the last segment, which `LastSegment` adds."""
        active = self.active
        return LogFacts(
            partition=self.partition,
            first=self.first,
            end=self.end,
            epochs=self.epochs(),
            damaged_at=self.damaged_at,
            checkpoint=None,
            stamps=(),
            segment_bytes=active.bytes,
            bytes=self.size,
            checkpoint_at=active.first,
        )

    # --- writing -----------------------------------------------------------------------------------

    def begin(self, first: int) -> None:
        """Creates an empty log; its directory entries become durable with its first sync."""
        self._files.make_directory(self.directory)
        self.dirty_directories += ["topics", self.directory]
        segment = self._new_segment(first)
        self._mark_dirty(segment, self._open_files.get(segment.path))
        self.segments = (segment,)
        self.end = first

    def append(self, batches: Sequence[Buffer]) -> None:
        """Writes all batches at once, or in one write on either side of a checkpoint, which starts a new segment."""
        if self._refusal is not None or self.damage is not None:
            raise self._refusal or self.damage or AssertionError
        if len(batches) == 1:
            # The loop below for one batch, which is the usual case with very many partitions.
            (batch,) = batches
            only = _PLACED.unpack_from(batch)
            assert only[1] == self.end and only[0] == len(batch), (only, self.end, len(batch))
            self._write(batches, [only])
            return
        placed = list(map(_PLACED.unpack_from, batches))
        end = self.end
        written = 0
        for at, (length, base, _, delta, owner_flags, _, _) in enumerate(placed):
            assert base == end and length == len(batches[at]), (base, end, length, len(batches[at]))
            end = base + delta + 1
            if owner_flags & CHECKPOINT:
                if at > written:
                    self._write(batches[written:at], placed[written:at])
                written = at
        if written:
            batches, placed = batches[written:], placed[written:]
        if placed:
            self._write(batches, placed)

    def _write(self, batches: Sequence[Buffer], placed: list[tuple[int, ...]]) -> None:
        old = self.segments[-1]
        rolls = bool(placed[0][4] & CHECKPOINT and old.bytes)
        try:
            segment = self._new_segment(self.end) if rolls else old
            path = segment.path
            # A file that is still to be synced is open: a look-up among all open files would take longer.
            file = (dirty[path][0] if path in (dirty := self.dirty) else None) or self._open_files.get(path)
            file.append(batches, segment.bytes)
        except OSError as error:
            refusal = storage_error(error)
            self._undo_write(rolls)
            if not isinstance(refusal, DiskFull):
                self._sync_undone(rolls)
            raise refusal from error
        self.writes = writes = self.writes + 1
        dirty[path] = (file, writes)
        if rolls:
            self.segments = (*self.segments, segment)
            self.dirty_directories.append(self.directory)
            self._indexes.seal(old, self.partition)
        crc = segment.headers_crc
        if crc is not None:
            for batch in batches:
                crc = crc32c(batch[:HEADER_BYTES], crc)
            segment.headers_crc = crc
        # Inlined: this runs once for every partition that is written to.
        index, position, end, max_us = segment.index, segment.bytes, self.end, segment.max_us
        assert index is not None
        for length, base, owner_epoch, delta, _, flags, batch_max_us in placed:
            if owner_epoch != segment.epoch_noted:
                segment.note_epoch(owner_epoch, base)
            if flags & CONTROL:
                batch_max_us = NO_TIME_US
            index.add(position, base, batch_max_us)
            if batch_max_us > max_us:
                max_us = batch_max_us
            position += length
            end = base + delta + 1
        segment.max_us = max_us
        segment.bytes = position
        segment.next = self.end = end

    def _mark_dirty(self, segment: Segment, file: File) -> None:
        self.writes += 1
        self.dirty[segment.path] = (file, self.writes)

    def release(self) -> None:
        """Releases the files to sync, because too many are open."""
        self.dirty = {path: (None, number) for path, (_, number) in self.dirty.items()}
        self.releases += 1
        self.kept_open = False

    def begin_syncs(self) -> list[Callable[[], None]]:
        """One call for each dirty file, in the order of their offsets."""
        return [(file or self._open_files.get(path)).begin_sync() for path, (file, _) in self.dirty.items()]

    def mark_synced(self, synced: dict[str, int], writes: int) -> None:
        """These files were synced as of these writes; later writes to them are still to be synced."""
        for path, number in synced.items():
            if path in self.dirty and self.dirty[path][1] == number:
                del self.dirty[path]
        if self.writes == writes:
            self.dirty_directories.clear()

    def _undo_write(self, rolls: bool) -> None:
        """Restores the log as it was; a segment that did not get its checkpoint is removed.

        This has to be synced before later writes count: after a crash the undone bytes could reappear.
        """
        try:
            if rolls:
                unfinished = Segment(self.directory, self.end, None)
                self._open_files.forget(unfinished.path)
                if self._files.exists(unfinished.path):
                    self._files.remove(unfinished.path)
                self.writes += 1
                self.dirty_directories.append(self.directory)
            else:
                file = self._open_files.get(self.active.path)
                file.truncate(self.active.bytes)
                self._mark_dirty(self.active, file)
        except OSError as error:
            # Bytes of the refused batch may follow the end: nothing may be written there before a recovery.
            self._refusal = DiskFailed(f"a refused write could not be undone: {error}")

    def _sync_undone(self, rolls: bool) -> None:
        """Syncs the undone write: a batch that was refused must not reappear after a crash, its offsets may be reused.

        With a full disk that does not matter, since the same batch is tried again.
        """
        try:
            if rolls:
                self._files.sync_directory(self.directory)
            else:
                self._open_files.get(self.active.path).begin_sync()()
        except OSError as error:
            raise DiskUntrusted(str(error)) from error

    def _new_segment(self, first: int) -> Segment:
        segment = Segment(self.directory, first, Index(self._settings.index_every_bytes))
        # After a crash a file of this name may exist that a truncation had removed.
        self._open_files.create(segment.path).truncate(0)
        return segment

    def truncate(self, offset: int) -> None:
        """Cuts the end to `offset`, a boundary between batches, durably.

        Later segments are removed first, durably: after a crash no segment may follow one that was cut.
        """
        self.generation += 1
        if offset >= self.end and self.damage is None:
            return
        assert offset >= self.first
        kept = [segment for segment in self.segments if segment.first < offset] or [self.segments[0]]
        self._remove_beyond(kept[-1])
        last = self._reopened(kept[-1], offset)
        file = self._open_files.get(last.path)
        self.segments = (*kept[:-1], last)
        self.end = offset
        self.synced = min(self.synced, offset)
        self.damage = self.damaged_at = None
        file.truncate(last.bytes)
        self._mark_dirty(last, file)
        file.begin_sync()()

    def _remove_beyond(self, last: Segment) -> None:
        for name in reversed(self._files.names(self.directory)):
            if name.split(".")[0] > f"{last.first:020}":
                path = f"{self.directory}/{name}"
                self._open_files.forget(path)
                self.dirty.pop(path, None)
                self._files.remove(path)
        for segment in self.segments:
            if segment.first >= last.first:
                self._indexes.forget(segment)
        if self._files.exists(last.index_path):
            self._files.remove(last.index_path)
        self._files.sync_directory(self.directory)

    def _reopened(self, segment: Segment, offset: int) -> Segment:
        """The segment cut to the offset, as the active one."""
        cut = Segment(self.directory, segment.first, Index(self._settings.index_every_bytes), segment.version)
        if offset == segment.first:
            return cut
        index = segment.index or self._indexes.rebuild(segment, self.partition)
        self._indexes.forget(segment)
        entry = index.stride_of(offset - 1)
        cut.index = index.cut(index.positions[entry] + 1)
        cut.epochs = [row for row in segment.epochs if row.offset < index.offsets[entry]]
        # May be later than the remaining records: retention keeps the segment longer, a search by time scans further.
        cut.max_us = segment.max_us
        cut.headers_crc = None
        for at, batch in self._stride(segment, index, entry):
            if batch.base_offset >= offset:
                break
            cut.note(at, batch.header)
        assert cut.next == offset, (cut.next, offset)
        return cut

    def trim(self, first: int) -> None:
        """Deletes the segments below `first`; the caller has made the new start durable."""
        gone = [s for s, following in zip(self.segments, self.segments[1:], strict=False) if following.first <= first]
        self.segments = self.segments[len(gone) :]
        for segment in gone:
            self.dirty.pop(segment.path, None)
            self._indexes.forget(segment)
            for path in (segment.path, segment.index_path):
                self._open_files.forget(path)
                if self._files.exists(path):
                    self._files.remove(path)

    def plan_compaction(self, below: int, tombstones_us: int) -> CompactionRun:
        """A compaction of the segments that are sealed, on stable storage and entirely below the offset."""
        below = min(below, self.synced)
        segments = tuple(segment for segment in self.segments[:-1] if segment.next <= below)
        return CompactionRun(self._files, self._open_files, self._settings, self.partition, segments, tombstones_us)

    def replace(self, run: CompactionRun) -> int:
        """Replaces segments that still exist by their compacted copies; returns how many bytes that saved.

        The new names are durable before the old files are removed, so a start finds at least one of the two; of both it
        keeps the later version.
        """
        there = [(old, fresh) for old, fresh in run.rewritten if old in self.segments[:-1]]
        for _, fresh in there:
            self._files.rename(fresh.temporary_path, fresh.path)
            self._indexes.seal(fresh, self.partition)
        if there:
            self._files.sync_directory(self.directory)
        replaced = {old.first: fresh for old, fresh in there}
        self.segments = tuple(replaced.get(segment.first, segment) for segment in self.segments)
        self._replacements += 1
        for old, _ in there:
            self._indexes.forget(old)
            for path in (old.path, old.index_path):
                self._open_files.forget(path)
                if self._files.exists(path):
                    self._files.remove(path)
        return sum(old.bytes - fresh.bytes for old, fresh in there)

    # --- reading -----------------------------------------------------------------------------------

    def read(self, offset: int, end: int, bytes_max: int) -> Chunk:
        return self._retry_if_replaced(lambda: self._read(offset, end, bytes_max))

    def _retry_if_replaced(self, look: Callable[[], T]) -> T:
        """Looks again if the files were replaced by compacted ones meanwhile."""
        while True:
            replacements = self._replacements
            try:
                return look()
            except OffsetTrimmed:
                if self._replacements == replacements:
                    raise

    def _read(self, offset: int, end: int, bytes_max: int) -> Chunk:
        at_end = self.end
        segments = self.segments
        if offset < segments[0].first:
            raise OffsetTrimmed(offset, segments[0].first)
        if offset >= min(end, at_end):
            if self.damage is not None and at_end < end:
                raise self.damage
            return Chunk(b"", offset)
        segment = segments[bisect_right(segments, offset, key=_first) - 1]
        try:
            return self._read_segment(segment, offset, min(end, at_end), bytes_max)
        except CorruptLog:
            if segment is segments[-1]:
                raise
            # The index may be wrong; rebuild it from the segment.
            self._indexes.rebuild(segment, self.partition)
            return self._read_segment(segment, offset, min(end, at_end), bytes_max)

    def _read_segment(self, segment: Segment, offset: int, end: int, bytes_max: int) -> Chunk:
        segment_bytes = segment.bytes
        base, start, stop = self._index_of(segment).span(offset, end, bytes_max, segment_bytes)
        buffer = self._read_file(segment, start, stop - start)
        at, begin, size = 0, -1, len(buffer)
        while at < size:
            try:
                length = self._check(segment, start, buffer, at, base)
            except CorruptLog:
                if begin < 0:
                    raise
                break
            following = last_offset(buffer, at) + 1
            if following > end:
                break
            if begin < 0:
                if following > offset:
                    begin = at
            elif at + length - begin > bytes_max:
                break
            base = following
            at += length
        if begin < 0:
            raise CorruptLog(segment.path, start + at, f"offset {offset} is not where the index says")
        return Chunk(buffer if begin == 0 and at == size else buffer[begin:at], base)

    def _check(self, segment: Segment, start: int, buffer: bytes, at: int, base: int) -> int:
        try:
            length = stored_length(buffer, at, self.partition, self._settings.verifies)
        except BatchRejected as rejection:
            raise CorruptLog(segment.path, start + at, rejection.detail) from None
        found = int.from_bytes(buffer[at + 8 : at + 16], "little")
        if found != base:
            raise CorruptLog(segment.path, start + at, f"offset {found} found where {base} was expected")
        return length

    def _read_file(self, segment: Segment, position: int, count: int) -> bytes:
        try:
            buffer = self._open_files.get(segment.path).read(position, count)
        except FileNotFoundError:
            # Trimmed meanwhile, or removed by hand.
            raise OffsetTrimmed(segment.first, self.first) from None
        except OSError as error:
            raise storage_error(error) from error
        if len(buffer) < count:
            raise CorruptLog(segment.path, position + len(buffer), "the file ends too early")
        return buffer

    def _index_of(self, segment: Segment) -> Index:
        try:
            return self._indexes.get(segment, self.partition)
        except FileNotFoundError:
            raise OffsetTrimmed(segment.first, self.first) from None

    def _stride(self, segment: Segment, index: Index, entry: int) -> Iterator[tuple[int, Batch]]:
        """The batches from one index entry to the next, checked."""
        start, base = index.positions[entry], index.offsets[entry]
        buffer = self._read_file(segment, start, index.stride_end(entry, segment.bytes) - start)
        at = 0
        while at < len(buffer):
            length = self._check(segment, start, buffer, at, base)
            batch = Batch(buffer, at)
            yield start + at, batch
            base = batch.next_offset
            at += length

    def inspect(self) -> LogFacts:
        """What recovery would find, as far as is written now."""
        path = self.active.path
        facts = self.facts()
        file = self._open_files.get(path)
        last = LastSegment()
        end = facts.checkpoint_at
        settings = self._settings
        found_all = scan(
            file,
            self.partition,
            facts.checkpoint_at,
            facts.segment_bytes,
            settings.recover_chunk_bytes,
            settings.verifies,
        )
        try:
            for found in found_all:
                last.note(found)
                end = found.header.next_offset
        except Damage as damage:
            raise CorruptLog(path, damage.position, damage.detail) from None
        return msgspec.structs.replace(last.add_to(facts, file.read), end=end)

    def find_last(self, count: int, end: int) -> int:
        """The offset from which `count` records are left below `end`; records that are never delivered do not count."""
        return self._retry_if_replaced(lambda: self._find_last(count, end))

    def _find_last(self, count: int, end: int) -> int:
        at_end = min(end, self.end)
        if count <= 0:
            return at_end
        segments = self.segments
        for segment in reversed(segments):
            if segment.first >= at_end or not segment.bytes:
                continue
            index = self._index_of(segment)
            for entry in range(index.stride_of(at_end - 1), -1, -1):
                for _, batch in reversed(list(self._stride(segment, index, entry))):
                    header = batch.header
                    if header.next_offset > at_end or header.flags & CONTROL or header.owner_flags & SUPPRESSED:
                        continue
                    if header.count >= count:
                        return batch.offsets()[-count]
                    count -= header.count
        return segments[0].first

    def find_time(self, timestamp_us: int, end: int) -> int:
        """The first deliverable record below `end` at or after the timestamp; the end if there is none."""
        return self._retry_if_replaced(lambda: self._find_time(timestamp_us, end))

    def _find_time(self, timestamp_us: int, end: int) -> int:
        at_end = min(end, self.end)
        for segment in self.segments:
            if segment.max_us < timestamp_us or not segment.bytes:
                continue
            if segment.first >= at_end:
                break
            index = self._index_of(segment)
            for entry in range(index.stride_of_time(timestamp_us), len(index)):
                for _, batch in self._stride(segment, index, entry):
                    header = batch.header
                    if header.next_offset > at_end:
                        return at_end
                    if header.flags & CONTROL or header.owner_flags & SUPPRESSED:
                        continue
                    if header.max_timestamp_us < timestamp_us:
                        continue
                    found = _first_at(batch, timestamp_us)
                    if found is not None:
                        return found
        return at_end


def _first_at(batch: Batch, timestamp_us: int) -> int | None:
    """None if compaction removed it. Nodes do not decompress bodies when they store them, so one may be malformed; its
    readers will reject it."""
    try:
        stamps = zip(batch.offsets(), batch.timestamps(), strict=True)
        return next((offset for offset, stamp_us in stamps if stamp_us >= timestamp_us), None)
    except BatchRejected:
        return batch.base_offset
