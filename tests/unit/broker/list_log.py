"""A partition's log as a list of batches, and what a start recovers from it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from rostra.broker.api import ClosedSegment, ProducerStamp, RecoveredLog
from rostra.errors import BatchRejected, OffsetTrimmed
from rostra.fabric.api import EpochStart, Recovered
from rostra.model.batch import (
    SUPPRESSED,
    OwnerFlag,
    base_offset,
    last_offset,
    owner_epoch,
    producer_stamp,
    read_header,
)
from rostra.model.decode import Batch, iterate
from rostra.model.ids import Partition


class ListLog:
    """One partition's batches; `batches[i]` begins a segment if it carries the checkpoint flag or is the first."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.generation = 0
        self.batches: list[bytearray] = []
        self.synced: list[bytearray] = []

    @property
    def end(self) -> int:
        return last_offset(self.batches[-1]) + 1 if self.batches else self.first

    def cut(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if last_offset(batch) < offset]
        self.generation += 1

    def segments(self) -> list[list[bytearray]]:
        found: list[list[bytearray]] = []
        for batch in self.batches:
            if not found or read_header(batch).owner_flags & OwnerFlag.CHECKPOINT:
                found.append([])
            found[-1].append(batch)
        return found

    def trim(self, first: int) -> None:
        self.batches = [batch for batch in self.batches if base_offset(batch) >= first]
        self.first = first

    def read(self, offset: int, end: int, bytes_max: int) -> tuple[bytes, int]:
        if offset < self.first:
            raise OffsetTrimmed(offset, self.first)
        taken: list[bytes] = []
        following, size = offset, 0
        for batch in self.batches:
            if last_offset(batch) < offset or base_offset(batch) >= end:
                continue
            if taken and size + len(batch) > bytes_max:
                break
            taken.append(bytes(batch))
            size += len(batch)
            following = last_offset(batch) + 1
        return b"".join(taken), following

    def find_last(self, count: int, end: int) -> int:
        """Where the last `count` delivered records below `end` begin."""
        for batch in reversed([batch for batch in self.batches if last_offset(batch) < end]):
            header = read_header(batch)
            if header.is_control or header.owner_flags & SUPPRESSED:
                continue
            if count <= header.count:
                return header.next_offset - count
            count -= header.count
        return self.first if count else end

    def find_time(self, timestamp_us: int, end: int) -> int:
        """The first record below `end` that is not earlier, or `end`."""
        for batch in self.batches:
            header = read_header(batch)
            if last_offset(batch) < end and not header.is_control and header.max_timestamp_us >= timestamp_us:
                try:
                    stamps = zip(Batch(batch).offsets(), Batch(batch).timestamps(), strict=True)
                    return next(offset for offset, stamp_us in stamps if stamp_us >= timestamp_us)
                except (BatchRejected, StopIteration):
                    return header.base_offset
        return end


def facts(log: ListLog) -> Iterable[ClosedSegment]:
    segments = log.segments()
    for segment, behind in pairwise(segments):
        newest_us = max(read_header(batch).max_timestamp_us for batch in segment)
        yield ClosedSegment(base_offset(segment[0]), base_offset(behind[0]), sum(map(len, segment)), newest_us)


def recovered(partition: Partition, log: ListLog) -> RecoveredLog:
    epochs: list[EpochStart] = []
    for batch in log.batches:
        if not epochs or epochs[-1].epoch != owner_epoch(batch):
            epochs.append(EpochStart(owner_epoch(batch), base_offset(batch)))
    last = log.segments()[-1] if log.batches else []
    checkpoint, checkpoint_at = None, base_offset(last[0]) if last else log.first
    if last and read_header(last[0]).owner_flags & OwnerFlag.CHECKPOINT:
        (checkpoint,) = next(iter(iterate(bytes(last[0])))).values()
        last = last[1:]
    stamps = tuple(ProducerStamp(base_offset(batch), last_offset(batch), *producer_stamp(batch)) for batch in last)
    return RecoveredLog(
        Recovered(partition, log.first, log.end, tuple(epochs)),
        checkpoint,
        tuple(stamp for stamp in stamps if stamp.producer),
        sum(map(len, last)),
        sum(map(len, log.batches)),
        tuple((base_offset(batch), batch) for batch in last if read_header(batch).owner_flags & OwnerFlag.BROKER_STATE),
        checkpoint_at,
    )
