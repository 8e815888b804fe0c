"""A member's stable storage: one log and the hard state, with the losses of a power cut."""

from __future__ import annotations

from random import Random

from rostra.fabric.api import EpochStart, Recovered
from rostra.model.batch import base_offset, last_offset, owner_epoch
from rostra.model.ids import Partition


class StoredEntry:
    """A batch in a file; `durable` once a sync that began after its writing has ended."""

    __slots__ = ("batch", "durable")

    def __init__(self, batch: bytes) -> None:
        self.batch = batch
        self.durable = False

    @property
    def base(self) -> int:
        return base_offset(self.batch)

    @property
    def end(self) -> int:
        return last_offset(self.batch) + 1

    @property
    def term(self) -> int:
        return owner_epoch(self.batch)


class DiskModel:
    def __init__(self) -> None:
        self.first = 0
        self.generation = 0
        self.stored: list[StoredEntry] = []
        self.hard: dict[str, bytes] = {}
        self.damaged_at: int | None = None
        self.before: tuple[EpochStart, ...] = ()
        """The row before the log start, as a checkpoint remembers it."""

    @property
    def end(self) -> int:
        return self.stored[-1].end if self.stored else self.first

    def append(self, batch: bytearray) -> None:
        assert base_offset(batch) == self.end, (base_offset(batch), self.end)
        self.stored.append(StoredEntry(bytes(batch)))

    def truncate(self, offset: int, generation: int) -> None:
        self.generation += 1
        assert generation == self.generation
        self.stored = [one for one in self.stored if one.end <= offset]
        assert self.end == offset, (self.end, offset)

    def trim(self, first: int) -> None:
        gone = [one for one in self.stored if one.end <= first]
        if gone:
            starts = [EpochStart(one.term, one.base) for one in gone]
            self.before = (next(row for row in starts if row.epoch == starts[-1].epoch),)
        self.stored = self.stored[len(gone) :]
        self.first = first

    def empty(self, first: int) -> None:
        self.first = first
        self.stored = []
        self.generation = 0
        self.damaged_at = None
        self.before = ()

    def read(self, offset: int, end: int, bytes_max: int) -> bytes:
        taken = b""
        for one in self.stored:
            if one.end <= offset or one.end > end:
                continue
            if taken and len(taken) + len(one.batch) > bytes_max:
                break
            taken += one.batch
        return taken

    def crash(self, random: Random) -> int:
        """Keeps what is durable, and by chance some of what follows it; returns how many batches are lost."""
        kept = 0
        while kept < len(self.stored) and self.stored[kept].durable:
            kept += 1
        kept = random.randint(kept, len(self.stored))
        lost = len(self.stored) - kept
        self.stored = self.stored[:kept]
        for one in self.stored:
            one.durable = True
        self.generation = 0
        return lost

    def recovered(self, partition: Partition) -> Recovered:
        rows = list(self.before)
        for one in self.stored:
            if not rows or rows[-1].epoch != one.term:
                rows.append(EpochStart(one.term, one.base))
        return Recovered(partition, self.first, self.end, tuple(rows), self.damaged_at)
