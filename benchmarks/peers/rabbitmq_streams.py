"""RabbitMQ streams over the stream protocol: a node of our own, with a port mapper of its own."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import uvloop
from rstream import (
    AMQPMessage,
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetType,
    Producer,
)

from benchmarks import fetch
from benchmarks.contender import Contender, Durability, Endpoint, Stage, chunks
from benchmarks.peers.nats_core import wait_for_all
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port

BATCH_RECORDS = 500
FRAME_BYTES = 1 << 20

SERVER_CONF = """\
listeners.tcp.1 = 127.0.0.1:{amqp_port}
stream.listeners.tcp.1 = 127.0.0.1:{stream_port}
disk_free_limit.absolute = 1GB
log.console = true
log.file = false
"""


class RabbitStreams(Contender):
    name = "RabbitMQ streams"
    durability = Durability.FSYNC_LATER
    settings = (
        "one node, streams are never fsynced by the server (its design); confirms awaited",
        f"rstream on uvloop, send_batch of {BATCH_RECORDS}, raw messages",
        "server: defaults, schedulers do not busy-wait",
    )

    def start(self, servers: Servers) -> Endpoint:
        root = fetch.debian_root("rabbitmq-server")
        relocate_erlang(root)
        home = sorted((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))[-1]
        folder = servers.new_folder("rabbitmq")
        mapper_port, amqp_port, stream_port = free_port(), free_port(), free_port()
        (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n")
        (folder / "rabbitmq.conf").write_text(SERVER_CONF.format(amqp_port=amqp_port, stream_port=stream_port))
        environment = node_environment(root, home, folder, mapper_port, amqp_port)
        # Erlang would start the mapper as a daemon that outlives the node: ours is a child instead.
        mapper_folder = servers.new_folder("epmd")
        mapper_pid = servers.start([root / "usr/bin/epmd"], mapper_folder, mapper_port, environment=environment)
        node_pid = servers.start(
            [home / "sbin/rabbitmq-server"],
            folder,
            stream_port,
            environment=environment,
            timeout_s=60.0,
        )
        return Endpoint(port=stream_port, pids=(mapper_pid, node_pid), folder=folder)

    def create(self, endpoint: Endpoint, topic: str) -> None:
        async def run() -> None:
            async with producer(endpoint) as client:
                await client.create_stream(topic)

        uvloop.run(run())

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        async def run() -> None:
            confirmed = 0
            last = asyncio.Event()
            sent = -1

            async def confirm(status: ConfirmationStatus) -> None:
                nonlocal confirmed
                confirmed += 1
                if confirmed == sent:
                    last.set()

            async with producer(endpoint) as client:
                await stage.start()
                count = 0
                for chunk in chunks(messages, BATCH_RECORDS, FRAME_BYTES // 2):
                    await client.send_batch(topic, chunk, on_publish_confirm=confirm)
                    count += len(chunk)
                sent = count
                if confirmed < sent:
                    async with asyncio.timeout(stage.timeout_s):
                        await last.wait()
                stage.finished()

        uvloop.run(run())

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        async def run() -> None:
            full = [asyncio.Event() for _ in inboxes]
            consumers = []
            for inbox, event in zip(inboxes, full, strict=True):
                consumer = Consumer("127.0.0.1", endpoint.port, username="guest", password="guest")
                await consumer.start()
                await consumer.subscribe(
                    topic,
                    receive_into(inbox, event),
                    offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
                )
                consumers.append(consumer)
            stage.ready()
            await wait_for_all(full, stage)
            for consumer in consumers:
                await consumer.close()

        uvloop.run(run())


def receive_into(inbox: Inbox, full: asyncio.Event) -> Callable[[AMQPMessage, MessageContext], None]:
    expected = inbox.expected

    def receive(message: AMQPMessage, context: MessageContext) -> None:
        inbox.append(message)  # without a decoder the message is the raw bytes
        if len(inbox) >= expected:
            full.set()

    return receive


def producer(endpoint: Endpoint) -> Producer:
    return Producer("127.0.0.1", endpoint.port, username="guest", password="guest")


def relocate_erlang(root: Path) -> None:
    """Debian's start script knows one place only; an unpacked copy lies elsewhere, and may have been moved."""
    if root == Path("/"):
        return
    script = root / "usr/lib/erlang/bin/erl"
    here = str(root.resolve() / "usr/lib/erlang")
    text = script.read_text()
    relocated = re.sub(r"(?<=\bROOTDIR=)/.*$", here, text, flags=re.MULTILINE)
    if relocated != text:
        script.write_text(relocated)


def node_environment(root: Path, home: Path, folder: Path, mapper_port: int, amqp_port: int) -> dict[str, str]:
    """Everything of the node stays in its folder and on loopback."""
    return {
        "HOME": str(folder),
        "PATH": f"{root / 'usr/bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LD_LIBRARY_PATH": fetch.library_path(root),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper_port),
        "RABBITMQ_HOME": str(home),
        "RABBITMQ_NODENAME": f"bench{amqp_port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "absent.conf"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none"
        ),
    }
