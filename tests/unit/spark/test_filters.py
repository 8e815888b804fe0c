"""Filters make a read smaller, and never change what it finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from rostra.spark.source.bounds import Extent, TopicPartition
from rostra.spark.source.filters import ReadWindow, narrow
from rostra.spark.source.plan import Span

SPAN = Span("orders", 1, 3, 10, 90)
EXTENT = Extent(5, 95)


def never(place: TopicPartition, moment_us: int) -> int:
    raise AssertionError("no time was asked for")


def cut(*filters: Filter) -> tuple[int, int] | None:
    window, left = narrow(ReadWindow(), filters)
    assert left == []
    span = window.cut(SPAN, never, EXTENT)
    return None if span is None else (span.first, span.end)


def test_offsets_are_cut_exactly_so_that_spark_need_not_look_again() -> None:
    offset = ("offset",)
    assert cut() == (10, 90)
    assert cut(GreaterThan(offset, 20), LessThan(offset, 30)) == (21, 30)
    assert cut(GreaterThanOrEqual(offset, 20), LessThanOrEqual(offset, 30), IsNotNull(offset)) == (20, 31)
    assert cut(EqualTo(offset, 42)) == (42, 43)
    assert cut(LessThan(offset, 10)) is None
    assert cut(GreaterThan(offset, 89)) is None


def test_topics_and_partitions_that_are_not_asked_for_are_not_read() -> None:
    topic, partition = ("topic",), ("partition",)
    assert cut(EqualTo(topic, "orders"), In(partition, (1, 3))) == (10, 90)
    assert cut(EqualTo(topic, "others")) is None
    assert cut(In(topic, ("orders", "others")), EqualTo(topic, "others")) is None
    assert cut(EqualTo(partition, 4)) is None


def test_a_time_moves_the_start_and_spark_looks_again_since_times_need_not_rise() -> None:
    since = GreaterThanOrEqual(("timestamp",), datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    later = GreaterThan(("timestamp",), datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC))
    window, left = narrow(ReadWindow(), [since, later])
    assert left == [since, later]
    assert window.cut(SPAN, lambda place, us: {1_000_005: 50}[us], EXTENT) == Span("orders", 1, 3, 50, 90)


def test_the_end_of_a_time_is_left_to_spark_since_an_earlier_record_may_follow() -> None:
    until = LessThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC))
    assert narrow(ReadWindow(), [until]) == (ReadWindow(), [until])


def test_what_says_nothing_of_a_place_is_left_to_spark() -> None:
    others = [EqualTo(("value",), b"x"), Not(EqualTo(("topic",), "a")), IsNotNull(("key",)), EqualTo(("offset",), None)]
    assert narrow(ReadWindow(), others) == (ReadWindow(), others)


def test_records_without_headers_are_left_to_spark_to_find() -> None:
    wanted: list[Filter] = [IsNotNull(("headers",)), IsNotNull(("topic",))]
    assert narrow(ReadWindow(), wanted) == (ReadWindow(), [IsNotNull(("headers",))])
