"""The cluster façade on real nodes in this process, with real sockets, files and time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from rostra.broker.settings import BrokerSettings
from rostra.client.aio.driver import AsyncioDriver, now_us
from rostra.client.aio.subscription import AsyncioInbox
from rostra.client.core.effects import Deliver, Result
from rostra.client.core.events import ClientEvent
from rostra.client.core.options import Options
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.errors import RostraError
from rostra.fabric.registry import FabricKind
from rostra.model.ids import Partition, text
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.reserved_address import ANY_LOOPBACK_PORT, ReservedAddresses
from rostra.wire.messages import DescribeTopic, Failed, Published, Subscribed, TopicDescribed
from tests.contract.clients import Outcome
from tests.contract.facade import (
    CONNECT_TIMEOUT_MS,
    LONG_TIMEOUT_MS,
    TIMEOUT_S,
    Cluster,
    ConditionTimeout,
    Node,
    NodeReply,
    NodeRequest,
)
from tests.contract.raw_connections import SocketRawConnection
from tests.contract.tcp_proxy import TcpProxy, drain_loop
from tests.fuzz.raw import RawClient

TURN_S = 0.002
LIMITS = BrokerSettings(heartbeat_ms=1_000, retention_check_ms=100, group_partitions=2, group_segment_bytes=1 << 12)
"""Clients notice a silent node after a few heartbeats, but do not take a loaded machine for a silent node."""


class DirectInbox(AsyncioInbox):
    """An inbox that passes deliveries on at once."""

    __slots__ = ("_delivered", "_finished", "_number")

    def __init__(
        self, number: int, delivered: Callable[[Deliver], None], finished: Callable[[RostraError], None]
    ) -> None:
        super().__init__()
        self._number = number
        self._delivered = delivered
        self._finished = finished

    def deliver(self, batches: tuple[DeliveredBatch, ...]) -> None:
        self._delivered(Deliver(self._number, batches))

    def finish(self, error: RostraError) -> None:
        self._finished(error)


class SocketCoreClient:
    """The driver of the asyncio client, without its public API."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Options) -> None:
        self.delivered: dict[int, Callable[[Deliver], None]] = {}
        self.finished: dict[int, Callable[[RostraError], None]] = {}
        self.event_listeners: list[Callable[[ClientEvent], None]] = []
        self._loop = loop
        self._driver = AsyncioDriver(options, self._on_event)
        self.core = self._driver.core
        self._pending: set[asyncio.Future[Result]] = set()
        self._starting = loop.create_task(self._driver.start())

    @property
    def now_us(self) -> int:
        return now_us()

    def _on_event(self, event: ClientEvent) -> None:
        for listener in self.event_listeners:
            listener(event)

    def call(self, what: str, outcome: Outcome) -> int:
        number, answer = self._driver.new_call()
        self._pending.add(answer)

        def answered(answer: asyncio.Future[Result]) -> None:
            self._pending.discard(answer)
            if answer.cancelled():
                return
            error = answer.exception()
            assert error is None or isinstance(error, RostraError)
            outcome(answer.result() if error is None else error)

        answer.add_done_callback(answered)
        return number

    def run_effects(self) -> None:
        for number in self.delivered.keys() - self._driver.inboxes.keys():
            inbox = DirectInbox(number, self.delivered.pop(number), self.finished.pop(number))
            self._driver.inboxes[number] = inbox
        self._driver.run()

    def later(self, callback: Callable[..., None], *args: object) -> None:
        self._loop.call_soon(callback, *args)

    def kill(self) -> None:
        """Closes the connections without sending anything."""
        self.core.close(now_us())
        self.core.take()
        for connection in list(self._driver._connections.values()):
            if connection.transport is not None:
                connection.transport.abort()

    async def close(self) -> None:
        await self._driver.close()
        await asyncio.gather(self._starting, return_exceptions=True)


