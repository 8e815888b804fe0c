"""`rostra pipeline archive`: the lake holds every record once, whatever dies, and for every reader."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException

from rostra.errors import InvalidSetting
from rostra.spark.pipelines.archive import archive, archive_topics, store
from rostra.spark.pipelines.lake import Lake
from rostra.spark.pipelines.progress import follow
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import STAMP_US, fill, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "plant/line-1"


def make_topic(node: EmbeddedNode, records: int) -> None:
    with node.client() as client:
        client.create_topic(TOPIC)
        fill(client, TOPIC, records)


def rows(lake: Path) -> Counter[int]:
    """What a reader that knows nothing of Spark finds."""
    files = [str(path) for path in lake.glob("topic=*/date=*/*.parquet")]
    if not files:
        return Counter()
    table = ds.dataset(lake, format="parquet", partitioning="hive").to_table()
    return Counter(int(value) for value in table["value"].to_pylist())


WAYS = {"rows": "Spark writes the rows", "files": "tasks write files by themselves"}
both_ways = pytest.mark.parametrize("way", WAYS, ids=WAYS)


def begin(
    way: str, spark: SparkSession, address: str, lake: Path, *, compact_every: int = 20, **options: str
) -> StreamingQuery:
    """An archive of all that is there now."""
    chosen = {"nodes": address, "subscribe": TOPIC, "startingOffsets": "earliest", **options}
    if way == "files":
        return archive_topics(spark, chosen, str(lake), once=True, compact_every=compact_every)
    frame = spark.readStream.format("rostra").options(**chosen).load()
    return archive(frame, str(lake), once=True, compact_every=compact_every)


@both_ways
@pytest.mark.requirement("PL-10:exactly-once", "PL-10:layout", "PL-16:archive")
def test_the_lake_holds_every_record_once_by_topic_and_date_and_a_second_run_adds_what_is_new(
    way: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    told: list[str] = []
    with rostra_node.client() as client:
        client.create_topic(TOPIC, partitions=2)
        fill(client, TOPIC, 500)
        query = begin(way, spark, rostra_node.address, lake, maxOffsetsPerTrigger="300")
        assert follow(query, lambda progress: told.append(progress.line())) == 500
        assert rows(lake) == Counter(range(500))
        fill(client, TOPIC, 20, first=500)
        begin(way, spark, rostra_node.address, lake).awaitTermination(180)
    assert rows(lake) == Counter(range(520))
    assert [path.name for path in lake.iterdir() if not path.name.startswith(("_", "."))] == ["topic=plant%2Fline-1"]
    assert {path.name for path in (lake / "topic=plant%2Fline-1").iterdir()} == {"date=2023-11-14"}
    # What a lake is read with through Spark, none of its columns guessed.
    found = Lake(spark, str(lake)).read().where("topic = 'plant/line-1'").select("partition", "offset").collect()
    assert len({(row.partition, row.offset) for row in found}) == 520
    assert any("behind" in line and "records" in line for line in told)


class Died(Exception):
    """The driver, in the middle of a batch."""


def dies_at(monkeypatch: pytest.MonkeyPatch, place: str, times: int) -> None:
    """The `times`-th call of a method of the lake is not survived."""
    left = [times]
    plain: Any = getattr(Lake, place)

    def call(self: Lake, *given: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Died(place)
        return plain(self, *given)

    monkeypatch.setattr(Lake, place, call)


@both_ways
@pytest.mark.requirement("PL-10:exactly-once")
def test_a_death_between_writing_a_batch_and_adding_it_costs_and_doubles_nothing(
    way: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        for sent, place in enumerate(("_finish", "_forget")):
            fill(client, TOPIC, 60, first=100 * sent)
            with pytest.MonkeyPatch.context() as patch:
                dies_at(patch, place, 1)
                with pytest.raises(StreamingQueryException):
                    begin(way, spark, rostra_node.address, lake).awaitTermination(180)
                assert all(count == 1 for count in rows(lake).values())
            fill(client, TOPIC, 40, first=100 * sent + 60)
            begin(way, spark, rostra_node.address, lake).awaitTermination(180)
    assert rows(lake) == Counter(range(200))


@both_ways
@pytest.mark.requirement("PL-10:compacted")
def test_small_files_are_put_together_and_hold_the_same_records(
    way: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 90)
    query = begin(way, spark, rostra_node.address, lake, compact_every=0, maxOffsetsPerTrigger="10")
    query.awaitTermination(180)
    before = len(list(lake.glob("topic=*/date=*/*.parquet")))
    assert before >= 9
    assert Lake(spark, str(lake)).compact() == before - 1
    assert len(list(lake.glob("topic=*/date=*/*.parquet"))) == 1
    assert rows(lake) == Counter(range(90))


def test_putting_files_together_is_finished_by_the_next_who_opens_the_lake(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 30)
    frame = read(spark, rostra_node.address, subscribe=TOPIC)
    for name in ("first", "second"):
        store(frame, str(lake), name)
    assert not store(frame, str(lake), "second"), "a name is added once"
    opened = Lake(spark, str(lake))
    with pytest.MonkeyPatch.context() as patch:
        dies_at(patch, "_finish", 1)
        with pytest.raises(Died):
            opened.compact(files_min=2)
    Lake(spark, str(lake))
    assert len(list(lake.glob("topic=*/date=*/*.parquet"))) == 1
    assert rows(lake) == Counter(dict.fromkeys(range(30), 2))


@pytest.mark.requirement("PL-10:schema")
def test_columns_may_come_later_and_none_changes_its_type(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 5)
    few = "value,topic,partition,offset,timestamp"
    store(read(spark, rostra_node.address, subscribe=TOPIC, columns=few), str(lake), "few")
    whole = read(spark, rostra_node.address, subscribe=TOPIC)
    store(whole, str(lake), "all")
    keys = [row.key for row in Lake(spark, str(lake)).read().select("key").collect()]
    assert keys.count(None) == 5 and len(keys) == 10
    with pytest.raises(InvalidSetting, match="column offset is bigint"):
        store(whole.withColumn("offset", whole["offset"].cast("string")), str(lake), "wrong")


@both_ways
@pytest.mark.requirement("PL-10:exactly-once")
def test_the_death_of_a_broker_while_a_lake_is_filled_costs_and_doubles_nothing(
    way: str, spark: SparkSession, rostra_cluster: Cluster[EmbeddedNode], tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with rostra_cluster[0].client() as client:
        client.create_topic(TOPIC, partitions=2)
        fill(client, TOPIC, 400)
    addresses = ",".join(node.address for node in rostra_cluster)
    query = begin(way, spark, addresses, lake, maxOffsetsPerTrigger="150")
    rostra_cluster.owner(TOPIC).kill()
    follow(query, lambda progress: None)
    assert rows(lake) == Counter(range(400))


def test_plans_are_readable_and_bounded(spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 5)
    store(read(spark, rostra_node.address, subscribe=TOPIC), str(lake), "once")
    plan = json.loads((lake / "_rostra" / "plans" / "once" / "000000000000.json").read_text())
    assert next(iter(plan["moves"].values())).startswith("topic=plant%2Fline-1/date=2023-11-14/part-once-")


def test_both_ways_of_archiving_write_the_same_rows_in_the_same_columns(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        with client.producer(TOPIC) as producer:
            for n in range(12):
                headers = [("place", b"hall %d" % n)] if n % 3 else []
                moment_us = STAMP_US + n * 6 * 3_600_000_000
                producer.send(b"%d" % n, key=b"k" if n % 2 else None, timestamp=moment_us, headers=headers)
    found = []
    for way in WAYS:
        begin(way, spark, rostra_node.address, tmp_path / way).awaitTermination(180)
        lake = Lake(spark, str(tmp_path / way)).read()
        found.append((sorted(lake.dtypes), sorted(map(str, lake.select(sorted(lake.columns)).collect()))))
        days = {path.name for path in (tmp_path / way).glob("topic=*/date=*")}
        assert days == {f"date=2023-11-{day}" for day in (14, 15, 16, 17)}
        # As a reader sees it that knows nothing of Spark.
        table = ds.dataset(tmp_path / way, format="parquet", partitioning="hive").to_table()
        assert str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]" and table.num_rows == 12
    assert found[0] == found[1]


def test_an_archive_of_chosen_columns_holds_those_and_needs_topic_and_time(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 5)
    begin("files", spark, rostra_node.address, lake, columns="timestamp,value,topic").awaitTermination(180)
    assert rows(lake) == Counter(range(5))
    assert set(Lake(spark, str(lake)).read().columns) == {"timestamp", "value", "topic", "date"}
    with pytest.raises(InvalidSetting, match="needs topic and timestamp"):
        begin("files", spark, rostra_node.address, tmp_path / "other", columns="value,topic")
