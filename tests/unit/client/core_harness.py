"""A core and a model node; the test controls the time and the network between them.

Every message passes through the wire codec. What the client writes waits in `to_node`, what the node writes in
`to_client`, until the test delivers it.
"""

from __future__ import annotations

from collections import deque
from random import Random

from rostra.client.core import Core
from rostra.client.core.effects import (
    Acknowledged,
    BatchRefused,
    Deliver,
    Dial,
    Done,
    Fail,
    Finish,
    HangUp,
    Notify,
    RecordsReady,
    Result,
    Resume,
    Write,
)
from rostra.client.core.events import ClientEvent
from rostra.client.core.options import Options
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.errors import RostraError
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, FrameReader, encode
from rostra.wire.messages import ClientMessage, NodeMessage
from tests.unit.client.model_node import ModelNode, Reply

FRAME_BYTES_MAX = 1 << 26


class CoreHarness:
    def __init__(self, options: Options | None = None, node: ModelNode | None = None, seed: int = 0) -> None:
        self.now_us = 1_000_000
        self.node = node or ModelNode()
        self.core = Core(options or Options(), Random(seed), wall_offset_us=1_700_000_000_000_000)
        self.link: int | None = None
        self.dialed: list[str] = []
        self.reachable = True
        self.to_node: deque[tuple[ClientMessage, bytearray | None]] = deque()
        self.to_client: deque[Reply] = deque()
        self.written: list[ClientMessage] = []
        self.results: dict[int, Result] = {}
        self.errors: dict[int, RostraError] = {}
        self.events: list[ClientEvent] = []
        self.acknowledged: list[Acknowledged] = []
        self.refused: list[BatchRefused] = []
        self.resumed: list[int] = []
        self.delivered: dict[int, list[DeliveredBatch]] = {}
        self.finished: dict[int, RostraError] = {}
        self.ready: list[int] = []
        self._call = 0
        self._reader: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT, FRAME_BYTES_MAX)

    # --- effects -------------------------------------------------------------------------------------

    def run(self) -> None:
        for effect in self.core.take():
            match effect:
                case Dial():
                    self.dialed.append(effect.address)
                    self._dialed(effect)
                case HangUp():
                    self._hung_up(effect)
                case Write():
                    self._written(effect)
                case Done():
                    self.results[effect.call] = effect.result
                case Fail():
                    self.errors[effect.call] = effect.error
                case Acknowledged():
                    self.acknowledged.append(effect)
                case BatchRefused():
                    self.refused.append(effect)
                case Resume():
                    self.resumed.append(effect.producer)
                case Deliver():
                    self.delivered.setdefault(effect.subscription, []).extend(effect.batches)
                case RecordsReady():
                    self.ready.append(effect.subscription)
                case Finish():
                    self.finished[effect.subscription] = effect.error
                case Notify():
                    self.events.append(effect.event)

    def _dialed(self, effect: Dial) -> None:
        self.link = effect.link
        self._reader = FrameReader(FROM_CLIENT, FRAME_BYTES_MAX)

    def _hung_up(self, effect: HangUp) -> None:
        self._gone()

    def _written(self, effect: Write) -> None:
        assert effect.link == self.link
        for buffer in effect.buffers:
            for message, payload in self._reader.feed(buffer):
                self.to_node.append((message, payload))
                self.written.append(message)

    def call(self) -> int:
        self._call += 1
        return self._call

    # --- the network ---------------------------------------------------------------------------------

    def connect(self) -> None:
        self.core.start(self.now_us, self.call())
        self.run()
        self.settle()
        assert self.core.link.up

    def open(self) -> None:
        """Open the connection that was dialed."""
        assert self.link is not None
        self.core.opened(self.now_us, self.link)
        self.run()

    def disconnect(self, reason: str = "cut") -> None:
        """Cut the connection; messages in flight are lost."""
        assert self.link is not None
        link = self.link
        self._gone()
        self.core.lost(self.now_us, link, reason)
        self.run()

    def _gone(self) -> None:
        if self.link is not None:
            self.node.lost(self.link)
        self.link = None
        self.to_node.clear()
        self.to_client.clear()

    def deliver_to_node(self, count: int = 1) -> None:
        """Deliver messages to the node; its answers wait."""
        for _ in range(min(count, len(self.to_node))):
            message, payload = self.to_node.popleft()
            assert self.link is not None
            self.to_client.extend(self.node.received(self.link, message, payload))

    def push_from_node(self) -> None:
        if self.link is not None:
            self.to_client.extend(self.node.pushes(self.link))

    def deliver_to_client(self, count: int = 1) -> None:
        for _ in range(min(count, len(self.to_client))):
            message, payload = self.to_client.popleft()
            self.receive(message, payload)

    def receive(self, message: NodeMessage, payload: bytes | None = None) -> None:
        assert self.link is not None
        reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        raw = encode(message, len(payload or b"")) + (payload or b"")
        for decoded, tail in reader.feed(raw):
            self.core.received(self.now_us, self.link, decoded, tail)
        self.run()

    def settle(self) -> None:
        """Deliver everything until nothing is in flight, dialing included, without time passing."""
        while True:
            if self.link is not None and self.reachable and not self.core.link.up:
                self.open()
            self.deliver_to_node(len(self.to_node))
            self.push_from_node()
            if not self.to_client:
                if not self.to_node:
                    return
                continue
            self.deliver_to_client(len(self.to_client))

    # --- time ----------------------------------------------------------------------------------------

    def pass_time(self, us: int) -> None:
        """Tick whenever due; dials fail at once while nothing is reachable."""
        end = self.now_us + us
        while (due := self.core.deadline_us()) is not None and due <= end:
            self.now_us = max(self.now_us, due)
            self.core.tick(self.now_us)
            self.run()
            if self.link is not None and not self.core.link.up and not self.reachable:
                self.disconnect("refused")
        self.now_us = end

    def reconnect(self) -> None:
        """Wait for the next attempt to connect and let it succeed."""
        for _ in range(100):
            if self.core.link.up:
                break
            due = self.core.deadline_us()
            assert due is not None
            self.pass_time(max(due - self.now_us, 0))
            if self.link is not None:
                self.settle()
        assert self.core.link.up
        self.settle()

    def values(self, subscription: int) -> list[bytes | None]:
        return [value for batch in self.delivered.get(subscription, []) for value in batch.values()]
