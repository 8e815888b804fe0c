"""The store of a node: the logs of its partitions, and its hard state.

Beside `recover` and `close` nothing here waits for a disk, except what is rare: a drop, a truncation, a trim, and the
journal's renewal sync before they return. Everything but `read`, `recall`, `find_last` and `find_time` belongs to one
thread.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from rostra.errors import CorruptLog, DiskFull, DiskUntrusted, StorageError, UnknownPartition
from rostra.log.clean import CleanEnd, take_clean, write_clean
from rostra.log.facts import Chunk, Durable, LogFacts, LogSettings, Recovery, SegmentFacts
from rostra.log.files import Buffer, Files
from rostra.log.jobs import CompactJob, PersistJob, SyncJob
from rostra.log.journal import PATH as JOURNAL_PATH
from rostra.log.journal import Journal, SyncedMark
from rostra.log.open_files import OpenFiles
from rostra.log.partition import PartitionLog, storage_error
from rostra.log.recovery import PartitionRecovery
from rostra.log.segment import Indexes, Segment
from rostra.model.ids import Partition, PartitionIndex, TopicId, text
from rostra.safeguards import ALL_ON, Safeguard, Without

_DIRECTORY_NAME = re.compile(r"([0-9a-f]{16})-(0|[1-9][0-9]*)")


class Store:
    def __init__(self, files: Files, settings: LogSettings | None = None, without: Without = ALL_ON) -> None:
        self._files = files
        settings = settings or LogSettings()
        if Safeguard.CHECKSUM in without:
            settings = msgspec.structs.replace(settings, verifies=False)
        self._settings = settings
        self._open_files = OpenFiles(files, self._settings.files_open_max)
        self._indexes = Indexes(files, self._open_files, self._settings)
        self._journal = Journal(files, self._settings.journal_bytes)
        self._logs: dict[Partition, PartitionLog] = {}
        self._dirty: dict[Partition, None] = {}
        self._holding: dict[Partition, None] = {}
        """Those of the dirty ones that keep their files open."""
        self._broken: DiskUntrusted | None = None

    # --- start and stop ----------------------------------------------------------------------------

    def recover(self) -> Recovery:
        """Everything that is kept is on stable storage when this returns."""
        try:
            return self._recover()
        except OSError as error:
            raise storage_error(error) from error

    def _recover(self) -> Recovery:
        self._files.make_directory("topics")
        names = self._files.names("topics")
        if names and not self._files.exists(JOURNAL_PATH):
            raise CorruptLog(JOURNAL_PATH, 0, "it is missing, with the hard state of this node")
        notes = self._journal.load()
        clean = take_clean(self._files)
        marks = dict(self._journal.marks)
        found = [partition for partition in map(_parse_directory, names) if partition is not None]
        facts: list[LogFacts] = []
        for partition in sorted({*found, *(lost for lost, mark in marks.items() if mark.synced)}):
            recovered = self._recover_partition(partition, (clean or {}).get(partition))
            notes += recovered.notes
            if partition in self._logs:
                facts.append(recovered.facts())
        self._journal.mark(
            (partition, mark) for partition, mark in self._journal.marks.items() if marks.get(partition) != mark
        )
        self._journal.sync()
        return Recovery(dict(self._journal.state), tuple(facts), clean is not None, tuple(notes))

    def _recover_partition(self, partition: Partition, clean: CleanEnd | None) -> PartitionRecovery:
        log = self._new_log(partition)
        recovering = PartitionRecovery(
            self._files, self._open_files, self._indexes, self._settings, log, self._journal.marks.get(partition), clean
        )
        if recovering.run():
            self._logs[partition] = log
            self._journal.marks[partition] = recovering.mark()
        elif partition in self._journal.marks:
            self._journal.forget(partition)
        return recovering

    def close(self, clean: bool) -> None:
        """A clean stop syncs everything and says so on disk; after a failed sync there is none."""
        if clean and self._broken is None:
            self._run(self.begin_sync(list(self._dirty)))
            self._run(self.begin_mark())
            try:
                write_clean(self._files, self._clean_ends())
            except OSError as error:
                raise storage_error(error) from error
        self._journal.close()
        self._open_files.forget_all()

    def _clean_ends(self) -> dict[Partition, CleanEnd]:
        return {
            partition: CleanEnd(log.end, log.active.bytes, log.active.headers_crc)
            for partition, log in self._logs.items()
            if log.damage is None and log.active.headers_crc is not None
        }

    # --- logs --------------------------------------------------------------------------------------

    def open(self, partition: Partition, segment_bytes: int, first: int = 0) -> None:
        """Make the log, empty, beginning at `first`, if there is none."""
        assert segment_bytes > 0
        if partition not in self._logs:
            log = self._new_log(partition)
            try:
                log.begin(first)
            except OSError as error:
                raise storage_error(error) from error
            self._logs[partition] = log
            self._soiled(log)

    def drop(self, partition: Partition) -> None:
        """Delete the log. Its mark goes first: a mark without a log is a lost partition."""
        log = self._logs.pop(partition, None)
        if log is None:
            return
        self._dirty.pop(partition, None)
        self._holding.pop(partition, None)
        self._write_journal(lambda: self._journal.forget(partition), sync=True)
        for segment in log.segments:
            self._open_files.forget(segment.path)
            self._indexes.forget(segment)
        try:
            self._files.remove_directory(log.directory)
            self._files.sync_directory("topics")
        except OSError as error:
            raise storage_error(error) from error

    def append(self, partition: Partition, batches: Sequence[Buffer]) -> None:
        """Stamped batches at the end; a checkpoint begins a segment. If the disk refuses, `end` says what is there."""
        log = self._logs[partition]
        try:
            log.append(batches)
        except DiskUntrusted as error:
            self._broken = error
            raise
        except StorageError:
            self._hold(log)
            raise
        if not log.held:
            self._soiled(log)

    def _soiled(self, log: PartitionLog) -> None:
        self._hold(log)
        if len(self._holding) > self._settings.files_open_max:
            self._let_go()

    def _hold(self, log: PartitionLog) -> None:
        self._dirty[log.partition] = self._holding[log.partition] = None
        log.held = True

    def read(self, partition: Partition, offset: int, end: int, bytes_max: int) -> Chunk:
        """Whole batches from the one that holds `offset` on: at least one if it is below `end`, none beyond that."""
        return self._there(partition).read(offset, end, bytes_max)

    def _there(self, partition: Partition) -> PartitionLog:
        """For lookups, which may have been under way when the log was dropped."""
        log = self._logs.get(partition)
        if log is None:
            raise UnknownPartition(text(partition.topic), partition.index)
        return log

    def find_last(self, partition: Partition, count: int, end: int) -> int:
        return self._there(partition).find_last(count, end)

    def find_time(self, partition: Partition, timestamp_us: int, end: int) -> int:
        return self._there(partition).find_time(timestamp_us, end)

    def recall(self, partition: Partition) -> LogFacts:
        """What a start would find in it now."""
        try:
            return self._there(partition).look_again()
        except OSError as error:
            raise storage_error(error) from error

    def truncate(self, partition: Partition, offset: int) -> int:
        """Cut the end; returns the new generation. The marks are lowered before the bytes they vouch for can change."""
        log = self._logs[partition]
        mark = self._journal.marks.get(partition)
        if mark is not None and offset < max(mark.synced, mark.syncing):
            lowered = SyncedMark(mark.first, min(mark.synced, offset), offset)
            self._write_journal(lambda: self._journal.mark([(partition, lowered)]), sync=True)
        try:
            log.truncate(offset)
        except OSError as error:
            raise self._break(error) from error
        return log.generation

    def trim(self, partition: Partition, first: int) -> None:
        """Delete whole segments below `first`."""
        log = self._logs[partition]
        start = max((s.next for s in log.sealed() if s.next <= first), default=log.first)
        if start == log.first:
            return
        self._write_journal(lambda: self._journal.mark([self._caught_up(log, start)]), sync=True)
        try:
            log.trim(start)
        except OSError as error:
            raise storage_error(error) from error

    def begin_compaction(self, partition: Partition, below: int, tombstones_us: int) -> CompactJob:
        """Of records with the same key below the offset, keep the latest, as far as they are in sealed segments.

        Of keys whose last record is a tombstone from before `tombstones_us`, keep none.
        """
        log = self._there(partition)
        run = log.compacting(below, tombstones_us)
        failed: list[Exception] = []

        def trying(step: Callable[[Segment], None], segment: Segment) -> None:
            if not failed:
                try:
                    step(segment)
                except (OSError, StorageError) as error:
                    failed.append(error)

        def finish() -> int:
            self._raise_if_broken()
            try:
                stands = not failed and self._logs.get(partition) is log and log.damage is None
                saved = log.replace(run) if stands else 0
            except OSError as error:
                # Which of two files a start would find is not known.
                raise self._break(error) from error
            with suppress(OSError):
                run.abandon()
            return saved

        calls: list[Callable[[], None]] = [
            partial(trying, step, segment) for step in (run.learn, run.rewrite) for segment in run.segments
        ]
        return CompactJob(calls, finish)

    def sealed(self, partition: Partition) -> tuple[SegmentFacts, ...]:
        return self._there(partition).sealed()

    def end(self, partition: Partition) -> int:
        return self._logs[partition].end

    def first(self, partition: Partition) -> int:
        return self._logs[partition].first

    def bytes(self, partition: Partition) -> int:
        return self._logs[partition].size

    def segment_bytes(self, partition: Partition) -> int:
        """The size of the active segment."""
        return self._logs[partition].active.bytes

    def generation(self, partition: Partition) -> int:
        return self._there(partition).generation

    def reached(self, partitions: Iterable[Partition]) -> list[tuple[Partition, int, int]]:
        """The generation and the end of each, as a sync that finds nothing to do says them."""
        logs = map(self._logs.__getitem__, partitions)
        return [(log.partition, log.generation, log.end) for log in logs]

    # --- stable storage ----------------------------------------------------------------------------

    def begin_sync(self, partitions: Iterable[Partition]) -> SyncJob:
        """Make what is written by now durable. `DiskFull` if not even the journal can say so; begin again later."""
        logs = [self._logs[partition] for partition in partitions if partition in self._logs]
        captured = [_Captured(log) for log in logs]
        self._mark((log.partition, SyncedMark(log.first, log.synced, log.end)) for log in logs if log.damage is None)
        calls = self._together(logs)
        together = bool(calls)
        if not together:
            calls += [partial(_one_by_one, log.begin_syncs()) for log in logs if log.dirty]
            directories = {path: log for log in logs for path in log.dirty_directories}
            calls += [partial(self._sync_directory, path, log) for path, log in directories.items()]
        finish_journal = self._add_journal(calls)

        def finish() -> list[Durable]:
            self._raise_if_broken()
            finish_journal()
            # A partition dropped meanwhile, and perhaps made anew, is not the one that was synced.
            there = [then for then in captured if self._logs.get(then.log.partition) is then.log]
            for then in there:
                then.wash(together)
                if not then.log.dirty:
                    self._dirty.pop(then.log.partition, None)
                    self._holding.pop(then.log.partition, None)
                    then.log.held = False
            # Not synced before the next job: a killed process leaves it behind all the same, a power cut may not.
            with suppress(DiskFull):
                self._mark(self._caught_up(then.log) for then in there if then.log.damage is None)
            return [Durable(then.log.partition, then.generation, then.end) for then in there]

        return SyncJob([partial(self._guarded, call) for call in calls], finish)

    def _together(self, logs: list[PartitionLog]) -> list[Callable[[], None]]:
        """One call for all of them, where they are many, or where files of theirs are not open any more."""
        dirty = [log for log in logs if log.dirty]
        if len(dirty) < self._settings.sync_together_min and not any(log.releases for log in dirty):
            return []
        sync_all = self._files.begin_sync_all()
        if sync_all is None:
            return []
        # Segments of one log keep their order, which the call for all of them does not promise.
        first = [sync for log in dirty if len(log.dirty) > 1 for sync in log.begin_syncs()]
        return [partial(_one_by_one, [*first, sync_all])]

    def _sync_directory(self, path: str, log: PartitionLog) -> None:
        try:
            self._files.sync_directory(path)
        except FileNotFoundError:
            # Dropped since the job began: there is nothing left to vouch for.
            if self._logs.get(log.partition) is log:
                raise

    def begin_mark(self) -> SyncJob:
        """Make the known-synced marks durable that the last sync left behind: for a store that falls idle.

        It has no calls when there is nothing to do.
        """
        self._mark(self._caught_up(log) for log in self._logs.values() if log.damage is None)
        calls: list[Callable[[], None]] = []
        finish_journal = self._add_journal(calls)

        def finish() -> list[Durable]:
            self._raise_if_broken()
            finish_journal()
            return []

        return SyncJob([partial(self._guarded, call) for call in calls], finish)

    def begin_persist(self, key: str, value: builtins.bytes) -> PersistJob:
        self._write_journal(lambda: self._journal.put(key, value), sync=False)
        call, finish_journal = self._journal.begin_sync()

        def finish() -> None:
            self._raise_if_broken()
            finish_journal()

        return PersistJob([partial(self._guarded, call)], finish)

    def _caught_up(self, log: PartitionLog, first: int | None = None) -> tuple[Partition, SyncedMark]:
        """What is known now; retention is about to move the start to `first`."""
        first = log.first if first is None else first
        known = self._journal.marks.get(log.partition) or SyncedMark(0, 0, 0)
        # A damaged log keeps its marks: the next start must judge it the same way.
        synced = max(log.synced if log.damage is None else known.synced, first)
        return log.partition, SyncedMark(first, synced, max(synced, known.syncing))

    def _mark(self, marks: Iterable[tuple[Partition, SyncedMark]]) -> None:
        known = self._journal.marks
        changed = [(partition, mark) for partition, mark in marks if known.get(partition) != mark]
        self._raise_if_broken()
        if changed:
            self._write_journal(lambda: self._journal.mark(changed), sync=False)

    def _add_journal(self, calls: list[Callable[[], None]]) -> Callable[[], None]:
        if self._journal.is_durable:
            return lambda: None
        call, finish = self._journal.begin_sync()
        calls.append(call)
        return finish

    def _let_go(self) -> None:
        """So many files may be open: of those not yet synced, the partition's that was written to longest ago goes.

        Who closes a file may never hear that it could not be written. A sync of everything tells; without one, all are
        synced here and now; and where nothing is vouched for, nobody asks.
        """
        if self._settings.syncs and self._files.begin_sync_all() is None:
            self._run(self.begin_sync(list(self._holding)))
            return
        oldest = next(iter(self._holding))
        del self._holding[oldest]
        self._logs[oldest].release()

    def _run(self, job: SyncJob) -> None:
        job.run()
        job.finish()

    def _write_journal(self, write: Callable[[], None], *, sync: bool) -> None:
        self._raise_if_broken()
        try:
            write()
            if sync:
                self._journal.sync()
        except OSError as error:
            full = storage_error(error)
            raise (full if isinstance(full, DiskFull) else self._break(error)) from error

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError as error:
            raise self._break(error) from error

    def _break(self, error: OSError) -> DiskUntrusted:
        """From now on nothing is vouched for: the system may have dropped what it could not write."""
        self._broken = DiskUntrusted(str(error))
        return self._broken

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _new_log(self, partition: Partition) -> PartitionLog:
        return PartitionLog(self._files, self._open_files, self._indexes, self._settings, partition)


class _Captured:
    """A log as it was when a sync of it began."""

    __slots__ = ("_dirty", "_releases", "_writes", "end", "generation", "log")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.generation = log.generation
        self.end = log.end
        self._writes = log.writes
        self._releases = log.releases
        self._dirty = {path: number for path, (_, number) in log.dirty.items()}

    def wash(self, together: bool) -> None:
        """The sync has returned."""
        log = self.log
        log.wash(self._dirty, self._writes)
        if together and log.releases == self._releases:
            log.releases = 0
        if log.generation == self.generation:
            log.synced = max(log.synced, self.end)


def _one_by_one(calls: list[Callable[[], None]]) -> None:
    """Segments in the order of their offsets: a power cut in between must not leave a later one without an earlier."""
    for call in calls:
        call()


def _parse_directory(name: str) -> Partition | None:
    match = _DIRECTORY_NAME.fullmatch(name)
    if match is None:
        return None
    return Partition(TopicId(int(match[1], 16)), PartitionIndex(int(match[2])))
