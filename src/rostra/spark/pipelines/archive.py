"""Topics to a lake: every record once, by topic and date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.errors import InvalidSetting
from rostra.spark.pipelines.lake import OWN, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

DAY_US = 86_400_000_000
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
    into.accept(dated)
    place = checkpoint or f"{into.root}/{OWN}/checkpoint"

    def add(batch: DataFrame, number: int) -> None:
        into.add(batch, query_id(batch), number)
        if compact_every and number % compact_every == compact_every - 1:
            into.compact()

    writer = dated.writeStream.foreachBatch(add).option("checkpointLocation", place)
    trigger = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger_ms} milliseconds")
    return trigger.start()


def store(frame: DataFrame, lake: str, name: str) -> bool:
    """Add the records of a batch under that name, once; whether they were new."""
    dated = with_date(frame)
    into = Lake(frame.sparkSession, lake)
    into.accept(dated)
    return into.add(dated, name, 0)


def query_id(batch: DataFrame) -> str:
    """The same for all runs from one checkpoint: batches of another query have the same numbers."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found, "Spark names the query of each batch"
    return found
