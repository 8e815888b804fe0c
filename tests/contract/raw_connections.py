"""A connection to one node that sends and receives plain messages, for what no client core would send."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from rostra.simulator.clients.simulated_client import FRAME_BYTES_MAX
from rostra.simulator.network.client_network import ClientNetwork, SimulatedConnection
from rostra.wire.features import FEATURES
from rostra.wire.frames import FROM_NODE, FrameReader, encode
from rostra.wire.messages import PROTOCOL_MAX, PROTOCOL_MIN, ClientMessage, Hello, NodeMessage


class RawConnection(ABC):
    """Messages sent before the connection is open are sent when it opens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[NodeMessage] = []
        self.is_lost = False
        self._unsent = encode(Hello(0, PROTOCOL_MIN, PROTOCOL_MAX, FEATURES, name))
        self._open = False
        self._reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)

    def send(self, message: ClientMessage) -> None:
        self._unsent += encode(message)
        if self._open and not self.is_lost:
            self._flush()

    def take(self) -> list[NodeMessage]:
        """Messages received since the last call."""
        messages, self.messages = self.messages, []
        return messages

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _write(self, chunk: bytes) -> None: ...

    def _opened(self) -> None:
        self._open = True
        self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        if unsent:
            self._write(unsent)

    def _feed(self, chunk: bytes) -> None:
        self.messages += [message for message, _ in self._reader.feed(chunk)]


class SimulatedRawConnection(RawConnection):
    def __init__(self, name: str, network: ClientNetwork, address: str) -> None:
        super().__init__(name)
        self._link = network.dial(self, 1, address)

    def close(self) -> None:
        self.is_lost = True
        self._link.client_closes()

    def _write(self, chunk: bytes) -> None:
        self._link.up.send(chunk)

    def opened(self, link: SimulatedConnection) -> None:
        self._opened()

    def received(self, link: SimulatedConnection, chunk: bytes) -> None:
        self._feed(chunk)

    def lost(self, link: SimulatedConnection, reason: str) -> None:
        self.is_lost = True

    def congested(self, link: SimulatedConnection) -> None: ...
    def drained(self, link: SimulatedConnection) -> None: ...
    def record_in_flight(self, link: SimulatedConnection) -> None: ...


class SocketRawConnection(RawConnection, asyncio.Protocol):
    """A connection on the asyncio loop of the cluster, which runs while a test waits."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, address: str) -> None:
        super().__init__(name)
        self._transport: asyncio.WriteTransport | None = None
        host, port = address.rsplit(":", 1)
        self._dialling = loop.create_task(self._dial(loop, host, int(port)))

    async def _dial(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        try:
            await loop.create_connection(lambda: self, host, port)
        except OSError:
            self.is_lost = True

    def close(self) -> None:
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def _write(self, chunk: bytes) -> None:
        assert self._transport is not None
        self._transport.write(chunk)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        if self.is_lost:
            transport.abort()
        else:
            self._opened()

    def data_received(self, data: bytes) -> None:
        self._feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
