"""The network between real nodes and clients, with somebody at the plugs: each node is reached through a port in front.

Who calls is read from the first words of a connection. In a split, connections between the sides fall silent, as behind
a cable that was pulled: what is written stays on the way, and arrives when the split heals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from threading import Thread
from typing import Any, TypeVar

from rostra.wire.frames import FRAME, FRAME_BYTES, Dialect
from rostra.wire.messages import Hello
from rostra.wire.peers import PeerHello

PATIENCE_S = 20.0
CHUNK_BYTES = 1 << 16
LAST_TURNS = 5
GREETINGS: Dialect[Hello | PeerHello] = Dialect((Hello, PeerHello))

T = TypeVar("T")


class Front:
    """The port in front of one listener of a node."""

    def __init__(self, node: int, target: str) -> None:
        self.node = node
        self.target = target
        self.address = ""


class Switchboard:
    """On a thread of its own: nodes go on talking while a test does something else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="switchboard", daemon=True)
        self._thread.start()
        self._servers: list[asyncio.Server] = []
        self._fronts: dict[str, Front] = {}
        self._sides: dict[int, int] = {}
        self._whole = asyncio.Event()
        self._whole.set()

    def close(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def front(self, node: int, target: str) -> str:
        """The address under which others shall know the listener at `target`."""
        return self._do(self._open(Front(node, target)))

    def split(self, *sides: list[int]) -> None:
        self._do(self._set_sides({node: number for number, side in enumerate(sides) for node in side}))

    def heal(self) -> None:
        self._do(self._set_sides({}))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    # --- on its own thread ---

    async def _open(self, front: Front) -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._connect(front, reader, writer)
            except OSError:
                pass
            finally:
                writer.transport.abort()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()
        front.address = f"{host}:{port}"
        self._fronts[front.address] = front
        return front.address

    async def _set_sides(self, sides: dict[int, int]) -> None:
        self._sides = sides
        if sides:
            self._whole.clear()
        else:
            self._whole.set()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        self._whole.set()
        # Whoever was just let in begins first: what never began would close nothing behind it.
        await last_turns()
        while rest := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            await last_turns()

    async def _connect(self, front: Front, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            caller, greeting = await self._greeting(reader)
        except asyncio.IncompleteReadError:
            return

        async def passes() -> None:
            if self._sides.get(caller) != self._sides.get(front.node):
                await self._whole.wait()

        await passes()
        host, port = front.target.split(":")
        their_reader, their_writer = await asyncio.open_connection(host, int(port))
        their_writer.write(greeting)
        ways = [
            asyncio.ensure_future(_carry(reader, their_writer, passes)),
            asyncio.ensure_future(_carry(their_reader, writer, passes)),
        ]
        try:
            # Whichever side ends it, the other hears of it, once the split lets it.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            await passes()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            their_writer.transport.abort()

    async def _greeting(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        """Who calls, and the bytes that said so. Clients carry the number of their node in their name."""
        head = await reader.readexactly(FRAME_BYTES)
        length, meta_bytes, kind, _, _ = FRAME.unpack(head)
        body = await reader.readexactly(length)
        said = GREETINGS.decode(kind, body[:meta_bytes], 0)
        if isinstance(said, PeerHello):
            return self._fronts[said.address].node, head + body
        return int(said.client.rpartition("@")[2]), head + body


async def last_turns() -> None:
    """Sockets close in a turn of the loop after the one that asks for it."""
    for _ in range(LAST_TURNS):
        await asyncio.sleep(0)


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        await passes()
        writer.write(chunk)
        await writer.drain()
