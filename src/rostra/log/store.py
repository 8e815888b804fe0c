"""The store of a node: the logs of its partitions, and its hard state.

Besides `recover` and `close` only rare operations wait for the disk: a drop, a truncation, a trim and a rewrite of the
journal sync before they return. Other syncs are jobs that the caller runs on any thread. `read`, `inspect`, `find_last`
and `find_time` may be called from any thread, everything else from one thread only.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from rostra.errors import CorruptLog, DiskFull, DiskUntrusted, StorageError, UnknownPartition
from rostra.log.clean_mark import CleanEnd, take_clean_mark, write_clean_mark
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
        self._kept_open: dict[Partition, None] = {}
        """Dirty partitions whose files are kept open."""
        self._broken: DiskUntrusted | None = None

    # --- start and stop ----------------------------------------------------------------------------

    def recover(self) -> Recovery:
        """Loads the journal and recovers every partition; all that is kept is on stable storage when this returns."""
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
        clean = take_clean_mark(self._files)
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
        """A clean stop syncs everything and writes the clean-stop mark, unless a sync has failed."""
        if clean and self._broken is None:
            self._run(self.begin_sync(list(self._dirty)))
            self._run(self.begin_mark())
            try:
                write_clean_mark(self._files, self._clean_ends())
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
        """Creates an empty log that begins at `first`, if there is none."""
        assert segment_bytes > 0
        if partition not in self._logs:
            log = self._new_log(partition)
            try:
                log.begin(first)
            except OSError as error:
                raise storage_error(error) from error
            self._logs[partition] = log
            self._track_dirty(log)

    def drop(self, partition: Partition) -> None:
        """Deletes the log, its mark first: a mark without a log means a lost partition."""
        log = self._logs.pop(partition, None)
        if log is None:
            return
        self._dirty.pop(partition, None)
        self._kept_open.pop(partition, None)
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
        """Appends stamped batches; a checkpoint starts a new segment. If the disk refuses, `end` tells what was
        written."""
        log = self._logs[partition]
        try:
            log.append(batches)
        except DiskUntrusted as error:
            self._broken = error
            raise
        except StorageError:
            self._keep_open(log)
            raise
        if not log.kept_open:
            self._track_dirty(log)

    def _track_dirty(self, log: PartitionLog) -> None:
        self._keep_open(log)
        if len(self._kept_open) > self._settings.files_open_max:
            self._release_oldest()

    def _keep_open(self, log: PartitionLog) -> None:
        self._dirty[log.partition] = self._kept_open[log.partition] = None
        log.kept_open = True

    def read(self, partition: Partition, offset: int, end: int, bytes_max: int) -> Chunk:
        """Whole batches from the one that contains `offset` on: at least one if it is below `end`, none beyond that."""
        return self._log(partition).read(offset, end, bytes_max)

    def _log(self, partition: Partition) -> PartitionLog:
        """For look-ups, which may run while the log is dropped."""
        log = self._logs.get(partition)
        if log is None:
            raise UnknownPartition(text(partition.topic), partition.index)
        return log

    def find_last(self, partition: Partition, count: int, end: int) -> int:
        return self._log(partition).find_last(count, end)

    def find_time(self, partition: Partition, timestamp_us: int, end: int) -> int:
        return self._log(partition).find_time(timestamp_us, end)

    def inspect(self, partition: Partition) -> LogFacts:
        """What recovery would find in it now."""
        try:
            return self._log(partition).inspect()
        except OSError as error:
            raise storage_error(error) from error

    def truncate(self, partition: Partition, offset: int) -> int:
        """Cuts the end; returns the new generation. The marks are lowered before the bytes below them can change."""
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
        """Deletes whole segments below `first`."""
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
        """Compacts sealed segments below the offset: keeps the latest record of each key.

        Keys whose latest record is a tombstone from before `tombstones_us` are removed.
        """
        log = self._log(partition)
        run = log.plan_compaction(below, tombstones_us)
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
                # It is not known which of two files recovery would find.
                raise self._break(error) from error
            with suppress(OSError):
                run.abandon()
            return saved

        calls: list[Callable[[], None]] = [
            partial(trying, step, segment) for step in (run.learn, run.rewrite) for segment in run.segments
        ]
        return CompactJob(calls, finish)

    def sealed(self, partition: Partition) -> tuple[SegmentFacts, ...]:
        return self._log(partition).sealed()

    def end(self, partition: Partition) -> int:
        return self._logs[partition].end

    def first(self, partition: Partition) -> int:
        return self._logs[partition].first

    def bytes(self, partition: Partition) -> int:
        return self._logs[partition].size

    def segment_bytes(self, partition: Partition) -> int:
        """The size of the active segment."""
        return self._logs[partition].active.bytes

    def active_since_us(self, partition: Partition) -> int | None:
        """About when the records of the active segment begin; None if it has none."""
        return self._logs[partition].active.since_us

    def generation(self, partition: Partition) -> int:
        return self._log(partition).generation

    def generations_and_ends(self, partitions: Iterable[Partition]) -> list[tuple[Partition, int, int]]:
        """The generation and the end of each, for a sync that has nothing to do."""
        logs = map(self._logs.__getitem__, partitions)
        return [(log.partition, log.generation, log.end) for log in logs]

    # --- stable storage ----------------------------------------------------------------------------

    def begin_sync(self, partitions: Iterable[Partition]) -> SyncJob:
        """Makes what is written by now durable. `DiskFull` if the journal cannot be written; to be begun again
        later."""
        logs = [self._logs[partition] for partition in partitions if partition in self._logs]
        captured = [_SyncStart(log) for log in logs]
        self._mark((log.partition, SyncedMark(log.first, log.synced, log.end)) for log in logs if log.damage is None)
        calls = self._sync_all_calls(logs)
        together = bool(calls)
        if not together:
            calls += [partial(_in_order, log.begin_syncs()) for log in logs if log.dirty]
            directories = {path: log for log in logs for path in log.dirty_directories}
            calls += [partial(self._sync_directory, path, log) for path, log in directories.items()]
        finish_journal = self._add_journal(calls)

        def finish() -> list[Durable]:
            self._raise_if_broken()
            finish_journal()
            # A partition that was dropped meanwhile, and perhaps created again, is not the one that was synced.
            there = [then for then in captured if self._logs.get(then.log.partition) is then.log]
            for then in there:
                then.mark_synced(together)
                if not then.log.dirty:
                    self._dirty.pop(then.log.partition, None)
                    self._kept_open.pop(then.log.partition, None)
                    then.log.kept_open = False
            # Synced with the next job only: it survives a killed process, but perhaps not a power cut.
            with suppress(DiskFull):
                self._mark(self._caught_up(then.log) for then in there if then.log.damage is None)
            return [Durable(then.log.partition, then.generation, then.end) for then in there]

        return SyncJob([partial(self._guarded, call) for call in calls], finish)

    def _sync_all_calls(self, logs: list[PartitionLog]) -> list[Callable[[], None]]:
        """One call that syncs the file system, if many logs are dirty or files of theirs were released."""
        dirty = [log for log in logs if log.dirty]
        if len(dirty) < self._settings.sync_together_min and not any(log.releases for log in dirty):
            return []
        sync_all = self._files.begin_sync_all()
        if sync_all is None:
            return []
        # Segments of one log are synced in order, which the call for the file system does not promise.
        first = [sync for log in dirty if len(log.dirty) > 1 for sync in log.begin_syncs()]
        return [partial(_in_order, [*first, sync_all])]

    def _sync_directory(self, path: str, log: PartitionLog) -> None:
        try:
            self._files.sync_directory(path)
        except FileNotFoundError:
            # The partition was dropped since the job began.
            if self._logs.get(log.partition) is log:
                raise

    def begin_mark(self) -> SyncJob:
        """Makes the marks durable that the last sync has written, for a store that becomes idle.

        The job has no calls if there is nothing to do.
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
        """The current mark; `first` is the new start if retention is about to move it."""
        first = log.first if first is None else first
        known = self._journal.marks.get(log.partition) or SyncedMark(0, 0, 0)
        # A damaged log keeps its mark, so that the next start comes to the same result.
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

    def _release_oldest(self) -> None:
        """Too many files are open: releases those of the partition that was written to longest ago.

        A write error of a closed file would go unnoticed. A sync of the file system reports it; where there is no such
        call, all files are synced now instead; without syncs it does not matter.
        """
        if self._settings.syncs and self._files.begin_sync_all() is None:
            self._run(self.begin_sync(list(self._kept_open)))
            return
        oldest = next(iter(self._kept_open))
        del self._kept_open[oldest]
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
        """Refuses all further work: the system may have dropped what it could not write."""
        self._broken = DiskUntrusted(str(error))
        return self._broken

    def _raise_if_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _new_log(self, partition: Partition) -> PartitionLog:
        return PartitionLog(self._files, self._open_files, self._indexes, self._settings, partition)


class _SyncStart:
    """The state of a log when a sync of it began."""

    __slots__ = ("_dirty", "_releases", "_writes", "end", "generation", "log")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.generation = log.generation
        self.end = log.end
        self._writes = log.writes
        self._releases = log.releases
        self._dirty = {path: number for path, (_, number) in log.dirty.items()}

    def mark_synced(self, together: bool) -> None:
        """The sync has returned."""
        log = self.log
        log.mark_synced(self._dirty, self._writes)
        if together and log.releases == self._releases:
            log.releases = 0
        if log.generation == self.generation:
            log.synced = max(log.synced, self.end)


def _in_order(calls: list[Callable[[], None]]) -> None:
    """Segments in the order of their offsets: after a power cut none may be missing before a later one."""
    for call in calls:
        call()


def _parse_directory(name: str) -> Partition | None:
    match = _DIRECTORY_NAME.fullmatch(name)
    if match is None:
        return None
    return Partition(TopicId(int(match[1], 16)), PartitionIndex(int(match[2])))
