"""The listener for other nodes. Clients have their own; neither accepts messages of the other."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from rostra.errors import PeerViolation, RostraError
from rostra.fabric.api import PeerReceived
from rostra.model.ids import NodeId, text
from rostra.runtime.network.addresses import listen
from rostra.runtime.network.handshake import NO_CLUSTER, NodeIdentity, check_hello, refusal, welcome, wrong_port
from rostra.runtime.node_port import NodePort
from rostra.wire.frames import Dialect, Framed, FrameReader, Violation, encode
from rostra.wire.messages import Hello
from rostra.wire.peers import PeerHello

BACKLOG = 128
HELLO_TIMEOUT_S = 5.0
PENDING_MAX = 64
"""Connections without a PeerHello so far; one more is closed at once."""
LINKS_MAX = 1024
"""Links from other nodes; one more is closed at once."""
KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""When the link of a vanished host is closed; the dialling side notices much earlier."""


class PeerListener:
    """Accepts links from other nodes and receives messages; replies leave by the links this node dials
    (`peer_links`)."""

    def __init__(
        self, node: NodePort, own: NodeIdentity, kinds: tuple[type[Framed], ...], frame_bytes_max: int
    ) -> None:
        self.node = node
        self.own = own
        self.dialect: Dialect[Framed] = Dialect((PeerHello, Hello, *kinds), payload_optional=True)
        self.frame_bytes_max = frame_bytes_max
        self.pending: dict[PeerConnection, None] = {}
        self.accepted: dict[PeerConnection, None] = {}
        self._server: asyncio.Server | None = None

    async def start(self, bound: socket.socket) -> None:
        if self._server is not None:
            return
        loop = asyncio.get_running_loop()
        listen(bound, BACKLOG, "peer_listen")
        self._server = await loop.create_server(lambda: PeerConnection(self), sock=bound, backlog=BACKLOG)

    def admit(self, connection: PeerConnection) -> None:
        """Keeps an older link of the same peer open: its messages are merely late, which a fabric tolerates."""
        self.pending.pop(connection, None)
        self.accepted[connection] = None

    def forget(self, connection: PeerConnection) -> None:
        self.pending.pop(connection, None)
        self.accepted.pop(connection, None)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in [*self.pending, *self.accepted]:
            connection.abort()


class PeerConnection(asyncio.BufferedProtocol):
    """One accepted link. Frames that arrive together are handled in one turn; only the handshake is answered on it."""

    def __init__(self, listener: PeerListener) -> None:
        self._listener = listener
        self._node = listener.node
        self._reader: FrameReader[Framed] = FrameReader(listener.dialect)
        self._transport: asyncio.Transport | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._closing = False
        self.peer: NodeId | None = None
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.address = str(transport.get_extra_info("peername"))
        accepted = transport.get_extra_info("socket")
        if accepted is not None:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEPALIVE:
                accepted.setsockopt(socket.IPPROTO_TCP, option, value)
        listener = self._listener
        if self._node.closed or len(listener.pending) >= PENDING_MAX or len(listener.accepted) >= LINKS_MAX:
            self.abort()
            return
        listener.pending[self] = None
        self._timeout = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self.abort)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        node = self._node
        node.counters.peer_bytes_in += nbytes
        try:
            for message, payload in self._reader.received(nbytes):
                peer = self.peer
                if peer is None:
                    self._accept_hello(message)
                    if self._closing:
                        break
                elif type(message) is PeerHello:
                    raise PeerViolation(Violation.OUT_OF_ORDER, "PeerHello came twice")
                else:
                    node.step(PeerReceived(peer, message, payload))
                    if payload is not None:
                        node.extend_polling()
        except PeerViolation as violation:
            self._reject(violation)
        if self.peer is not None:
            node.end_turn()

    def eof_received(self) -> bool:
        if not self._closing:
            try:
                self._reader.closed()
            except PeerViolation as violation:
                self._reject(violation)
        return False

    def _accept_hello(self, hello: Framed) -> None:
        if isinstance(hello, Hello) and self._listener.own.client_address:
            self._node.log.warning("client at the port for nodes", client=self.address)
            self._send(encode(wrong_port(self._listener.own, hello)))
            self._close()
            return
        if not isinstance(hello, PeerHello):
            raise PeerViolation(Violation.NOT_GREETED, type(hello).__name__)
        own = self._listener.own
        error = check_hello(own, hello)
        if error is not None:
            self._refuse(hello, error)
            return
        self._node.peer_named(NodeId(hello.node), hello.name)
        self._send(encode(welcome(own)))
        if NO_CLUSTER in (hello.cluster, own.cluster):
            # The node without a cluster has learned the id; only members of one cluster exchange messages.
            self._close()
            return
        self._cancel_timeout()
        self.peer = NodeId(hello.node)
        self._reader.frame_bytes_max = self._listener.frame_bytes_max
        self._listener.admit(self)

    def _refuse(self, hello: PeerHello, error: RostraError) -> None:
        self._node.counters.refused[type(error).__name__] += 1
        about = {"peer": hello.name or text(hello.node), "address": hello.address, "reason": str(error)}
        self._node.log.warning("peer refused", **about)
        self._send(encode(refusal(error)))
        self._close()

    def _reject(self, violation: PeerViolation) -> None:
        """Closes the link, and nothing else, because of bad input."""
        self._node.counters.violations[violation.reason] += 1
        self._node.log.warning("peer link closed", peer=self.address, reason=str(violation))
        self._send(encode(refusal(violation)))
        self._close()

    def _send(self, frame: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._cancel_timeout()
        self._listener.forget(self)
