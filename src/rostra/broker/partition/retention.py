"""Retention: deletes whole segments, oldest first, by age and by bytes.

Only closed segments are deleted, so the active one is closed before it is full once its records reach a share of a
limit: records stay at most a quarter longer than `retention_ms`, and a partition keeps at most a quarter more than
`retention_bytes`, beyond the interval between checks and what is written in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.broker.api import InspectLog, ListSegments, SegmentsListed
from rostra.fabric.api import ProposeLogStart

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


SHARE = 4
"""The active segment is closed when it reaches this share of a limit."""


class Retention:
    def check(self, broker: Broker) -> None:
        """Lists the segments of every partition with a retention limit; retries failed log inspections."""
        for served in broker.topic_table.partitions():
            if served.rebuilding is not None:
                broker.out.append(InspectLog(served.partition))
            known = broker.topic_table.by_name(served.topic)
            if known is None or not (served.owner or (broker.producer_migration is not None and served.has_log)):
                # Where every node has its own partition, each node moves the log start of its copies itself.
                continue
            settings = known.topic.settings
            if settings.retention_ms or settings.retention_bytes or settings.compaction:
                broker.out.append(ListSegments(served.partition))

    def segments_listed(self, broker: Broker, given: SegmentsListed) -> None:
        """Proposes a new log start if segments exceed the limits."""
        served = broker.topic_table.served.get(given.partition)
        known = broker.topic_table.by_name(served.topic) if served is not None else None
        if served is None or known is None:
            return
        settings = known.topic.settings
        oldest_us = broker.now.wall_us - settings.retention_ms * 1000 if settings.retention_ms else None
        # The log's sizes count: `segment_bytes` may be too large, since the sizes of batches found at the start and
        # later truncated are unknown. It leaves out the checkpoint, which the log counts.
        closed = sum(segment.bytes for segment in given.segments)
        served.bytes = closed + min(given.active_bytes, served.segment_bytes)
        spare = served.bytes - settings.retention_bytes if settings.retention_bytes else 0
        first = served.first
        dropped = 0
        # Staged batches are read again when they are published.
        staged_from = served.derived.staged.first_offset()
        for segment in given.segments:
            too_old = oldest_us is not None and segment.max_us < oldest_us
            too_much = spare - dropped >= segment.bytes
            in_use = staged_from is not None and segment.next > staged_from
            if segment.next > served.commit or in_use or not (too_old or too_much):
                break
            first = segment.next
            dropped += segment.bytes
        if first > served.first:
            broker.step_fabric(ProposeLogStart(served.partition, first))
            if served.first >= first:
                served.bytes -= dropped
        limits = settings.retention_ms, settings.retention_bytes
        if self._must_roll(broker, given, *limits, served.segment_bytes) and (
            served.owner and broker.proposer.write_error(served) is None
        ):
            broker.proposer.roll(served)
        if settings.compaction:
            broker.compactor.segments_listed(
                served, tuple(segment for segment in given.segments if segment.next > first)
            )

    def _must_roll(
        self, broker: Broker, given: SegmentsListed, retention_ms: int, retention_bytes: int, segment_bytes: int
    ) -> bool:
        if given.active_since_us is None:
            return False
        if retention_bytes and min(given.active_bytes, segment_bytes) >= retention_bytes // SHARE:
            return True
        age_us = broker.now.wall_us - given.active_since_us
        return bool(retention_ms) and age_us >= retention_ms * 1000 // SHARE