class SocketCluster(Cluster):
    """Nodes on threads of their own; clients on an asyncio loop that runs while a test waits."""

    def __init__(self, kind: FabricKind, count: int, directory: Path) -> None:
        self.guarantees = kind.guarantees
        self._kind = kind
        self._directory = directory
        self._proxy = TcpProxy()
        self._loop = asyncio.new_event_loop()
        self._nodes: list[EmbeddedNode] = []
        self._addresses: list[str] = []
        self._peer_addresses: list[str] = []
        self._clients: dict[tuple[Node, int], SocketCoreClient] = {}
        self._raw_connections: list[SocketRawConnection] = []
        self._new_clients: list[SocketCoreClient] = []
        self._reserved = ReservedAddresses()
        try:
            for number in range(count):
                self._add(() if number == 0 else (self._peer_addresses[0],))
            for node in self._nodes:
                node.await_ready()
            self.await_members(count)
        except BaseException:
            self.close()
            raise

    def _add(self, join: tuple[str, ...]) -> None:
        number = len(self._nodes)
        listen, peer_listen = self._reserved.fix(ANY_LOOPBACK_PORT), self._reserved.fix(ANY_LOOPBACK_PORT)
        self._addresses.append(self._proxy.listen(number, listen))
        self._peer_addresses.append(self._proxy.listen(number, peer_listen))
        node = EmbeddedNode(
            self._directory / f"node-{number}",
            listen=listen,
            peer_listen=peer_listen,
            advertise=self._addresses[number],
            advertise_peers=self._peer_addresses[number],
            join=join,
            fabric=self._kind.name,
            limits=LIMITS,
            log_level="critical",
        )
        node.launch()
        self._nodes.append(node)

    def close(self) -> None:
        # Healed first: a socket with unsent bytes would not close.
        self._proxy.heal()
        self._loop.run_until_complete(self._close_clients())
        for node in self._nodes:
            node.resume()
        for node in reversed(self._nodes):
            node.kill()
        self._proxy.close()
        self._loop.close()

    async def _close_clients(self) -> None:
        for raw_connection in self._raw_connections:
            raw_connection.close()
        for client in [*self._clients.values(), *self._new_clients]:
            await client.close()
        rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await drain_loop()

    # --- clients and time ----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self._nodes)

    @property
    def running(self) -> list[Node]:
        return [number for number, node in enumerate(self._nodes) if node.running]

    def address(self, node: Node) -> str:
        return self._addresses[node]

    @property
    def now_us(self) -> int:
        return now_us()

    def client(self, node: Node, timeout_ms: int) -> SocketCoreClient:
        found = self._clients.get((node, timeout_ms))
        if found is None:
            found = self._clients[node, timeout_ms] = self._client(f"{timeout_ms}@{node}", node, timeout_ms)
        return found

    def new_client(self, node: Node, *, auto_create: bool = False) -> SocketCoreClient:
        client = self._client(
            f"newcomer {len(self._new_clients)}@{node}", node, LONG_TIMEOUT_MS, auto_create=auto_create
        )
        self._new_clients.append(client)
        return client

    def _client(self, name: str, node: Node, timeout_ms: int, *, auto_create: bool = False) -> SocketCoreClient:
        options = Options(
            (self._addresses[node],),
            name=name,
            auto_create=auto_create,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            call_timeout_ms=timeout_ms,
            delivery_timeout_ms=timeout_ms,
            backoff_ms_max=200,
        )
        client = SocketCoreClient(self._loop, options)
        # One iteration starts it; then its deadline is extended, so that a stalled machine does not fail the test.
        self._loop.run_until_complete(asyncio.sleep(0))
        client.core.start_due_us = now_us() + LONG_TIMEOUT_MS * 1000
        return client

    def _turn(self) -> None:
        self._loop.run_until_complete(asyncio.sleep(TURN_S))

    def run_until(self, true: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                raise ConditionTimeout(f"not within {timeout_s:g} s: {what}")
            self._turn()

    def request_node(self, node: Node, message: NodeRequest, payload: bytes | bytearray = b"") -> NodeReply:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                with RawClient(self._nodes[node].address) as client:
                    client.say(message, payload)
                    while True:
                        answer, _ = client.hear(object)
                        if isinstance(answer, Published | Subscribed | TopicDescribed | Failed):
                            return answer
            except OSError:
                # It sends no pings while it waits, so a slow node may close the connection.
                if not isinstance(message, DescribeTopic) or time.monotonic() > deadline:
                    raise

    def raw_connection(self, node: Node) -> SocketRawConnection:
        raw_connection = SocketRawConnection(f"wire@{node}", self._loop, self._addresses[node])
        self._raw_connections.append(raw_connection)
        return raw_connection

    def segments(self, node: Node, partition: Partition) -> list[bytes]:
        place = self._nodes[node].directory / "topics" / f"{text(partition.topic)}-{partition.index}"
        return [segment.read_bytes() for segment in sorted(place.glob("*.log"))]

    # --- faults --------------------------------------------------------------------------------------

    def crash(self, *nodes: Node) -> None:
        for node in nodes:
            self._nodes[node].kill()

    def cut_power(self) -> None:
        self.crash(*self.running)

    def restart(self, *nodes: Node) -> None:
        for node in nodes:
            # A node remembers its cluster: it needs no address to join through.
            self._nodes[node].join = ()
            self._nodes[node].launch()
        for node in nodes:
            self._nodes[node].await_ready()

    def pause(self, node: Node) -> None:
        self._nodes[node].pause()

    def resume(self, node: Node) -> None:
        self._nodes[node].resume()

    def partition(self, *sides: list[Node]) -> None:
        self._proxy.split(*sides)

    def heal(self) -> None:
        self._proxy.heal()

    def join(self, through: Node = 0) -> Node:
        self._add((self._peer_addresses[through],))
        self._nodes[-1].await_ready()
        return len(self._nodes) - 1
