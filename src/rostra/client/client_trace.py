"""The trace of a client: what it published, subscribed to and received."""

from __future__ import annotations

from secrets import randbits
from time import time_ns

from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.model.ids import ID_BITS
from rostra.traces.events import TraceEvent, TraceRole, TraceRow
from rostra.traces.recorder import Recorder

NextOffsets = dict[tuple[str, int], int]
"""By topic and partition, the offset behind the last delivered record."""
PRODUCERS_MAX = 1 << 16
"""The topics of older producers are forgotten; these are closed by then."""


class ClientTrace:
    """Only present if tracing was requested."""

    def __init__(self, metadata: str) -> None:
        self._recorder = Recorder(metadata, TraceRole.CLIENT, randbits(ID_BITS))
        self._number = 0
        self._live: dict[int, NextOffsets] = {}
        self._topics: dict[int, str] = {}
        """By producer number, for the latest producers."""

    def close(self) -> None:
        for subscription in list(self._live):
            self.unsubscribed(subscription)
        self._recorder.close()

    def _record(
        self,
        event: TraceEvent,
        topic: str,
        partition: int = 0,
        *,
        subscription: int = 0,
        first: int = 0,
        end: int = 0,
        records: int = 0,
    ) -> None:
        self._number += 1
        who, now_us = self._recorder.who, time_ns() // 1000
        row = TraceRow(self._number, event.value, now_us, who, topic, partition, subscription, first, end, records)
        self._recorder.note(row)

    def created(self, topic: str) -> None:
        self._record(TraceEvent.CREATED, topic)

    def producer_opened(self, producer: int, topic: str) -> None:
        if producer not in self._topics:
            self._topics[producer] = topic
            if len(self._topics) > PRODUCERS_MAX:
                del self._topics[next(iter(self._topics))]

    def published(self, producer: int, partition: int, offset: int, records: int) -> None:
        end = offset + records if offset >= 0 else -1
        topic = self._topics.get(producer, "")
        self._record(TraceEvent.PUBLISHED, topic, partition, first=offset, end=end, records=records)

    def subscribed(self, subscription: int, starts: dict[str, dict[int, int]]) -> None:
        """`starts` by topic and partition."""
        next_offsets = self._live.setdefault(subscription, {})
        for topic, positions in starts.items():
            for partition, first in positions.items():
                next_offsets[topic, partition] = first
                self._record(TraceEvent.SUBSCRIBED, topic, partition, subscription=subscription, first=first)

    def delivered(self, subscription: int, batch: DeliveredBatch) -> None:
        next_offsets = self._live.setdefault(subscription, {})
        topic, partition, header = batch.topic, batch.partition, batch.header
        if (topic, partition) not in next_offsets:
            # A topic created later is subscribed to from its first record on.
            self.subscribed(subscription, {topic: {partition: 0}})
        next_offsets[topic, partition] = batch.next_offset
        self._number += 1
        row = TraceRow(
            self._number,
            TraceEvent.DELIVERED.value,
            time_ns() // 1000,
            self._recorder.who,
            topic,
            partition,
            subscription,
            batch.first_offset,
            batch.next_offset,
            len(batch),
            batch.bytes,
            header.owner_epoch,
            header.producer,
            header.sequence,
            header.base_timestamp_us,
        )
        self._recorder.note(row)

    def unsubscribed(self, subscription: int) -> None:
        for (topic, partition), end in self._live.pop(subscription, {}).items():
            self._record(TraceEvent.UNSUBSCRIBED, topic, partition, subscription=subscription, end=end)


def open_trace(metadata: str | None) -> ClientTrace | None:
    return None if metadata is None else ClientTrace(metadata)
