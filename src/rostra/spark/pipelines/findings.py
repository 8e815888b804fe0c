"""The findings of an audit, as plain values that need no Spark to be shown or compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

SHARES = (0.5, 0.9, 0.99, 0.999)
BUCKET_BITS = 7
"""A latency keeps so many leading bits: less than one in a hundred is rounded away."""
EVERY_TOPIC = "*"


class TopicFindings(msgspec.Struct, frozen=True):
    """Findings about one topic, or about all. Deliveries are counted per subscription."""

    topic: str
    created: int
    subscribed: int
    sent: int
    """Records acknowledged to publishers."""
    expected: int
    """Deliveries that publishes and subscriptions lead one to expect."""
    delivered: int
    """Expected deliveries that came, however often."""
    lost: int
    duplicated: int
    """Deliveries beyond the first of a record."""
    out_of_order: int
    """First deliveries of records that come behind a later record of their partition."""
    unexplained: int
    """Deliveries of which no publish is in the traces."""

    @property
    def percent(self) -> float:
        return 100.0 if not self.expected else 100.0 * self.delivered / self.expected

    @property
    def sound(self) -> bool:
        return not (self.lost or self.duplicated or self.out_of_order)


class Latency(msgspec.Struct, frozen=True):
    """Latency from the encoding of a batch to its delivery, in microseconds, counted per record."""

    topic: str
    records: int
    mean_us: float
    shares_us: dict[str, int]
    max_us: int
    histogram: dict[int, int]
    """Records by the lower end of their bucket."""


class NodeLoad(msgspec.Struct, frozen=True):
    node: str
    stored_records: int
    stored_bytes: int
    owned_records: int
    """Of those stored, the ones it was the first to have."""
    served_bytes: int


class Gap(msgspec.Struct, frozen=True):
    """The time between the last batch of one owner of a partition and the first of the next."""

    topic: str
    partition: int
    epoch: int
    since_us: int
    gap_us: int


class LostRange(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    who: str
    subscription: int
    end: int
    """The offset behind the batch."""
    records: int


class Audit(msgspec.Struct, frozen=True):
    total: TopicFindings
    topics: tuple[TopicFindings, ...]
    latencies: tuple[Latency, ...]
    """Of all topics together first."""
    hops: dict[int, int]
    """Records that nodes stored, by how many nodes had them before."""
    nodes: tuple[NodeLoad, ...]
    imbalance: float
    """The most that a node stored, in relation to the mean."""
    gaps: tuple[Gap, ...]
    lost: tuple[LostRange, ...]
    """Batches that did not arrive, the first of them."""


def bucket_of(latency_us: int) -> int:
    """The lower bound of the bucket of a latency."""
    size = max(latency_us, 0).bit_length() - BUCKET_BITS
    return max(latency_us, 0) if size <= 0 else latency_us >> size << size


def share_of(histogram: Mapping[int, int], share: float) -> int:
    """The smallest latency that this share of all records does not exceed."""
    total = sum(histogram.values())
    wanted = max(-(-total * round(share * 10_000) // 10_000), 1)
    seen = 0
    for lower in sorted(histogram):
        seen += histogram[lower]
        if seen >= wanted:
            return lower
    return 0


def latency_of(topic: str, histogram: Mapping[int, int], sum_us: int, max_us: int) -> Latency:
    records = sum(histogram.values())
    shares = {f"p{share * 100:g}": share_of(histogram, share) for share in SHARES}
    mean_us = sum_us / records if records else 0.0
    return Latency(topic, records, mean_us, shares, max_us, dict(sorted(histogram.items())))


def total_of(topics: Iterable[TopicFindings]) -> TopicFindings:
    counted = [msgspec.structs.astuple(topic)[1:] for topic in topics]
    sums = [sum(column) for column in zip(*counted, strict=True)] if counted else [0] * 9
    return TopicFindings(EVERY_TOPIC, *sums)


def imbalance_of(nodes: Iterable[NodeLoad]) -> float:
    stored = [node.stored_records for node in nodes]
    return max(stored) * len(stored) / sum(stored) if any(stored) else 1.0
