"""Apache Kafka read by Spark with Spark's own connector."""

from collections.abc import Iterable

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import fetch
from benchmarks.contender import Endpoint
from benchmarks.peers.kafka import (
    BATCH_BYTES,
    LINGER_MS,
    QUEUE_RECORDS,
    Kafka,
    connect_producer,
    require_acknowledged,
)
from benchmarks.servers import Servers

FILL_TIMEOUT_S = 300.0
ROOM_POLL_S = 0.05

# Consumers of Spark fetch 1 MB of a partition and hand out 500 records at a time unless told otherwise.
CONSUMER = {
    "max.partition.fetch.bytes": str(16 << 20),
    "fetch.max.bytes": str(64 << 20),
    "receive.buffer.bytes": str(4 << 20),
    "max.poll.records": "10000",
}


class KafkaOfSpark(Kafka):
    """The broker of the other scenarios; what reads is in Spark's own process."""

    def __init__(self, partitions: int) -> None:
        super().__init__(flush_always=False)
        self.name = "Kafka, Spark's connector"
        self.jars: tuple[str, ...] = ()
        self._partitions = partitions

    def start(self, servers: Servers) -> Endpoint:
        jars = fetch.connector_jars()
        self.jars = tuple(map(str, jars))
        self.settings = (
            f"Kafka {fetch.KAFKA_VERSION}, KRaft, 1 broker, {self._partitions} partitions, 1 GB heap",
            f"filled by confluent-kafka: {BATCH_BYTES // 10**6} MB batches, linger {LINGER_MS} ms, not compressed",
            "Spark with " + ", ".join(jar.stem for jar in jars),
            "its consumers: " + ", ".join(f"{name}={value}" for name, value in CONSUMER.items()),
            "minPartitions, includeHeaders and the cache of consumers as by default",
        )
        return super().start(servers)

    def create(self, endpoint: Endpoint, topic: str) -> None:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{endpoint.port}", "log_level": 2})
        wanted = NewTopic(topic, num_partitions=self._partitions, replication_factor=1)
        client.create_topics([wanted])[topic].result(30)

    def fill(self, endpoint: Endpoint, topic: str, chunks: Iterable[tuple[int, list[bytes]]]) -> None:
        """The records of each chunk into the partition that is named with them."""
        refused: list[KafkaError] = []
        producer = connect_producer(endpoint, topic, refused)
        for partition, chunk in chunks:
            await_room(producer)
            batch = [{"value": value} for value in chunk]
            if producer.produce_batch(topic, batch, partition=partition) != len(batch):
                raise BufferError("the producer's queue is full")
        require_acknowledged(producer, FILL_TIMEOUT_S, refused)

    def options(self, endpoint: Endpoint) -> dict[str, str]:
        told = {f"kafka.{name}": value for name, value in CONSUMER.items()}
        return {"kafka.bootstrap.servers": f"127.0.0.1:{endpoint.port}", **told}


def await_room(producer: Producer) -> None:
    while len(producer) > QUEUE_RECORDS // 2:
        producer.poll(ROOM_POLL_S)
