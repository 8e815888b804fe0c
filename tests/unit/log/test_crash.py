"""Power cuts in the simulated disk: what a sync vouched for is there, and nothing is there that was not appended."""

from __future__ import annotations

from random import Random

import pytest

from rostra.errors import DiskUntrusted
from rostra.log.facts import Durable
from rostra.log.jobs import SyncJob
from rostra.log.store import Store
from rostra.model.batch import read_header
from rostra.simulator.disk.faulty_files import FaultyFiles
from tests.unit.log.batches import PARTITION, SMALL, batch, read_all


class Life:
    """A node that appends, syncs and truncates at random until the power is cut, repeatedly."""

    def __init__(self, seed: int, *, reorder: bool, rolls: bool = True) -> None:
        self.random = Random(seed)
        self.files = FaultyFiles(Random(seed + 1))
        self.files.faults.reorder = reorder
        self.roll_chance = 0.2 if rolls else 0.0
        self.written: dict[int, set[bytes]] = {}
        self.log: list[bytes] = []
        self.durable = 0
        self.jobs: list[SyncJob] = []
        self.votes = 0
        self.votes_durable = 0
        self.epoch = 0
        self.damaged = 0

    def run(self, lives: int) -> None:
        for _ in range(lives):
            if not self.start():
                return
            for _ in range(self.random.randrange(40)):
                self.random.choice((self.append, self.append, self.begin, self.run_some, self.run_all, self.vote))()
                if self.random.random() < 0.05:
                    self.truncate()
            self.files.crash()

    def start(self) -> bool:
        self.store = Store(self.files, SMALL)
        recovery = self.store.recover()
        self.jobs = []
        self.epoch += 1
        assert self.votes_durable <= int(recovery.hard.get("vote", b"0")) <= self.votes
        self.votes = self.votes_durable = int(recovery.hard.get("vote", b"0"))
        for facts in recovery.logs:
            assert facts.end >= self.durable
            if facts.damaged_at is not None:
                assert facts.damaged_at >= self.durable
                self.damaged += 1
                return False
        if not recovery.logs:
            assert self.durable == 0
        self.store.open(PARTITION, 1 << 20)
        found = read_all(self.store)
        for made in found:
            assert made in self.written[read_header(made).base_offset]
        kept = [made for made in self.log if read_header(made).next_offset <= self.durable]
        assert found[: len(kept)] == kept
        self.log = found
        self.durable = self.store.end(PARTITION)
        return True

    def append(self) -> None:
        base = self.store.end(PARTITION)
        made: list[bytes] = []
        for _ in range(self.random.randrange(1, 5)):
            checkpoint = self.random.random() < self.roll_chance
            count = 1 if checkpoint else self.random.randrange(1, 40)
            value = b"%d" % self.random.getrandbits(64)
            one = bytes(batch(base, count, checkpoint=checkpoint, value=value, epoch=self.epoch))
            self.written.setdefault(base, set()).add(one)
            made.append(one)
            base += count
        self.store.append(PARTITION, made)
        self.log += made

    def begin(self) -> None:
        self.jobs.append(self.store.begin_sync([PARTITION]))

    def run_some(self) -> None:
        """Some calls of a job return, the others never do."""
        if self.jobs:
            job = self.random.choice(self.jobs)
            for call in self.random.sample(job.calls, self.random.randint(0, len(job.calls))):
                call()

    def run_all(self) -> None:
        if self.jobs:
            job = self.jobs.pop(self.random.randrange(len(self.jobs)))
            job.run()
            for synced in job.finish():
                self.note(synced)

    def note(self, synced: Durable) -> None:
        if synced.generation == self.store.generation(PARTITION):
            self.durable = max(self.durable, synced.offset)

    def vote(self) -> None:
        self.votes += 1
        job = self.store.begin_persist("vote", b"%d" % self.votes)
        if self.random.random() < 0.5:
            job.run()
            job.finish()
            self.votes_durable = self.votes

    def truncate(self) -> None:
        bounds = [0, *(read_header(made).next_offset for made in self.log)]
        offset = self.random.choice(bounds[-4:])
        self.store.truncate(PARTITION, offset)
        self.log = [made for made in self.log if read_header(made).base_offset < offset]
        self.durable = min(self.durable, offset)
        self.epoch += 1


@pytest.mark.requirement("CM-13:torn-tail")
@pytest.mark.parametrize("block", range(10))
def test_a_power_cut_loses_nothing_synced_and_invents_nothing(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        life = Life(seed, reorder=False, rolls=False)
        life.run(lives=6)
        assert life.damaged == 0, seed


@pytest.mark.parametrize("block", range(10))
def test_a_disk_that_writes_out_of_order_loses_nothing_synced_either(block: int) -> None:
    """A hole may pass for damage where a sync was under way; what had been synced is whole in any case."""
    for seed in range(block * 30, block * 30 + 30):
        Life(seed, reorder=True).run(lives=6)


def test_failing_syncs_lose_nothing_that_was_vouched_for() -> None:
    failed = 0
    for seed in range(150):
        life = Life(seed, reorder=False, rolls=False)
        for _ in range(5):
            life.files.faults.sync_failure_chance = 0.0
            if not life.start():
                break
            life.files.faults.sync_failure_chance = 0.1
            try:
                for _ in range(30):
                    life.random.choice((life.append, life.begin, life.run_all, life.vote))()
            except DiskUntrusted:
                failed += 1
            if life.random.random() < 0.5:
                life.files.crash()
            else:
                life.store.close(clean=False)
    assert failed > 50
