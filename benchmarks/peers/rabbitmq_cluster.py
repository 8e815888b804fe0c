"""RabbitMQ streams on a cluster of three nodes, each stream with a copy on every one."""

import asyncio
from pathlib import Path

import uvloop
from rstream.client import Client
from rstream.exceptions import LeaderNotAvailable

from benchmarks import fetch
from benchmarks.contender import Durability, Endpoint
from benchmarks.peers.rabbitmq_streams import (
    BATCH_RECORDS,
    SERVER_CONF,
    RabbitStreams,
    node_environment,
    producer,
    relocate_erlang,
)
from benchmarks.servers import Servers, free_port
from benchmarks.trio import NODES, POLL_S, Launch, node_folders, start_together

COOKIE = "benchmarks"
CREATE_TIMEOUT_S = 30.0

CLUSTER_CONF = """\
stream.advertised_host = 127.0.0.1
stream.advertised_port = {stream_port}
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.randomized_startup_delay_range.min = 0
cluster_formation.randomized_startup_delay_range.max = 1
"""


class RabbitTrio(RabbitStreams):
    name = "RabbitMQ streams, 3 nodes"
    durability = Durability.MAJORITY_LATER
    settings = (
        "three nodes, streams with three copies, never fsynced by the server (its design); confirms awaited",
        f"rstream on uvloop, send_batch of {BATCH_RECORDS} to the leader, raw messages, consumer at a replica",
        "server: defaults, schedulers do not busy-wait",
    )

    def start(self, servers: Servers) -> Endpoint:
        root = fetch.debian_root("rabbitmq-server")
        relocate_erlang(root)
        folder = servers.new_folder("rabbitmq-3")
        write_cookie(folder)
        ports, amqp_ports = [[free_port() for _ in range(NODES)] for _ in range(2)]
        mapper_port = free_port()
        launches = [
            node_launch(root, own, mapper_port, port, amqp_port, amqp_ports)
            for own, port, amqp_port in zip(node_folders(folder), ports, amqp_ports, strict=True)
        ]
        # Erlang would start the mapper as a daemon that outlives the nodes: ours is a child instead.
        mapper_folder = servers.new_folder("epmd")
        mapper = Launch([root / "usr/bin/epmd"], mapper_folder, mapper_port, launches[0].environment)
        mapper_pids = start_together(servers, [mapper])
        try:
            pids = start_in_order(servers, launches)
        except Exception:
            servers.stop(mapper_pids, 0.0)
            raise
        return Endpoint(port=ports[0], pids=(*mapper_pids, *pids), folder=folder, ports=tuple(ports))

    def create(self, endpoint: Endpoint, topic: str) -> None:
        """Returns when the stream has a leader and two replicas."""

        async def run() -> None:
            async with producer(endpoint) as client, asyncio.timeout(CREATE_TIMEOUT_S):
                await client.create_stream(topic)
                locator = await client.default_client
                while await copies(locator, topic) < NODES:
                    await asyncio.sleep(POLL_S)

        uvloop.run(run())


async def copies(locator: Client, topic: str) -> int:
    try:
        _, replicas = await locator.query_leader_and_replicas(topic)
    except LeaderNotAvailable:
        return 0
    return 1 + len(replicas)


def start_in_order(servers: Servers, launches: list[Launch]) -> tuple[int, ...]:
    """The first founds the cluster that the others find."""
    first = start_together(servers, launches[:1])
    try:
        return first + start_together(servers, launches[1:])
    except Exception:
        servers.stop(first, 0.0)
        raise


def node_launch(
    root: Path, folder: Path, mapper_port: int, stream_port: int, amqp_port: int, amqp_ports: list[int]
) -> Launch:
    home = sorted((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))[-1]
    names = [f"bench{port}@localhost" for port in amqp_ports]
    members = [f"cluster_formation.classic_config.nodes.{at} = {name}" for at, name in enumerate(names, 1)]
    (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
    own = SERVER_CONF.format(amqp_port=amqp_port, stream_port=stream_port)
    cluster = CLUSTER_CONF.format(stream_port=stream_port)
    (folder / "rabbitmq.conf").write_text(own + cluster + "\n".join(members) + "\n")
    environment = node_environment(root, home, folder, mapper_port, amqp_port)
    # The secret by which nodes know each other lies in the home directory.
    return Launch([home / "sbin/rabbitmq-server"], folder, stream_port, {**environment, "HOME": str(folder.parent)})


def write_cookie(folder: Path) -> None:
    cookie = folder / ".erlang.cookie"
    cookie.write_text(COOKIE)
    cookie.chmod(0o400)
