"""Spark over topics, beside Spark over the same records in Parquet files; and what a trace costs."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import rostra.blocking
from benchmarks import targets
from benchmarks.estimates import median_estimate, ratio_estimate
from benchmarks.findings import Figure
from benchmarks.ours import Rostra
from benchmarks.records import distinct_records
from benchmarks.throughput import absence
from benchmarks.workbench import Workbench
from rostra.spark import session
from rostra.spark.columns import schema_of
from rostra.spark.pipelines.archive import archive, with_date

RECORDS = 10_000_000
RECORD_BYTES = 100
PARTITIONS = 4
CHUNK = 10_000
INDEX_BYTES = 8
TOPIC = "events"
OURS, FILES = "Rostra", "Parquet files"
WORKERS = "local[2]"
MEMORY = "4g"

Measured = dict[str, list[float]]


def run(bench: Workbench) -> None:
    count = bench.scaled(RECORDS)
    bench.say(f"pipeline: Spark reads {count:,} records of {RECORD_BYTES} bytes from topics and from Parquet files")
    ours = Rostra(fsync=False)
    wanted = (targets.SPARK_BATCH, targets.SPARK_STREAM, targets.SPARK_ARCHIVE)
    with bench.running(ours) as endpoint, tempfile.TemporaryDirectory(prefix="rostra-pipeline-") as folder:
        if endpoint is None:
            for target in wanted:
                bench.judge(target, None, absence(bench, ours))
            return
        place, address = Path(folder), f"127.0.0.1:{endpoint.port}"
        fill(address, place / "files", count)
        conf = {"spark.driver.memory": MEMORY, "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
        spark = session("rostra-benchmarks", master=WORKERS, conf=conf)
        try:
            compare(bench, Jobs(spark, address, place, count))
        finally:
            spark.stop()


def fill(address: str, files: Path, count: int) -> None:
    """The same records in a topic and in files, one for each partition."""
    files.mkdir()
    endings = [record[INDEX_BYTES:] for record in distinct_records(CHUNK, RECORD_BYTES)]
    with rostra.blocking.connect(address) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            with client.producer(TOPIC, partition=partition) as producer:
                for at in range(count // PARTITIONS // CHUNK):
                    producer.send_many(chunk_of(endings, partition, at))
    moment = pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC"))
    for partition in range(PARTITIONS):
        with pq.ParquetWriter(files / f"{partition}.parquet", schema_of(), compression="snappy") as writer:
            for at in range(count // PARTITIONS // CHUNK):
                columns = [
                    pa.nulls(CHUNK, pa.binary()),
                    pa.array(chunk_of(endings, partition, at), pa.binary()),
                    pa.repeat(TOPIC, CHUNK),
                    pa.repeat(pa.scalar(partition, pa.int32()), CHUNK),
                    pa.array(range(at * CHUNK, (at + 1) * CHUNK), pa.int64()),
                    pa.repeat(moment, CHUNK),
                    pa.nulls(CHUNK, schema_of().field("headers").type),
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema_of()))


def chunk_of(endings: list[bytes], partition: int, at: int) -> list[bytes]:
    """No two records are alike: files would keep those that are as one."""
    first = (partition << 48) + at * CHUNK
    return [(first + n).to_bytes(INDEX_BYTES, "big") + ending for n, ending in enumerate(endings)]


class Jobs:
    """What is measured, each in a fresh place."""

    def __init__(self, spark: Any, address: str, place: Path, count: int) -> None:
        self._spark = spark
        self._options = {"nodes": address, "subscribe": TOPIC, "startingOffsets": "earliest"}
        self._place = place
        self._count = count
        self._turn = 0
        self._kept: Any = None

    def _fresh(self) -> str:
        self._turn += 1
        return str(self._place / f"turn-{self._turn}")

    def _rate(self, job: Callable[[], object]) -> float:
        begun = time.monotonic()
        job()
        return self._count / (time.monotonic() - begun)

    def read_topic(self) -> float:
        frame = self._spark.read.format("rostra").options(**self._options).load()
        return self._rate(lambda: frame.write.format("noop").mode("overwrite").save())

    def read_files(self) -> float:
        frame = self._spark.read.parquet(str(self._place / "files"))
        return self._rate(lambda: frame.write.format("noop").mode("overwrite").save())

    def stream_topic(self) -> float:
        return self._stream(self._spark.readStream.format("rostra").options(**self._options).load())

    def stream_files(self) -> float:
        schema = self._spark.read.parquet(str(self._place / "files")).schema
        return self._stream(self._spark.readStream.schema(schema).parquet(str(self._place / "files")))

    def _stream(self, frame: Any) -> float:
        writer = frame.writeStream.format("noop").option("checkpointLocation", self._fresh()).trigger(availableNow=True)
        return self._rate(lambda: writer.start().awaitTermination())

    def archive_topic(self) -> float:
        frame = self._spark.readStream.format("rostra").options(**self._options).load()
        return self._rate(lambda: archive(frame, self._fresh(), once=True, compact_every=0).awaitTermination())

    def write_from_memory(self) -> float:
        if self._kept is None:
            self._kept = with_date(self._spark.read.parquet(str(self._place / "files"))).persist()
            self._kept.count()
        writer = self._kept.write.partitionBy("topic", "date")
        return self._rate(lambda: writer.parquet(self._fresh()))


def compare(bench: Workbench, jobs: Jobs) -> None:
    memory = "Parquet written from memory"
    pairs = (
        ("Spark batch read", targets.SPARK_BATCH, FILES, jobs.read_topic, jobs.read_files),
        ("Spark stream read, availableNow", targets.SPARK_STREAM, FILES, jobs.stream_topic, jobs.stream_files),
        ("archive", targets.SPARK_ARCHIVE, memory, jobs.archive_topic, jobs.write_from_memory),
    )
    for scenario, target, other, ours, theirs in pairs:
        rates: Measured = {OURS: [], other: []}
        for turn in range(1 + bench.rounds):
            for name, job in ((OURS, ours), (other, theirs)):
                rate = job()
                # The first of each warms up.
                if turn:
                    rates[name].append(rate)
        for name, measured in rates.items():
            estimate = median_estimate(measured)
            bench.say(f"  {scenario}, {name}: {estimate.median:,.0f} records/s")
            bench.findings.figures.append(Figure(scenario, name, "read only", "records/s", estimate))
        bench.judge(target, ratio_estimate(rates[OURS], rates[other]), f"{WORKERS}, all columns, against {other}")
