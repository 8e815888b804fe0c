"""Batch reads: all records up to the commit offsets at planning time, split into tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from rostra.errors import RecordsExpired
from rostra.spark.source.bounds import AtOffsets, resolve
from rostra.spark.source.cluster_connection import ClusterConnection, connect
from rostra.spark.source.fetch import fetch, tolerate
from rostra.spark.source.filters import ReadWindow, narrow
from rostra.spark.source.options import ReadOptions
from rostra.spark.source.parquet_staging import stage
from rostra.spark.source.plan import Span, TopicExtents, split

if TYPE_CHECKING:
    import pyarrow as pa


class SpanPartition(InputPartition):
    """The span of one task, and addresses of nodes to read it from."""

    def __init__(self, span: Span, addresses: tuple[str, ...]) -> None:
        super().__init__(span)
        self.addresses = addresses


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Reads one span, in a worker of Spark. For a plan without partitions Spark calls it once without a span."""
    if isinstance(partition, SpanPartition):
        span = partition.value
        with connect(partition.addresses, options) as client:
            records = fetch(client, span, options)
            yield from stage(records, span, options.stage, options.columns) if options.stage else records


class _Pushing:
    """Is called as the reader's `pushFilters`.

    Spark refuses a reader that overrides it while push-down is switched off, though this one reads as well without; by
    `__func__` it passes for the inherited one, and is called all the same where push-down is on.
    """

    def __init__(self, reader: RostraReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.window, left = narrow(self._reader.window, filters)
        return left


class RostraReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.window = ReadWindow()

    @property
    def pushFilters(self) -> _Pushing:  # noqa: N802 (the name is Spark's)
        return _Pushing(self)

    def partitions(self) -> list[InputPartition]:
        cluster = ClusterConnection(self.options)
        try:
            available = cluster.available()
            spans = self._spans(available, cluster)
            addresses = cluster.addresses() if spans else ()
        finally:
            cluster.close()
        tasks = split(spans, self.options.tasks_min, self.options.records_per_task_max)
        return [SpanPartition(task, addresses) for task in tasks]

    def _spans(self, available: TopicExtents, cluster: ClusterConnection) -> list[Span]:
        options = self.options
        wanted = TopicExtents(
            available.ids, {key: extent for key, extent in available.extents.items() if self.window.lets_in(key)}
        )
        starts = resolve(options.starting, wanted.extents, cluster.at_time, "startingOffsets")
        ends = resolve(options.ending, wanted.extents, cluster.at_time, "endingOffsets")
        spans = []
        for key, extent in sorted(wanted.extents.items()):
            topic, partition = key
            first = starts[key]
            if isinstance(options.starting, AtOffsets) and first < extent.first < ends[key]:
                tolerate(RecordsExpired(topic, partition, first, extent.first), options.fail_on_loss)
            span = Span(topic, available.ids[topic], partition, max(first, extent.first), ends[key])
            cut = self.window.cut(span, cluster.at_time, extent)
            if cut is not None:
                spans.append(cut)
        return spans

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.options)
