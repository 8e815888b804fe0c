"""Carrying out a broker's disk effects on its log: the one piece of driver that both drivers share.

Writes gather until `flush`, so that all batches of one turn go out in one write per partition. What may take long
(`Read`, `FindLast`, `Survey`, syncs, hard state) comes back as a job that the driver runs where it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from rostra.broker.api import (
    Boot,
    BrokerInput,
    FindLast,
    Located,
    Persisted,
    ProducerStamp,
    RecoveredLog,
    Sealed,
    SegmentFacts,
    Survey,
)
from rostra.errors import RostraError, StorageError, SyncFailed
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
from rostra.log.store import LogFacts, Recovery, Store, SyncJob
from rostra.model.ids import Partition

LookUp = Read | FindLast | Survey
Change = Open | Drop | Append | Truncate | Trim | Sync


class Disk:
    def __init__(self, store: Store, *, syncs: bool = True) -> None:
        self.store = store
        self._syncs = syncs
        self._queued: dict[Partition, list[bytearray]] = {}
        self._dirty: dict[Partition, None] = {}

    def boot(self) -> tuple[Boot, Recovery]:
        recovery = self.store.recover()
        return Boot(recovery.hard, tuple(_recovered(facts) for facts in recovery.logs)), recovery

    def change(self, effect: Change) -> None:
        match effect:
            case Append():
                queued = self._queued.get(effect.partition)
                if queued is None:
                    self._queued[effect.partition] = [effect.batch]
                else:
                    queued.append(effect.batch)
            case Sync():
                self._dirty[effect.partition] = None
            case Open():
                self.store.open(effect.partition, effect.segment_bytes, effect.first)
            case Drop():
                self._queued.pop(effect.partition, None)
                self._dirty.pop(effect.partition, None)
                self.store.drop(effect.partition)
            case Truncate():
                assert effect.partition not in self._queued, "what is cut was flushed before"
                self.store.truncate(effect.partition, effect.offset)
            case Trim():
                self.store.trim(effect.partition, effect.first)
            case _:
                assert_never(effect)

    def flush(self) -> list[BrokerInput]:
        """Writes what has gathered; returns what went wrong, and `Synced` at once where nothing is to be synced."""
        happened: list[BrokerInput] = []
        if self._queued:
            queued, self._queued = self._queued, {}
            for partition, batches in queued.items():
                try:
                    self.store.append(partition, batches)
                except StorageError as error:
                    end, generation = self.store.end(partition), self.store.generation(partition)
                    happened.append(WriteFailed(partition, end, generation, error))
        if self._dirty and not self._syncs:
            for partition in self._dirty:
                happened.append(Synced(partition, self.store.generation(partition), self.store.end(partition)))
            self._dirty.clear()
        return happened

    def begin_sync(self) -> SyncJob | None:
        """A sync of all that is dirty, as it is now; None if nothing is."""
        if not self._dirty:
            return None
        dirty, self._dirty = list(self._dirty), {}
        return self.store.begin_sync(dirty)

    def begin_persist(self, effect: Persist) -> Callable[[], Persisted]:
        """Runs anywhere; its result goes to the broker. A failure is as grave as that of a sync."""
        job = self.store.begin_persist(effect.key, effect.state)

        def persist() -> Persisted:
            job.run()
            job.finish()
            return Persisted(effect.then)

        return persist

    def look_up(self, effect: LookUp) -> BrokerInput:
        """May run on another thread while the log is appended to."""
        try:
            match effect:
                case Read():
                    chunk = self.store.read(effect.partition, effect.offset, effect.end, effect.bytes_max)
                    return ReadDone(effect.token, effect.partition, chunk.batches, chunk.next)
                case FindLast():
                    found = self.store.find_last(effect.partition, effect.count, effect.end)
                    return Located(effect.token, found)
                case Survey():
                    sealed = self.store.sealed(effect.partition)
                    facts = (SegmentFacts(one.first, one.next, one.bytes, one.max_us) for one in sealed)
                    return Sealed(effect.partition, tuple(facts))
                case _:
                    assert_never(effect)
        except RostraError as error:
            return self._no_answer(effect, error)

    def _no_answer(self, effect: LookUp, error: RostraError) -> BrokerInput:
        match effect:
            case Read():
                return ReadFailed(effect.token, effect.partition, error)
            case FindLast():
                return Located(effect.token, effect.end)
            case Survey():
                return Sealed(effect.partition, ())
            case _:
                assert_never(effect)


def sync_failed(error: OSError) -> SyncFailed:
    return SyncFailed(error.strerror or str(error))


def _recovered(facts: LogFacts) -> RecoveredLog:
    epochs = tuple(EpochStart(epoch, offset) for epoch, offset in facts.epochs)
    return RecoveredLog(
        Recovered(facts.partition, facts.first, facts.end, epochs, facts.damaged_at),
        facts.checkpoint,
        tuple(ProducerStamp(*stamp) for stamp in facts.stamps),
        facts.segment_bytes,
        facts.bytes,
    )
