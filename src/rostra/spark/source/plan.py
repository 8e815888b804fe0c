"""Plans which offsets a batch reads and with which tasks. Integers only, so that a restart computes the same plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec

from rostra.errors import RecordsExpired, RostraError, TopicDeleted, TopicRecreated
from rostra.spark.source.bounds import Extent, TopicPartition
from rostra.spark.source.positions import Positions


class Span(msgspec.Struct, frozen=True):
    """Offsets of one partition, from `first` to just before `end`. The id distinguishes topics of the same name."""

    topic: str
    topic_id: int
    partition: int
    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first


class TopicExtents(msgspec.Struct, frozen=True):
    """The chosen topics and the extent of each partition."""

    ids: dict[str, int]
    extents: dict[TopicPartition, Extent]

    def ends(self) -> Positions:
        return Positions({key: extent.end for key, extent in self.extents.items()}, self.ids)


class Advance(msgspec.Struct, frozen=True):
    """The positions between which a stream can advance, and the records that it has lost."""

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]
    losses: tuple[RostraError, ...]

    def backlog(self) -> int:
        return sum(end - self.starts[key] for key, end in self.ends.items())


# --- streams ---------------------------------------------------------------------------------------------------------


def advance(start: Positions, available: TopicExtents) -> Advance:
    """Computes the advance from the position to the end. A new partition is read from offset 0."""
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    losses: list[RostraError] = []
    for topic in sorted(start.topics()):
        if topic not in available.ids:
            losses.append(TopicDeleted(topic))
        elif start.ids.get(topic) != available.ids[topic]:
            losses.append(TopicRecreated(topic))
    for key, extent in sorted(available.extents.items()):
        topic, partition = key
        same = start.ids.get(topic) == available.ids[topic]
        reached = start.offsets.get(key, 0) if same else 0
        if reached < extent.first:
            losses.append(RecordsExpired(topic, partition, reached, extent.first))
        starts[key] = max(reached, extent.first)
        # A new owner may not know yet how far the old one had committed.
        ends[key] = max(starts[key], extent.end)
    return Advance(starts, ends, tuple(losses))


def spans_between(start: Positions, end: Positions) -> list[Span]:
    """The spans of a batch of a stream, which depend on the two positions only."""
    begin = end.start_of(start)
    spans = []
    for key, last in sorted(end.offsets.items()):
        topic, partition = key
        same = begin.ids.get(topic) == end.ids[topic]
        first = begin.offsets.get(key, 0) if same else 0
        if first < last:
            spans.append(Span(topic, end.ids[topic], partition, first, last))
    return spans


def admit(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], limit: int
) -> dict[TopicPartition, int]:
    """Computes the ends of a batch of at most `limit` offsets, distributed by backlog.

    Every partition that has something gets at least one offset, so that none starves behind a larger one; where the
    limit is below their number, they take turns by position.
    """
    backlog = {key: end - starts[key] for key, end in sorted(ends.items()) if end > starts[key]}
    total = sum(backlog.values())
    if limit <= 0 or total <= limit:
        return dict(ends)
    reached = {key: starts[key] for key in ends}
    waiting = list(backlog)
    if limit < len(waiting):
        # Each batch moves the sum by the limit, so the next one begins where this one ends, among all partitions.
        turn = sum(starts.values()) % len(ends)
        everyone = sorted(ends)
        for key in [key for key in everyone[turn:] + everyone[:turn] if key in backlog][:limit]:
            reached[key] += 1
        return reached
    for key, share in _shares({key: size - 1 for key, size in backlog.items()}, limit - len(waiting)).items():
        reached[key] += 1 + share
    return reached


def _shares(sizes: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divides `limit` in proportion to the sizes; the rest from rounding goes to the largest remainders."""
    total = sum(sizes.values())
    if not total:
        return dict.fromkeys(sizes, 0)
    limit = min(limit, total)
    shares = {key: limit * size // total for key, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda key: (-(limit * sizes[key] % total), key))
    for key in by_remainder[: limit - sum(shares.values())]:
        shares[key] += 1
    return shares


# --- tasks -----------------------------------------------------------------------------------------------------------


def split(spans: Iterable[Span], tasks_min: int, records_per_task_max: int) -> list[Span]:
    """Splits spans into tasks: large ones into pieces of about equal size, more of them if more tasks are wanted."""
    filled = [span for span in spans if len(span) > 0]
    total = sum(map(len, filled))
    tasks = []
    for span in filled:
        size = len(span)
        parts = max(-(-size // records_per_task_max), (2 * tasks_min * size + total) // (2 * total), 1)
        parts = min(parts, size)
        bounds = [span.first + size * at // parts for at in range(parts + 1)]
        for first, end in pairwise(bounds):
            tasks.append(msgspec.structs.replace(span, first=first, end=end))
    return tasks
