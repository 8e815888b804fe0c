"""Whatever is done to a store, in whatever order, it stays equal to a list of batches."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rostra.log.facts import LogSettings
from rostra.log.store import Store
from rostra.model.batch import read_header
from rostra.simulator.disk.faulty_files import FaultyFiles
from tests.unit.log.batches import PARTITION, batch, copied, read_all, sync

TINY = LogSettings(
    index_every_bytes=200, indexes_cached_max=2, files_open_max=2, journal_bytes=512, recover_chunk_bytes=512
)


class StoreBesideAList(RuleBasedStateMachine):
    """`kept` is what the log should hold, `first` and `end` its bounds, `starts` where its segments begin."""

    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        self.files = FaultyFiles(Random(seed))
        self.kept: list[bytes] = []
        self.starts = [0]
        self.epoch = 1
        self.generation = 0
        self.synced = 0
        self.store = Store(self.files, TINY)
        self.store.recover()
        self.store.open(PARTITION, 1 << 20)

    @property
    def end(self) -> int:
        return read_header(self.kept[-1]).next_offset if self.kept else self.starts[0]

    @rule(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6))
    def append(self, counts: list[int]) -> None:
        """A count of 0 is a checkpoint."""
        made: list[bytes] = []
        base = self.end
        for count in counts:
            if count == 0 and base != self.starts[-1]:
                self.starts.append(base)
            made.append(bytes(batch(base, max(count, 1), epoch=self.epoch, checkpoint=count == 0)))
            base += max(count, 1)
        self.store.append(PARTITION, made)
        self.kept += made

    @rule(choice=st.randoms(use_true_random=False))
    def truncate(self, choice: Random) -> None:
        bounds = [self.starts[0], *(read_header(made).next_offset for made in self.kept)]
        offset = choice.choice(bounds)
        self.generation += 1
        assert self.store.truncate(PARTITION, offset) == self.generation
        self.kept = [made for made in self.kept if read_header(made).base_offset < offset]
        self.starts = [first for first in self.starts if first < offset] or self.starts[:1]
        self.epoch += 1
        self.synced = min(self.synced, offset)

    @rule(back=st.integers(0, 30))
    def trim(self, back: int) -> None:
        first = max(first for first in self.starts if first <= max(self.synced - back, self.starts[0]))
        self.store.trim(PARTITION, first)
        self.starts = [start for start in self.starts if start >= first]
        self.kept = [made for made in self.kept if read_header(made).base_offset >= first]

    @rule()
    def sync(self) -> None:
        sync(self.store)
        self.synced = self.end

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        self.store.close(clean)
        self.start_again(clean)
        assert self.store.end(PARTITION) == self.end
        assert all(stamp.base >= self.starts[-1] for stamp in self.facts.stamps)

    @precondition(lambda self: self.synced > 0)
    @rule()
    def crash(self) -> None:
        self.files.faults.reorder = False
        self.files.crash()
        self.start_again(clean=False)
        end = self.store.end(PARTITION)
        assert self.synced <= end <= self.end
        self.kept = [made for made in self.kept if read_header(made).base_offset < end]
        self.starts = [first for first in self.starts if first < end] or self.starts[:1]

    def start_again(self, clean: bool) -> None:
        self.store = Store(self.files, TINY)
        recovery = self.store.recover()
        assert recovery.clean is clean
        (facts,) = recovery.logs
        self.facts = facts
        assert facts.damaged_at is None, (facts, recovery.notes)
        assert facts.first == self.starts[0]
        self.generation = 0
        self.synced = facts.end
        self.epoch += 1

    @invariant()
    def holds_the_same(self) -> None:
        assert self.store.first(PARTITION) == self.starts[0]
        assert self.store.end(PARTITION) == self.end
        assert read_all(self.store) == self.kept
        assert self.store.bytes(PARTITION) == sum(map(len, self.kept))
        assert [facts.first for facts in self.store.sealed(PARTITION)] == self.starts[:-1]
        assert len(copied(self.files)) <= 2 * len(self.starts) + 3

    @rule(choice=st.randoms(use_true_random=False), bytes_max=st.integers(1, 3000))
    def read(self, choice: Random, bytes_max: int) -> None:
        if not self.kept:
            return
        offset = choice.randrange(self.starts[0], self.end)
        chunk = self.store.read(PARTITION, offset, self.end, bytes_max)
        holding = next(place for place, made in enumerate(self.kept) if read_header(made).next_offset > offset)
        assert b"".join(self.kept[holding:]).startswith(chunk.batches)
        assert len(chunk.batches) <= max(bytes_max, len(self.kept[holding]))
        assert chunk.next > offset


TestStoreBesideAList = StoreBesideAList.TestCase
TestStoreBesideAList.settings = settings(max_examples=60, stateful_step_count=25)
