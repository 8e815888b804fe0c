"""The writers of `format("rostra")`: tasks stage their rows, the driver's commit publishes them.

Spark runs `write` in tasks, which may be retried or run twice, and `commit` and `abort` in a process of their own, on a
writer built anew. So everything a commit needs travels in the messages of the tasks. `abort` follows a `commit` that
raised, with the same messages: the coordinator knows what was decided, and undoes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rostra.errors import InvalidSetting, RostraError, UnsupportedByFabric
from rostra.spark.sink.options import WriteOptions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from rostra.blocking import Client, Producer
    from rostra.client.core.sink_requests import SinkTask
    from rostra.wire.sinks import StagedPart

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Where Spark tells a task its query and batch; names of its own, which a test pins."""


class PartFields(NamedTuple):
    """The fields of a `StagedPart`: Spark pickles them."""

    topic: int
    partition: int
    handle: int
    records: int
    checksum: int


@dataclass
class TaskStaged(WriterCommitMessage):
    """What a task has staged. A task without rows sends one as well: the commit learns the query from it."""

    query: str
    writer: str
    parts: list[PartFields]


class RowWriter:
    """What both kinds of writers share."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def _connect(self) -> Client:
        from rostra import blocking

        options = self._options
        return blocking.connect(
            *options.nodes, name="rostra-spark", auto_create=False, connect_timeout_ms=options.connect_timeout_ms
        )

    def _write(self, rows: Iterator[RecordBatch], query: str, writer: str, batch: int) -> TaskStaged:
        from pyspark import TaskContext

        from rostra.client.core.sink_requests import SinkTask

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        with self._connect() as client:
            if self._options.at_least_once:
                publish_rows(client, rows, self._options)
                parts: list[StagedPart] = []
            else:
                parts = stage_rows(client, rows, self._options, SinkTask(query, batch, task, attempt))
        return TaskStaged(query, writer, [PartFields(*msgspec.structs.astuple(part)) for part in parts])

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int, *, once: bool) -> None:
        from rostra.wire.sinks import StagedPart

        staged = [message for message in messages if isinstance(message, TaskStaged)]
        if self._options.at_least_once or not staged:
            return
        parts = [StagedPart(*fields) for message in staged for fields in message.parts]
        first = staged[0]
        until_s = time.monotonic() + self._options.commit_timeout_ms / 1000
        with self._connect() as client:
            while True:
                try:
                    client.commit_sink(first.query, batch, parts, writer=first.writer, once=once)
                    return
                except UnsupportedByFabric as error:
                    raise needs_at_least_once(error) from None
                except RostraError as error:
                    # Repeating it is safe: the first decision stands.
                    if not error.retryable or time.monotonic() >= until_s:
                        raise

    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Frees what was staged early; otherwise its lease does."""
        from rostra.wire.sinks import StagedPart

        staged = [message for message in messages if isinstance(message, TaskStaged)]
        parts = [StagedPart(*fields) for message in staged for fields in message.parts]
        if parts:
            with suppress(RostraError), self._connect() as client:
                client.abort_sink(staged[0].query, batch, parts)


class RostraStreamWriter(RowWriter, DataSourceStreamArrowWriter):
    """Each micro-batch becomes one batch of the query, which is named by its checkpoint or by `txnId`."""

    def write(self, iterator: Iterator[RecordBatch]) -> TaskStaged:
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise InvalidSetting("pyspark", f"this version does not tell tasks {QUERY_ID} and {BATCH_ID}")
        name = self._options.txn_id
        return self._write(iterator, name or query, query if name else "", int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        self._commit(messages, batchId, once=False)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(messages, batchId)


class RostraBatchWriter(RowWriter, DataSourceArrowWriter):
    """The whole write is one batch. Without `txnId` it is a query of its own, so that a rerun writes again."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self._query = options.txn_id or f"write-{uuid4().hex}"

    def write(self, iterator: Iterator[RecordBatch]) -> TaskStaged:
        return self._write(iterator, self._query, "", self._options.txn_version)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages, self._options.txn_version, once=not self._options.txn_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages, self._options.txn_version)


def stage_rows(client: Client, rows: Iterator[RecordBatch], options: WriteOptions, task: SinkTask) -> list[StagedPart]:
    """Stages the rows of a task at the owners of their partitions."""
    from rostra.spark.sink.partitioned_batches import PartitionedBatches

    counts: dict[str, int] = {}

    def partitions(topic: str) -> int:
        if topic not in counts:
            counts[topic] = len(client.describe_topic(topic).partitions)
        return counts[topic]

    batches = PartitionedBatches(options, partitions, task.task)
    parts: list[StagedPart] = []
    try:
        for (topic, partition), encoded in batches.all_of(rows):
            parts.append(client.stage(topic, partition, encoded, task))
    except UnsupportedByFabric as error:
        raise needs_at_least_once(error) from None
    return parts


def publish_rows(client: Client, rows: Iterator[RecordBatch], options: WriteOptions) -> None:
    """Publishes the rows of a task at once: a task that is repeated publishes them again."""
    with ExitStack() as stack:
        producers: dict[str, Producer] = {}
        for received in rows:
            for row in received.to_pylist():
                topic = options.topic or row["topic"]
                if topic not in producers:
                    producers[topic] = stack.enter_context(client.producer(topic))
                key, value, moment = row.get("key"), row["value"], row.get("timestamp")
                producers[topic].send(
                    value.encode() if isinstance(value, str) else value,
                    key=key.encode() if isinstance(key, str) else key,
                    headers=[(pair["key"], pair["value"] or b"") for pair in row.get("headers") or ()],
                    timestamp=round(moment.timestamp() * 1_000_000) if moment is not None else None,
                    partition=row.get("partition") if options.partitioner == "column" else None,
                )


def needs_at_least_once(error: UnsupportedByFabric) -> InvalidSetting:
    reason = f"the fabric {error.fabric} does not write exactly once; set atLeastOnce to true to accept duplicates"
    return InvalidSetting("atLeastOnce", reason)
