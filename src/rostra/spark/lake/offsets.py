"""Which offsets of which topics a lake holds: it, and no checkpoint, says where the next archive begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, assert_never

import msgspec

from rostra.errors import LakeChanged, TopicDeleted, TopicRecreated, UnknownTopic
from rostra.spark.source.bounds import TopicPartition, resolve
from rostra.spark.source.cluster_connection import ClusterConnection
from rostra.spark.source.fetch import tolerate
from rostra.spark.source.options import AssignedPartitions, ReadOptions, TopicNames, TopicPattern
from rostra.spark.source.plan import Span
from rostra.spark.source.positions import Positions


class TopicOffsets(msgspec.Struct, frozen=True):
    """Of one topic; the id tells it from a later one of the same name."""

    id: int
    ends: dict[int, int]
    """By partition, the offset before which everything is in the lake."""


Held = dict[str, TopicOffsets]
"""By topic."""
HeldOf = Callable[[Iterable[TopicPartition]], Held]
"""What a lake holds of these partitions, and which other topics it has something of."""


class StagedBatch(msgspec.Struct, frozen=True):
    """What the tasks of one batch wrote, and what they read for it."""

    files: dict[str, int]
    """By name within the staging directory, the number of records."""
    spans: tuple[Span, ...] = ()


def staged_batch(rows: Iterable[Any]) -> StagedBatch:
    """From the rows that Spark counts: they name each file that belongs to the batch, and no other."""
    files: dict[str, int] = {}
    spans: set[Span] = set()
    for row in rows:
        if row.file:
            files[row.file] = row.records
        spans.add(Span(row.topic, row.topic_id, row.partition, row.first, row.end))
    return StagedBatch(files, tuple(sorted(spans, key=lambda span: (span.topic, span.partition, span.first))))


def advanced(held: Mapping[str, TopicOffsets], spans: Iterable[Span], lake: str) -> Held:
    """What the lake holds with a batch. LakeChanged if it holds a part of the batch already."""
    after = dict(held)
    for span in spans:
        before = held.get(span.topic)
        if before is not None and before.id == span.topic_id and span.first < before.ends.get(span.partition, 0):
            name, end = f"{span.topic}/{span.partition}", before.ends[span.partition]
            raise LakeChanged(lake, f"it holds {name} up to {end}, and a batch begins at {span.first}")
        known = after.get(span.topic)
        ends = dict(known.ends) if known is not None and known.id == span.topic_id else {}
        ends[span.partition] = max(ends.get(span.partition, 0), span.end)
        after[span.topic] = TopicOffsets(span.topic_id, ends)
    return after


def start_of(held_of: HeldOf, options: ReadOptions) -> tuple[Positions, Held]:
    """Where an archive begins: behind what the lake holds, or where it was told to for topics that are new to it.

    The second is what the lake then has to remember: where topics that are new to it began.
    """
    cluster = ClusterConnection(options)
    try:
        available = cluster.available(gone=True)
        held = held_of(available.extents)
        _check_gone(held, options, available.ids)
        unknown = {key: extent for key, extent in available.extents.items() if key[0] not in held}
        offsets = resolve(options.starting, unknown, cluster.at_time, "startingOffsets")
    finally:
        cluster.close()
    new: Held = {}
    for topic, partition in sorted(available.extents):
        before, number = held.get(topic), available.ids[topic]
        if before is not None and before.id == number:
            # A partition that the lake has not seen is read from its first record.
            offsets[topic, partition] = before.ends.get(partition, 0)
            continue
        if before is not None:
            tolerate(TopicRecreated(topic), options.fail_on_loss)
            offsets[topic, partition] = 0
        new.setdefault(topic, TopicOffsets(number, {})).ends[partition] = offsets[topic, partition]
    return Positions(offsets, available.ids, initial=True), new


def _check_gone(held: Mapping[str, TopicOffsets], options: ReadOptions, ids: Mapping[str, int]) -> None:
    match options.chosen:
        case TopicNames(topics):
            wanted: Iterable[str] = topics
        case AssignedPartitions(partitions):
            wanted = partitions
        case TopicPattern(pattern):
            wanted = [topic for topic in held if pattern.matches(topic)]
        case _:
            assert_never(options.chosen)
    for topic in wanted:
        if topic in ids:
            continue
        if topic not in held:
            raise UnknownTopic(topic)
        tolerate(TopicDeleted(topic), options.fail_on_loss)
