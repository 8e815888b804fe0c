"""Apache Kafka on three brokers in KRaft mode, each also a controller; topics with three replicas."""

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import fetch
from benchmarks.contender import Durability, Endpoint
from benchmarks.peers.kafka import BATCH_BYTES, LINGER_MS, Kafka, format_storage
from benchmarks.servers import Servers, free_port
from benchmarks.trio import NODES, Launch, node_folders, start_together, wait_until

IN_SYNC_MIN = 2
ANSWER_TIMEOUT_S = 30.0

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}/log
offsets.topic.replication.factor=3
min.insync.replicas={in_sync_min}
group.initial.rebalance.delay.ms=0
message.max.bytes=4000000
replica.fetch.max.bytes=4000000
"""


class KafkaTrio(Kafka):
    """Flushing is a setting of the topic: the same brokers serve both kinds."""

    def __init__(self, *, flush_always: bool) -> None:
        super().__init__(flush_always=flush_always)
        self.name = "Kafka, 3 brokers, flush always" if flush_always else "Kafka, 3 brokers"
        self.durability = Durability.ALL_FSYNC if flush_always else Durability.ALL_LATER
        flush = "flush.messages=1" if flush_always else "flush left to the kernel"
        self.settings = (
            f"Kafka {fetch.KAFKA_VERSION}, KRaft, 3 brokers that are controllers too, up to 1 GB heap each",
            f"1 partition, 3 replicas, min.insync.replicas={IN_SYNC_MIN}, {flush}",
            f"confluent-kafka, produce_batch: acks=all, idempotent, linger {LINGER_MS} ms, {BATCH_BYTES // 10**6} MB",
            "consumer: assigned partition, consume() in bulk, fetch.min.bytes=1, 64 MB prefetched",
        )

    def start(self, servers: Servers) -> Endpoint:
        classpath = fetch.kafka_classpath()
        folder = servers.new_folder("kafka-3")
        ports, controller_ports = [[free_port() for _ in range(NODES)] for _ in range(2)]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controller_ports, 1))
        launches = []
        for at, own in enumerate(node_folders(folder)):
            properties = own / "server.properties"
            properties.write_text(
                SERVER_PROPERTIES.format(
                    number=at + 1,
                    voters=voters,
                    port=ports[at],
                    controller_port=controller_ports[at],
                    folder=own,
                    in_sync_min=IN_SYNC_MIN,
                )
            )
            format_storage(classpath, own, properties)
            launches.append(Launch(broker_command(classpath, properties), own, ports[at]))
        pids = start_together(servers, launches)
        return Endpoint(port=ports[0], pids=pids, folder=folder, ports=tuple(ports))

    def create(self, endpoint: Endpoint, topic: str) -> None:
        """Returns when all three brokers are there and all three replicas are in sync."""
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{endpoint.port}", "log_level": 2})
        wait_until(lambda: len(client.list_topics(timeout=ANSWER_TIMEOUT_S).brokers) == NODES, "three brokers")
        config = {"flush.messages": "1"} if self._flush_always else {}
        wanted = NewTopic(topic, num_partitions=1, replication_factor=NODES, config=config)
        client.create_topics([wanted])[topic].result(ANSWER_TIMEOUT_S)
        wait_until(lambda: in_sync(client, topic) == NODES, f"three replicas of {topic} in sync")


def in_sync(client: AdminClient, topic: str) -> int:
    partitions = client.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic].partitions
    return len(partitions[0].isrs) if 0 in partitions else 0


def broker_command(classpath: str, properties: Path) -> list[str | Path]:
    memory = ("-Xms256m", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
    return ["java", *memory, "-cp", classpath, "kafka.Kafka", properties]
