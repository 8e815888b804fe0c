"""A peer on a plain socket, which sends any message, valid or not."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self

from rostra.fabric.registry import DEFAULT
from rostra.wire.frames import Dialect, Framed, FrameReader, encode
from rostra.wire.peers import PEER_PROTOCOL, HandshakeAnswer, PeerHello, PeerRefused, PeerWelcome

PATIENCE_S = 60.0


class RawPeer:
    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._reader: FrameReader[HandshakeAnswer] = FrameReader(Dialect((PeerWelcome, PeerRefused)))
        self.address = str(self._socket.getsockname())
        """As the node's log names it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def send(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def say(self, message: Framed) -> None:
        self.send(encode(message))

    def hello(self, cluster: int, node: int = 5, *, version: int = PEER_PROTOCOL, fabric: str = DEFAULT) -> None:
        self.say(PeerHello(version, cluster, node, "127.0.0.1:1", fabric))

    def answer(self) -> HandshakeAnswer | None:
        """The next message of the node; None if it closed the connection."""
        try:
            while chunk := self._socket.recv(1 << 16):
                for message, _ in self._reader.feed(chunk):
                    return message
        except ConnectionError:
            pass
        return None

    def is_hung_up_on(self) -> bool:
        """Waits for it."""
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def finish(self) -> None:
        """Sends no more, and returns when the node has closed its side too."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        self.is_hung_up_on()
