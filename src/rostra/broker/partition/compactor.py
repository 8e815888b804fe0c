"""Log compaction: the owner of a partition decides how far, and each copy compacts its own log.

The decision is an entry in the log, so it survives the owner and reaches copies that were offline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.broker.api import ClosedSegment, Compact, Compacted
from rostra.broker.partition.compaction_mark import CompactBelow
from rostra.broker.partition.served_partition import ServedPartition
from rostra.fabric.api import HeldByAll, LogLine, QueryHeldByAll
from rostra.model.ids import Partition

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

RERUN_US = 60_000_000
"""Least time between two runs over the same segments, however soon tombstones expire."""


class Compactor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: Partition | None = None
        """One run at a time: it reads and writes whole logs."""
        self._segments: dict[Partition, tuple[ClosedSegment, ...]] = {}

    # --- as the owner ---

    def segments_listed(self, served: ServedPartition, segments: tuple[ClosedSegment, ...]) -> None:
        """Asks the fabric how much of the log every copy has."""
        if served.owner and segments:
            self._segments[served.partition] = segments
            self._broker.step_fabric(QueryHeldByAll(served.partition))

    def held_by_all(self, effect: HeldByAll) -> None:
        """Compacts what every copy has, if it is worth it. A copy that is offline for long delays the others."""
        broker = self._broker
        listed = self._segments.pop(effect.partition, ())
        served = broker.topic_table.served.get(effect.partition)
        known = broker.topic_table.by_name(served.topic) if served is not None else None
        if served is None or known is None:
            return
        bound = min(effect.offset, served.commit)
        segments = [segment for segment in listed if segment.next <= bound]
        wall_us, tombstone_us = broker.now.wall_us, known.topic.settings.tombstone_ms * 1000
        if segments and _is_worth_it(served.derived.compaction.get(None), segments, wall_us, tombstone_us):
            # If this is refused, the next owner checks again.
            broker.proposer.append_control(served, [CompactBelow(segments[-1].next, max(wall_us - tombstone_us, 0))])

    # --- as any copy ---

    def start_next(self) -> None:
        """Starts the next run that is due, unless one is running."""
        if self._running is not None:
            return
        broker = self._broker
        for served in broker.topic_table.partitions():
            mark = served.derived.compaction.get(None)
            if mark is None or not served.has_log or served.rebuilding is not None:
                continue
            # Nothing below the local commit offset is ever truncated, so it may be rewritten.
            if mark.offset <= served.commit and served.compacted != mark:
                served.compacted = mark
                self._running = served.partition
                broker.out.append(Compact(served.partition, mark.offset, mark.tombstones_us))
                return

    def done(self, given: Compacted) -> None:
        self._running = None
        served = self._broker.topic_table.served.get(given.partition)
        if served is not None and given.bytes:
            served.bytes -= given.bytes
            if served.compacted is not None:
                self._broker.tail_cache.forget_below(served.tail, served.compacted.offset)
            about: dict[str, int | str] = {"partition": str(given.partition), "bytes": given.bytes}
            self._broker.out.append(LogLine("info", "log compacted", about))
        self.start_next()


def _is_worth_it(last: CompactBelow | None, segments: list[ClosedSegment], wall_us: int, tombstone_us: int) -> bool:
    """When the new segments are at least half as large as those compacted before, so that each record is read only a
    few times; and once per tombstone retention time."""
    if last is None:
        return True
    fresh = sum(segment.bytes for segment in segments if segment.next > last.offset)
    old = sum(segment.bytes for segment in segments if segment.next <= last.offset)
    waited_us = wall_us - last.tombstones_us - tombstone_us
    return 2 * fresh >= max(old, 1) or waited_us > max(tombstone_us, RERUN_US)
