"""The model cluster behind real sockets; one thread serves all its nodes."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, Thread

from rostra.wire.frames import FROM_CLIENT, FrameReader, encode
from rostra.wire.messages import ClientMessage
from tests.unit.client.core_harness import FRAME_BYTES_MAX
from tests.unit.client.model_cluster import ModelCluster, ModelMember
from tests.unit.client.model_node import Reply

TURN_S = 0.005


class ServerConnection:
    def __init__(self, number: int, accepted: socket.socket, member: ModelMember) -> None:
        self.number = number
        self.socket = accepted
        self.member = member
        self.reader: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT, FRAME_BYTES_MAX)


class SocketCluster:
    """Hold `lock` to change the cluster."""

    def __init__(self, nodes: int) -> None:
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(nodes)]
        self.addresses = tuple("{}:{}".format(*listener.getsockname()) for listener in self._listeners)
        self.cluster = ModelCluster(*self.addresses)
        self.lock = Lock()
        self._connections: dict[int, ServerConnection] = {}
        self._last = 0
        self._selector = selectors.DefaultSelector()
        for listener, member in zip(self._listeners, self.cluster.members.values(), strict=True):
            self._selector.register(listener, selectors.EVENT_READ, member)
        self._over = False
        self._thread = Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._thread.join()
        for connection in list(self._connections.values()):
            self._drop(connection)
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    def crash(self, address: str) -> None:
        """Stop the node and cut its connections."""
        with self.lock:
            listener = self._listeners[self.addresses.index(address)]
            self._selector.unregister(listener)
            listener.close()
            for connection in [one for one in self._connections.values() if one.member.address == address]:
                self._drop(connection)

    def links(self) -> list[str]:
        with self.lock:
            return sorted(connection.member.address for connection in self._connections.values())

    def _serve(self) -> None:
        while not self._over:
            ready = self._selector.select(TURN_S)
            with self.lock:
                for key, _ in ready:
                    if isinstance(key.data, ServerConnection):
                        self._read(key.data)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() >= 0:
                        self._accept(key.fileobj, key.data)
                for connection in list(self._connections.values()):
                    self._say(connection, connection.member.pushes(connection.number))

    def _accept(self, listener: socket.socket, member: ModelMember) -> None:
        accepted, _ = listener.accept()
        self._last += 1
        connection = self._connections[self._last] = ServerConnection(self._last, accepted, member)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _read(self, connection: ServerConnection) -> None:
        if connection.number not in self._connections:
            return
        try:
            chunk = connection.socket.recv(1 << 16)
        except OSError:
            chunk = b""
        if not chunk:
            self._drop(connection)
            return
        for message, payload in connection.reader.feed(chunk):
            self._say(connection, connection.member.received(connection.number, message, payload))

    def _say(self, connection: ServerConnection, replies: list[Reply]) -> None:
        for message, payload in replies:
            frame = encode(message, len(payload or b"")) + (payload or b"")
            try:
                connection.socket.sendall(frame)
            except OSError:
                self._drop(connection)
                return

    def _drop(self, connection: ServerConnection) -> None:
        if self._connections.pop(connection.number, None) is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()
            connection.member.lost(connection.number)


@contextmanager
def serving(nodes: int) -> Iterator[SocketCluster]:
    served = SocketCluster(nodes)
    try:
        yield served
    finally:
        served.close()
