"""`rostra pipeline archive`: the lake holds every record once, whatever dies, and for every reader."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow.dataset as ds
import pytest
from pyspark.errors import StreamingQueryException

from rostra.errors import InvalidSetting, LakeInUse, TopicDeleted, TopicRecreated, UnknownTopic
from rostra.spark.lake import formats
from rostra.spark.lake.compaction import CompactionResult, compact
from rostra.spark.lake.files import HadoopFiles, LocalFiles
from rostra.spark.lake.formats import lake_of
from rostra.spark.lake.lake import Lake
from rostra.spark.pipelines.archive import archive, archive_topics, store
from rostra.spark.pipelines.progress import follow, stop
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from tests.spark.topics import STAMP_US, fill, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "plant/line-1"


def make_topic(node: EmbeddedNode, records: int, topic: str = TOPIC, first: int = 0) -> None:
    with node.client() as client:
        client.create_topic(topic)
        fill(client, topic, records, first=first)


def rows(lake: Path) -> Counter[int]:
    """What a reader that knows nothing of Spark finds."""
    if (lake / "_delta_log").exists():
        table = deltalake.DeltaTable(str(lake)).to_pyarrow_dataset().to_table()
    elif list(lake.glob("topic=*/date=*/*.parquet")):
        table = ds.dataset(lake, format="parquet", partitioning="hive").to_table()
    else:
        return Counter()
    return Counter(int(value) for value in table["value"].to_pylist())


WAYS = {
    "rows": "Spark writes the rows of a stream",
    "parquet": "tasks write plain files by themselves",
    "delta": "tasks write the files of a table",
}
every_way = pytest.mark.parametrize("way", WAYS)
both_formats = pytest.mark.parametrize("way", ["parquet", "delta"])


def begin(way: str, spark: SparkSession, address: str, lake: Path, **options: str) -> StreamingQuery:
    """An archive of all that is there now."""
    chosen = {"nodes": address, "subscribe": TOPIC, "startingOffsets": "earliest", **options}
    if way == "rows":
        return archive(spark.readStream.format("rostra").options(**chosen).load(), str(lake), once=True)
    return archive_topics(spark, chosen, str(lake), format=way, once=True)


@every_way
@pytest.mark.requirement("PL-10:exactly-once", "PL-10:layout", "PL-16:archive", "PL-10:delta")
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
    # Nothing but the files, and the log of a table.
    own = ["_delta_log"] if way == "delta" else []
    assert sorted(path.name for path in lake.iterdir()) == [*own, "topic=plant%2Fline-1"]
    assert {path.name for path in (lake / "topic=plant%2Fline-1").iterdir()} == {"date=2023-11-14"}
    # What a lake is read with through Spark, none of its columns guessed.
    found = lake_of(spark, str(lake)).read(spark).where("topic = 'plant/line-1'").select("partition", "offset")
    assert len({(row.partition, row.offset) for row in found.collect()}) == 520
    assert any("behind" in line and "records" in line for line in told)


@both_formats
def test_the_lake_knows_its_offsets_whatever_was_archived_into_it_and_in_which_company(
    way: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    """Topics alone and together, and no checkpoint left between them."""
    lake = tmp_path / "lake"
    for at, topic in enumerate((TOPIC, "orders")):
        make_topic(rostra_node, 50, topic, first=100 * at)
    for topics in (TOPIC, "orders", f"orders,{TOPIC}", TOPIC):
        begin(way, spark, rostra_node.address, lake, subscribe=topics).awaitTermination(180)
        shutil.rmtree(tmp_path / "lake.rostra" / "runs", ignore_errors=True)
    assert rows(lake) == Counter([*range(50), *range(100, 150)])
    with pytest.raises(UnknownTopic):
        begin(way, spark, rostra_node.address, lake, subscribe="none")
    with rostra_node.client() as client:
        client.delete_topic(TOPIC)
    with pytest.raises(TopicDeleted):
        begin(way, spark, rostra_node.address, lake)
    make_topic(rostra_node, 5, first=50)
    with pytest.raises(TopicRecreated):
        begin(way, spark, rostra_node.address, lake)
    begin(way, spark, rostra_node.address, lake, failOnDataLoss="false").awaitTermination(180)
    assert rows(lake) == Counter([*range(55), *range(100, 150)])


def test_a_stream_whose_checkpoint_was_deleted_is_not_added_again(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 50)
    begin("rows", spark, rostra_node.address, lake).awaitTermination(180)
    shutil.rmtree(tmp_path / "lake.rostra" / "checkpoint")
    with pytest.raises(StreamingQueryException, match="is a new one, but the lake holds"):
        begin("rows", spark, rostra_node.address, lake).awaitTermination(180)
    assert rows(lake) == Counter(range(50))


@both_formats
def test_of_two_that_write_to_a_lake_one_refuses(
    way: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 50)
    options = {"nodes": rostra_node.address, "subscribe": TOPIC, "startingOffsets": "earliest"}
    running = archive_topics(spark, options, str(lake), format=way, trigger_ms=100)
    try:
        with pytest.raises(LakeInUse, match="has a writer: process"):
            begin(way, spark, rostra_node.address, lake)
        running.processAllAvailable()
    finally:
        stop(running)
    begin(way, spark, rostra_node.address, lake).awaitTermination(180)
    assert rows(lake) == Counter(range(50))


class Died(Exception):
    """The driver, in the middle of a batch."""


def dies_in(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, after: bool) -> None:
    plain: Any = getattr(owner, method)

    def call(self: object, *given: Any) -> Any:
        if after:
            plain(self, *given)
        raise Died(method)

    monkeypatch.setattr(owner, method, call)


@both_formats
@pytest.mark.requirement("PL-10:exactly-once")
def test_a_death_between_writing_a_batch_and_adding_it_costs_and_doubles_nothing(
    way: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    """Between any two steps: tests/unit/spark/test_lake.py. Here, that Spark then goes on as it should."""
    lake = tmp_path / "lake"
    with rostra_node.client() as client:
        client.create_topic(TOPIC)
        for sent, (owner, method, after) in enumerate([(LocalFiles, "move", True), (Lake, "_end_batch", False)]):
            fill(client, TOPIC, 60, first=100 * sent)
            with pytest.MonkeyPatch.context() as patch:
                dies_in(patch, owner, method, after=after)
                with pytest.raises(StreamingQueryException):
                    begin(way, spark, rostra_node.address, lake).awaitTermination(180)
                assert all(count == 1 for count in rows(lake).values())
            fill(client, TOPIC, 40, first=100 * sent + 60)
            begin(way, spark, rostra_node.address, lake).awaitTermination(180)
    assert rows(lake) == Counter(range(200))


@pytest.mark.requirement("PL-10:compacted")
def test_small_files_are_put_together_in_a_new_lake_that_continues_the_old_one(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake, new = tmp_path / "lake", tmp_path / "new"
    make_topic(rostra_node, 30)
    begin("parquet", spark, rostra_node.address, lake, maxOffsetsPerTrigger="10").awaitTermination(180)
    before = sorted(lake.glob("topic=*/date=*/*"))
    with pytest.raises(InvalidSetting, match="in a new lake"):
        compact(spark, str(lake))
    assert compact(spark, str(lake), str(new)) == CompactionResult(len(before), 1)
    assert sorted(lake.glob("topic=*/date=*/*")) == before, "the old one is as it was"
    assert rows(new) == Counter(range(30))
    with rostra_node.client() as client:
        fill(client, TOPIC, 5, first=30)
    begin("parquet", spark, rostra_node.address, new).awaitTermination(180)
    assert rows(new) == Counter(range(35))
    with pytest.raises(InvalidSetting, match="is a lake already"):
        compact(spark, str(lake), str(new))


@pytest.mark.requirement("PL-10:compacted")
def test_small_files_of_a_table_are_put_together_while_it_is_written(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 30)
    options = {"nodes": rostra_node.address, "subscribe": TOPIC, "startingOffsets": "earliest"}
    few = {**options, "maxOffsetsPerTrigger": "8"}
    archive_topics(spark, few, str(lake), format="delta", once=True, compact_every=2).awaitTermination(180)
    assert rows(lake) == Counter(range(30))
    assert len(deltalake.DeltaTable(str(lake)).file_uris()) < 3
    assert compact(spark, str(lake)).files_after == 1
    assert rows(lake) == Counter(range(30))
    with pytest.raises(InvalidSetting, match="is a lake of the format delta"):
        begin("parquet", spark, rostra_node.address, lake)


@pytest.mark.requirement("PL-10:schema")
@both_formats
def test_rows_of_later_columns_are_read_and_a_name_is_added_once(
    way: str, spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 5)
    few = "value,topic,partition,offset,timestamp"
    store(read(spark, rostra_node.address, subscribe=TOPIC, columns=few), str(lake), "few", format=way)
    whole = read(spark, rostra_node.address, subscribe=TOPIC)
    assert store(whole, str(lake), "all")
    assert not store(whole, str(lake), "all"), "a name is added once"
    keys = [row.key for row in lake_of(spark, str(lake)).read(spark).select("key").collect()]
    assert keys.count(None) == 5 and len(keys) == 10
    with pytest.raises(InvalidSetting, match="column offset is bigint"):
        store(whole.withColumn("offset", whole["offset"].cast("string")), str(lake), "wrong")


@both_formats
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


def test_where_only_spark_can_write_the_lake_knows_its_offsets_too(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on HDFS: all files through Spark's file systems, with a lease that is a file."""
    lake = tmp_path / "lake"
    monkeypatch.setattr(formats, "files_of", lambda spark, path: HadoopFiles(spark, f"file:{path}"))
    make_topic(rostra_node, 30)
    for _ in range(2):
        begin("parquet", spark, rostra_node.address, lake).awaitTermination(180)
        assert rows(lake) == Counter(range(30))
    with rostra_node.client() as client:
        fill(client, TOPIC, 10, first=30)
    running = begin("parquet", spark, rostra_node.address, lake)
    running.awaitTermination(180)
    assert rows(lake) == Counter(range(40))
    writer = lake_of(spark, str(lake))
    writer.open(writer.read(spark).schema)
    with pytest.raises(LakeInUse, match=r"; if that has ended, remove file:.*writer\.lock"):
        begin("parquet", spark, rostra_node.address, lake)
    writer.close()
    begin("parquet", spark, rostra_node.address, lake).awaitTermination(180)
    assert rows(lake) == Counter(range(40))


