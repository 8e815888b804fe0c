"""`rostra pipeline audit` finds what went wrong, exactly, and nothing where nothing did."""

from __future__ import annotations

from collections import defaultdict
from io import StringIO
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import rostra.testing
from rostra import blocking
from rostra.demo.pipeline import show
from rostra.spark.pipelines.audit import audit, read_traces
from rostra.spark.pipelines.findings import Audit, bucket_of, latency_of
from rostra.traces.events import TraceEvent, TraceRole, TraceRow
from rostra.traces.recorder import schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NODES = (101, 102, 103)


class Story:
    """Traces of an invented run, in which what goes wrong is chosen."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.rows: list[TraceRow] = []
        self.now_us = 1_700_000_000_000_000
        self.lost: dict[str, int] = defaultdict(int)
        self.duplicated: dict[str, int] = defaultdict(int)
        self.out_of_order: dict[str, int] = defaultdict(int)

    def note(self, event: TraceEvent, who: int, topic: str, partition: int = 0, **further: Any) -> None:
        self.now_us += self.random.randrange(1, 50)
        self.rows.append(TraceRow(len(self.rows), event.value, self.now_us, who, topic, partition, **further))

    def topic(self, name: str, partitions: int, batches: int, subscribers: int) -> None:
        self.note(TraceEvent.CREATED, 1, name)
        for partition in range(partitions):
            self._partition(name, partition, batches, subscribers)

    def _partition(self, name: str, partition: int, batches: int, subscribers: int) -> None:
        sent: list[TraceRow] = []
        offset = 1
        for at in range(batches):
            size = self.random.randrange(1, 9)
            span = {"first": offset, "end": offset + size, "records": size}
            born_us = self.now_us
            for node in NODES:
                hops = int(node != NODES[partition % 3])
                self.note(
                    TraceEvent.STORED, node, name, partition, **span, bytes=100 * size, epoch=1 + (at > 20), hops=hops
                )
            self.note(TraceEvent.PUBLISHED, 1, name, partition, **span, born_us=born_us)
            sent.append(self.rows[-1])
            # Now and then an offset is no record.
            offset += size + (self.random.random() < 0.1)
        for subscriber in range(subscribers):
            start = 1 if subscriber else sent[3].first + 1
            self._subscriber(1000 + subscriber, name, partition, start, [row for row in sent if row.end > start])

    def _subscriber(self, who: int, name: str, partition: int, start: int, expected: list[TraceRow]) -> None:
        self.note(TraceEvent.SUBSCRIBED, who, name, partition, subscription=7, first=start)
        arriving = list(expected)
        for _ in range(2):
            at = self.random.randrange(4, len(arriving) - 4)
            self.lost[name] += arriving.pop(at).records
        late = arriving.pop(5)
        arriving.insert(9, late)
        self.out_of_order[name] += late.records
        again = arriving[self.random.randrange(12, len(arriving))]
        arriving.append(again)
        self.duplicated[name] += again.records
        for row in arriving:
            first = max(row.first, start)
            self.note(
                TraceEvent.DELIVERED,
                who,
                name,
                partition,
                subscription=7,
                first=first,
                end=row.end,
                records=row.end - first,
                bytes=100 * row.records,
                born_us=row.born_us,
            )

    def write(self, place: Path) -> pa.Table:
        place.mkdir()
        table = pa.table(list(map(list, zip(*self.rows, strict=True))), schema=schema(TraceRole.CLIENT))
        half = len(table) // 2
        pq.write_table(table.slice(half), place / "b.parquet")
        pq.write_table(table.slice(0, half), place / "a.parquet")
        return table


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, pa.Table, Audit]:
    story = Story(1)
    story.topic("orders", 3, 60, 2)
    story.topic("clicks", 1, 40, 3)
    place = tmp_path_factory.mktemp("audit") / "traces"
    table = story.write(place)
    return story, table, audit(read_traces(spark, str(place)))


@pytest.mark.requirement("PL-13:counts")
def test_injected_losses_duplicates_and_reorderings_are_found_exactly(told: tuple[Story, pa.Table, Audit]) -> None:
    story, _, found = told
    for topic in found.topics:
        assert topic.lost == story.lost[topic.topic]
        assert topic.duplicated == story.duplicated[topic.topic]
        assert topic.out_of_order == story.out_of_order[topic.topic]
        assert topic.unexplained == 0
        assert (topic.created, topic.expected - topic.delivered) == (1, topic.lost)
    assert sum(lost.records for lost in found.lost) == found.total.lost
    assert [(topic.topic, topic.subscribed) for topic in found.topics] == [("clicks", 3), ("orders", 2)]


@pytest.mark.requirement("PL-13:figures", "PL-16:audit")
def test_findings_equal_a_calculation_without_spark(told: tuple[Story, pa.Table, Audit]) -> None:
    _, table, found = told

    def of(event: str) -> pa.Table:
        return table.filter(pc.equal(table["event"], event))

    sent = of("published").group_by("topic").aggregate([("records", "sum")]).to_pylist()
    assert {row["topic"]: row["records_sum"] for row in sent} == {topic.topic: topic.sent for topic in found.topics}
    stored = of("stored")
    by_node = stored.group_by("who").aggregate([("records", "sum"), ("bytes", "sum")]).sort_by("who").to_pylist()
    assert [(node.stored_records, node.stored_bytes) for node in found.nodes] == [
        (row["records_sum"], row["bytes_sum"]) for row in by_node
    ]
    hops = stored.group_by("hops").aggregate([("records", "sum")]).to_pylist()
    assert found.hops == {row["hops"]: row["records_sum"] for row in hops}
    delivered = of("delivered")
    latencies = pc.subtract(delivered["time_us"], delivered["born_us"]).to_pylist()
    counts = delivered["records"].to_pylist()
    histogram: dict[int, int] = defaultdict(int)
    for latency_us, count in zip(latencies, counts, strict=True):
        histogram[bucket_of(latency_us)] += count
    total_us = sum(latency_us * count for latency_us, count in zip(latencies, counts, strict=True))
    assert found.latencies[0] == latency_of("*", histogram, total_us, max(latencies))
    # The owner's epoch changed once in each of the four partitions.
    assert len(found.gaps) == 4
    assert all(gap.gap_us > 0 and gap.epoch == 2 for gap in found.gaps)


@pytest.mark.requirement("PL-13:cluster")
def test_of_a_real_cluster_every_record_arrived_once_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "traces"
    with (
        rostra.testing.cluster(3, fsync="never", trace=place) as cluster,
        blocking.connect(cluster[0].address, trace=str(place)) as publisher,
        blocking.connect(cluster[1].address, trace=str(place)) as subscriber,
    ):
        publisher.create_topic("orders", partitions=2)
        with subscriber.subscribe("orders", start="earliest") as subscription:
            with publisher.producer("orders", batch_bytes=2_000) as producer:
                for n in range(2_000):
                    producer.send(b"%d" % n, key=b"%d" % n)
            got = 0
            while got < 2_000:
                batch = subscription.poll(60)
                assert batch is not None
                got += len(batch)
        subscriber.close()
        publisher.close()
        page, screen = tmp_path / "report.html", StringIO()
        # As the demo ends.
        shown = Console(file=screen, width=160)
        show(spark, shown, [cluster[0].address], ["orders"], place, page)
    assert "100 %" in screen.getvalue() and "rollup of the topics" in screen.getvalue()
    assert "Every record arrived, once and in order." in page.read_text() and "<h2>Rate</h2>" in page.read_text()
    found = audit(read_traces(spark, str(place)))
    total = found.total
    assert (total.sent, total.expected, total.delivered, total.percent) == (2_000, 2_000, 2_000, 100.0)
    assert total.sound and not total.unexplained and found.lost == ()
    assert (total.created, total.subscribed) == (1, 1)
    # A majority has each record; the third copy may be late for the end.
    assert found.hops[0] == 2_000 and 2_000 <= found.hops[1] <= 4_000
    assert 2 <= len(found.nodes) <= 3
    assert {node.node for node in found.nodes} <= {node.address for node in cluster}, "names, not ids"
    assert found.latencies[0].records == 2_000
