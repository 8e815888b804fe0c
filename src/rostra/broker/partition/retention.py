"""Forgetting old records: whole segments, oldest first, by age and by bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.broker.api import InspectLog, ListSegments, SegmentsListed
from rostra.fabric.api import ProposeStart

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class Retention:
    def survey(self, broker: Broker) -> None:
        """Ask the log about the segments of every partition that has a bound."""
        for served in broker.catalogue.partitions():
            if served.unsure is not None:
                broker.out.append(InspectLog(served.partition))
            known = broker.catalogue.named(served.topic)
            if known is None or not (served.owner or (broker.roaming is not None and served.copy)):
                # Where every node has partitions of its own, each copy's log start is its node's to move.
                continue
            settings = known.topic.settings
            if settings.retention_ms or settings.retention_bytes or settings.compaction:
                broker.out.append(ListSegments(served.partition))

    def sealed(self, broker: Broker, given: SegmentsListed) -> None:
        """The log answered: propose a new log start if segments are over the bound."""
        served = broker.catalogue.served.get(given.partition)
        known = broker.catalogue.named(served.topic) if served is not None else None
        if served is None or known is None:
            return
        settings = known.topic.settings
        oldest_us = broker.now.wall_us - settings.retention_ms * 1000 if settings.retention_ms else None
        # What the log says it has counts: of batches that a start found and another owner's replaced, nobody here knows
        # the sizes, so `segment_bytes` may be too much. It leaves out the checkpoint, which the log counts.
        closed = sum(segment.bytes for segment in given.segments)
        served.bytes = closed + min(given.active_bytes, served.segment_bytes)
        spare = served.bytes - settings.retention_bytes if settings.retention_bytes else 0
        first = served.first
        dropped = 0
        for segment in given.segments:
            too_old = oldest_us is not None and segment.max_us < oldest_us
            too_much = spare - dropped >= segment.bytes
            if segment.next > served.commit or not (too_old or too_much):
                break
            first = segment.next
            dropped += segment.bytes
        if first > served.first:
            broker.ask_fabric(ProposeStart(served.partition, first))
            if served.first >= first:
                served.bytes -= dropped
        if settings.compaction:
            broker.compactor.sealed(served, tuple(segment for segment in given.segments if segment.next > first))