def test_every_way_of_archiving_writes_the_same_rows_in_the_same_columns(
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
        lake = lake_of(spark, str(tmp_path / way)).read(spark)
        found.append((sorted(lake.dtypes), sorted(map(str, lake.select(sorted(lake.columns)).collect()))))
        days = {path.name for path in (tmp_path / way).glob("topic=*/date=*")}
        assert days == {f"date=2023-11-{day}" for day in (14, 15, 16, 17)}
        # As a reader sees it that knows nothing of Spark.
        table = ds.dataset(list((tmp_path / way).glob("topic=*/date=*/*")), format="parquet").to_table()
        assert str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]" and table.num_rows == 12
    assert found[0] == found[1] == found[2]


def test_an_archive_of_chosen_columns_holds_those_and_needs_topic_and_time(
    spark: SparkSession, rostra_node: EmbeddedNode, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    make_topic(rostra_node, 5)
    begin("parquet", spark, rostra_node.address, lake, columns="timestamp,value,topic").awaitTermination(180)
    assert rows(lake) == Counter(range(5))
    assert set(lake_of(spark, str(lake)).read(spark).columns) == {"timestamp", "value", "topic", "date"}
    with pytest.raises(InvalidSetting, match="needs topic and timestamp"):
        begin("parquet", spark, rostra_node.address, tmp_path / "other", columns="value,topic")


def test_a_place_that_spark_cannot_write_to_is_refused_with_what_is_missing(
    spark: SparkSession, rostra_node: EmbeddedNode
) -> None:
    make_topic(rostra_node, 1)
    options = {"nodes": rostra_node.address, "subscribe": TOPIC}
    for lake, told in (
        ("s3a://bucket/lake", "set spark.jars.packages=org.apache.hadoop:hadoop-aws:3"),
        ("s3://bucket/lake", "no file system for s3: here.*write s3a: for S3"),
        ("nowhere://x/lake", "no file system for nowhere: here"),
        ("", "cannot be used"),
    ):
        with pytest.raises(InvalidSetting, match=told):
            archive_topics(spark, options, lake, once=True)
