"""Stream reads: micro-batches between positions that Spark stores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from rostra.errors import LinkError
from rostra.spark.source.batch_reader import SpanPartition, read_partition
from rostra.spark.source.bounds import resolve
from rostra.spark.source.cluster_connection import ClusterConnection
from rostra.spark.source.fetch import tolerate
from rostra.spark.source.options import ReadOptions
from rostra.spark.source.plan import Advance, TopicExtents, admit, advance, spans_between, split
from rostra.spark.source.positions import Positions

if TYPE_CHECKING:
    import pyarrow as pa


class RostraStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream. Spark asks for positions in one process that lives as long as the query, and calls `read` in
    workers, on a copy."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._brokers: ClusterConnection | None = None
        self._initial: dict[str, Any] | None = None
        self._frozen: TopicExtents | None = None
        self._told: set[str] = set()
        """Losses that were said already."""
        self._batch_at_s: float | None = None
        """When the last batch was given out."""

    # --- positions -----------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (the name is Spark's)
        """The start of the stream. Spark asks twice and needs the same answer."""
        if self._initial is None and self.options.start:
            self._initial = json.loads(self.options.start)
        if self._initial is None:
            cluster = self._cluster()
            available = cluster.available()
            offsets = resolve(self.options.starting, available.extents, cluster.at_time, "startingOffsets")
            self._initial = Positions(offsets, available.ids, initial=True).to_json()
        return self._initial

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (the name is Spark's)
        reached = Positions.from_json(start)
        available = self._frozen or self._available()
        ahead = advance(reached, available)
        for loss in ahead.losses:
            if self.options.fail_on_loss or str(loss) not in self._told:
                self._told.add(str(loss))
                tolerate(loss, self.options.fail_on_loss)
        if self._waits(ahead):
            return start
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else 0
        ends = admit(ahead.starts, ahead.ends, most)
        return Positions(ends, available.ids).reached_from(reached).to_json()

    def _waits(self, ahead: Advance) -> bool:
        """Whether a batch is to be put off until there is more; one that ends with what is there now never is."""
        backlog, now, before = ahead.backlog(), monotonic(), self._batch_at_s
        few = backlog < self.options.offsets_per_trigger_min and self._frozen is None
        if few and before is not None and (now - before) * 1000 < self.options.trigger_delay_max_ms:
            return True
        if backlog:
            self._batch_at_s = now
        return False

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (the name is Spark's)
        most = self.options.offsets_per_trigger_max
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (the name is Spark's)
        self._frozen = self._available()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (the name is Spark's)
        return (self._frozen or self._available()).ends().to_json()

    def _available(self) -> TopicExtents:
        # A topic that is missing is told as what it is: deleted, since it was there when the query began.
        return self._cluster().available(gone=True)

    # --- tasks ---------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The spans of a batch, which depend on arguments and options only: a repeated batch reads the same records."""
        spans = spans_between(Positions.from_json(start), Positions.from_json(end))
        if not spans:
            return []
        addresses = self._addresses()
        tasks = split(spans, self.options.tasks_min, self.options.records_per_task_max)
        return [SpanPartition(task, addresses) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.options)

    def _addresses(self) -> tuple[str, ...]:
        try:
            return self._cluster().addresses()
        except LinkError:
            return self.options.nodes

    # --- life ----------------------------------------------------------------------------------------

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark stores the position, not the broker."""

    def stop(self) -> None:
        if self._brokers is not None:
            self._brokers.close()
            self._brokers = None

    def _cluster(self) -> ClusterConnection:
        if self._brokers is None:
            self._brokers = ClusterConnection(self.options)
        return self._brokers
