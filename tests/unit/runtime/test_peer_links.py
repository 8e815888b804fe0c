"""Links to peers over real sockets: dialled until a node answers, bounded, dropped when the peer does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from structlog.testing import CapturingLogger

from rostra.broker.api import BrokerInput
from rostra.errors import OtherNode
from rostra.fabric.api import PeerIdentified, PeerLost, PeerReceived, Send
from rostra.fabric.consensus.messages import TimeoutNow
from rostra.fabric.links.messages import NodeHeartbeat
from rostra.fabric.raft.messages import PEER_KINDS
from rostra.model.ids import ClusterId, NodeId, Partition, PartitionIndex, TopicId
from rostra.runtime.metrics.counters import Counters
from rostra.runtime.network.addresses import bind, bound_address
from rostra.runtime.network.handshake import NodeIdentity
from rostra.runtime.network.peer_links import WAITING_BYTES_MAX, PeerLinks
from rostra.runtime.network.peer_listener import PeerListener
from rostra.runtime.node_port import NodePort

TIMEOUT_S = 60.0
OURS, THEIRS = NodeId(1), NodeId(2)
BATCHES_BYTES = 1 << 20


class RecordingNode(NodePort):
    """A node without a broker: it records the inputs that its links and its listener give it."""

    def __init__(self, node: NodeId, cluster: int = 7) -> None:
        self.own = NodeIdentity(ClusterId(cluster), node, "127.0.0.1:1", "raft")
        self.said = CapturingLogger()
        self._log = structlog.wrap_logger(self.said, processors=[])
        self._counters = Counters()
        self._closed = False
        self.given: list[BrokerInput] = []
        self.links = PeerLinks(self, self.own)
        self.listener = PeerListener(self, self.own, tuple(PEER_KINDS.values()), 8 << 20)

    @property
    def counters(self) -> Counters:
        return self._counters

    def name_of(self, node: NodeId) -> str:
        return f"node-{node}"

    def peer_named(self, node: NodeId, name: str) -> None:
        pass

    @property
    def log(self) -> Any:
        return self._log

    @property
    def closed(self) -> bool:
        return self._closed

    def step(self, given: BrokerInput) -> None:
        if not self._closed:
            self.given.append(given)

    def extend_polling(self) -> None:
        pass

    def end_turn(self) -> None:
        self.links.flush()

    async def listen(self) -> str:
        bound = bind("127.0.0.1:0")
        await self.listener.start(bound)
        return bound_address(bound)

    def close(self) -> None:
        self._closed = True
        self.links.close()
        self.listener.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not true():
            await asyncio.sleep(0.01)


def play(story: Callable[[RecordingNode, RecordingNode], Coroutine[Any, Any, None]], cluster: int = 7) -> None:
    async def main() -> None:
        ours, theirs = RecordingNode(OURS), RecordingNode(THEIRS, cluster)
        try:
            await story(ours, theirs)
        finally:
            ours.close()
            theirs.close()
            await asyncio.sleep(0)

    asyncio.run(main())


def test_messages_and_their_batches_arrive_in_order() -> None:
    async def story(ours: RecordingNode, theirs: RecordingNode) -> None:
        ours.links.connect(THEIRS, await theirs.listen())
        await until(lambda: THEIRS in ours.links.open_links)
        sent = [NodeHeartbeat(number) for number in range(100)]
        for message in sent:
            ours.links.send(Send(THEIRS, message))
        ours.links.flush()
        await until(lambda: len(theirs.given) == 100)
        assert theirs.given == [PeerReceived(OURS, message, None) for message in sent]

    play(story)


def test_a_peer_dialled_by_address_is_identified_and_gets_messages() -> None:
    async def story(ours: RecordingNode, theirs: RecordingNode) -> None:
        address = await theirs.listen()
        ours.links.connect(NodeId(0), address)
        await until(lambda: bool(ours.given))
        assert ours.given == [PeerIdentified(THEIRS, address)]
        ours.links.send(Send(THEIRS, NodeHeartbeat(1)))
        ours.links.flush()
        await until(lambda: bool(theirs.given))

    play(story)


def test_a_lost_link_is_reported_once_and_dialled_again() -> None:
    async def story(ours: RecordingNode, theirs: RecordingNode) -> None:
        ours.links.connect(THEIRS, await theirs.listen())
        await until(lambda: THEIRS in ours.links.open_links)
        await until(lambda: bool(theirs.listener.accepted))
        for connection in list(theirs.listener.accepted):
            connection.abort()
        await until(lambda: ours.given == [PeerLost(THEIRS)])
        await until(lambda: THEIRS in ours.links.open_links)
        assert ours.given == [PeerLost(THEIRS)]

    play(story)


def test_a_peer_that_reads_nothing_is_dropped_at_the_limit() -> None:
    async def story(ours: RecordingNode, theirs: RecordingNode) -> None:
        ours.links.connect(THEIRS, await theirs.listen())
        await until(lambda: bool(theirs.listener.accepted))
        for connection in theirs.listener.accepted:
            assert connection._transport is not None
            connection._transport.pause_reading()
        batches = bytes(BATCHES_BYTES)
        message = TimeoutNow(Partition(TopicId(1), PartitionIndex(0)), 1)
        # Twice the bound, for what the kernel takes between the two.
        for _ in range(2 * WAITING_BYTES_MAX // BATCHES_BYTES):
            ours.links.send(Send(THEIRS, message, (batches,)))
            ours.links.flush()
        await until(lambda: PeerLost(THEIRS) in ours.given)
        assert ours.counters.peer_bytes_out < 2 * WAITING_BYTES_MAX

    play(story)


def test_a_disconnected_peer_is_not_dialled_again() -> None:
    async def story(ours: RecordingNode, theirs: RecordingNode) -> None:
        ours.links.connect(THEIRS, await theirs.listen())
        await until(lambda: bool(theirs.listener.accepted))
        ours.links.disconnect(THEIRS)
        await until(lambda: not theirs.listener.accepted)
        assert ours.links.open_links == {}
        ours.links.send(Send(THEIRS, NodeHeartbeat(1)))
        ours.links.flush()

    play(story)


def test_a_node_of_another_cluster_is_never_linked() -> None:
    async def story(ours: RecordingNode, theirs: RecordingNode) -> None:
        ours.links.connect(NodeId(0), await theirs.listen())
        await until(lambda: theirs.counters.refused["OtherCluster"] == 1)
        assert ours.links.open_links == {} and ours.given == []

    play(story, cluster=8)


def test_another_node_at_the_address_is_not_taken_for_the_one_that_was_there() -> None:
    async def story(ours: RecordingNode, theirs: RecordingNode) -> None:
        address = await theirs.listen()
        ours.links.connect(NodeId(3), address)
        reason = str(OtherNode(address, "node-3", f"node-{THEIRS}"))
        await until(lambda: any(reason in str(call) for call in ours.said.calls))
        assert ours.links.open_links == {}

    play(story)
