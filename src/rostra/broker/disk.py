"""Carries out a broker's disk effects on its log store; both drivers use it.

Writes are queued until `flush`, so that all batches of one turn go out in one write per partition. Operations that may
block (`Read`, `FindLast`, `FindTime`, `ListSegments`, `InspectLog`, syncs, hard state) come back as a `Job`, which the
driver runs on a thread of its choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

from rostra.broker.api import (
    Boot,
    BrokerInput,
    ClosedSegment,
    Compact,
    Compacted,
    FindLast,
    FindTime,
    InspectLog,
    ListSegments,
    LogInspected,
    OffsetFound,
    Persisted,
    ProducerStamp,
    RecoveredLog,
    SegmentsListed,
    SyncedTogether,
    SyncFailed,
)
from rostra.errors import DiskFull, DiskUntrusted, RostraError, StorageError, Unavailable
from rostra.fabric.api import (
    Append,
    Drop,
    EpochStart,
    Open,
    Persist,
    Read,
    ReadDone,
    ReadFailed,
    Recovered,
    Sync,
    Synced,
    Trim,
    Truncate,
    WriteFailed,
)
from rostra.log.facts import LogFacts, Recovery
from rostra.log.store import Store
from rostra.model.batch import read_header
from rostra.model.ids import Partition
from rostra.model.layout import CONTROL

LookUp = Read | FindLast | FindTime | ListSegments | InspectLog
Change = Open | Drop | Append | Truncate | Trim | Sync


class Job:
    """Blocking work. `calls` may run on any threads, in parallel; then `finish` on the driver's thread returns the
    inputs.

    If a call or `finish` raises `DiskUntrusted`, the driver passes `SyncFailed` to the broker.
    """

    __slots__ = ("calls", "finish")

    def __init__(self, calls: list[Callable[[], None]], finish: Callable[[], list[BrokerInput]]) -> None:
        self.calls = calls
        self.finish = finish


class Reserve(Protocol):
    """Space that is kept for the time when the disk is full."""

    def free(self) -> bool:
        """Frees it; False if there is none."""

    def keep(self) -> bool:
        """Takes it if there is space; whether it is there."""


class Disk:
    def __init__(self, store: Store, *, syncs: bool = True, reserve: Reserve | None = None) -> None:
        self.store = store
        self._reserve = reserve
        self._reserve_used = False
        """Records are refused until the reserve is there again; they would use it up, and no setting could change."""
        self._syncs = syncs
        self._queued: dict[Partition, list[bytearray]] = {}
        self._dirty: dict[Partition, None] = {}
        self._unopened: dict[Partition, Open] = {}
        self._inputs: list[BrokerInput] = []
        self.needs_flush = False
        """Whether anything is queued for `flush`."""
        self.full = False
        """Whether a write of records failed because the disk was full, and none has succeeded since."""
        self._truncate_failed: dict[Partition, None] = {}
        """Logs whose truncation failed: they are not what the broker believes, and stay unchanged until the next start.
        """

    def boot(self) -> tuple[Boot, Recovery]:
        recovery = self.store.recover()
        return Boot(recovery.hard, tuple(_recovered(facts) for facts in recovery.logs)), recovery

    @property
    def wants_sync(self) -> bool:
        """True also after `begin_sync` returned None because the disk is full: the driver retries later."""
        return bool(self._dirty)

    def change(self, effect: Change) -> None:
        self.needs_flush = True
        if self._truncate_failed and effect.partition in self._truncate_failed:
            return
        match effect:
            case Append():
                queued = self._queued.get(effect.partition)
                if queued is None:
                    self._queued[effect.partition] = [effect.batch]
                else:
                    queued.append(effect.batch)
                if effect.sync:
                    self._dirty[effect.partition] = None
            case Sync():
                self._dirty[effect.partition] = None
            case Open():
                self._unopened[effect.partition] = effect
                self._open(effect.partition)
            case Drop():
                self._queued.pop(effect.partition, None)
                self._dirty.pop(effect.partition, None)
                self._unopened.pop(effect.partition, None)
                self._attempt(lambda: self.store.drop(effect.partition))
            case Truncate():
                self._truncate(effect)
            case Trim():
                self._attempt(lambda: self.store.trim(effect.partition, effect.first))
            case _:
                assert_never(effect)

    def _truncate(self, effect: Truncate) -> None:
        """Writes queued batches first: some of them may lie below the cut."""
        partition = effect.partition
        queued = self._queued.pop(partition, None)
        failed = self._write(partition, queued) if queued else None
        if partition not in self._unopened:
            try:
                self.store.truncate(partition, effect.offset)
            except StorageError as error:
                # As serious as a failed sync: old records above the cut would be taken for those written there later.
                self._truncate_failed[partition] = None
                self._inputs.append(SyncFailed(error))
                return
            if failed is not None:
                failed = WriteFailed(
                    partition, self.store.end(partition), self.store.generation(partition), failed.error
                )
        if failed is not None:
            self._inputs.append(failed)

    def _open(self, partition: Partition) -> StorageError | None:
        """Creates the log. If the disk is full even for that, the topic exists and each publish tries again."""
        effect = self._unopened[partition]
        error = self._attempt(lambda: self.store.open(partition, effect.segment_bytes, effect.first))
        if error is None:
            del self._unopened[partition]
        return error

    def _attempt(self, action: Callable[[], object]) -> StorageError | None:
        """Runs an action that the next start would repeat if it fails; only a failed fsync is serious."""
        try:
            action()
        except DiskUntrusted as error:
            self._inputs.append(SyncFailed(error))
            self.needs_flush = True
            return error
        except StorageError as error:
            return error
        return None

    def flush(self) -> list[BrokerInput]:
        """Writes what is queued; returns failures, and `Synced` at once if syncs are off."""
        self.needs_flush = False
        inputs, self._inputs = self._inputs, []
        if self._queued:
            queued, self._queued = self._queued, {}
            for partition, batches in queued.items():
                failed = self._write(partition, batches)
                if failed is not None:
                    inputs.append(failed)
        if self._dirty and not self._syncs:
            dirty, self._dirty = self._dirty, {}
            reached = self.store.generations_and_ends(
                dirty if not self._unopened else [p for p in dirty if p not in self._unopened]
            )
            inputs += _combined([Synced(*durable) for durable in reached])
        return inputs

    def _write(self, partition: Partition, batches: list[bytearray]) -> WriteFailed | None:
        if partition in self._unopened:
            error = self._open(partition)
            if error is not None:
                return WriteFailed(partition, self._unopened[partition].first, 0, error)
        try:
            self._append(partition, batches)
            if self.full and not all(map(_is_control, batches)):
                self.full = False
        except StorageError as error:
            self.full = isinstance(error, DiskFull)
            return WriteFailed(partition, self.store.end(partition), self.store.generation(partition), error)
        return None

    def _append(self, partition: Partition, batches: list[bytearray]) -> None:
        """Control batches may use the reserve: without them no setting could be changed to free space."""
        reserve = self._reserve
        if self._reserve_used and reserve is not None and not all(map(_is_control, batches)):
            if not reserve.keep():
                raise DiskFull()
            self._reserve_used = False
        try:
            self.store.append(partition, batches)
        except DiskFull:
            if reserve is None or not all(map(_is_control, batches)) or not reserve.free():
                raise
            self.full = self._reserve_used = True
            self.store.append(partition, batches)

    def begin_sync(self) -> Job | None:
        """A sync of every dirty partition; None if there is none, or if the disk is too full to journal it."""
        if not self._dirty:
            return None
        dirty = list(self._dirty)
        try:
            job = self.store.begin_sync(dirty)
        except DiskFull:
            self.full = True
            return None
        except DiskUntrusted as error:
            self._dirty.clear()
            self._inputs.append(SyncFailed(error))
            self.needs_flush = True
            return None
        # Batches queued since the last flush are not in the files yet: they need another sync.
        self._dirty = {partition: None for partition in dirty if partition in self._queued}
        return Job(job.calls, lambda: _combined([Synced(*durable) for durable in job.finish()]))

    def begin_compaction(self, effect: Compact) -> Job:
        """Its calls run one after the other. If the disk refuses, the log stays as it was."""
        try:
            job = self.store.begin_compaction(effect.partition, effect.below, effect.tombstones_us)
        except RostraError:
            return Job([], lambda: [Compacted(effect.partition, 0)])
        return Job(job.calls, lambda: [Compacted(effect.partition, job.finish())])

    def begin_persist(self, effect: Persist) -> Job:
        """A failure to write hard state is as serious as a failed sync."""
        try:
            job = self.store.begin_persist(effect.key, effect.state)
        except StorageError as error:
            broke = SyncFailed(error)
            return Job([], lambda: [broke])

        def finish() -> list[BrokerInput]:
            job.finish()
            return [Persisted(effect.then)]

        return Job(job.calls, finish)

    def look_up(self, effect: LookUp) -> BrokerInput:
        """May run on another thread while the log is appended to."""
        if effect.partition in self._unopened:
            return self._no_answer(effect, Unavailable("", effect.partition.index, "its log is not created yet"))
        try:
            match effect:
                case Read():
                    chunk = self.store.read(effect.partition, effect.offset, effect.end, effect.bytes_max)
                    return ReadDone(effect.token, effect.partition, chunk.batches, chunk.next)
                case FindLast():
                    found = self.store.find_last(effect.partition, effect.count, effect.end)
                    return OffsetFound(effect.token, found)
                case FindTime():
                    found = self.store.find_time(effect.partition, effect.timestamp_us, effect.end)
                    return OffsetFound(effect.token, found)
                case ListSegments():
                    sealed = self.store.sealed(effect.partition)
                    facts = (ClosedSegment(one.first, one.next, one.bytes, one.max_us) for one in sealed)
                    return SegmentsListed(
                        effect.partition,
                        tuple(facts),
                        self.store.segment_bytes(effect.partition),
                        self.store.active_since_us(effect.partition),
                    )
                case InspectLog():
                    return self._inspect(effect.partition)
                case _:
                    assert_never(effect)
        except RostraError as error:
            return self._no_answer(effect, error)

    def _inspect(self, partition: Partition) -> LogInspected:
        # Read the generation first: if the log is truncated meanwhile, the broker drops this answer.
        generation = self.store.generation(partition)
        try:
            return LogInspected(partition, generation, _recovered(self.store.inspect(partition)))
        except RostraError as error:
            return LogInspected(partition, generation, error)

    def _no_answer(self, effect: LookUp, error: RostraError) -> BrokerInput:
        match effect:
            case Read() | FindLast() | FindTime():
                return ReadFailed(effect.token, effect.partition, error)
            case ListSegments():
                return SegmentsListed(effect.partition, ())
            case InspectLog():
                return LogInspected(effect.partition, 0, error)
            case _:
                assert_never(effect)


def _is_control(batch: bytearray) -> bool:
    return bool(read_header(batch).flags & CONTROL)


def _combined(syncs: list[Synced]) -> list[BrokerInput]:
    return [SyncedTogether(tuple(syncs))] if len(syncs) > 1 else [*syncs]


def _recovered(facts: LogFacts) -> RecoveredLog:
    epochs = tuple(EpochStart(epoch, offset) for epoch, offset in facts.epochs)
    return RecoveredLog(
        Recovered(facts.partition, facts.first, facts.end, epochs, facts.damaged_at),
        facts.checkpoint,
        tuple(ProducerStamp(s.base, s.last, s.producer, s.epoch, s.sequence, s.count) for s in facts.stamps),
        facts.segment_bytes,
        facts.bytes,
        facts.controls,
        facts.checkpoint_at,
    )
