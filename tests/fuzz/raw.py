"""A client on a plain socket, which sends any bytes, valid or not."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self, TypeVar

from rostra.wire.frames import FROM_NODE, FrameReader, encode
from rostra.wire.messages import ClientMessage, Hello, NodeMessage, Welcome

PATIENCE_S = 60.0
FRAME_BYTES_MAX = 64 << 20

M = TypeVar("M")


class RawClient:
    def __init__(self, address: str, *, greet: bool = True) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        self._received: list[tuple[NodeMessage, bytearray | None]] = []
        self.address = str(self._socket.getsockname())
        """As the node's log names it."""
        if greet:
            try:
                self.say(Hello(0, 1, 1))
                self.hear(Welcome)
            except BaseException:
                self._socket.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def send(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def say(self, message: ClientMessage, payload: bytes | bytearray = b"") -> None:
        self.send(encode(message, len(payload)) + payload)

    def hear(self, kind: type[M]) -> tuple[M, bytearray]:
        """Returns the next message of this kind and skips others."""
        while True:
            while self._received:
                message, payload = self._received.pop(0)
                if isinstance(message, kind):
                    return message, payload or bytearray()
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise ConnectionError(f"closed while waiting for {kind.__name__}")
            self._received += self._reader.feed(chunk)

    def finish(self) -> None:
        """Sends no more, and returns when the node has closed its side too."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(1 << 16):
                pass
        except (ConnectionError, OSError) as error:
            # A reset is a close as well: what was still unread at the node is thrown away with it.
            if isinstance(error, TimeoutError):
                raise
