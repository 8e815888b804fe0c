"""A client's connection to a node: decodes messages for the broker, writes its frames."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from rostra.broker.api import (
    Conn,
    ConnectionAccepted,
    ConnectionCongested,
    ConnectionDrained,
    ConnectionLost,
    MessageReceived,
)
from rostra.errors import PeerViolation
from rostra.runtime.network.gather_write import Buffer, write_now
from rostra.runtime.node_port import NodePort
from rostra.wire.frames import FROM_CLIENT, FrameReader, encode
from rostra.wire.messages import ClientMessage, Failed

WRITE_HIGH_BYTES = 1 << 20
WRITE_LOW_BYTES = 256 << 10


class ConnectionOwner(NodePort, Protocol):
    """The node, which numbers its connections."""

    def attach(self, connection: ClientConnection) -> Conn: ...
    def detach(self, connection: ClientConnection) -> None: ...


class ClientConnection(asyncio.BufferedProtocol):
    """Frames that arrive together are handled in one turn, and all answers leave in one write."""

    def __init__(self, node: ConnectionOwner) -> None:
        self._node = node
        self._reader: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        self.number = 0
        self.out: list[Buffer] = []
        self.address = ""
        self.full = False
        """The send buffer is above its high watermark."""
        self._closing = False
        self._ignored = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._node.closed:
            # Accepted in the turn in which the node closed: nothing else would close it.
            self._ignored = True
            self._transport.abort()
            return
        peer = transport.get_extra_info("socket")
        if peer is not None:
            if peer.family != socket.AF_UNIX:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._fd = peer.fileno()
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self.address = str(transport.get_extra_info("peername"))
        self.number = self._node.attach(self)
        self._node.step(ConnectionAccepted(self.number))
        self._node.end_turn()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        node = self._node
        node.counters.bytes_in += nbytes
        if self._ignored:
            return
        try:
            messages = self._reader.received(nbytes)
        except PeerViolation as violation:
            self._reject(violation)
            return
        number = self.number
        for message, payload in messages:
            node.step(MessageReceived(number, message, payload))
        node.end_turn()
        node.extend_polling()

    def eof_received(self) -> bool:
        if self._ignored:
            return False
        try:
            self._reader.closed()
        except PeerViolation as violation:
            self._reject(violation)
        return False

    def _reject(self, violation: PeerViolation) -> None:
        """Closes the connection, and nothing else, because of bad input."""
        self._node.counters.violations[violation.reason] += 1
        self._node.log.warning("connection closed", client=self.address, reason=str(violation))
        self.out.append(encode(Failed(0, type(violation).__name__, violation.carried())))
        self.close()

    def ignore(self) -> None:
        """Ignores further input, because the connection is about to be closed."""
        self._ignored = True

    def greeted(self, frame_bytes_max: int) -> None:
        self._reader.frame_bytes_max = frame_bytes_max

    def send(self) -> None:
        """Writes what was queued in this turn."""
        out, self.out = self.out, []
        self.write(out)

    def write(self, buffers: list[Buffer]) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        write_now(transport, self._fd, buffers)

    def close(self) -> None:
        if not self._closing and self._transport is not None:
            self._closing = self._ignored = True
            self.send()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self.full = True
        self._node.step(ConnectionCongested(self.number))

    def resume_writing(self) -> None:
        self.full = False
        self._node.step(ConnectionDrained(self.number))
        self._node.end_turn()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = self._ignored = True
        self.out.clear()
        self._node.detach(self)
        self._node.step(ConnectionLost(self.number))
        self._node.end_turn()
