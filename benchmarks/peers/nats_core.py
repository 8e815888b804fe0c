"""NATS core: one nats-server, subjects without storage."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks import fetch
from benchmarks.contender import Durability, Endpoint, Pace, PacedContender, Stage
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port

SERVER_CONF = """\
listen: 127.0.0.1:{port}
max_payload: 4MB
max_pending: 1GB
write_deadline: "60s"
{extra}
"""


def start_nats(servers: Servers, name: str, extra: str = "") -> Endpoint:
    """A nats-server whose limits let one fast publisher fill the pipe without being cut off."""
    folder = servers.new_folder(name)
    port = free_port()
    conf = folder / "nats.conf"
    conf.write_text(SERVER_CONF.format(port=port, extra=extra.format(folder=folder)))
    pid = servers.start([fetch.nats_server(), "-c", conf], folder, port)
    return Endpoint(port=port, pids=(pid,), folder=folder)


async def connect(endpoint: Endpoint) -> Client:
    return await nats.connect(f"nats://127.0.0.1:{endpoint.port}", pending_size=64 << 20, max_reconnect_attempts=0)


class NatsCore(PacedContender):
    name = "NATS core"
    durability = Durability.NOTHING
    settings = (
        "nats-py on uvloop, pending_size 64 MiB, subscription limits off",
        "server: max_pending 1 GB, write_deadline 60 s, max_payload 4 MB",
    )

    def start(self, servers: Servers) -> Endpoint:
        return start_nats(servers, "nats-core")

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        async def run() -> None:
            client = await connect(endpoint)
            await stage.start()
            for index, message in enumerate(messages):
                await client.publish(topic, message)
                if index % 1024 == 0:
                    await asyncio.sleep(0)  # publish() fills a buffer; the writer needs a turn
            await client.flush(int(stage.timeout_s))
            stage.finished()
            await client.close()

        uvloop.run(run())

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        async def run() -> None:
            client = await connect(endpoint)
            await stage.start()
            async for value in pace.values_async():
                await client.publish(topic, value)
            await client.flush(int(stage.timeout_s))
            stage.finished()
            await client.close()

        uvloop.run(run())

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        async def run() -> None:
            full = [asyncio.Event() for _ in inboxes]
            clients = []
            for inbox, event in zip(inboxes, full, strict=True):
                client = await connect(endpoint)
                await client.subscribe(
                    topic,
                    cb=receive_into(inbox, event),
                    pending_msgs_limit=0,
                    pending_bytes_limit=0,
                )
                await client.flush()
                clients.append(client)
            stage.ready()
            await wait_for_all(full, stage)
            for client in clients:
                await client.close()

        uvloop.run(run())


def receive_into(inbox: Inbox, full: asyncio.Event) -> Callable[[Msg], Coroutine[Any, Any, None]]:
    expected = inbox.expected

    async def receive(message: Msg) -> None:
        inbox.append(message.data)
        if len(inbox) >= expected:
            full.set()

    return receive


async def wait_for_all(full: Sequence[asyncio.Event], stage: Stage) -> None:
    """Waits until every inbox is full, or the time is over; the count then tells how many are missing."""
    try:
        async with asyncio.timeout(stage.timeout_s):
            for event in full:
                await event.wait()
    except TimeoutError:
        pass
    stage.finished()
