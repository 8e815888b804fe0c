"""Links to other nodes: each node dials everybody it is to meet, and writes only to what it dialled.

So a pair of nodes has two connections, one for each direction. That needs no rule for two nodes that dial each other at
the same moment, a link has one writer and one bound, and each direction fails by itself, as it does in the simulator.
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
from rostra.runtime.network.gather_write import Buffer, send_at_once
from rostra.runtime.network.handshake import ANSWERS, NodeIdentity, welcomed
from rostra.runtime.node_port import NodePort
from rostra.wire.frames import FrameReader, encode
from rostra.wire.peers import HandshakeAnswer, PeerWelcome

ANSWER_S = 3.0
"""For the connection, and for the answer to the hello."""
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 1.0
REFUSED_BACKOFF_S = 5.0
WAITING_BYTES_MAX = 64 << 20
"""What a peer has not taken yet. At more the link is dropped: the fabric sees the peer as lost and begins anew."""
UNACKNOWLEDGED_MS_MAX = 5_000
"""A host that takes nothing for so long is dialled anew: TCP alone would try ever more rarely, for a quarter hour."""
SOMEBODY = NodeId(0)
UNLINKABLE = (OSError, RostraError, UnicodeError)
"""Nobody there, or nobody who lets us in, or a name that cannot be a host's."""


class PeerLink(asyncio.BufferedProtocol):
    """One dialled connection: it says hello, hears the answer, and from then on only writes."""

    def __init__(self, own: NodeIdentity) -> None:
        self._own = own
        self._reader: FrameReader[HandshakeAnswer] = FrameReader(ANSWERS)
        self._transport: asyncio.Transport | None = None
        self._fd = -1
        loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[HandshakeAnswer] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.peer = SOMEBODY
        self.out: list[Buffer] = []

    async def dial(self, address: str) -> PeerWelcome:
        """Returns when the other side has let this node in; raises why it has not."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S):
                await loop.create_connection(lambda: self, *split_address(address))
                answer = welcomed(await self._answer)
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
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for answer, _ in self._reader.took(nbytes):
                if not self._answer.done():
                    self._answer.set_result(answer)
        except PeerViolation as violation:
            self._fail(violation)
            self.abort()

    def _fail(self, error: Exception) -> None:
        if not self._answer.done():
            self._answer.set_exception(error)
            # Whoever dials may have given up already.
            self._answer.exception()

    def flush(self) -> int:
        """Hands over what has gathered since the last turn; how many bytes that were."""
        out, self.out = self.out, []
        transport = self._transport
        if transport is None or transport.is_closing():
            return 0
        size = send_at_once(transport, self._fd, out)
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
    """A peer to keep a link to, or an address at which somebody is sought (`peer` 0)."""

    def __init__(self, links: PeerLinks, peer: NodeId, address: str) -> None:
        self.peer = peer
        self.address = address
        self.met = SOMEBODY
        """Who answers there at present."""
        self._links = links
        self._trouble = ""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        self._task.cancel()

    async def _keep(self) -> None:
        """Dials again and again, ever more slowly while nobody answers."""
        backoff_s = BACKOFF_S_MIN
        while True:
            link = PeerLink(self._links.own)
            pause_s = backoff_s
            try:
                self._check(await link.dial(self.address))
            except UNLINKABLE as error:
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
        """Until the link ends; False if nobody needs it."""
        self._trouble = ""
        self.met = link.peer
        try:
            if not self._links.linked(self, link):
                return False
            await link.ended
            return True
        finally:
            self.met = SOMEBODY
            link.abort()
            self._links.lost(link)

    def _check(self, answer: PeerWelcome) -> None:
        own = self._links.own
        if answer.cluster != own.cluster:
            raise OtherCluster(text(own.cluster), text(answer.cluster))
        if self.peer not in (SOMEBODY, answer.node):
            raise OtherNode(self.address, text(self.peer), text(answer.node))

    def _report(self, error: Exception) -> None:
        """Once for each reason, not for each attempt."""
        trouble = str(error) or type(error).__name__
        if trouble != self._trouble:
            self._trouble = trouble
            known = {"peer": text(self.peer)} if self.peer else {}
            self._links.node.log.warning("peer not linked", address=self.address, reason=trouble, **known)


class PeerLinks:
    """Carries out `Send`, `Meet` and `Part`. What is sent to a peer without a link is lost, as on a network."""

    def __init__(self, node: NodePort, own: NodeIdentity) -> None:
        self.node = node
        self.own = own
        self.random = random.SystemRandom()
        self.up: dict[NodeId, PeerLink] = {}
        self._kept: dict[NodeId, PeerDialer] = {}
        self._sought: dict[str, PeerDialer] = {}
        self._said: object = None
        self._buffers: tuple[Buffer, ...] = ()
        """Of what was said last."""
        self.waiting: list[PeerLink] = []
        """Those for which something has gathered in this turn."""

    # --- effects ---

    def meet(self, peer: NodeId, address: str) -> None:
        if peer == SOMEBODY:
            if address not in self._sought:
                self._sought[address] = PeerDialer(self, SOMEBODY, address)
            return
        known = self._kept.get(peer)
        if known is not None:
            if known.address == address:
                return
            known.end()
        self._kept[peer] = PeerDialer(self, peer, address)

    def part(self, peer: NodeId) -> None:
        known = self._kept.pop(peer, None)
        if known is not None:
            known.end()

    def send(self, effect: Send) -> None:
        link = self.up.get(effect.peer)
        if link is None:
            return
        message: Any = effect.message
        if message is not self._said:
            # What a leader says to all its followers is one message.
            payload = effect.payload
            frame = encode(message, sum(map(len, payload)) if payload else 0)
            self._said, self._buffers = message, (frame, *payload)
        if not link.out:
            self.waiting.append(link)
        link.out += self._buffers

    def flush(self) -> None:
        """One write for each peer and turn."""
        waiting, self.waiting = self.waiting, []
        self._said, self._buffers = None, ()
        for link in waiting:
            self.node.counters.peer_bytes_out += link.flush()

    # --- links ---

    def linked(self, known: PeerDialer, link: PeerLink) -> bool:
        """The handshake is done; False if the link is not needed."""
        peer = link.peer
        sought = known.peer == SOMEBODY
        if peer == self.own.node or (sought and self._is_kept(peer)):
            self._sought.pop(known.address, None)
            return False
        self.up[peer] = link
        self.node.log.info("peer linked", peer=text(peer), address=known.address)
        if not sought:
            for address, other in list(self._sought.items()):
                if other.met == peer:
                    other.end()
                    del self._sought[address]
        if sought:
            self.node.step(PeerIdentified(peer, known.address))
            self.node.settle()
        return True

    def _is_kept(self, peer: NodeId) -> bool:
        return peer in self._kept and peer in self.up

    def lost(self, link: PeerLink) -> None:
        if self.up.get(link.peer) is link:
            del self.up[link.peer]
            self.node.log.info("peer link lost", peer=text(link.peer))
            self.node.step(PeerLost(link.peer))
            self.node.settle()

    def close(self) -> None:
        for known in [*self._kept.values(), *self._sought.values()]:
            known.end()
        for link in self.up.values():
            link.abort()
