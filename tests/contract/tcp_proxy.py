"""A TCP proxy in front of every listener of real nodes, which can split the network.

The proxy learns from the first frame of a connection who opened it. In a split, connections between the sides stall, as
if a cable was pulled: bytes stay in flight and arrive when the split heals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, TypeVar

from rostra.wire.frames import FRAME, FRAME_BYTES, Dialect
from rostra.wire.messages import Hello
from rostra.wire.peers import PeerHello

TIMEOUT_S = 60.0
CHUNK_BYTES = 1 << 16
DRAIN_TURNS = 5
GREETINGS: Dialect[Hello | PeerHello] = Dialect((Hello, PeerHello))

T = TypeVar("T")


class ProxiedListener:
    """The proxy's port in front of one listener of a node."""

    def __init__(self, node: int, target: str) -> None:
        self.node = node
        self.target = target
        self.address = ""


class TcpProxy:
    """Runs on a thread of its own, so that nodes communicate while a test does something else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="switchboard", daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self._listeners: dict[str, ProxiedListener] = {}
        self._sides: dict[int, int] = {}
        self._healed = asyncio.Event()
        self._healed.set()

    def close(self) -> None:
        self._run(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def listen(self, node: int, target: str) -> str:
        """Opens a port in front of the listener at `target`; returns its address, which others use."""
        return self._run(self._listen(ProxiedListener(node, target)))

    def split(self, *sides: list[int]) -> None:
        self._run(self._set_sides({node: number for number, side in enumerate(sides) for node in side}))

    def heal(self) -> None:
        self._run(self._set_sides({}))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    # --- on its own thread ---

    async def _listen(self, listener: ProxiedListener) -> str:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._connect(listener, reader, writer)
            except (OSError, asyncio.CancelledError):
                # Python 3.11 reports a cancelled handler of a connection as an error of the event loop.
                pass
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()
        listener.address = f"{host}:{port}"
        self._listeners[listener.address] = listener
        return listener.address

    async def _set_sides(self, sides: dict[int, int]) -> None:
        self._sides = sides
        if sides:
            self._healed.clear()
        else:
            self._healed.set()

    async def _shut_down(self) -> None:
        for server in self._servers:
            server.close()
        self._healed.set()
        # Tasks that were just created run first: a task cancelled before its first step would close nothing.
        await drain_loop()
        while rest := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await drain_loop()

    async def _connect(
        self, listener: ProxiedListener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            caller, hello = await self._read_hello(reader)
        except asyncio.IncompleteReadError:
            return

        async def wait_until_connected() -> None:
            if self._sides.get(caller) != self._sides.get(listener.node):
                await self._healed.wait()

        await wait_until_connected()
        host, port = listener.target.split(":")
        their_reader, their_writer = await asyncio.open_connection(host, int(port))
        their_writer.write(hello)
        directions = [
            asyncio.ensure_future(_copy(reader, their_writer, wait_until_connected)),
            asyncio.ensure_future(_copy(their_reader, writer, wait_until_connected)),
        ]
        try:
            # Whichever end closes, the other one is closed too, once no split is between them.
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            await wait_until_connected()
        finally:
            # Before the first await: closing the proxy may cancel this task a second time.
            their_writer.transport.abort()
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _read_hello(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """The node that opened the connection, and the frame that says so; a client has its node in its name."""
        head = await reader.readexactly(FRAME_BYTES)
        length, meta_bytes, kind, _, _ = FRAME.unpack(head)
        body = await reader.readexactly(length)
        message = GREETINGS.decode(kind, body[:meta_bytes], 0)
        if isinstance(message, PeerHello):
            return self._listeners[message.address].node, head + body
        return int(message.client.rpartition("@")[2]), head + body


async def drain_loop() -> None:
    """Runs the loop a few times, because sockets close in a later iteration than the request."""
    for _ in range(DRAIN_TURNS):
        await asyncio.sleep(0)


async def _copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    wait_until_connected: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        await wait_until_connected()
        writer.write(chunk)
        await writer.drain()
