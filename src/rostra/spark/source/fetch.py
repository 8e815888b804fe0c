"""Reads the offsets of a task from the broker, as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import monotonic

import pyarrow as pa

from rostra import blocking
from rostra.client.core.options import Offset
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.errors import (
    OffsetOutOfRange,
    RecordsExpired,
    RostraError,
    TimedOut,
    TopicDeleted,
    TopicRecreated,
    UnknownPartition,
    UnknownTopic,
)
from rostra.spark.source.columns import rows_of
from rostra.spark.source.options import ReadOptions
from rostra.spark.source.plan import Span

CREDIT_BYTES = 16 << 20
ROWS_MIN = 512
BYTES_MIN = 64 << 10
"""Batches smaller than both are put together: each that is handed on costs Spark the same, whatever is in it."""
SLICE_S = 0.15
"""The end of a span may be no record: then nothing comes, and only looking tells that it was reached. For a shorter
time the client would ask the system first whether something is there, for every piece of a batch."""

log = logging.getLogger("rostra.spark")


def fetch(client: blocking.Client, span: Span, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yields all committed records of the span, in order, in batches of a size that suits Spark."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _batches(client, span, options):
        if not small and len(batch) >= ROWS_MIN:
            yield batch
            continue
        small.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= ROWS_MIN or size >= BYTES_MIN:
            yield _together(small)
            small, rows, size = [], 0, 0
    if small:
        yield _together(small)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _batches(client: blocking.Client, span: Span, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    at = span.first
    while at < span.end:
        try:
            _check(client, span)
            for batch, reached in _from(client, span, at, options.stall_timeout_ms):
                at = reached
                yield rows_of(batch, span.end, options.columns, options.nullable)
            return
        except OffsetOutOfRange as gone:
            at = _behind_loss(span, at, gone, options.fail_on_loss)
        except (TopicDeleted, TopicRecreated, UnknownTopic) as gone:
            tolerate(TopicDeleted(span.topic) if isinstance(gone, UnknownTopic) else gone, options.fail_on_loss)
            return


def _check(client: blocking.Client, span: Span) -> None:
    """Checks that the topic has the planned id: one of the same name that was created later has other records."""
    described = client.describe_topic(span.topic)
    if described.topic != span.topic_id:
        raise TopicRecreated(span.topic)
    if not any(state.partition == span.partition for state in described.partitions):
        raise UnknownPartition(span.topic, span.partition)


def _from(client: blocking.Client, span: Span, at: int, stall_ms: int) -> Iterator[tuple[DeliveredBatch, int]]:
    """Yields batches with the offset after each, up to the end of the span."""
    with client.subscribe(
        span.topic, start=Offset(at), partition=span.partition, credit_bytes=CREDIT_BYTES
    ) as subscription:
        heard = monotonic()
        while at < span.end:
            delivered = subscription.poll(SLICE_S)
            if delivered is None:
                if subscription.positions[span.partition] >= span.end:
                    return
                if (monotonic() - heard) * 1000 > stall_ms:
                    raise TimedOut(f"reading {span.topic}/{span.partition} from {at}", stall_ms)
                continue
            if delivered.topic_id not in (0, span.topic_id):
                raise TopicRecreated(span.topic)
            heard = monotonic()
            at = delivered.next_offset
            if delivered.first_offset < span.end:
                yield delivered, min(at, span.end)


def _behind_loss(span: Span, at: int, gone: OffsetOutOfRange, fail_on_loss: bool) -> int:
    """The offset at which to continue after records were deleted by retention."""
    if gone.first <= at:
        raise gone
    tolerate(RecordsExpired(span.topic, span.partition, at, gone.first), fail_on_loss)
    return gone.first


def tolerate(loss: RostraError, fail_on_loss: bool) -> None:
    """Raises or logs the loss, according to the options: it is never silent."""
    if fail_on_loss:
        raise loss
    if isinstance(loss, RecordsExpired):
        lost = loss.first - loss.offset
        log.warning("up to %d records of %s/%d are lost to retention: %s", lost, loss.topic, loss.partition, loss)
    else:
        log.warning("records are lost: %s", loss)
