"""Apache Kafka in KRaft mode: one process, broker and controller, driven by its C client."""

import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import fetch
from benchmarks.contender import Contender, Durability, Endpoint, Stage, chunks
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port

CLUSTER_ID = "cm9zdHJhLWJlbmNobWFyaw"
CHUNK_RECORDS = 5000
QUEUE_RECORDS = 2_000_000
LINGER_MS = 5
BATCH_BYTES = 1_000_000

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
message.max.bytes=4000000
{flush}
"""


class Kafka(Contender):
    def __init__(self, *, flush_always: bool) -> None:
        self._flush_always = flush_always
        self.name = "Kafka, flush always" if flush_always else "Kafka"
        self.durability = Durability.FSYNC if flush_always else Durability.FSYNC_LATER
        flush = "log.flush.interval.messages=1" if flush_always else "flush left to the kernel"
        self.settings = (
            f"Kafka {fetch.KAFKA_VERSION}, KRaft, 1 broker, 1 partition, {flush}, 1 GB heap",
            f"confluent-kafka, produce_batch: acks=all, idempotent, linger {LINGER_MS} ms, 1 MB",
            "consumer: assigned partition, consume() in bulk, fetch.min.bytes=1, 64 MB prefetched",
        )

    def start(self, servers: Servers) -> Endpoint:
        classpath = fetch.kafka_classpath()
        folder = servers.new_folder("kafka")
        port, controller_port = free_port(), free_port()
        properties = folder / "server.properties"
        flush = "log.flush.interval.messages=1" if self._flush_always else ""
        properties.write_text(
            SERVER_PROPERTIES.format(port=port, controller_port=controller_port, folder=folder, flush=flush)
        )
        format_storage(classpath, folder, properties)
        java = ["java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        pid = servers.start([*java, "-cp", classpath, "kafka.Kafka", properties], folder, port, timeout_s=60.0)
        return Endpoint(port=port, pids=(pid,), folder=folder)

    def create(self, endpoint: Endpoint, topic: str) -> None:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{endpoint.port}", "log_level": 2})
        created = client.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        created[topic].result(30)

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        refused: list[KafkaError] = []
        producer = connect_producer(endpoint, topic, refused)
        stage.ready()
        stage.wait_for_start()
        for chunk in chunks(messages, CHUNK_RECORDS, BATCH_BYTES):
            batch = [{"value": message} for message in chunk]
            # A full queue takes only a part and marks the rest; both of ours fit whole.
            if producer.produce_batch(topic, batch, partition=0) != len(batch):
                raise BufferError("the producer's queue is full")
            producer.poll(0)
        require_acknowledged(producer, stage.timeout_s, refused)
        stage.finished()

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        consumers = [connect_consumer(endpoint, topic) for _ in inboxes]
        stage.ready()
        deadline = time.monotonic() + stage.timeout_s
        while not all(inbox.is_full() for inbox in inboxes) and time.monotonic() < deadline:
            for consumer, inbox in zip(consumers, inboxes, strict=True):
                take(consumer, inbox)
        stage.finished()
        for consumer in consumers:
            consumer.close()


def take(consumer: Consumer, inbox: Inbox) -> None:
    """Returns the first record when it arrives, with all that the client has fetched together with it."""
    first = consumer.poll(0.01)
    if first is None:
        return
    room = max(1, min(CHUNK_RECORDS, inbox.expected - len(inbox) - 1))
    inbox.extend([value_of(message) for message in (first, *consumer.consume(room, 0))])


def value_of(message: Message) -> bytes:
    error = message.error()
    if error is not None:
        raise RuntimeError(str(error))
    value: bytes = message.value()
    return value


def connect_producer(endpoint: Endpoint, topic: str, refused: list[KafkaError]) -> Producer:
    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{endpoint.port}",
            "log_level": 2,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "message.max.bytes": 4_000_000,
            "queue.buffering.max.messages": QUEUE_RECORDS,
            "queue.buffering.max.kbytes": 2_000_000,
            # A callback for every record would cost more than the record.
            "delivery.report.only.error": True,
            "on_delivery": report,
        }
    )
    producer.list_topics(topic, 30)  # metadata fetched before the clock starts
    return producer


def connect_consumer(endpoint: Endpoint, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{endpoint.port}",
            "group.id": "bench",
            "log_level": 2,
            "enable.auto.commit": False,
            "fetch.min.bytes": 1,
            "fetch.message.max.bytes": 4_000_000,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 65_536,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    consumer.poll(0.2)  # connects before the clock starts
    return consumer


def require_acknowledged(producer: Producer, timeout_s: float, refused: list[KafkaError]) -> None:
    waiting = producer.flush(timeout_s)
    if waiting or refused:
        raise RuntimeError(f"{waiting} records unacknowledged, {len(refused)} refused: {refused[:1]}")


def format_storage(classpath: str, folder: Path, properties: Path) -> None:
    subprocess.run(
        ["java", "-cp", classpath, "kafka.tools.StorageTool", "format",
         "-t", CLUSTER_ID, "-c", str(properties)],
        cwd=folder,
        capture_output=True,
        check=True,
        timeout=60,
    )  # fmt: skip
