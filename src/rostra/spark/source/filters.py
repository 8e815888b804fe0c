"""Pushes filters down: narrows the topics, partitions, offsets and times that are read from the broker."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from rostra.spark.source.bounds import AtTime, Extent, TopicPartition
from rostra.spark.source.options import NEVER_NULL
from rostra.spark.source.plan import Span

OFFSET_MAX = (1 << 63) - 1


class ReadWindow(msgspec.Struct, frozen=True):
    """The part of the topics that a query reads. None means no restriction."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first: int = 0
    end: int = OFFSET_MAX
    since_us: int = 0
    """Records are looked for from the first one on that is not earlier; later ones may be, so the filter stays."""

    def lets_in(self, key: TopicPartition) -> bool:
        topic, partition = key
        named = self.topics is None or topic in self.topics
        return named and (self.partitions is None or partition in self.partitions)

    def cut(self, span: Span, at_time: AtTime, extent: Extent) -> Span | None:
        """The part of the span that is inside; None if nothing is."""
        key = (span.topic, span.partition)
        if not self.lets_in(key):
            return None
        first, end = max(span.first, self.first), min(span.end, self.end)
        if self.since_us and first < end and first >= extent.first:
            first = max(first, at_time(key, self.since_us))
        return msgspec.structs.replace(span, first=first, end=end) if first < end else None


def narrow(window: ReadWindow, filters: Iterable[Filter]) -> tuple[ReadWindow, list[Filter]]:
    """Returns the window that the filters leave, and the filters that Spark must still apply."""
    left: list[Filter] = []
    for wanted in filters:
        narrowed = _narrowed(window, wanted)
        if narrowed is None:
            left.append(wanted)
            continue
        window, exact = narrowed
        if not exact:
            left.append(wanted)
    return window, left


def _narrowed(window: ReadWindow, wanted: Filter) -> tuple[ReadWindow, bool] | None:
    """Returns the narrowed window and whether it expresses the whole filter; None if the filter cannot narrow it."""
    match wanted:
        case IsNotNull(attribute=(name,)) if name in NEVER_NULL:
            return window, True
        case EqualTo(attribute=("topic",), value=str() as topic):
            return _only_topics(window, [topic]), True
        case In(attribute=("topic",), value=topics) if all(isinstance(topic, str) for topic in topics):
            return _only_topics(window, topics), True
        case EqualTo(attribute=("partition",), value=int() as partition):
            return _only_partitions(window, [partition]), True
        case In(attribute=("partition",), value=partitions) if all(isinstance(p, int) for p in partitions):
            return _only_partitions(window, partitions), True
        case (
            EqualTo(attribute=(name,), value=value)
            | GreaterThan(attribute=(name,), value=value)
            | GreaterThanOrEqual(attribute=(name,), value=value)
            | LessThan(attribute=(name,), value=value)
            | LessThanOrEqual(attribute=(name,), value=value)
        ):
            return _compared(window, wanted, name, value)
        case _:
            return None


def _compared(window: ReadWindow, wanted: Filter, name: str, value: Any) -> tuple[ReadWindow, bool] | None:
    if name == "timestamp" and isinstance(value, datetime):
        if isinstance(wanted, LessThan | LessThanOrEqual):
            return None
        return msgspec.structs.replace(window, since_us=max(window.since_us, _microseconds(value))), False
    if name == "offset" and isinstance(value, int):
        low, high = _interval(wanted, value)
        return msgspec.structs.replace(window, first=max(window.first, low), end=min(window.end, high)), True
    return None


def _interval(wanted: Filter, value: int) -> tuple[int, int]:
    match wanted:
        case EqualTo():
            return value, value + 1
        case GreaterThan():
            return value + 1, OFFSET_MAX
        case GreaterThanOrEqual():
            return value, OFFSET_MAX
        case LessThan():
            return 0, value
        case _:
            return 0, value + 1


def _only_topics(window: ReadWindow, topics: Iterable[str]) -> ReadWindow:
    named = frozenset(topics)
    return msgspec.structs.replace(window, topics=named if window.topics is None else window.topics & named)


def _only_partitions(window: ReadWindow, partitions: Iterable[int]) -> ReadWindow:
    named = frozenset(partitions)
    both = named if window.partitions is None else window.partitions & named
    return msgspec.structs.replace(window, partitions=both)


def _microseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    since = aware - epoch
    return max((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds, 0)
