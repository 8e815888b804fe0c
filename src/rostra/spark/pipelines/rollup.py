"""Event-time windows over topics: counts, rates, sizes, distinct keys, and records that came too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.errors import InvalidSetting
from rostra.spark.lake.formats import lake_of
from rostra.spark.pipelines.archive import add_stream, with_date
from rostra.spark.pipelines.progress import WRITTEN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

PERCENTILES = (0.5, 0.95, 0.99)
BY = ("topic", "key")


def rollup(
    frame: DataFrame,
    *,
    window: str = "1 minute",
    slide: str | None = None,
    watermark: str = "1 minute",
    by: tuple[str, ...] = ("topic",),
    measure: str = "length(value)",
    exact: bool = False,
) -> DataFrame:
    """A row for each window and group, with percentiles of the measure, an expression over the columns of a record.

    Percentiles and distinct keys are estimates, within 0.01 % of rank and 5 %, unless they are to be exact, for which
    the state of a window holds every value and key.

    >>> rollup(topics, window="10 seconds", by=("topic", "key"), measure="double(string(value))")  # doctest: +SKIP
    """
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    strange = [name for name in by if name not in BY]
    if strange:
        raise InvalidSetting("by", f"{', '.join(strange)} is none of {', '.join(BY)}")
    number = F.expr(measure)
    shares = F.array(*(F.lit(share) for share in PERCENTILES))
    percentiles = F.percentile(number, shares) if exact else F.percentile_approx(number, shares, 10_000)
    keys = F.size(F.collect_set("key")) if exact else F.approx_count_distinct("key")
    seen = frame.withWatermark("timestamp", watermark) if frame.isStreaming else frame
    windows = F.window("timestamp", window, slide) if slide else F.window("timestamp", window)
    grouped = seen.groupBy(windows.alias("span"), *by).agg(
        F.count(F.lit(1)).alias("records"),
        F.sum(F.length("value")).alias("bytes"),
        percentiles.alias("shares"),
        keys.cast("long").alias("keys"),
    )
    return grouped.select(
        F.col("span.start").alias("start"),
        F.col("span.end").alias("end"),
        *by,
        "records",
        (F.col("records") / _seconds(F.col("span.start"), F.col("span.end"))).alias("per_second"),
        "bytes",
        *(F.col("shares")[at].cast("double").alias(_named(share)) for at, share in enumerate(PERCENTILES)),
        "keys",
    )


def _seconds(start: Column, end: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    return (F.unix_micros(end) - F.unix_micros(start)) / F.lit(1_000_000)


def _named(share: float) -> str:
    """p50, p95, p99."""
    return f"p{share * 100:g}".replace(".", "_")


def rollup_to_lake(
    rolled: DataFrame, lake: str, *, checkpoint: str | None = None, once: bool = False, trigger_ms: int = 10_000
) -> StreamingQuery:
    """Starts a query that adds each window to the lake once, when the watermark has passed it."""
    if not rolled.isStreaming:
        raise InvalidSetting("frame", "it is no stream; write a batch with `rolled.write.parquet`")
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    dated = with_date(rolled, "start")
    partition_by = ("topic", "date") if "topic" in rolled.columns else ("date",)
    into = lake_of(rolled.sparkSession, lake, "parquet", partition_by=partition_by)
    dated = dated.observe(WRITTEN, F.count(F.lit(1)).alias("windows"))
    return add_stream(dated, into, checkpoint, once=once, trigger_ms=trigger_ms)
