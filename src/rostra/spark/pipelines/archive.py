"""Topics to a lake: every record once, by topic and date."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rostra.errors import InvalidSetting
from rostra.spark.environment.session import check_classic
from rostra.spark.lake.formats import lake_of
from rostra.spark.lake.lake import Lake
from rostra.spark.lake.offsets import start_of
from rostra.spark.pipelines.progress import OBSERVED
from rostra.spark.source.options import STAGE, START, parse_options
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


def archive_topics(
    spark: SparkSession,
    options: Mapping[str, str],
    lake: str,
    *,
    format: str | None = None,
    once: bool = False,
    trigger_ms: int = 10_000,
    compact_every: int = COMPACT_EVERY,
) -> StreamingQuery:
    """Start a query that adds the records of topics to the lake; with `once` it ends when all that is there is added.

    It begins where the lake ends, whatever became of earlier queries. On a disk, tasks write the files by themselves.

    >>> archive_topics(spark, {"subscribe": "orders"}, "lake", once=True).awaitTermination()  # doctest: +SKIP
    """
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)
    from pyspark.sql.types import DateType

    from rostra.spark.source.data_source import spark_schema

    check_classic(spark)
    parsed = parse_options(options, streaming=True)
    into = lake_of(spark, lake, format)
    # Where Spark writes the rows, the offsets that the lake holds are found in them.
    needed = ("topic", "timestamp", *(() if into.staging_on_disk else ("partition", "offset")))
    if not set(needed) <= set(parsed.columns):
        raise InvalidSetting("columns", f"a lake needs {' and '.join(needed)}")
    into.open(spark_schema(parsed.columns).add("date", DateType()))
    try:
        start, new = start_of(into.held, parsed)
        into.begin(new)
        topics = spark.readStream.format("rostra").options(**options).option(START, json.dumps(start.to_json()))
        staging = into.staging_on_disk
        if staging is None:
            frame = with_date(topics.load())
        else:
            frame = topics.option(STAGE, staging).load().observe(OBSERVED, F.sum("records").alias("records"))

        def add(batch: DataFrame, number: int) -> None:
            if staging is None:
                into.add(batch, query_id(batch), number, start.ids)
            else:
                into.adopt(batch.collect(), query_id(batch), number)
            if compact_every and number % compact_every == compact_every - 1:
                into.tidy()

        return _start(frame, add, into, into.checkpoint, once=once, trigger_ms=trigger_ms)
    except BaseException:
        into.close()
        raise


def archive(
    frame: DataFrame,
    lake: str,
    *,
    checkpoint: str | None = None,
    format: str | None = None,
    once: bool = False,
    trigger_ms: int = 10_000,
    compact_every: int = COMPACT_EVERY,
) -> StreamingQuery:
    """The same for any stream with the columns topic and timestamp. What was read is known from its checkpoint alone.

    >>> topics = spark.readStream.format("rostra").option("subscribe", "orders").load()  # doctest: +SKIP
    >>> archive(topics.where("partition = 0"), "lake", once=True).awaitTermination()  # doctest: +SKIP
    """
    if not frame.isStreaming:
        raise InvalidSetting("frame", "it is no stream; `store` adds the records of a batch")
    into = lake_of(frame.sparkSession, lake, format)
    return add_stream(with_date(frame), into, checkpoint, once=once, trigger_ms=trigger_ms, compact_every=compact_every)


def add_stream(
    dated: DataFrame, into: Lake, checkpoint: str | None, *, once: bool, trigger_ms: int, compact_every: int = 0
) -> StreamingQuery:
    """Add the rows of a stream to a lake, batch by batch."""
    place = checkpoint or f"{into.beside}/checkpoint"
    into.open(dated.schema)

    def add(batch: DataFrame, number: int) -> None:
        query = query_id(batch)
        into.claim(place, query)
        into.add(batch, query, number)
        if compact_every and number % compact_every == compact_every - 1:
            into.tidy()

    try:
        return _start(dated, add, into, place, once=once, trigger_ms=trigger_ms)
    except BaseException:
        into.close()
        raise


def _start(
    frame: DataFrame, add: Callable[[DataFrame, int], None], into: Lake, place: str, *, once: bool, trigger_ms: int
) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(add).outputMode("append").option("checkpointLocation", place)
    trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger_ms} milliseconds")
    query = trigger.start()
    into.until_end_of(query)
    return query


def store(frame: DataFrame, lake: str, name: str, *, format: str | None = None) -> bool:
    """Add the records of a batch under that name, once; whether they were new."""
    dated = with_date(frame)
    into = lake_of(frame.sparkSession, lake, format)
    into.open(dated.schema)
    try:
        return into.add(dated, name, 0)
    finally:
        into.close()


def query_id(batch: DataFrame) -> str:
    """The same for all runs from one checkpoint: batches of another query have the same numbers."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found, "Spark names the query of each batch"
    return found
