"""Outgoing links to other nodes. A node dials every peer and writes only to the links it has dialled.

So a pair of nodes has two connections, one per direction. This needs no rule for two nodes that dial each other at the
same time, a link has one writer and one bound, and each direction fails independently, as it does in the simulator.
"""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any, cast

from rostra.errors import LinkLost, OtherCluster, OtherNode, PeerViolation, RostraError
from rostra.fabric.api import PeerIdentified, PeerLost, Send
from rostra.model.ids import NodeId, text
from rostra.runtime.network.addresses import split_address
from rostra.runtime.network.gather_write import Buffer, write_now
from rostra.runtime.network.handshake import ANSWERS, NodeIdentity, check_answer
from rostra.runtime.node_port import NodePort
from rostra.wire.frames import FrameReader, encode
from rostra.wire.messages import Failed
from rostra.wire.peers import HandshakeAnswer, PeerWelcome

ANSWER_TIMEOUT_S = 3.0
"""For connecting and for the answer to PeerHello together."""
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
REFUSED_BACKOFF_S = 5.0
WAITING_BYTES_MAX = 64 << 20
"""Bound of the bytes a peer has not taken yet. Beyond it the link is dropped; the fabric sees the peer as lost."""
UNACKNOWLEDGED_MS_MAX = 5_000
"""A host that acknowledges nothing for this long is dialled again; TCP alone would retry for a quarter of an hour."""
UNKNOWN_NODE = NodeId(0)
DIAL_ERRORS = (OSError, RostraError, UnicodeError)
"""No answer, a refusal, or an invalid host name."""


