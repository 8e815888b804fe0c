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
from rostra.spark.pipelines.archive import archive, store
from rostra.spark.pipelines.lake import Lake
from rostra.spark.pipelines.progress import follow
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import fill, read, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "plant/line-1"


def rows(lake: Path) -> Counter[int]:
    """What a reader that knows nothing of Spark finds."""
    files = [str(path) for path in lake.glob("topic=*/date=*/*.parquet")]
    if not files:
        return Counter()
    table = ds.dataset(lake, format="parquet", partitioning="hive").to_table()
    return Counter(int(value) for value in table["value"].to_pylist())


def stream(spark: SparkSession, address: str, **options: str) -> DataFrame:
    chosen = {"subscribe": TOPIC, "startingOffsets": "earliest", **options}
    return read_stream(spark, address, **chosen)


@pytest.mark.requirement("PL-10")
def test_the_lake_holds_every_record_once_by_topic_and_date_and_a_second_run_adds_what_is_new(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    told: list[str] = []
    with rostra_node.client() as client:
        client.create_topic(TOPIC, partitions=2)
        fill(client, TOPIC, 500)
        frame = stream(spark, rostra_node.address, maxOffsetsPerTrigger="300")
        assert follow(archive(frame, str(lake), once=True), lambda progress: told.append(progress.line())) == 500
        assert rows(lake) == Counter(range(500))
        fill(client, TOPIC, 20, first=500)
        archive(frame, str(lake), once=True).awaitTermination(180)
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


@pytest.mark.requirement("PL-10")
def test_a_death_between_writing_a_batch_and_adding_it_costs_and_doubles_nothing(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        frame = stream(spark, rostra_node.address)
        for sent, place in enumerate(("_finish", "_forget")):
            fill(client, TOPIC, 60, first=100 * sent)
            with pytest.MonkeyPatch.context() as patch:
                dies_at(patch, place, 1)
                with pytest.raises(StreamingQueryException):
                    archive(frame, str(lake), once=True).awaitTermination(180)
                assert all(count == 1 for count in rows(lake).values())
            fill(client, TOPIC, 40, first=100 * sent + 60)
            archive(frame, str(lake), once=True).awaitTermination(180)
    assert rows(lake) == Counter(range(200))


@pytest.mark.requirement("PL-10")
def test_small_files_are_put_together_and_hold_the_same_records(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        fill(client, TOPIC, 90)
    frame = stream(spark, rostra_node.address, maxOffsetsPerTrigger="10")
    archive(frame, str(lake), once=True, compact_every=0).awaitTermination(180)
    before = len(list(lake.glob("topic=*/date=*/*.parquet")))
    assert before >= 9
    assert Lake(spark, str(lake)).compact() == before - 1
    assert len(list(lake.glob("topic=*/date=*/*.parquet"))) == 1
    assert rows(lake) == Counter(range(90))


def test_putting_files_together_is_finished_by_the_next_who_opens_the_lake(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        fill(client, TOPIC, 30)
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


@pytest.mark.requirement("PL-10")
def test_columns_may_come_later_and_none_changes_its_type(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        fill(client, TOPIC, 5)
    few = "value,topic,partition,offset,timestamp"
    store(read(spark, rostra_node.address, subscribe=TOPIC, columns=few), str(lake), "few")
    whole = read(spark, rostra_node.address, subscribe=TOPIC)
    store(whole, str(lake), "all")
    keys = [row.key for row in Lake(spark, str(lake)).read().select("key").collect()]
    assert keys.count(None) == 5 and len(keys) == 10
    with pytest.raises(InvalidSetting, match="column offset is bigint"):
        store(whole.withColumn("offset", whole["offset"].cast("string")), str(lake), "wrong")


@pytest.mark.requirement("PL-10")
def test_the_death_of_a_broker_while_a_lake_is_filled_costs_and_doubles_nothing(
    spark: SparkSession, rostra_cluster: Cluster[EmbeddedNode], tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    with rostra_cluster[0].client() as client:
        client.create_topic(TOPIC, partitions=2)
        fill(client, TOPIC, 400)
    frame = stream(spark, ",".join(node.address for node in rostra_cluster), maxOffsetsPerTrigger="150")
    query = archive(frame, str(lake), once=True)
    rostra_cluster.owner(TOPIC).kill()
    follow(query, lambda progress: None)
    assert rows(lake) == Counter(range(400))


def test_plans_are_readable_and_bounded(spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        fill(client, TOPIC, 5)
    store(read(spark, rostra_node.address, subscribe=TOPIC), str(lake), "once")
    plan = json.loads((lake / "_rostra" / "plans" / "once" / "000000000000.json").read_text())
    assert next(iter(plan["moves"].values())).startswith("topic=plant%2Fline-1/date=2023-11-14/part-once-")
