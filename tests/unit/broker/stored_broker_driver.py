"""A driver with the real log store, on simulated files that lose unsynced writes in a power cut."""

from __future__ import annotations

from random import Random

from rostra.broker.api import (
    BrokerEffect,
    BrokerInput,
    Compact,
    ConnectionAccepted,
    FindLast,
    FindTime,
    InspectLog,
    ListSegments,
)
from rostra.broker.broker import Broker
from rostra.broker.disk import Disk, Job
from rostra.broker.settings import BrokerSettings
from rostra.fabric.api import Append, Drop, Now, Open, Persist, Read, Sync, Trim, Truncate, WriteFailed
from rostra.fabric.raft.machine import Raft
from rostra.log.facts import LogSettings
from rostra.log.store import Store
from rostra.model.ids import Partition
from rostra.safeguards import ALL_ON, Without
from rostra.simulator.disk.faulty_files import FaultyFiles
from rostra.wire.messages import Hello
from tests.unit.broker.broker_driver import IDENTITY, BrokerDriver

LOG_SETTINGS = LogSettings(index_every_bytes=512, indexes_cached_max=4, files_open_max=8, journal_bytes=8 << 10)


class StoredBrokerDriver(BrokerDriver):
    """Writes wait in the disk's queue until `settle` or a flush."""

    def __init__(
        self,
        files: FaultyFiles,
        settings: BrokerSettings,
        source: Random,
        without: Without = ALL_ON,
        now: Now | None = None,
    ) -> None:
        super().__init__(settings)
        self.files = files
        self.source = source
        self.without = without
        self.disk = Disk(Store(files, LOG_SETTINGS, without))
        fabric = Raft(IDENTITY.node, "here:1", random=source, without=without)
        self.broker = Broker(IDENTITY, fabric, settings, source, without)
        self.now = now or self.now

    def start(self) -> StoredBrokerDriver:
        boot, _ = self.disk.boot()
        self.step(boot)
        self.settle()
        assert self.listening
        self.effects.clear()
        return self

    def after_a_crash(self, *, power: bool) -> StoredBrokerDriver:
        """The next start, on what the disk kept."""
        if power:
            self.files.crash()
        return StoredBrokerDriver(self.files, self.broker.settings, self.source, self.without, self.now).start()

    def connect(self, conn: int) -> int:
        """Without settling, and without clearing effects."""
        self.step(ConnectionAccepted(conn))
        self.send(conn, Hello(0, 1, 1))
        return conn

    def _carry_out(self, effect: BrokerEffect, failed: dict[Partition, WriteFailed]) -> None:
        match effect:
            case Append() | Sync() | Open() | Drop() | Truncate() | Trim():
                self.disk.change(effect)
            case _:
                super()._carry_out(effect, failed)

    def _settle_disk(self) -> list[BrokerEffect]:
        effects: list[BrokerEffect] = []
        busy = True
        while busy:
            happened = self.disk.flush()
            sync = self.disk.begin_sync()
            asked, self.pending = self.pending, []
            happened += _done(sync) if sync is not None else []
            for effect in asked:
                happened += self.answer(effect)
            busy = bool(happened)
            for given in happened:
                effects += self.step(given)
        return effects

    def answer(self, effect: BrokerEffect) -> list[BrokerInput]:
        match effect:
            case Persist():
                return _done(self.disk.begin_persist(effect))
            case Compact():
                return _done(self.disk.begin_compaction(effect))
            case Read() | FindLast() | FindTime() | ListSegments() | InspectLog():
                return [self.disk.look_up(effect)]
            case _:
                return super().answer(effect)


def _done(job: Job) -> list[BrokerInput]:
    for call in job.calls:
        call()
    return job.finish()
