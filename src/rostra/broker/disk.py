"""Carrying out a broker's disk effects on its log: the one piece of driver that both drivers share.

Writes gather until `flush`, so that all batches of one turn go out in one write per partition. What may take long
(`Read`, `FindLast`, `FindTime`, `ListSegments`, `InspectLog`, syncs, hard state) comes back as a job that the driver
runs where it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

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
from rostra.model.ids import Partition

LookUp = Read | FindLast | FindTime | ListSegments | InspectLog
Change = Open | Drop | Append | Truncate | Trim | Sync


class Job:
    """Work that blocks. `calls` may run anywhere, in parallel; then `finish` on the driver's thread gives the inputs.

    A call or `finish` that raises `DiskUntrusted` is answered with `SyncFailed`.
    """

    __slots__ = ("calls", "finish")

    def __init__(self, calls: list[Callable[[], None]], finish: Callable[[], list[BrokerInput]]) -> None:
        self.calls = calls
        self.finish = finish


class Disk:
    def __init__(self, store: Store, *, syncs: bool = True) -> None:
        self.store = store
        self._syncs = syncs
        self._queued: dict[Partition, list[bytearray]] = {}
        self._dirty: dict[Partition, None] = {}
        self._unopened: dict[Partition, Open] = {}
        self._happened: list[BrokerInput] = []
        self.stirred = False
        """Whether there is anything to flush."""
        self._uncut: dict[Partition, None] = {}
        """Logs whose end could not be cut: they are not what was said, and are left alone until the next start."""

    def boot(self) -> tuple[Boot, Recovery]:
        recovery = self.store.recover()
        return Boot(recovery.hard, tuple(_recovered(facts) for facts in recovery.logs)), recovery

    @property
    def wants_sync(self) -> bool:
        """True also after `begin_sync` gave nothing because the disk is full: the driver tries again a little later."""
        return bool(self._dirty)

    def change(self, effect: Change) -> None:
        self.stirred = True
        if self._uncut and effect.partition in self._uncut:
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
        """What is cut may have gathered in the same turn: it is written first, so that the log is what was said."""
        partition = effect.partition
        queued = self._queued.pop(partition, None)
        failed = self._write(partition, queued) if queued else None
        if partition not in self._unopened:
            try:
                self.store.truncate(partition, effect.offset)
            except StorageError as error:
                # As grave as a failed sync: what is behind the cut would be taken for what was written there instead.
                self._uncut[partition] = None
                self._happened.append(SyncFailed(error))
                return
            if failed is not None:
                failed = WriteFailed(
                    partition, self.store.end(partition), self.store.generation(partition), failed.error
                )
        if failed is not None:
            self._happened.append(failed)

    def _open(self, partition: Partition) -> StorageError | None:
        """A full disk may refuse even an empty log: then the topic exists, and each publish tries again."""
        effect = self._unopened[partition]
        error = self._attempt(lambda: self.store.open(partition, effect.segment_bytes, effect.first))
        if error is None:
            del self._unopened[partition]
        return error

    def _attempt(self, action: Callable[[], object]) -> StorageError | None:
        """What is left undone here is done by the next start; only a failed fsync is grave."""
        try:
            action()
        except DiskUntrusted as error:
            self._happened.append(SyncFailed(error))
            self.stirred = True
            return error
        except StorageError as error:
            return error
        return None

    def flush(self) -> list[BrokerInput]:
        """Writes what has gathered; returns what went wrong, and `Synced` at once where nothing is to be synced."""
        self.stirred = False
        happened, self._happened = self._happened, []
        if self._queued:
            queued, self._queued = self._queued, {}
            for partition, batches in queued.items():
                failed = self._write(partition, batches)
                if failed is not None:
                    happened.append(failed)
        if self._dirty and not self._syncs:
            dirty, self._dirty = self._dirty, {}
            reached = self.store.reached(dirty if not self._unopened else [p for p in dirty if p not in self._unopened])
            happened += _together([Synced(*durable) for durable in reached])
        return happened

    def _write(self, partition: Partition, batches: list[bytearray]) -> WriteFailed | None:
        if partition in self._unopened:
            error = self._open(partition)
            if error is not None:
                return WriteFailed(partition, self._unopened[partition].first, 0, error)
        try:
            self.store.append(partition, batches)
        except StorageError as error:
            return WriteFailed(partition, self.store.end(partition), self.store.generation(partition), error)
        return None

    def begin_sync(self) -> Job | None:
        """A sync of all that is dirty, as it is now; None if nothing is, or if the disk has no room to note it."""
        if not self._dirty:
            return None
        dirty = list(self._dirty)
        try:
            job = self.store.begin_sync(dirty)
        except DiskFull:
            return None
        except DiskUntrusted as error:
            self._dirty.clear()
            self._happened.append(SyncFailed(error))
            self.stirred = True
            return None
        # What has gathered since the last flush is not in the files yet: it needs a sync of its own.
        self._dirty = {partition: None for partition in dirty if partition in self._queued}
        return Job(job.calls, lambda: _together([Synced(*durable) for durable in job.finish()]))

    def begin_compaction(self, effect: Compact) -> Job:
        """Its calls run one after the other. What the disk refuses leaves the log as it was."""
        try:
            job = self.store.begin_compaction(effect.partition, effect.below, effect.tombstones_us)
        except RostraError:
            return Job([], lambda: [Compacted(effect.partition, 0)])
        return Job(job.calls, lambda: [Compacted(effect.partition, job.finish())])

    def begin_persist(self, effect: Persist) -> Job:
        """Hard state that cannot be written is as grave as a failed sync."""
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
            return self._no_answer(effect, Unavailable("", effect.partition.index, "its log is not there yet"))
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
                    return SegmentsListed(effect.partition, tuple(facts), self.store.segment_bytes(effect.partition))
                case InspectLog():
                    return self._recall(effect.partition)
                case _:
                    assert_never(effect)
        except RostraError as error:
            return self._no_answer(effect, error)

    def _recall(self, partition: Partition) -> LogInspected:
        # The generation first: what is cut during the look makes this an answer about another one.
        generation = self.store.generation(partition)
        try:
            return LogInspected(partition, generation, _recovered(self.store.recall(partition)))
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


def _together(syncs: list[Synced]) -> list[BrokerInput]:
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
