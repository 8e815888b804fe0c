"""One partition as this node serves it: its ends, its producers, who waits for what, who reads it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from rostra.broker.api import Conn, ProducerStamp
from rostra.broker.control import read_checkpoint
from rostra.broker.producers import ProducerTable
from rostra.broker.tail import Tail, Tails
from rostra.errors import RostraError
from rostra.model.batch import base_offset as base_offset_of
from rostra.model.batch import last_offset, producer_stamp
from rostra.model.ids import Partition


class Parked(NamedTuple):
    """A reply that waits until the records up to `last` are safe."""

    last: int
    conn: Conn
    request: int
    base: int


class Reader:
    """One subscription to one partition."""

    __slots__ = ("conn", "credit", "next", "number", "partition", "reading", "ready")

    def __init__(self, conn: Conn, number: int, partition: ServedPartition, credit: int) -> None:
        self.conn = conn
        self.number = number
        self.partition = partition
        self.credit = credit
        self.next = 0
        self.ready = False
        """False until its start offset is known."""
        self.reading = False
        """A read from disk is under way for it."""


class ServedPartition:
    """State that follows the log: `appended` and `truncated` mirror every change of it."""

    def __init__(self, partition: Partition, topic: str, producers: ProducerTable, tails: Tails) -> None:
        self.partition = partition
        self.topic = topic
        self.epoch = 0
        self.first = 0
        self.end = 0
        self.commit = 0
        self.synced = 0
        self.generation = 0
        self.bytes = 0
        self.segment_bytes = 0
        self.owner = False
        self.blocked: RostraError | None = None
        self.producers = producers
        self.tail = Tail()
        self._tails = tails
        self._uncommitted: deque[tuple[int, int, int]] = deque()
        """Base, bytes, and the segment's bytes before, of each batch that may still be cut."""
        self.waiting_commit: deque[Parked] = deque()
        self.waiting_sync: deque[Parked] = deque()
        self.readers: dict[tuple[Conn, int], Reader] = {}

    def rebuild(self, checkpoint: bytes | None, stamps: tuple[ProducerStamp, ...]) -> None:
        """From what the disk had: the last checkpoint and the batches behind it."""
        if checkpoint is not None:
            self.producers.restore(read_checkpoint(checkpoint).producers)
        for stamp in stamps:
            if stamp.producer:
                self.producers.apply(stamp)

    def appended(self, batch: bytearray, *, rolls: bool) -> None:
        base, last = base_offset_of(batch), last_offset(batch)
        size = len(batch)
        self._uncommitted.append((base, size, self.segment_bytes))
        self.segment_bytes = size if rolls else self.segment_bytes + size
        self.bytes += size
        self.end = last + 1
        producer, epoch, sequence, count = producer_stamp(batch)
        if producer:
            # Control batches have no producer; neither has a client that asks for no protection from repeats.
            self.producers.apply(ProducerStamp(base, last, producer, epoch, sequence, count))
        self._tails.add(self.tail, base, last, batch)

    def truncated(self, offset: int, generation: int) -> list[Parked]:
        """The log ends at `offset` now; returns the replies that wait for what was cut."""
        self.end = offset
        self.generation = generation
        self.synced = min(self.synced, offset)
        self.producers.truncate(offset)
        while self._uncommitted and self._uncommitted[-1][0] >= offset:
            _, size, self.segment_bytes = self._uncommitted.pop()
            self.bytes -= size
        self._tails.truncate(self.tail, offset)
        cut: list[Parked] = []
        for waiting in (self.waiting_commit, self.waiting_sync):
            cut += [parked for parked in waiting if parked.last >= offset]
            kept = [parked for parked in waiting if parked.last < offset]
            waiting.clear()
            waiting.extend(kept)
        return cut

    def committed(self, offset: int) -> list[Parked]:
        """Records below `offset` are safe; returns the replies that waited for that."""
        self.commit = offset
        self.producers.commit(offset)
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] < offset:
            uncommitted.popleft()
        self.tail.forget_answers()
        return _released(self.waiting_commit, offset)

    def durable(self, offset: int) -> list[Parked]:
        """The owner's copy below `offset` is on stable storage; returns the replies that waited for that."""
        self.synced = max(self.synced, offset)
        return _released(self.waiting_sync, offset)

    def park(self, parked: Parked, *, until_commit: bool) -> None:
        """A repeated batch may wait for an earlier place than the last one parked: keep them in order."""
        waiting = self.waiting_commit if until_commit else self.waiting_sync
        if not waiting or waiting[-1].last <= parked.last:
            waiting.append(parked)
            return
        ordered = sorted((*waiting, parked), key=lambda other: other.last)
        waiting.clear()
        waiting.extend(ordered)

    def close(self) -> list[Parked]:
        """The partition is gone; returns all replies that waited."""
        self._tails.truncate(self.tail, 0)
        left = [*self.waiting_commit, *self.waiting_sync]
        self.waiting_commit.clear()
        self.waiting_sync.clear()
        return left


def _released(waiting: deque[Parked], offset: int) -> list[Parked]:
    released: list[Parked] = []
    while waiting and waiting[0].last < offset:
        released.append(waiting.popleft())
    return released
