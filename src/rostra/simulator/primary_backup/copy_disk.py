"""The disk of a simulated node: one log and one hard state, which lose what was not synced when the node crashes."""

from __future__ import annotations

from bisect import bisect_left
from random import Random

import msgspec

from rostra.fabric.api import EpochStart, Recovered
from rostra.model.batch import Buffer, stamp
from rostra.model.ids import Partition
from rostra.simulator.primary_backup.records import SimulatedRecord, decode_record, encode_record


class StoredBatch(msgspec.Struct, frozen=True):
    base: int
    end: int
    epoch: int
    record: SimulatedRecord
    data: bytes

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """What stays the same when the batch is compacted."""
        return self.base, self.end, self.epoch, self.record.number


class HeldRecord(msgspec.Struct, frozen=True):
    """What a node has on stable storage where a commit ends."""

    number: int
    """Of its copy."""
    is_fit: bool
    """The copy is not damaged."""
    last: tuple[int, int, int, int] | None
    """The batch that ends at the commit offset; if it is the same in two logs, they agree up to there."""


class CopyDisk:
    def __init__(self, partition: Partition, random: Random) -> None:
        self.partition = partition
        self._random = random
        self.exists = False
        self.first = 0
        self.end = 0
        self.batches: list[StoredBatch] = []
        self.synced = 0
        self.generation = 0
        self.compacted = 0
        """The log has been compacted below this offset."""
        self.log_number = 0
        """Raised whenever the log is created or dropped: reads and syncs of an older one have no result."""
        self.damaged_at: int | None = None
        self.refuses = False
        """Every append is refused, as on a full disk."""
        self.hard_state = b""
        self._unsynced_states: list[bytes] = []
        self._epoch_before: EpochStart | None = None
        self._decisions: list[tuple[int, int]] = []
        """Decisions to compact that the log holds: where each ends, and below which offset."""

    # --- the log ---

    def create(self, first: int) -> None:
        """Idempotent, as `Open` is."""
        if self.exists:
            return
        self._reset(first)
        self.exists = True

    def drop(self) -> None:
        self._reset(0)
        self.exists = False

    def _reset(self, first: int) -> None:
        self.first = self.end = self.synced = first
        self.batches = []
        self.compacted = 0
        self.generation = 0
        self.log_number += 1
        self.damaged_at = None
        self._epoch_before = None
        self._decisions = []

    def append(self, batch: Buffer, base: int, end: int, epoch: int) -> StoredBatch:
        assert base == self.end, (base, self.end)
        stored = StoredBatch(base, end, epoch, decode_record(batch), bytes(batch))
        self.batches.append(stored)
        self.end = end
        if stored.record.compact_below:
            self._decisions.append((end, stored.record.compact_below))
        return stored

    def truncate(self, offset: int, generation: int) -> None:
        while self.batches and self.batches[-1].end > offset:
            self.batches.pop()
        self.end = max(self.first, min(self.end, offset))
        assert not self.batches or self.batches[-1].end == self.end
        self._forget_decisions()
        self.synced = min(self.synced, self.end)
        self.generation = max(self.generation, generation)
        if self.damaged_at is not None and self.damaged_at >= self.end:
            self.damaged_at = None

    def trim(self, first: int) -> None:
        while self.batches and self.batches[0].end <= first:
            gone = self.batches.pop(0)
            if self._epoch_before is None or self._epoch_before.epoch != gone.epoch:
                self._epoch_before = EpochStart(gone.epoch, gone.base)
        self.first = max(self.first, first)

    def read(self, offset: int, end: int, bytes_max: int) -> list[StoredBatch]:
        """Whole batches from the one that contains `offset`; at least one, if there is one."""
        at = bisect_left(self.batches, offset + 1, key=lambda one: one.end)
        found: list[StoredBatch] = []
        size = 0
        for batch in self.batches[at:]:
            if batch.end > end or (found and size + len(batch.data) > bytes_max):
                break
            found.append(batch)
            size += len(batch.data)
        return found

    def compact(self, below: int) -> None:
        """Keeps only the last record of each key, and no tombstone, in what lies below."""
        self.compacted = below
        last = {one.record.key: one.base for one in self.batches if one.end <= below and one.record.key}
        for at, one in enumerate(self.batches):
            record = one.record
            if one.end > below or not record.key or record.removed:
                continue
            if record.tombstone or last[record.key] != one.base:
                self.batches[at] = self._emptied(one)

    def _emptied(self, batch: StoredBatch) -> StoredBatch:
        record = SimulatedRecord(batch.record.number, removed=True)
        data = encode_record(record, wide=batch.end - batch.base)
        stamp(data, partition=self.partition, base_offset=batch.base, owner_epoch=batch.epoch, owner_flags=0)
        return StoredBatch(batch.base, batch.end, batch.epoch, record, bytes(data))

    def compact_below(self, commit: int | None = None) -> int:
        """The last decision to compact that the log holds, or that is committed in it."""
        return max((below for end, below in self._decisions if commit is None or end <= commit), default=0)

    def _forget_decisions(self) -> None:
        self._decisions = [row for row in self._decisions if row[0] <= self.end]

    # --- hard state ---

    def write_state(self, state: bytes) -> None:
        self._unsynced_states.append(state)

    def sync_state(self) -> None:
        """The oldest state that is not durable becomes durable: the journal keeps the order."""
        self.hard_state = self._unsynced_states.pop(0)

    # --- crashes ---

    def crash(self) -> int:
        """Loses a random part of what was not synced; returns how many batches."""
        unsynced = [one for one in self.batches if one.end > self.synced]
        lost = self._random.randint(0, len(unsynced))
        if lost:
            del self.batches[-lost:]
            self.end = self.batches[-1].end if self.batches else self.first
            self._forget_decisions()
        survive = self._random.randint(0, len(self._unsynced_states))
        if survive:
            self.hard_state = self._unsynced_states[survive - 1]
        self._unsynced_states.clear()
        # Recovery syncs what it keeps.
        self.synced = self.end
        self.generation = 0
        self.log_number += 1
        return lost

    def recovered(self) -> Recovered | None:
        if not self.exists:
            return None
        end = self.end if self.damaged_at is None else self._boundary(self.damaged_at)
        return Recovered(self.partition, self.first, end, self._epochs(end), self.damaged_at)

    def _boundary(self, offset: int) -> int:
        return next((one.base for one in self.batches if one.end > offset), self.end)

    def _epochs(self, end: int) -> tuple[EpochStart, ...]:
        rows = [] if self._epoch_before is None else [self._epoch_before]
        for one in self.batches:
            if one.base < end and (not rows or rows[-1].epoch != one.epoch):
                rows.append(EpochStart(one.epoch, one.base))
        return tuple(rows)

    # --- for the checkers ---

    def visible(self, below: int) -> dict[str, int]:
        """The number of the record that each key has, as a reader of this copy finds it."""
        found: dict[str, int] = {}
        for one in self.batches:
            record = one.record
            if one.end > below or not record.key or record.removed:
                continue
            if record.tombstone:
                found.pop(record.key, None)
            else:
                found[record.key] = record.number
        return found
