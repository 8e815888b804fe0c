"""From the traces of publishers, nodes and subscribers: what was sent, what should have arrived, and what did.

A row of a trace is about a batch; since no one takes batches apart, the offset behind its last record says which it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rostra.errors import InvalidSetting
from rostra.model.ids import text
from rostra.spark.pipelines.findings import (
    BUCKET_BITS,
    EVERY_TOPIC,
    Audit,
    Gap,
    Latency,
    LostRange,
    NodeLoad,
    TopicFindings,
    imbalance_of,
    latency_of,
    total_of,
)
from rostra.traces.events import TraceEvent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOST_SHOWN_MAX = 1000
NEVER = (1 << 63) - 1
ONE = ("who", "subscription", "topic", "partition")
"""What makes a subscription to a partition."""


def read_traces(spark: SparkSession, *places: str) -> DataFrame:
    """All traces in these directories; InvalidSetting if one is missing or has none."""
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(*places)
    except AnalysisException as error:
        if error.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            raise
        raise InvalidSetting("traces", f"there are none in {', '.join(places)}") from None


def audit(traces: DataFrame) -> Audit:
    """Find out. The traces are gone through several times; nothing but the findings is kept.

    >>> audit(read_traces(spark, "traces")).total.percent  # doctest: +SKIP
    100.0
    """
    arrived = _arrived(traces)
    compared = _compared(traces, arrived)
    topics = _topics(traces, compared, _late(traces))
    nodes = _nodes(traces)
    return Audit(
        total_of(topics),
        tuple(topics),
        tuple(_latencies(traces)),
        _hops(traces),
        tuple(nodes),
        imbalance_of(nodes),
        tuple(_gaps(traces)),
        tuple(_lost(compared)),
    )


def _of(traces: DataFrame, event: TraceEvent) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    return traces.where(F.col("event") == event.value)


# --- deliveries ------------------------------------------------------------------------------------------------------


def _subscriptions(traces: DataFrame) -> DataFrame:
    """From which offset on, and up to which, each of them expects records."""
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    begun = _of(traces, TraceEvent.SUBSCRIBED).groupBy(*ONE).agg(F.min("first").alias("start"))
    ended = _of(traces, TraceEvent.UNSUBSCRIBED).groupBy(*ONE).agg(F.max("end").alias("stop"))
    return begun.join(ended, list(ONE), "left").fillna(NEVER, ["stop"])


def _arrived(traces: DataFrame) -> DataFrame:
    """Each batch that a subscription got, with its records, and those that came again."""
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    by_batch = _of(traces, TraceEvent.DELIVERED).groupBy(*ONE, "end")
    return by_batch.agg(F.max("records").alias("got"), (F.sum("records") - F.max("records")).alias("again"))


def _compared(traces: DataFrame, arrived: DataFrame) -> DataFrame:
    """What each subscription should have got of each batch, beside what it got."""
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    sent = (
        _of(traces, TraceEvent.PUBLISHED)
        .where(F.col("first") >= 0)
        .select("topic", "partition", "first", "end", "records")
    )
    inside = (F.col("first") >= F.col("start")) & (F.col("end") <= F.col("stop"))
    part = F.least("end", "stop") - F.greatest("first", "start")
    expected = (
        sent.join(F.broadcast(_subscriptions(traces)), ["topic", "partition"])
        .where((F.col("end") > F.col("start")) & (F.col("first") < F.col("stop")))
        .select(*ONE, "end", F.when(inside, F.col("records")).otherwise(part).cast("long").alias("wanted"))
    )
    return expected.join(arrived, [*ONE, "end"], "full_outer").fillna(0, ["wanted", "got", "again"])


def _late(traces: DataFrame) -> DataFrame:
    """By topic, the records of batches that came behind a later one; those that came again are among them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    before = Window.partitionBy(*ONE).orderBy("number").rowsBetween(Window.unboundedPreceding, -1)
    delivered = _of(traces, TraceEvent.DELIVERED).select(*ONE, "number", "first", "end", "records")
    reached = delivered.withColumn("reached", F.max("end").over(before))
    return reached.where(F.col("first") < F.col("reached")).groupBy("topic").agg(F.sum("records").alias("late"))


