"""A core and a model cluster, with the time and every link between them in the test's hands."""

from __future__ import annotations

from collections import deque

from rostra.client.core.effects import Dial, HangUp, Write
from rostra.client.core.options import Options
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, FrameReader, encode
from rostra.wire.messages import ClientMessage, NodeMessage
from tests.unit.client.model_cluster import Cluster, Member
from tests.unit.client.model_node import Reply
from tests.unit.client.play import FRAME_BYTES_MAX, Play


class Wire:
    """One link: what is under way on it, in both directions."""

    def __init__(self, number: int, address: str, member: Member | None) -> None:
        self.number = number
        self.address = address
        self.member = member
        self.open = False
        self.towards_node: deque[tuple[ClientMessage, bytearray | None]] = deque()
        self.towards_client: deque[Reply] = deque()
        self.reader: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT, FRAME_BYTES_MAX)


class ClusterPlay(Play):
    def __init__(self, cluster: Cluster, options: Options | None = None, seed: int = 0) -> None:
        self.cluster = cluster
        self.wires: dict[int, Wire] = {}
        self.down: dict[str, None] = {}
        """Addresses that refuse."""
        self.dark: dict[str, None] = {}
        """Addresses that never answer."""
        self.sent: list[tuple[str, ClientMessage]] = []
        super().__init__(options or Options(tuple(cluster.members)), seed=seed)

    # --- effects -------------------------------------------------------------------------------------

    def _dialed(self, effect: Dial) -> None:
        self.wires[effect.link] = Wire(effect.link, effect.address, self.cluster.members.get(effect.address))

    def _hung_up(self, effect: HangUp) -> None:
        self._forget(self.wires[effect.link])

    def _written(self, effect: Write) -> None:
        wire = self.wires[effect.link]
        for buffer in effect.buffers:
            for message, payload in wire.reader.feed(buffer):
                wire.towards_node.append((message, payload))
                self.sent.append((wire.address, message))

    def _forget(self, wire: Wire) -> None:
        del self.wires[wire.number]
        if wire.member is not None:
            wire.member.lost(wire.number)

    # --- the network ---------------------------------------------------------------------------------

    def connect(self) -> None:
        self.core.start(self.now_us, self.call())
        self.run()
        self.settle()
        assert self.core.links.any() is not None

    def to(self, address: str) -> Wire:
        (wire,) = [wire for wire in self.wires.values() if wire.address == address]
        return wire

    def open_wire(self, wire: Wire) -> None:
        wire.open = True
        self.core.opened(self.now_us, wire.number)
        self.run()

    def cut(self, wire: Wire, reason: str = "cut") -> None:
        """What was on its way is gone."""
        self._forget(wire)
        self.core.lost(self.now_us, wire.number, reason)
        self.run()

    def crash(self, address: str) -> None:
        """The node is gone: its links break and it refuses new ones."""
        self.down[address] = None
        for wire in [wire for wire in self.wires.values() if wire.address == address]:
            self.cut(wire, "reset")

    def restart(self, address: str) -> None:
        del self.down[address]

    def hears(self, wire: Wire, count: int = 1000) -> None:
        """Let messages through to the node; its answers wait."""
        for _ in range(min(count, len(wire.towards_node))):
            message, payload = wire.towards_node.popleft()
            assert wire.member is not None
            wire.towards_client.extend(wire.member.received(wire.number, message, payload))
            self.says(wire)

    def says(self, wire: Wire) -> None:
        if wire.member is not None:
            wire.towards_client.extend(wire.member.pushes(wire.number))

    def answers(self, wire: Wire, count: int = 1000) -> None:
        """Let messages through to the client."""
        for _ in range(min(count, len(wire.towards_client))):
            if wire.number not in self.wires:
                return
            message, payload = wire.towards_client.popleft()
            self.tell(wire, message, payload)

    def tell(self, wire: Wire, message: NodeMessage, payload: bytes | None = None) -> None:
        reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        raw = encode(message, len(payload or b"")) + (payload or b"")
        for decoded, tail in reader.feed(raw):
            self.core.received(self.now_us, wire.number, decoded, tail)
        self.run()

    def settle(self) -> None:
        """Let everything through until nothing moves, without time passing."""
        moved = True
        while moved:
            moved = False
            for wire in list(self.wires.values()):
                if wire.number not in self.wires or wire.address in self.dark:
                    continue
                if wire.member is None or wire.address in self.down:
                    self.cut(wire, "refused")
                    moved = True
                    continue
                if not wire.open:
                    self.open_wire(wire)
                    moved = True
                self.says(wire)
                moved = moved or bool(wire.towards_node or wire.towards_client)
                self.hears(wire)
                self.answers(wire)

    # --- time ----------------------------------------------------------------------------------------

    def pass_time(self, us: int) -> None:
        """Tick whenever due, and let everything through."""
        end = self.now_us + us
        while (due := self.core.deadline_us()) is not None and due <= end:
            self.now_us = max(self.now_us, due)
            self.core.tick(self.now_us)
            self.run()
            self.settle()
        self.now_us = end

    def tick_only(self, us: int) -> None:
        """Tick whenever due, and let nothing through."""
        end = self.now_us + us
        while (due := self.core.deadline_us()) is not None and due <= end:
            self.now_us = max(self.now_us, due)
            self.core.tick(self.now_us)
            self.run()
        self.now_us = end
