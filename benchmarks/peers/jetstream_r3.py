"""NATS JetStream on three clustered servers, streams with three replicas."""

import asyncio
from collections.abc import Iterable, Sequence

import msgspec
import uvloop
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig, StreamInfo

from benchmarks import fetch
from benchmarks.contender import Durability, Endpoint, Pace, Stage
from benchmarks.peers.jetstream import WINDOW, JetStream
from benchmarks.peers.nats_core import SERVER_CONF, connect
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port
from benchmarks.trio import NODES, POLL_S, Launch, node_folders, start_together

CREATE_TIMEOUT_S = 30.0

CLUSTER_CONF = """\
server_name: node-{number}
cluster {{ name: bench, listen: "127.0.0.1:{route_port}", no_advertise: true, routes: [{routes}] }}
jetstream {{ store_dir: "{folder}/store", max_file: 20GB{sync} }}
"""


class JetStreamR3(JetStream):
    def __init__(self, *, sync_always: bool) -> None:
        super().__init__(sync_always=sync_always)
        self.name = "JetStream R3, sync always" if sync_always else "JetStream R3"
        self.durability = Durability.MAJORITY_FSYNC if sync_always else Durability.MAJORITY_LATER
        interval = "always" if sync_always else "2 minutes (as shipped)"
        self.settings = (
            f"three servers, 3 replicas, file storage, sync_interval {interval}",
            f"nats-py on uvloop, connected to the stream's leader, publish_async, {WINDOW} unacknowledged",
            "push consumer in memory with one replica, ack none, subscription limits off",
        )

    def start(self, servers: Servers) -> Endpoint:
        folder = servers.new_folder("jetstream-3")
        ports, route_ports = [[free_port() for _ in range(NODES)] for _ in range(2)]
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in route_ports)
        launches = []
        for number, own in enumerate(node_folders(folder)):
            extra = CLUSTER_CONF.format(
                number=number,
                route_port=route_ports[number],
                routes=routes,
                folder=own,
                sync=", sync_interval: always" if self._sync_always else "",
            )
            conf = own / "nats.conf"
            conf.write_text(SERVER_CONF.format(port=ports[number], extra=extra))
            launches.append(Launch([fetch.nats_server(), "-c", conf], own, ports[number]))
        pids = start_together(servers, launches)
        return Endpoint(port=ports[0], pids=pids, folder=folder, ports=tuple(ports))

    def create(self, endpoint: Endpoint, topic: str) -> None:
        """Returns when the stream has a leader and its two followers are up to date."""
        wanted = StreamConfig(name=topic, subjects=[topic], storage=StorageType.FILE, num_replicas=NODES)

        async def run() -> None:
            client = await connect(endpoint)
            stream = client.jetstream(timeout=5.0)
            created = False
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                while not created:
                    try:
                        await stream.add_stream(wanted)
                        created = True
                    except Error:
                        await asyncio.sleep(POLL_S)  # the servers have not yet chosen who decides
                while not is_complete(await stream.stream_info(topic)):
                    await asyncio.sleep(POLL_S)
            await client.close()

        uvloop.run(run())

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        super().publish(at_leader(endpoint, topic), topic, stage, messages)

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        super().publish_paced(at_leader(endpoint, topic), topic, stage, pace)

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        super().subscribe(at_leader(endpoint, topic), topic, stage, inboxes)

    def _consumer(self) -> ConsumerConfig:
        # What its documentation advises for a reader that keeps no position.
        return ConsumerConfig(ack_policy=AckPolicy.NONE, num_replicas=1, mem_storage=True)


def is_complete(info: StreamInfo) -> bool:
    cluster = info.cluster
    if cluster is None or not cluster.leader:
        return False
    return sum(bool(replica.current) for replica in cluster.replicas or ()) == NODES - 1


def at_leader(endpoint: Endpoint, topic: str) -> Endpoint:
    """The endpoint with the port of the stream's leader, so that no record is forwarded."""

    async def run() -> str:
        client = await connect(endpoint)
        info = await client.jetstream().stream_info(topic)
        await client.close()
        assert info.cluster is not None and info.cluster.leader is not None
        return str(info.cluster.leader)

    number = int(uvloop.run(run()).rpartition("-")[2])
    return msgspec.structs.replace(endpoint, port=endpoint.ports[number])
