"""What lakes of every format have in common: one writer, a staging directory of each run, batches that are added once.

    LAKE/topic=orders/date=2026-01-31/part-….parquet    what readers see, and nothing else but a table's own log
    LAKE.rostra/writer.lock                             the right to write
    LAKE.rostra/runs/RUN/staging/…                      files that tasks are writing
    LAKE.rostra/runs/RUN/checkpoint/…                   Spark's, of no use to another run: the lake knows its offsets
    LAKE.rostra/streams/…                               which query uses which checkpoint, for streams without offsets

A batch is written to the side; the format says how it becomes a part of the lake. What a run left behind is deleted by
the next, and files of attempts of tasks that do not count, with each batch.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from rostra.errors import InvalidSetting, LakeChanged
from rostra.spark.lake.files import LakeFiles
from rostra.spark.lake.lease import Lease, acquire
from rostra.spark.lake.offsets import Held, StagedBatch, staged_batch
from rostra.spark.source.bounds import TopicPartition
from rostra.spark.source.plan import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

BY_TOPIC_AND_DATE = ("topic", "date")
WRITING = {
    # By a task; each has buffers. Rows for further files are sorted; without this, Spark sorts all rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "4",
    # As every reader knows it, and comparable; Spark's own is of 96 bits.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


class Lake(ABC):
    format: ClassVar[str]

    def __init__(self, files: LakeFiles, partition_by: tuple[str, ...] = BY_TOPIC_AND_DATE) -> None:
        self.root = files.root
        self.beside = f"{files.root}.rostra"
        self._files = files
        self._partition_by = partition_by
        self._run = f"{self.beside}/runs/{uuid4().hex}"
        self._lease: Lease | None = None
        self._query: StreamingQuery | None = None
        self._closed = False
        self._in_a_batch = False
        """Files of this run may be a part of what the next one has to finish."""

    # --- writer --------------------------------------------------------------------------------------

    def open(self, columns: StructType) -> None:
        """Become the one that writes, and finish or throw away what others had begun. LakeInUse if somebody is."""
        self._lease = acquire(self._files, f"{self.beside}/writer.lock", self._is_over)
        try:
            self._recover(columns)
            for name in self._files.names(f"{self.beside}/runs"):
                self._files.delete(f"{self.beside}/runs/{name}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._closed = True
        lease, self._lease = self._lease, None
        if lease is not None:
            if not self._in_a_batch:
                self._files.delete(self._run)
            lease.release()

    def until_end_of(self, query: StreamingQuery) -> None:
        """Stay the writer as long as the query runs."""
        self._query = query

        def wait() -> None:
            with suppress(Exception):
                query.awaitTermination()
            self.close()

        threading.Thread(target=wait, name="lake-lease", daemon=True).start()

    def _is_over(self) -> bool:
        return self._closed or (self._query is not None and not self._query.isActive)

    def _check_lease(self) -> None:
        if self._lease is None:
            raise LakeChanged(self.root, "it is not open")
        self._lease.check()

    @property
    def checkpoint(self) -> str:
        """For a query of this run alone, as Spark names it."""
        return self._files.uri(f"{self._run}/checkpoint")

    @property
    def staging(self) -> str:
        return f"{self._run}/staging"

    @property
    def staging_on_disk(self) -> str | None:
        """Where tasks write files; None where only Spark knows how to write."""
        return self._files.on_disk(self.staging)

    # --- batches -------------------------------------------------------------------------------------

    def adopt(self, rows: Iterable[Any], query: str, number: int) -> None:
        """Add the files that tasks wrote, as the rows that Spark counts name them."""
        self._in_a_batch = True
        self._commit(staged_batch(rows), query, number)
        self._end_batch()

    def add(self, frame: DataFrame, query: str, number: int, topics: Mapping[str, int] | None = None) -> bool:
        """Add rows unless the batch was added already; whether it was new.

        With the ids of topics, the lake takes note of the offsets.
        """
        if self.added(query, number):
            return False
        place = uuid4().hex
        staged = f"{self.staging}/{place}"
        with conf_set(frame.sparkSession, WRITING):
            frame.write.partitionBy(*self._partition_by).parquet(self._files.uri(staged))
        names = {f"{place}/{file.path}": 0 for file in self._files.files(staged) if file.path.endswith(".parquet")}
        spans = self._spans(frame, staged, topics) if topics is not None and names else ()
        self._in_a_batch = True
        self._commit(StagedBatch(names, spans), query, number)
        self._end_batch()
        return True

    def _end_batch(self) -> None:
        """The next batch has not begun: files that are left are of attempts of tasks that do not count."""
        self._in_a_batch = False
        self._files.delete(self.staging)

    def _spans(self, frame: DataFrame, staged: str, topics: Mapping[str, int]) -> tuple[Span, ...]:
        from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

        rows = frame.sparkSession.read.schema(frame.schema).parquet(self._files.uri(staged))
        ends = rows.groupBy("topic", "partition").agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        return tuple(
            Span(row.topic, topics[row.topic], row.partition, row.first, row["last"] + 1) for row in ends.collect()
        )

    def claim(self, checkpoint: str, query: str) -> None:
        """Tie a checkpoint to its query. LakeChanged if it was another's: then all that is here would come again."""
        path = f"{self.beside}/streams/{sha256(checkpoint.encode()).hexdigest()[:16]}"
        with suppress(FileExistsError):
            self._files.create(path, query.encode())
        if self._files.read(path).decode() != query:
            reason = f"the checkpoint {checkpoint} is a new one, but the lake holds what was read with the old one"
            raise LakeChanged(self.root, reason)

    def _targets(self, batch: StagedBatch, prefix: str) -> dict[str, str]:
        """By name in the staging directory, a name in the lake that no other file has."""
        targets = {}
        for at, name in enumerate(sorted(batch.files)):
            folders = [part for part in name.split("/")[:-1] if "=" in part]
            targets[name] = "/".join((*folders, f"part-{prefix}-{at:05}-{uuid4().hex[:8]}.parquet"))
        return targets

    # --- of each format ------------------------------------------------------------------------------

    @abstractmethod
    def _recover(self, columns: StructType) -> None:
        """Finish or undo what a writer that died had begun, and take note of columns that are new.

        Columns may come and go between runs; one that is there never changes its type.
        """

    @abstractmethod
    def _commit(self, batch: StagedBatch, query: str, number: int) -> None:
        """Make the staged files a part of the lake, once. LakeChanged if another writer was here."""

    @abstractmethod
    def begin(self, new: Held) -> None:
        """Take note where topics begin that the lake has nothing of yet."""

    @abstractmethod
    def held(self, wanted: Iterable[TopicPartition]) -> Held: ...

    @abstractmethod
    def added(self, query: str, number: int) -> bool: ...

    @abstractmethod
    def tidy(self) -> int:
        """Put small files together where readers are not disturbed; how many files fewer there are."""

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """By name, the type as Spark writes it."""

    @abstractmethod
    def read(self, spark: SparkSession) -> DataFrame:
        """All that was added, each column as it was, none of them guessed from the names of directories."""


def check_columns(lake: str, known: Mapping[str, str], new: StructType) -> dict[str, str]:
    """All columns there are then."""
    columns = {field.name: field.dataType.simpleString() for field in new.fields}
    for name, kind in columns.items():
        if known.get(name, kind) != kind:
            raise InvalidSetting(
                "lake", f"column {name} is {known[name]} in {lake}, and would be {kind}; name another lake"
            )
    return {**known, **columns}


def ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


@contextmanager
def conf_set(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    conf = spark.conf
    before = {name: conf.get(name, None) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                conf.unset(name)
            else:
                conf.set(name, old)
