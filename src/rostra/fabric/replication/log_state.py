"""What a replica knows of its log without its bytes: start, end, synced end, and the owner epoch of each entry."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from rostra.fabric.values import EpochStart
from rostra.safeguards import Safeguard, Without


class LogState:
    """An entry is a batch, identified by the offset at which it ends and its owner epoch."""

    __slots__ = ("_check_generation", "_epochs", "_starts", "end", "first", "generation", "synced")

    def __init__(self, first: int, end: int, epochs: Iterable[EpochStart], without: Without) -> None:
        self.first = first
        self.end = end
        self.synced = end
        """Below this everything is on stable storage."""
        self.generation = 0
        self._starts = [row.offset for row in epochs]
        self._epochs = [row.epoch for row in epochs]
        self._check_generation = Safeguard.SYNC_GENERATION not in without

    # --- epochs ---

    def epoch_at(self, end: int) -> int:
        """The epoch of the entry that contains the offset before `end`; 0 if there is none."""
        row = bisect_left(self._starts, end) - 1
        return self._epochs[row] if row >= 0 else 0

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else 0

    def find_conflict(self, end: int, epoch: int) -> int:
        """The highest end, not above `end`, of an entry not newer than `epoch`: as far as two logs may still agree.

        It goes back by whole epochs: a long tail of a deposed owner costs one refusal an epoch, not one a batch.
        """
        end = min(end, self.end)
        row = bisect_left(self._starts, end) - 1
        while row >= 0 and self._epochs[row] > epoch:
            end = self._starts[row]
            row -= 1
        return end

    def epochs_before(self, offset: int) -> tuple[EpochStart, ...]:
        """The last row that starts before `offset`: enough for the log matching check at a log start."""
        row = bisect_left(self._starts, offset) - 1
        return (EpochStart(self._epochs[row], self._starts[row]),) if row >= 0 else ()

    def epochs(self) -> tuple[EpochStart, ...]:
        return tuple(EpochStart(epoch, start) for epoch, start in zip(self._epochs, self._starts, strict=True))

    # --- changes ---

    def append(self, base: int, end: int, epoch: int) -> None:
        assert base == self.end, (base, self.end)
        if not self._epochs or self._epochs[-1] != epoch:
            self._epochs.append(epoch)
            self._starts.append(base)
        self.end = end

    def truncate(self, offset: int) -> int:
        """Truncates the log at `offset`; returns the generation that starts with that."""
        self.generation += 1
        self.drop_tail(offset, self.generation)
        return self.generation

    def drop_tail(self, offset: int, generation: int) -> None:
        self.end = min(self.end, offset)
        self.generation = max(self.generation, generation)
        self.synced = min(self.synced, self.end)
        while self._starts and self._starts[-1] >= offset:
            self._starts.pop()
            self._epochs.pop()

    def mark_synced(self, generation: int, offset: int) -> bool:
        """Advances `synced`; returns whether it did. A sync that began before a truncation covered other bytes."""
        if self._check_generation and generation != self.generation:
            return False
        if not self.synced < offset:
            return False
        self.synced = min(offset, self.end)
        return True

    def reset(self, first: int, epochs: Iterable[EpochStart]) -> None:
        """Starts an empty log at `first`; syncs of the old log are no longer reported."""
        rows = tuple(epochs)
        self.first = self.end = self.synced = first
        self.generation = 0
        self._starts = [row.offset for row in rows]
        self._epochs = [row.epoch for row in rows]

    def trim(self, first: int) -> None:
        self.first = first
        while len(self._starts) > 1 and self._starts[1] < first:
            del self._starts[0]
            del self._epochs[0]
