"""Spark over topics, beside Spark over the same records in Kafka and in Parquet files."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

import rostra.blocking
from benchmarks import targets
from benchmarks.contender import Contender, Endpoint
from benchmarks.estimates import median_estimate, ratio_estimate
from benchmarks.findings import Figure, Target
from benchmarks.ours import Rostra
from benchmarks.peers.kafka_spark import KafkaOfSpark
from benchmarks.records import distinct_records
from benchmarks.throughput import absence
from benchmarks.workbench import Workbench
from rostra.spark import session
from rostra.spark.pipelines.archive import archive, archive_topics, with_date
from rostra.spark.source.columns import schema_of

RECORDS = 10_000_000
RECORD_BYTES = 100
PARTITIONS = 4
CHUNK = 10_000
INDEX_BYTES = 8
TOPIC = "events"
OURS, FILES, WRITTEN, PLAIN = "Rostra", "Parquet files", "Parquet written from memory", "Rostra, plain Parquet"
BATCH, STREAM, ARCHIVE = "Spark batch read", "Spark stream read, availableNow", "archive"
ARCHIVE_DELTA = "archive into a Delta table"
WORKERS = "local[2]"
MEMORY = "4g"

BESIDE_FILES = (targets.SPARK_BATCH, targets.SPARK_STREAM, targets.SPARK_ARCHIVE, targets.SPARK_ARCHIVE_DELTA)
BESIDE_KAFKA = (targets.SPARK_BATCH_KAFKA, targets.SPARK_STREAM_KAFKA, targets.SPARK_ARCHIVE_KAFKA)

Job = Callable[[], float]


def run(bench: Workbench) -> None:
    whole = PARTITIONS * CHUNK
    count = bench.scaled(RECORDS) // whole * whole
    bench.say(f"pipeline: Spark reads {count:,} records of {RECORD_BYTES} bytes from topics and from Parquet files")
    ours, kafka = Rostra(fsync=False), KafkaOfSpark(PARTITIONS)
    with (
        bench.running(ours) as our_endpoint,
        bench.running(kafka) as kafka_endpoint,
        tempfile.TemporaryDirectory(prefix="rostra-pipeline-") as folder,
    ):
        if our_endpoint is None:
            give_up(bench, (*BESIDE_KAFKA, *BESIDE_FILES), ours)
            return
        place, address = Path(folder), f"127.0.0.1:{our_endpoint.port}"
        fill_topic(address, count)
        fill_files(place / "files", count)
        if kafka_endpoint is not None:
            kafka.create(kafka_endpoint, TOPIC)
            kafka.fill(kafka_endpoint, TOPIC, chunks_of(count))
        spark = spark_with(kafka.jars if kafka_endpoint is not None else ())
        jobs = Jobs(spark, place, count)
        topic = Source("rostra", {"nodes": address, "subscribe": TOPIC, "startingOffsets": "earliest"})
        try:
            beside_kafka(bench, jobs, topic, kafka, kafka_endpoint)
            # Last of all, with what it keeps in memory.
            beside_files(bench, jobs, topic)
        finally:
            spark.stop()


def give_up(bench: Workbench, wanted: tuple[Target, ...], missing: Contender) -> None:
    for target in wanted:
        bench.judge(target, None, absence(bench, missing))


def spark_with(jars: tuple[str, ...]) -> Any:
    conf = {"spark.driver.memory": MEMORY, "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    if jars:
        conf["spark.jars"] = ",".join(jars)
    return session("rostra-benchmarks", master=WORKERS, conf=conf)


# --- the same records for all ---------------------------------------------------------------------


def chunks_of(count: int) -> Iterator[tuple[int, list[bytes]]]:
    """Partition after partition. No two records are alike: files would keep those that are as one."""
    endings = [record[INDEX_BYTES:] for record in distinct_records(CHUNK, RECORD_BYTES)]
    for partition in range(PARTITIONS):
        for first in range(partition << 48, (partition << 48) + count // PARTITIONS, CHUNK):
            chunk = [(first + n).to_bytes(INDEX_BYTES, "big") + ending for n, ending in enumerate(endings)]
            yield partition, chunk


def fill_topic(address: str, count: int) -> None:
    with rostra.blocking.connect(address) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        for partition, chunks in groupby(chunks_of(count), itemgetter(0)):
            with client.producer(TOPIC, partition=partition) as producer:
                for _, chunk in chunks:
                    producer.send_many(chunk)


def fill_files(files: Path, count: int) -> None:
    """One for each partition."""
    files.mkdir()
    moment = pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC"))
    for partition, chunks in groupby(chunks_of(count), itemgetter(0)):
        with pq.ParquetWriter(files / f"{partition}.parquet", schema_of(), compression="snappy") as writer:
            for at, (_, chunk) in enumerate(chunks):
                columns = [
                    pa.nulls(CHUNK, pa.binary()),
                    pa.array(chunk, pa.binary()),
                    pa.repeat(TOPIC, CHUNK),
                    pa.repeat(pa.scalar(partition, pa.int32()), CHUNK),
                    pa.array(range(at * CHUNK, (at + 1) * CHUNK), pa.int64()),
                    pa.repeat(moment, CHUNK),
                    pa.nulls(CHUNK, schema_of().field("headers").type),
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema_of()))


# --- what is done with them -----------------------------------------------------------------------


class Source(msgspec.Struct, frozen=True):
    """A topic as Spark reads it."""

    format: str
    options: dict[str, str]

    def of(self, reader: Any) -> Any:
        return reader.format(self.format).options(**self.options).load()


class Jobs:
    """What is measured, each in a fresh place."""

    def __init__(self, spark: Any, place: Path, count: int) -> None:
        self._spark = spark
        self._place = place
        self._count = count
        self._turn = 0
        self._kept: Any = None

    def _fresh(self) -> str:
        """A gigabyte is written in each turn, and of no use in the next."""
        shutil.rmtree(self._place / f"turn-{self._turn}", ignore_errors=True)
        self._turn += 1
        return str(self._place / f"turn-{self._turn}")

    def _rate(self, job: Callable[[], object]) -> float:
        begun = time.monotonic()
        job()
        return self._count / (time.monotonic() - begun)

    def read(self, topic: Source) -> float:
        return self._read(topic.of(self._spark.read))

    def read_files(self) -> float:
        return self._read(self._spark.read.parquet(str(self._place / "files")))

    def _read(self, frame: Any) -> float:
        return self._rate(lambda: frame.write.format("noop").mode("overwrite").save())

    def stream(self, topic: Source) -> float:
        return self._stream(topic.of(self._spark.readStream))

    def stream_files(self) -> float:
        schema = self._spark.read.parquet(str(self._place / "files")).schema
        return self._stream(self._spark.readStream.schema(schema).parquet(str(self._place / "files")))

    def _stream(self, frame: Any) -> float:
        writer = frame.writeStream.format("noop").option("checkpointLocation", self._fresh()).trigger(availableNow=True)
        return self._rate(lambda: writer.start().awaitTermination())

    def archive(self, topic: Source, format: str = "parquet") -> float:
        """Ours as the command does it: tasks write files by themselves. What they hold is proved by the tests."""
        lake = self._fresh()
        if topic.format == "rostra":
            options = topic.options

            def ours() -> None:
                query = archive_topics(self._spark, options, lake, format=format, once=True, compact_every=0)
                query.awaitTermination()

            return self._rate(ours)
        frame = topic.of(self._spark.readStream)
        return self._rate(lambda: archive(frame, lake, once=True, compact_every=0).awaitTermination())

    def write_from_memory(self) -> float:
        if self._kept is None:
            self._kept = with_date(self._spark.read.parquet(str(self._place / "files"))).persist()
            self._kept.count()
        writer, folder = self._kept.write.partitionBy("topic", "date"), self._fresh()
        return self._rate(lambda: writer.parquet(folder))


# --- ours and the other in turns ------------------------------------------------------------------


class Duel(msgspec.Struct, frozen=True):
    scenario: str
    target: Target
    other: str
    ours: Job
    theirs: Job


def beside_kafka(bench: Workbench, jobs: Jobs, topic: Source, kafka: KafkaOfSpark, endpoint: Endpoint | None) -> None:
    if endpoint is None:
        give_up(bench, BESIDE_KAFKA, kafka)
        return
    theirs = Source("kafka", {**kafka.options(endpoint), "subscribe": TOPIC, "startingOffsets": "earliest"})
    for scenario, target, job in zip(
        (BATCH, STREAM, ARCHIVE), BESIDE_KAFKA, (jobs.read, jobs.stream, jobs.archive), strict=True
    ):
        fight(bench, Duel(scenario, target, kafka.name, partial(job, topic), partial(job, theirs)))


def beside_files(bench: Workbench, jobs: Jobs, topic: Source) -> None:
    fight(bench, Duel(BATCH, targets.SPARK_BATCH, FILES, partial(jobs.read, topic), jobs.read_files))
    fight(bench, Duel(STREAM, targets.SPARK_STREAM, FILES, partial(jobs.stream, topic), jobs.stream_files))
    fight(bench, Duel(ARCHIVE, targets.SPARK_ARCHIVE, WRITTEN, partial(jobs.archive, topic), jobs.write_from_memory))
    into_delta, into_files = partial(jobs.archive, topic, "delta"), partial(jobs.archive, topic)
    fight(bench, Duel(ARCHIVE_DELTA, targets.SPARK_ARCHIVE_DELTA, PLAIN, into_delta, into_files))


def fight(bench: Workbench, duel: Duel) -> None:
    rates: dict[str, list[float]] = {OURS: [], duel.other: []}
    for turn in range(1 + bench.rounds):
        for name, job in ((OURS, duel.ours), (duel.other, duel.theirs)):
            rate = job()
            # The first of each warms up.
            if turn:
                rates[name].append(rate)
    for name, measured in rates.items():
        estimate = median_estimate(measured)
        bench.say(f"  {duel.scenario}, {name}: {estimate.median:,.0f} records/s")
        bench.findings.figures.append(Figure(duel.scenario, name, "read only", "records/s", estimate))
    ratio = ratio_estimate(rates[OURS], rates[duel.other])
    bench.judge(duel.target, ratio, f"{WORKERS}, all columns, against {duel.other}")
