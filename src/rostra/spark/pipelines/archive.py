"""Topics to a lake: every record once, by topic and date."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rostra.errors import InvalidSetting
from rostra.spark.pipelines.lake import OWN, Lake
from rostra.spark.pipelines.progress import OBSERVED
from rostra.spark.source.options import STAGE, parse_options
from rostra.spark.source.parquet_staging import DAY_US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COMPACT_EVERY = 20


def with_date(frame: DataFrame, moment: str = "timestamp") -> DataFrame:
    """With the day of each row in UTC, whatever the session's time zone is."""
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    day = F.floor(F.unix_micros(moment) / F.lit(DAY_US)).cast("int")
    return frame.withColumn("date", F.date_from_unix_date(day))


def archive(
    frame: DataFrame,
    lake: str,
    *,
    checkpoint: str | None = None,
    once: bool = False,
    trigger_ms: int = 10_000,
    compact_every: int = COMPACT_EVERY,
) -> StreamingQuery:
    """Start a query that adds the records of a stream to the lake; with `once` it ends when all that is there is added.

    >>> topics = spark.readStream.format("rostra").option("subscribe", "orders").load()  # doctest: +SKIP
    >>> archive(topics, "lake", once=True).awaitTermination()  # doctest: +SKIP
    """
    if not frame.isStreaming:
        raise InvalidSetting("frame", "it is no stream; `store` adds the records of a batch")
    spark = frame.sparkSession
    dated = with_date(frame)
    into = Lake(spark, lake)
    into.accept(dated.schema)
    add = partial(_add, into, into.add, compact_every)
    return _start(dated, add, checkpoint or _checkpoint_in(into), once=once, trigger_ms=trigger_ms)


def archive_topics(
    spark: SparkSession,
    options: Mapping[str, str],
    lake: str,
    *,
    checkpoint: str | None = None,
    once: bool = False,
    trigger_ms: int = 10_000,
    compact_every: int = COMPACT_EVERY,
) -> StreamingQuery:
    """The same for topics as they are: tasks write the files by themselves, which takes a fraction of the time.

    >>> archive_topics(spark, {"subscribe": "orders"}, "lake", once=True).awaitTermination()  # doctest: +SKIP
    """
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)
    from pyspark.sql.types import DateType

    from rostra.spark.source.data_source import spark_schema

    columns = parse_options(options, streaming=True).columns
    if not {"topic", "timestamp"} <= set(columns):
        raise InvalidSetting("columns", "a lake is by topic and day: it needs topic and timestamp")
    into = Lake(spark, lake)
    place = checkpoint or _checkpoint_in(into)
    loose = into.loose(place)
    topics = spark.readStream.format("rostra").options(**options)
    if loose is None:
        return archive(
            topics.load(), lake, checkpoint=place, once=once, trigger_ms=trigger_ms, compact_every=compact_every
        )
    into.accept(spark_schema(columns).add("date", DateType()))
    staged = topics.option(STAGE, loose[1]).load().observe(OBSERVED, F.sum("records").alias("records"))

    def adopt(batch: DataFrame, query: str, number: int) -> bool:
        return into.adopt(batch, loose[0], query, number)

    add = partial(_add, into, adopt, compact_every)
    return _start(staged, add, place, once=once, trigger_ms=trigger_ms)


def _add(
    into: Lake, add: Callable[[DataFrame, str, int], bool], compact_every: int, batch: DataFrame, number: int
) -> None:
    add(batch, query_id(batch), number)
    if compact_every and number % compact_every == compact_every - 1:
        into.compact()


def _checkpoint_in(into: Lake) -> str:
    return f"{into.root}/{OWN}/checkpoint"


def _start(
    frame: DataFrame, add: Callable[[DataFrame, int], None], place: str, *, once: bool, trigger_ms: int
) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(add).option("checkpointLocation", place)
    trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger_ms} milliseconds")
    return trigger.start()


def store(frame: DataFrame, lake: str, name: str) -> bool:
    """Add the records of a batch under that name, once; whether they were new."""
    dated = with_date(frame)
    into = Lake(frame.sparkSession, lake)
    into.accept(dated.schema)
    return into.add(dated, name, 0)


def query_id(batch: DataFrame) -> str:
    """The same for all runs from one checkpoint: batches of another query have the same numbers."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found, "Spark names the query of each batch"
    return found
