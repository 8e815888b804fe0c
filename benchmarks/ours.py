"""Rostra as a contender: one node, asyncio client for volume, blocking client for latency."""

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import uvloop

import rostra
import rostra.blocking
from benchmarks.contender import (
    Durability,
    Endpoint,
    Pace,
    PacedContender,
    Stage,
    Unavailable,
    chunks,
)
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port
from rostra import DeliveredBatch

CALL_RECORDS = 500
"""Records per `send_many`: what the peers' bulk calls and pipelines are given too."""

READER_NICE = 19
SOCKET = "node.sock"
BY_UNIX = "clients connect to unix:PATH of --listen-unix"


class Rostra(PacedContender):
    def __init__(self, *, fsync: bool, busy_poll_ms: int = 0, traced: bool = False) -> None:
        self._fsync = fsync
        self._traced = traced
        self._for_delay: tuple[str, ...] = ("--busy-poll", f"{busy_poll_ms}ms")
        self.name = "Rostra" if fsync else "Rostra, no fsync"
        if traced:
            self.name += ", traced"
        is_tuned = bool(busy_poll_ms)
        if is_tuned:
            self.name += ", tuned for delay"
        self.durability = Durability.FSYNC if fsync else Durability.FSYNC_LATER
        self.settings = (
            f"one node, --fsync {self._fsync_mode}, acks=all" + (f", {' '.join(self._for_delay)}" if is_tuned else ""),
            f"asyncio client on uvloop, send_many of {CALL_RECORDS}, batches() received",
            "latency with the blocking client",
        )

    @property
    def fsyncs(self) -> bool:
        return self._fsync

    @property
    def _fsync_mode(self) -> str:
        return "commit" if self._fsync else "never"

    def start(self, servers: Servers) -> Endpoint:
        if importlib.util.find_spec("rostra.__main__") is None:
            raise Unavailable("rostra has no server in this revision")
        return self.start_in(servers, servers.new_folder("rostra"), free_port())

    def start_in(self, servers: Servers, folder: Path, port: int) -> Endpoint:
        """Starts the node on the data in the folder, if any."""
        serve: list[str | Path] = [
            "serve",
            "--data",
            folder / "data",
            "--listen",
            f"127.0.0.1:{port}",
            "--peer-listen",
            "127.0.0.1:0",  # the port after the other, as by default, may be somebody's
            *self._for_delay,
        ]
        if self._traced:
            serve += ["--trace", folder / "trace"]
        pid = servers.start([sys.executable, "-m", "rostra", *serve, "--fsync", self._fsync_mode], folder, port)
        return Endpoint(port=port, pids=(pid,), folder=folder)

    def address(self, endpoint: Endpoint) -> str:
        return address(endpoint)

    def trace(self, endpoint: Endpoint) -> str | None:
        return str(endpoint.folder / "trace") if self._traced and endpoint.folder is not None else None

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        async def run() -> None:
            client = await rostra.connect(address(endpoint), trace=self.trace(endpoint))
            async with client.producer(topic, acks="all") as producer:
                await stage.start()
                for chunk in chunks(messages, CALL_RECORDS, 1 << 20):
                    await producer.send_many(chunk)
                await producer.flush()
                stage.finished()
            await client.close()

        uvloop.run(run())

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        with rostra.blocking.connect(self.address(endpoint)) as client:
            stage.ready()
            stage.wait_for_start()
            for value in pace.values():
                client.publish(topic, value)
            stage.finished()

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        uvloop.run(self._subscribe(endpoint, topic, stage, inboxes))

    async def _subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        subscribed = asyncio.Semaphore(0)

        async def fill(inbox: Inbox) -> None:
            client = await rostra.connect(address(endpoint), trace=self.trace(endpoint))
            async with client.subscribe(topic, start="earliest") as subscription:
                subscribed.release()
                async for batch in subscription.batches():
                    inbox.extend(values_of(batch))
                    if inbox.is_full():
                        break
            await client.close()

        async with asyncio.timeout(stage.timeout_s), asyncio.TaskGroup() as fillers:
            for inbox in inboxes:
                fillers.create_task(fill(inbox))
            for _ in inboxes:
                await subscribed.acquire()
            stage.ready()
        stage.finished()

    def subscribe_blocking(self, endpoint: Endpoint, topic: str, stage: Stage, inbox: Inbox) -> None:
        """Subscribes with the blocking client, without an event loop."""
        with (
            rostra.blocking.connect(self.address(endpoint)) as client,
            client.subscribe(topic, start="earliest") as subscription,
        ):
            stage.ready()
            for batch in subscription.batches():
                inbox.extend(values_of(batch))
                if inbox.is_full():
                    break
            stage.finished()

    def subscribe_stalled(self, endpoint: Endpoint, topic: str, stage: Stage, inbox: Inbox) -> None:
        """Subscribes, reads nothing until the start, then reads everything."""

        async def run() -> None:
            client = await rostra.connect(address(endpoint))
            async with client.subscribe(topic, start="earliest") as subscription:
                await stage.start()
                async for batch in subscription.batches():
                    inbox.extend(values_of(batch))
                    if inbox.is_full():
                        break
            stage.finished()
            await client.close()

        uvloop.run(run())

    def read_again(self, endpoint: Endpoint, topic: str, stage: Stage, count: int) -> int:
        """Read a topic from its start again and again until the start is given; records counted.

        The reader stands back (nice) and decodes nothing: what is measured is the node that reads
        from disk, not a third client that competes for the processors.
        """

        async def run() -> int:
            os.nice(READER_NICE)
            released = asyncio.create_task(stage.start())
            received = 0
            client = await rostra.connect(address(endpoint))
            while not released.done():
                left = count
                async with client.subscribe(topic, start="earliest") as subscription:
                    async for batch in subscription.batches():
                        left -= len(batch)
                        received += len(batch)
                        if left <= 0 or released.done():
                            break
            await client.close()
            stage.finished()
            return received

        received: int = uvloop.run(run())
        return received


class RostraBlocking(Rostra):
    """The same node with blocking clients at both ends, for latency."""

    def __init__(self, *, fsync: bool, busy_poll_ms: int = 0, unix: bool = False) -> None:
        super().__init__(fsync=fsync, busy_poll_ms=busy_poll_ms)
        self.name = f"{self.name}, blocking client"
        self._unix = unix
        if unix:
            self.name += ", Unix socket"
            self.settings = (*self.settings, BY_UNIX)

    def start_in(self, servers: Servers, folder: Path, port: int) -> Endpoint:
        if self._unix:
            self._for_delay = (*self._for_delay, "--listen-unix", str(folder / SOCKET))
        return super().start_in(servers, folder, port)

    def address(self, endpoint: Endpoint) -> str:
        return f"unix:{endpoint.folder / SOCKET}" if self._unix and endpoint.folder else super().address(endpoint)

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        (inbox,) = inboxes
        self.subscribe_blocking(endpoint, topic, stage, inbox)


def address(endpoint: Endpoint) -> str:
    return f"127.0.0.1:{endpoint.port}"


def values_of(batch: DeliveredBatch) -> list[bytes]:
    """The values of a batch, which has no tombstones here."""
    return cast(list[bytes], batch.values())
