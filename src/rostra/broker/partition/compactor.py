"""When topics are compacted: the owner of a partition decides how far, and every copy carries it out on its own.

The word of the owner is an entry in the log, so it outlives the owner, and a copy that was away hears of it.
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

LOOK_AGAIN_US = 60_000_000
"""So long at least between two runs over the same segments, however soon tombstones may go."""


class Compactor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._under_way: Partition | None = None
        """One at a time: it reads and writes whole logs."""
        self._surveyed: dict[Partition, tuple[ClosedSegment, ...]] = {}

    # --- as the owner ---

    def sealed(self, served: ServedPartition, segments: tuple[ClosedSegment, ...]) -> None:
        """The log answered a survey: how much of it does every copy have?"""
        if served.owner and segments:
            self._surveyed[served.partition] = segments
            self._broker.ask_fabric(QueryHeldByAll(served.partition))

    def held(self, effect: HeldByAll) -> None:
        """What lies below is compacted if it is worth it. A copy that is away for long holds the others up."""
        broker = self._broker
        surveyed = self._surveyed.pop(effect.partition, ())
        served = broker.catalogue.served.get(effect.partition)
        known = broker.catalogue.named(served.topic) if served is not None else None
        if served is None or known is None:
            return
        bound = min(effect.offset, served.commit)
        segments = [segment for segment in surveyed if segment.next <= bound]
        wall_us, tombstone_us = broker.now.wall_us, known.topic.settings.tombstone_ms * 1000
        if segments and _is_worth_it(served.books.compaction.get(None), segments, wall_us, tombstone_us):
            # If this is refused, whoever owns the partition then looks again.
            broker.ordering.order(served, [CompactBelow(segments[-1].next, max(wall_us - tombstone_us, 0))])

    # --- as any copy ---

    def look(self) -> None:
        """Begins the next run that is due, unless one is under way."""
        if self._under_way is not None:
            return
        broker = self._broker
        for served in broker.catalogue.partitions():
            told = served.books.compaction.get(None)
            if told is None or not served.copy or served.unsure is not None:
                continue
            # Below its own commit nothing is ever cut: only such a copy may be changed.
            if told.offset <= served.commit and served.compacted != told:
                served.compacted = told
                self._under_way = served.partition
                broker.out.append(Compact(served.partition, told.offset, told.tombstones_us))
                return

    def done(self, given: Compacted) -> None:
        self._under_way = None
        served = self._broker.catalogue.served.get(given.partition)
        if served is not None and given.bytes:
            served.bytes -= given.bytes
            if served.compacted is not None:
                self._broker.tails.forget_below(served.tail, served.compacted.offset)
            about: dict[str, int | str] = {"partition": str(given.partition), "bytes": given.bytes}
            self._broker.out.append(LogLine("info", "log compacted", about))
        self.look()


def _is_worth_it(last: CompactBelow | None, segments: list[ClosedSegment], wall_us: int, tombstone_us: int) -> bool:
    """When what is new is at least half of what was looked at before, so that each record is looked at a few times
    only; and once in the time for which tombstones are kept.
    """
    if last is None:
        return True
    fresh = sum(segment.bytes for segment in segments if segment.next > last.offset)
    old = sum(segment.bytes for segment in segments if segment.next <= last.offset)
    waited_us = wall_us - last.tombstones_us - tombstone_us
    return 2 * fresh >= max(old, 1) or waited_us > max(tombstone_us, LOOK_AGAIN_US)
