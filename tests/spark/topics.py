"""Topics with known records, for tests of reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.blocking import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAMP_US = 1_700_000_000_000_000


def fill(client: Client, topic: str, count: int, *, first: int = 0, partition: int | None = None) -> None:
    """Records `first` to `first + count - 1`, a millisecond apart, with a few keys."""
    with client.producer(topic, batch_bytes=4_000, partition=partition) as producer:
        for n in range(first, first + count):
            producer.send(b"%d" % n, key=b"k%d" % (n % 7), timestamp=STAMP_US + 1000 * n)


def read(spark: SparkSession, address: str, **options: str) -> DataFrame:
    return spark.read.format("rostra").options(nodes=address, **options).load()


def read_stream(spark: SparkSession, address: str, **options: str) -> DataFrame:
    return spark.readStream.format("rostra").options(nodes=address, **options).load()


def values(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def expire(client: Client, topic: str) -> int:
    """A topic of which retention has removed the beginning; the number of its last record."""
    client.create_topic(topic, retention_bytes=4_096, segment_bytes=4_096)
    sent = 0
    while client.describe_topic(topic).partitions[0].first == 0:
        fill(client, topic, 200, first=sent)
        sent += 200
    return sent - 1
