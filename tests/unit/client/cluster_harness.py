"""A core and a model cluster; the test controls the time and every link between them."""

from __future__ import annotations

from collections import deque

from rostra.client.core.effects import Dial, HangUp, Write
from rostra.client.core.options import Options
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, FrameReader, encode
from rostra.wire.messages import ClientMessage, NodeMessage
from tests.unit.client.core_harness import FRAME_BYTES_MAX, CoreHarness
from tests.unit.client.model_cluster import ModelCluster, ModelMember
from tests.unit.client.model_node import Reply


class HarnessConnection:
    """One link, with the messages in flight in both directions."""

    def __init__(self, number: int, address: str, member: ModelMember | None) -> None:
        self.number = number
        self.address = address
        self.member = member
        self.open = False
        self.to_node: deque[tuple[ClientMessage, bytearray | None]] = deque()
        self.to_client: deque[Reply] = deque()
        self.reader: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT, FRAME_BYTES_MAX)


class ClusterHarness(CoreHarness):
    def __init__(self, cluster: ModelCluster, options: Options | None = None, seed: int = 0) -> None:
        self.cluster = cluster
        self.connections: dict[int, HarnessConnection] = {}
        self.down: dict[str, None] = {}
        """Addresses that refuse connections."""
        self.unresponsive: dict[str, None] = {}
        """Addresses that never answer."""
        self.sent: list[tuple[str, ClientMessage]] = []
        super().__init__(options or Options(tuple(cluster.members)), seed=seed)

    # --- effects -------------------------------------------------------------------------------------

    def _dialed(self, effect: Dial) -> None:
        self.connections[effect.link] = HarnessConnection(
            effect.link, effect.address, self.cluster.members.get(effect.address)
        )

    def _hung_up(self, effect: HangUp) -> None:
        self._forget(self.connections[effect.link])

    def _written(self, effect: Write) -> None:
        connection = self.connections[effect.link]
        for buffer in effect.buffers:
            for message, payload in connection.reader.feed(buffer):
                connection.to_node.append((message, payload))
                self.sent.append((connection.address, message))

    def _forget(self, connection: HarnessConnection) -> None:
        del self.connections[connection.number]
        if connection.member is not None:
            connection.member.lost(connection.number)

    # --- the network ---------------------------------------------------------------------------------

    def connect(self) -> None:
        self.core.start(self.now_us, self.call())
        self.run()
        self.settle()
        assert self.core.links.pick() is not None

    def to(self, address: str) -> HarnessConnection:
        (connection,) = [connection for connection in self.connections.values() if connection.address == address]
        return connection

    def open_connection(self, connection: HarnessConnection) -> None:
        connection.open = True
        self.core.opened(self.now_us, connection.number)
        self.run()

    def cut(self, connection: HarnessConnection, reason: str = "cut") -> None:
        """Cut the link; messages in flight are lost."""
        self._forget(connection)
        self.core.lost(self.now_us, connection.number, reason)
        self.run()

    def crash(self, address: str) -> None:
        """Stop the node: its links break and it refuses new ones."""
        self.down[address] = None
        for connection in [connection for connection in self.connections.values() if connection.address == address]:
            self.cut(connection, "reset")

    def restart(self, address: str) -> None:
        del self.down[address]

    def forward_to_node(self, connection: HarnessConnection, count: int = 1000) -> None:
        """Deliver messages to the node; its answers wait."""
        for _ in range(min(count, len(connection.to_node))):
            message, payload = connection.to_node.popleft()
            assert connection.member is not None
            connection.to_client.extend(connection.member.received(connection.number, message, payload))
            self.forward_pushes(connection)

    def forward_pushes(self, connection: HarnessConnection) -> None:
        if connection.member is not None:
            connection.to_client.extend(connection.member.pushes(connection.number))

    def forward_to_client(self, connection: HarnessConnection, count: int = 1000) -> None:
        """Deliver messages to the client."""
        for _ in range(min(count, len(connection.to_client))):
            if connection.number not in self.connections:
                return
            message, payload = connection.to_client.popleft()
            self.send_to_client(connection, message, payload)

    def send_to_client(self, connection: HarnessConnection, message: NodeMessage, payload: bytes | None = None) -> None:
        reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        raw = encode(message, len(payload or b"")) + (payload or b"")
        for decoded, tail in reader.feed(raw):
            self.core.received(self.now_us, connection.number, decoded, tail)
        self.run()

    def settle(self) -> None:
        """Deliver everything until nothing is in flight, without time passing."""
        moved = True
        while moved:
            moved = False
            for connection in list(self.connections.values()):
                if connection.number not in self.connections or connection.address in self.unresponsive:
                    continue
                if connection.member is None or connection.address in self.down:
                    self.cut(connection, "refused")
                    moved = True
                    continue
                if not connection.open:
                    self.open_connection(connection)
                    moved = True
                self.forward_pushes(connection)
                moved = moved or bool(connection.to_node or connection.to_client)
                self.forward_to_node(connection)
                self.forward_to_client(connection)

    # --- time ----------------------------------------------------------------------------------------

    def pass_time(self, us: int) -> None:
        """Tick whenever due, and deliver everything."""
        end = self.now_us + us
        while (due := self.core.deadline_us()) is not None and due <= end:
            self.now_us = max(self.now_us, due)
            self.core.tick(self.now_us)
            self.run()
            self.settle()
        self.now_us = end

    def tick_only(self, us: int) -> None:
        """Tick whenever due, and deliver nothing."""
        end = self.now_us + us
        while (due := self.core.deadline_us()) is not None and due <= end:
            self.now_us = max(self.now_us, due)
            self.core.tick(self.now_us)
            self.run()
        self.now_us = end