class PeerLink(asyncio.BufferedProtocol):
    """One dialled connection: it sends PeerHello, receives the answer, and only writes from then on."""

    def __init__(self, own: NodeIdentity) -> None:
        self._own = own
        self._reader: FrameReader[HandshakeAnswer | Failed] = FrameReader(ANSWERS)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[HandshakeAnswer | Failed] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.peer = UNKNOWN_NODE
        self.out: list[Buffer] = []

    async def dial(self, address: str) -> PeerWelcome:
        """Returns the peer's welcome; raises why the link was refused or could not be opened."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                host, port = split_address(address)
                await loop.create_connection(lambda: self, host, port)
                answer = check_answer(await self._answer, port)
        except BaseException:
            self.abort()
            raise
        self.peer = NodeId(answer.node)
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        dialled = transport.get_extra_info("socket")
        if dialled is not None:
            self._fd = dialled.fileno()
            dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
        self._transport.write(encode(self._own.hello()))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for answer, _ in self._reader.received(nbytes):
                if not self._answer.done():
                    self._answer.set_result(answer)
        except PeerViolation as violation:
            self._fail(violation)
            self.abort()

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
            # The dialer may have given up already; mark the exception as retrieved.
            self._answer.exception()

    def flush(self) -> int:
        """Writes what was queued in this turn; returns its size in bytes."""
        out, self.out = self.out, []
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        size = write_now(transport, self._fd, out)
        if transport.get_write_buffer_size() > WAITING_BYTES_MAX:
            transport.abort()
        return size

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.out.clear()
        self._fail(LinkLost(str(error or "closed by the other side")))
        if not self.ended.done():
            self.ended.set_result(None)


class PeerDialer:
    """Keeps a link to one peer, or to the unknown node at a seed address (`peer` 0)."""

    def __init__(self, links: PeerLinks, peer: NodeId, address: str) -> None:
        self.peer = peer
        self.address = address
        self.met = UNKNOWN_NODE
        """The node that the current link leads to."""
        self._links = links
        self._last_reason = ""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        self._task.cancel()

    async def _keep(self) -> None:
        """Dials again whenever the link ends, with exponential backoff while dialling fails."""
        backoff_s = BACKOFF_S_MIN
        while True:
            link = PeerLink(self._links.own)
            pause_s = backoff_s
            try:
                self._check(await link.dial(self.address))
            except DIAL_ERRORS as error:
                link.abort()
                self._report(error)
                if isinstance(error, RostraError) and not error.retryable:
                    pause_s = REFUSED_BACKOFF_S
                backoff_s = min(backoff_s * 2, BACKOFF_S_MAX)
            else:
                if not await self._use(link):
                    return
                backoff_s = BACKOFF_S_MIN
            await asyncio.sleep(pause_s * self._links.random.uniform(0.5, 1.0))

    async def _use(self, link: PeerLink) -> bool:
        """Runs until the link ends; False if the link is not needed."""
        self._last_reason = ""
        self.met = link.peer
        try:
            if not self._links.link_opened(self, link):
                return False
            await link.ended
            return True
        finally:
            self.met = UNKNOWN_NODE
            link.abort()
            self._links.lost(link)

    def _check(self, answer: PeerWelcome) -> None:
        own = self._links.own
        if answer.cluster != own.cluster:
            raise OtherCluster(text(own.cluster), text(answer.cluster))
        if self.peer not in (UNKNOWN_NODE, answer.node):
            name_of = self._links.node.name_of
            raise OtherNode(self.address, name_of(self.peer), name_of(NodeId(answer.node)))
        self._links.node.peer_named(NodeId(answer.node), answer.name)

    def _report(self, error: Exception) -> None:
        """Logs a failure once per reason, not per attempt."""
        reason = str(error) or type(error).__name__
        if reason != self._last_reason:
            self._last_reason = reason
            known = {"peer": self._links.node.name_of(self.peer)} if self.peer else {}
            self._links.node.log.warning("peer link failed", address=self.address, reason=reason, **known)


class PeerLinks:
    """Executes `Send`, `Connect` and `Disconnect`. Messages to a peer without a link are dropped."""

    def __init__(self, node: NodePort, own: NodeIdentity) -> None:
        self.node = node
        self.own = own
        self.random = random.SystemRandom()
        self.open_links: dict[NodeId, PeerLink] = {}
        self._dialers: dict[NodeId, PeerDialer] = {}
        self._seed_dialers: dict[str, PeerDialer] = {}
        self._last_message: object = None
        self._buffers: tuple[Buffer, ...] = ()
        """The encoded form of `_last_message`."""
        self.waiting: list[PeerLink] = []
        """Links with messages queued in this turn."""

    # --- effects ---

    def connect(self, peer: NodeId, address: str) -> None:
        if peer == UNKNOWN_NODE:
            if address not in self._seed_dialers:
                self._seed_dialers[address] = PeerDialer(self, UNKNOWN_NODE, address)
            return
        known = self._dialers.get(peer)
        if known is not None:
            if known.address == address:
                return
            known.end()
        self._dialers[peer] = PeerDialer(self, peer, address)

    def disconnect(self, peer: NodeId) -> None:
        known = self._dialers.pop(peer, None)
        if known is not None:
            known.end()

    def send(self, effect: Send) -> None:
        link = self.open_links.get(effect.peer)
        if link is None:
            return
        message: Any = effect.message
        if message is not self._last_message:
            # A leader sends one message to all its followers: encode it once.
            payload = effect.payload
            frame = encode(message, sum(map(len, payload)) if payload else 0)
            self._last_message, self._buffers = message, (frame, *payload)
        if not link.out:
            self.waiting.append(link)
        link.out += self._buffers

    def flush(self) -> None:
        """One write per peer and turn."""
        waiting, self.waiting = self.waiting, []
        self._last_message, self._buffers = None, ()
        for link in waiting:
            self.node.counters.peer_bytes_out += link.flush()

    # --- links ---

    def link_opened(self, known: PeerDialer, link: PeerLink) -> bool:
        """The handshake is done; False if the link is not needed."""
        peer = link.peer
        sought = known.peer == UNKNOWN_NODE
        if peer == self.own.node or (sought and self._has_link(peer)):
            self._seed_dialers.pop(known.address, None)
            return False
        self.open_links[peer] = link
        self.node.log.info("peer link opened", peer=self.node.name_of(peer), address=known.address)
        if not sought:
            for address, other in list(self._seed_dialers.items()):
                if other.met == peer:
                    other.end()
                    del self._seed_dialers[address]
        if sought:
            self.node.step(PeerIdentified(peer, known.address))
            self.node.end_turn()
        return True

    def _has_link(self, peer: NodeId) -> bool:
        return peer in self._dialers and peer in self.open_links

    def lost(self, link: PeerLink) -> None:
        if self.open_links.get(link.peer) is link:
            del self.open_links[link.peer]
            self.node.log.info("peer link closed", peer=self.node.name_of(link.peer))
            self.node.step(PeerLost(link.peer))
            self.node.end_turn()

    def close(self) -> None:
        for known in [*self._dialers.values(), *self._seed_dialers.values()]:
            known.end()
        for link in self.open_links.values():
            link.abort()
