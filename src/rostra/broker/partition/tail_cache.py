"""Recent batches in memory, to serve subscribers at the end of a partition without the disk."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque


class PartitionTail:
    """The last batches of one partition, contiguous. `TailCache` limits all of them together."""

    __slots__ = ("_head", "_memo", "_memo_key", "bases", "batches", "next")

    def __init__(self) -> None:
        self.bases: list[int] = []
        self.batches: list[bytearray] = []
        self._head = 0
        self.next = 0
        self._memo_key: tuple[int, int, int] | None = None
        self._memo: tuple[tuple[bytearray, ...], int, int] = ((), 0, 0)

    @property
    def first(self) -> int:
        """The oldest offset in memory; `next` if there is none."""
        return self.bases[self._head] if self._head < len(self.bases) else self.next

    def drop_oldest(self) -> int:
        """Drops one batch; returns its bytes."""
        if self._head >= len(self.batches):
            return 0
        size = len(self.batches[self._head])
        self.batches[self._head] = _FORGOTTEN
        self._head += 1
        self.drop_memo()
        if self._head > 1024 and self._head * 2 > len(self.batches):
            del self.bases[: self._head], self.batches[: self._head]
            self._head = 0
        return size

    def truncate(self, offset: int) -> int:
        """Drops the batches at or above `offset`; returns their bytes."""
        size = 0
        while len(self.bases) > self._head and self.bases[-1] >= offset:
            self.bases.pop()
            size += len(self.batches.pop())
        self.next = min(self.next, offset)
        self.drop_memo()
        return size

    def take(self, offset: int, commit: int, bytes_max: int) -> tuple[tuple[bytearray, ...], int, int]:
        """Batches from the one holding `offset` up to `commit`, about `bytes_max`: (batches, next offset, bytes).

        Empty if `offset` is older than the cache. Subscribers at the same offset share the result.
        """
        if self.bases and self.bases[-1] == offset and self.next <= commit and self._head < len(self.bases):
            # Only the last batch: the usual case for a subscriber that keeps up.
            batch = self.batches[-1]
            return (batch,), self.next, len(batch)
        key = (offset, commit, bytes_max)
        if key == self._memo_key:
            return self._memo
        at = bisect_right(self.bases, offset, self._head) - 1
        if at < self._head:
            return (), offset, 0
        taken: list[bytearray] = []
        size = 0
        bases, batches, stop = self.bases, self.batches, len(self.bases)
        reached = offset
        while at < stop and size < bytes_max:
            following = bases[at + 1] if at + 1 < stop else self.next
            if following > commit:
                break
            taken.append(batches[at])
            size += len(batches[at])
            reached = following
            at += 1
        self._memo_key, self._memo = key, (tuple(taken), reached, size)
        return self._memo

    @property
    def has_memo(self) -> bool:
        return self._memo_key is not None

    def drop_memo(self) -> None:
        """Drops the shared result, which would keep its batches alive."""
        self._memo_key = None
        self._memo = ((), 0, 0)


_FORGOTTEN = bytearray()


class TailCache:
    """All tails of a node under one limit: the oldest batch of the whole node is dropped first."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._bytes = 0
        self._order: deque[PartitionTail] = deque()

    @property
    def bytes(self) -> int:
        return self._bytes

    def add(self, tail: PartitionTail, base: int, last: int, batch: bytearray) -> None:
        tail.bases.append(base)
        tail.batches.append(batch)
        tail.next = last + 1
        self._order.append(tail)
        self._bytes += len(batch)
        if self._bytes > self._max:
            self._forget()

    def _forget(self) -> None:
        while self._bytes > self._max and self._order:
            self._bytes -= self._order.popleft().drop_oldest()

    def forget_below(self, tail: PartitionTail, offset: int) -> None:
        """Batches below were compacted: from now on they are read from the log."""
        while tail.first < offset and (size := tail.drop_oldest()):
            self._bytes -= size

    def truncate(self, tail: PartitionTail, offset: int) -> None:
        # Its entries in `_order` stay: popping one of them later drops a batch early, never one too few.
        self._bytes -= tail.truncate(offset)
