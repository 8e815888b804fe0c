"""NATS JetStream: one replica, file storage, as shipped and with an fsync for every write."""

import asyncio
from collections.abc import Iterable, Sequence

import uvloop
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from benchmarks.contender import Durability, Endpoint, Pace, PacedContender, Stage
from benchmarks.peers.nats_core import connect, receive_into, start_nats, wait_for_all
from benchmarks.records import Inbox
from benchmarks.servers import Servers

WINDOW = 4000
"""Acknowledgements awaited at once: the client's default, and the best of those tried."""

AS_SHIPPED = 'jetstream {{ store_dir: "{folder}/store", max_file: 20GB }}'
SYNC_ALWAYS = 'jetstream {{ store_dir: "{folder}/store", max_file: 20GB, sync_interval: always }}'


class JetStream(PacedContender):
    def __init__(self, *, sync_always: bool) -> None:
        self._sync_always = sync_always
        self.name = "JetStream, sync always" if sync_always else "JetStream"
        self.durability = Durability.FSYNC if sync_always else Durability.FSYNC_LATER
        interval = "always" if sync_always else "2 minutes (as shipped)"
        self.settings = (
            f"1 replica, file storage, sync_interval {interval}",
            f"nats-py on uvloop, publish_async, {WINDOW} unacknowledged",
            "push consumer, ack none, subscription limits off",
        )

    def start(self, servers: Servers) -> Endpoint:
        return start_nats(servers, "jetstream", SYNC_ALWAYS if self._sync_always else AS_SHIPPED)

    def create(self, endpoint: Endpoint, topic: str) -> None:
        async def run() -> None:
            client = await connect(endpoint)
            stream = StreamConfig(name=topic, subjects=[topic], storage=StorageType.FILE, num_replicas=1)
            await client.jetstream().add_stream(stream)
            await client.close()

        uvloop.run(run())

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        async def run() -> None:
            client = await connect(endpoint)
            stream = client.jetstream(timeout=stage.timeout_s, publish_async_max_pending=WINDOW)
            await stage.start()
            for message in messages:
                # No `wait_stall`: a deadline costs the client a task for every record.
                await stream.publish_async(topic, message)
            await stream.publish_async_completed()
            stage.finished()
            await client.close()

        uvloop.run(run())

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        async def run() -> None:
            client = await connect(endpoint)
            stream = client.jetstream(timeout=stage.timeout_s, publish_async_max_pending=WINDOW)
            await stage.start()
            async for value in pace.values_async():
                await stream.publish_async(topic, value)
            await stream.publish_async_completed()
            stage.finished()
            await client.close()

        uvloop.run(run())

    def _consumer(self) -> ConsumerConfig:
        return ConsumerConfig(ack_policy=AckPolicy.NONE)

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        async def run() -> None:
            full = [asyncio.Event() for _ in inboxes]
            clients = []
            for inbox, event in zip(inboxes, full, strict=True):
                client = await connect(endpoint)
                # Not `ordered_consumer`: under load it takes delay for a gap and starts over.
                await client.jetstream(timeout=stage.timeout_s).subscribe(
                    topic,
                    stream=topic,
                    cb=receive_into(inbox, event),
                    config=self._consumer(),
                    pending_msgs_limit=0,
                    pending_bytes_limit=0,
                )
                clients.append(client)
            stage.ready()
            await wait_for_all(full, stage)
            for client in clients:
                await client.close()

        uvloop.run(run())
