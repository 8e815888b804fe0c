"""When topics are compacted: the owner of a partition decides how far, and every copy carries it out on its own.

The word of the owner is an entry in the log, so it outlives the owner, and a copy that was away hears of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.broker.api import Compact, Compacted, SegmentFacts
from rostra.broker.compaction import CompactBelow
from rostra.broker.partition import ServedPartition
from rostra.fabric.api import AskHeld, HeldByAll, Note
from rostra.model.ids import Partition

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class Compactor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._under_way: Partition | None = None
        """One at a time: it reads and writes whole logs."""
        self._surveyed: dict[Partition, tuple[SegmentFacts, ...]] = {}

    # --- as the owner ---

    def sealed(self, served: ServedPartition, segments: tuple[SegmentFacts, ...]) -> None:
        """The log answered a survey: if enough is new, ask how much of it every copy has."""
        if served.owner and self._is_worth_it(served, segments):
            self._surveyed[served.partition] = segments
            self._broker.ask_fabric(AskHeld(served.partition))

    def _is_worth_it(self, served: ServedPartition, segments: tuple[SegmentFacts, ...]) -> bool:
        """When what is new is at least half of what was looked at before, so that each record is looked at a few times
        only; and once in the time for which tombstones are kept.
        """
        last = served.books.compaction.get(None)
        known = self._broker.catalogue.named(served.topic)
        if last is None or known is None:
            return bool(segments)
        fresh = sum(segment.bytes for segment in segments if segment.next > last.offset)
        old = sum(segment.bytes for segment in segments if segment.next <= last.offset)
        waited_us = self._broker.now.wall_us - last.tombstones_us
        return 2 * fresh >= max(old, 1) or (old > 0 and waited_us > 2000 * known.topic.settings.tombstone_ms)

    def held(self, effect: HeldByAll) -> None:
        broker = self._broker
        segments = self._surveyed.pop(effect.partition, ())
        served = broker.catalogue.served(effect.partition)
        known = broker.catalogue.named(served.topic) if served is not None else None
        if served is None or known is None:
            return
        bound = min(effect.offset, served.commit)
        offset = max((segment.next for segment in segments if segment.next <= bound), default=0)
        before_us = max(broker.now.wall_us - known.topic.settings.tombstone_ms * 1000, 0)
        if offset:
            # If this is refused, whoever owns the partition then looks again.
            broker.ordering.order(served, [CompactBelow(offset, before_us)])

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
        served = self._broker.catalogue.served(given.partition)
        if served is not None and given.bytes:
            served.bytes -= given.bytes
            if served.compacted is not None:
                self._broker.tails.forget_below(served.tail, served.compacted.offset)
            about: dict[str, int | str] = {"partition": str(given.partition), "bytes": given.bytes}
            self._broker.out.append(Note("info", "log compacted", about))
        self.look()