def _topics(traces: DataFrame, compared: DataFrame, late: DataFrame) -> list[TopicFindings]:
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    def number(event: TraceEvent, of: Any) -> Any:
        return F.sum(F.when(F.col("event") == event.value, of).otherwise(0))

    began = _of(traces, TraceEvent.SUBSCRIBED).select("topic", "who", "subscription").distinct()
    said = traces.groupBy("topic").agg(
        number(TraceEvent.CREATED, F.lit(1)).alias("created"),
        number(TraceEvent.PUBLISHED, F.col("records")).alias("sent"),
    )
    came = compared.groupBy("topic").agg(
        F.sum("wanted").alias("expected"),
        F.sum(F.least("got", "wanted")).alias("delivered"),
        F.sum("again").alias("duplicated"),
        F.sum(F.when(F.col("wanted") == 0, F.col("got")).otherwise(0)).alias("unexplained"),
    )
    joined = (
        said.join(began.groupBy("topic").agg(F.count("*").alias("subscribed")), "topic", "left")
        .join(came, "topic", "left")
        .join(late, "topic", "left")
        .fillna(0)
        .where("topic <> ''")
    )
    return [
        TopicFindings(
            row.topic,
            row.created,
            row.subscribed,
            row.sent,
            row.expected,
            row.delivered,
            row.expected - row.delivered,
            row.duplicated,
            row.late - row.duplicated,
            row.unexplained,
        )
        for row in joined.orderBy("topic").collect()
    ]


def _lost(compared: DataFrame) -> list[LostRange]:
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    missing = compared.where(F.col("got") < F.col("wanted")).orderBy("topic", "partition", "end", "who", "subscription")
    return [
        LostRange(row.topic, row.partition, text(row.who), row.subscription, row.end, row.wanted - row.got)
        for row in missing.limit(LOST_SHOWN_MAX).collect()
    ]


# --- latency, load, owners -------------------------------------------------------------------------------------------


def _latencies(traces: DataFrame) -> list[Latency]:
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    latency = F.greatest(F.col("time_us") - F.col("born_us"), F.lit(0))
    # As `bucket_of` does it: the binary digits are counted, since a logarithm would round at powers of two.
    surplus = F.greatest(F.length(F.bin("latency")) - BUCKET_BITS, F.lit(0)).cast("int")
    lower = F.expr("shiftleft(shiftright(latency, surplus), surplus)")
    rows = (
        _of(traces, TraceEvent.DELIVERED)
        .select("topic", "records", latency.alias("latency"))
        .withColumn("surplus", surplus)
        .groupBy("topic", lower.alias("lower"))
        .agg(
            F.sum("records").alias("records"),
            F.sum(F.col("latency") * F.col("records")).alias("sum_us"),
            F.max("latency").alias("max_us"),
        )
        .collect()
    )
    by_topic: dict[str, list[Any]] = {}
    for row in rows:
        by_topic.setdefault(row.topic, []).append(row)
        by_topic.setdefault(EVERY_TOPIC, []).append(row)
    return [_latency(topic, by_topic[topic]) for topic in sorted(by_topic)]


def _latency(topic: str, rows: list[Any]) -> Latency:
    histogram: dict[int, int] = {}
    for row in rows:
        histogram[row.lower] = histogram.get(row.lower, 0) + row.records
    return latency_of(topic, histogram, sum(row.sum_us for row in rows), max(row.max_us for row in rows))


def _hops(traces: DataFrame) -> dict[int, int]:
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    counted = _of(traces, TraceEvent.STORED).groupBy("hops").agg(F.sum("records").alias("records"))
    return {row.hops: row.records for row in counted.orderBy("hops").collect()}


def _nodes(traces: DataFrame) -> list[NodeLoad]:
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    stored, served = F.col("event") == TraceEvent.STORED.value, F.col("event") == TraceEvent.SERVED.value
    loads = (
        traces.where(stored | served)
        .groupBy("who")
        .agg(
            F.sum(F.when(stored, F.col("records")).otherwise(0)).alias("records"),
            F.sum(F.when(stored, F.col("bytes")).otherwise(0)).alias("bytes"),
            F.sum(F.when(stored & (F.col("hops") == 0), F.col("records")).otherwise(0)).alias("owned"),
            F.sum(F.when(served, F.col("bytes")).otherwise(0)).alias("served"),
        )
    )
    return [
        NodeLoad(text(row.who), row.records, row.bytes, row.owned, row.served) for row in loads.orderBy("who").collect()
    ]


def _gaps(traces: DataFrame) -> list[Gap]:
    """An owner's epoch is its own, so the batches of an epoch lie between two changes of owner."""
    from pyspark.sql import functions as F  # noqa: N812 (as all who use Spark write it)

    owned = _of(traces, TraceEvent.STORED).where("hops = 0").groupBy("topic", "partition", "epoch")
    spans = owned.agg(F.min("time_us").alias("begun"), F.max("time_us").alias("ended"))
    rows = spans.orderBy("topic", "partition", "epoch").collect()
    gaps = []
    for before, after in zip(rows, rows[1:], strict=False):  # noqa: RUF007 (rows are not what pairwise is typed for)
        if (before.topic, before.partition) == (after.topic, after.partition):
            gap_us = max(after.begun - before.ended, 0)
            gaps.append(Gap(after.topic, after.partition, after.epoch, before.ended, gap_us))
    return gaps
