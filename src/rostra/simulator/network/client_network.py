"""The simulated network between clients and nodes: byte streams that are delayed, cut, torn or half open.

Theory of operation. A `SimulatedConnection` has a `Pipe` per direction. Every chunk gets an arrival time: a drawn
delay, sometimes a spike, plus its size over the bandwidth, and never before an earlier chunk of the same pipe. So bytes
keep their order within a connection, but not between connections. A pipe with too many bytes in flight reports
congestion to its sender, as a full socket buffer would.

A cut loses all bytes in flight, except that the first lost chunk may arrive in part, which leaves half a frame. The two
ends notice the cut at different times; of a half-open link one end never does. A killed process resets its connections;
after a power cut nothing is sent, and clients find out by their own timeouts.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from rostra.broker.api import Conn
from rostra.simulator.clock import MS_US, Clock
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan

BUFFER_HIGH = 24 << 10
"""Bytes in flight at which a sender is congested; below `BUFFER_LOW` it is drained."""
BUFFER_LOW = 8 << 10
SPLIT_WRITES = 0.03
"""Share of writes that arrive in two pieces."""


class Dialer(Protocol):
    """The client's end."""

    name: str

    def opened(self, link: SimulatedConnection) -> None: ...
    def received(self, link: SimulatedConnection, chunk: bytes) -> None: ...
    def lost(self, link: SimulatedConnection, reason: str) -> None: ...
    def congested(self, link: SimulatedConnection) -> None: ...
    def drained(self, link: SimulatedConnection) -> None: ...
    def record_in_flight(self, link: SimulatedConnection) -> None: ...


class Listener(Protocol):
    """The node's end."""

    @property
    def listening(self) -> bool: ...

    @property
    def host_up(self) -> bool: ...

    def accept(self, link: SimulatedConnection) -> None: ...
    def received(self, link: SimulatedConnection, chunk: bytes) -> None: ...
    def lost(self, link: SimulatedConnection) -> None: ...
    def congested(self, link: SimulatedConnection) -> None: ...
    def drained(self, link: SimulatedConnection) -> None: ...


class Pipe:
    """One direction of a connection."""

    __slots__ = (
        "_arrived",
        "_drained",
        "_full",
        "_network",
        "congested",
        "cut_us",
        "in_flight_bytes",
        "in_flight_bytes_max",
        "last_us",
    )

    def __init__(
        self,
        network: ClientNetwork,
        arrived: Callable[[bytes], None],
        full: Callable[[], None],
        drained: Callable[[], None],
    ) -> None:
        self._network = network
        self._arrived = arrived
        self._full = full
        self._drained = drained
        self.last_us = 0
        self.cut_us: int | None = None
        self.in_flight_bytes = 0
        self.in_flight_bytes_max = 0
        self.congested = False

    def send(self, chunk: bytes) -> None:
        random = self._network.random
        if len(chunk) > 1 and random.random() < SPLIT_WRITES:
            middle = random.randrange(1, len(chunk))
            self._send(chunk[:middle])
            self._send(chunk[middle:])
        else:
            self._send(chunk)

    def _send(self, chunk: bytes) -> None:
        network = self._network
        size = len(chunk)
        self.last_us = arrival_us = network.arrival_us(self.last_us, size)
        self.in_flight_bytes = in_flight_bytes = self.in_flight_bytes + size
        if in_flight_bytes > self.in_flight_bytes_max:
            self.in_flight_bytes_max = in_flight_bytes
        network.clock.at(arrival_us, self._arrive, chunk)
        if in_flight_bytes > BUFFER_HIGH and not self.congested:
            self.congested = True
            network.clock.after(0, self._full)

    def _arrive(self, chunk: bytes) -> None:
        self.in_flight_bytes -= len(chunk)
        if self.cut_us is not None and self._network.clock.now_us >= self.cut_us:
            self._lose(chunk)
            return
        self._arrived(chunk)
        if self.congested and self.in_flight_bytes < BUFFER_LOW:
            self.congested = False
            self._drained()

    def _lose(self, chunk: bytes) -> None:
        """Drops a chunk behind a cut; the first one may arrive in part, so that the receiver has half a frame."""
        network = self._network
        first = self.cut_us is not None and self.cut_us > 0
        self.cut_us = 0
        network.fault_counts.add(Fault.DROPPED)
        if first and len(chunk) > 1 and network.random.random() < 0.5:
            network.fault_counts.add(Fault.TORN_FRAME)
            self._arrived(chunk[: network.random.randrange(1, len(chunk))])


class SimulatedConnection:
    """One connection between a client and a node, or the attempt at one."""

    def __init__(self, network: ClientNetwork, client: Dialer, number: int, node: Listener) -> None:
        self.network = network
        self.client = client
        self.node = node
        self.number = number
        """The client's number for this connection."""
        self.conn: Conn = 0
        self.client_open = True
        self.node_open = False
        self.cut_off = False
        self.up = Pipe(
            network,
            self._at_node,
            lambda: client.congested(self),
            lambda: client.drained(self),
        )
        self.down = Pipe(
            network,
            self._at_client,
            lambda: node.congested(self),
            lambda: node.drained(self),
        )

    def _at_node(self, chunk: bytes) -> None:
        if self.node_open:
            self.node.received(self, chunk)
            return
        self.network.fault_counts.add(Fault.DROPPED)
        if self.node.host_up:
            # No process has this connection: the host answers with a reset.
            self.network.after_delay(self.close_client_end, "reset")

    def _at_client(self, chunk: bytes) -> None:
        if self.client_open:
            self.client.received(self, chunk)

    def close_client_end(self, reason: str) -> None:
        if self.client_open:
            self.client_open = False
            self.network.forget(self)
            self.client.lost(self, reason)

    def close_node_end(self) -> None:
        if self.node_open:
            self.node_open = False
            self.node.lost(self)

    def client_closes(self) -> None:
        if self.client_open:
            self.client_open = False
            self.network.forget(self)
            if not self.cut_off:
                self.network.clock.at(self.network.arrival_us(self.up.last_us, 0), self.close_node_end)

    def node_closes(self) -> None:
        """Closes the node's end at once and the client's end after the bytes in flight."""
        self.close_node_end()
        if not self.cut_off:
            self.network.clock.at(
                self.network.arrival_us(self.down.last_us, 0), self.close_client_end, "closed by the node"
            )

    def cut(self, *, half_open: bool) -> None:
        """Cuts the connection. Each end notices after a delay of its own; of a half-open link one end never does."""
        network = self.network
        random, clock = network.random, network.clock
        self.cut_off = True
        reach_us = network.plan.delay_us[1]
        for pipe in (self.up, self.down):
            pipe.cut_us = clock.now_us + 1 + random.randrange(reach_us)
        network.fault_counts.add(Fault.CUT)
        unnotified = random.randrange(2) if half_open else 2
        if half_open:
            network.fault_counts.add(Fault.HALF_OPEN)
        for side, close_end in enumerate((lambda: self.close_client_end("connection reset"), self.close_node_end)):
            if side != unnotified:
                clock.after(reach_us + 1 + random.randrange(200 * MS_US), close_end)


class ClientNetwork:
    """All connections between clients and nodes."""

    def __init__(self, clock: Clock, plan: FaultPlan, fault_counts: FaultCounts, random: Random) -> None:
        self.clock = clock
        self.plan = plan
        self.fault_counts = fault_counts
        self.random = random
        self.hosts: dict[str, Listener] = {}
        """Nodes by client address."""
        self.fault_free = True
        self.links: dict[tuple[str, int], SimulatedConnection] = {}
        self._avoided: dict[tuple[str, Listener], int] = {}
        """By client and node, until when the node does not answer that client."""
        self._conn = 0
        self._latest_us = 0
        self._low, self._high = plan.delay_us
        self._spread = self._high - self._low

    def arrival_us(self, not_before_us: int, size: int) -> int:
        """When bytes sent now arrive, after those already in flight on the same pipe."""
        random = self.random.random
        arrival_us = self.clock.now_us + self._low + int(random() * self._spread)
        if not self.fault_free and self.plan.spike and random() < self.plan.spike:
            self.fault_counts.add(Fault.DELAYED)
            arrival_us += int(random() * self.plan.spike_us)
        if arrival_us <= not_before_us:
            arrival_us = not_before_us + 1
        arrival_us += size * MS_US // self.plan.bytes_per_ms
        if arrival_us < self._latest_us:
            self.fault_counts.add(Fault.REORDERED)
        else:
            self._latest_us = arrival_us
        return arrival_us

    def after_delay(self, callback: Callable[..., None], *args: object) -> None:
        self.clock.at(self.arrival_us(0, 0), callback, *args)

    def dial(self, client: Dialer, number: int, address: str) -> SimulatedConnection:
        link = SimulatedConnection(self, client, number, self.hosts[address])
        self.links[client.name, number] = link
        self.after_delay(self._try_connect, link)
        return link

    def _try_connect(self, link: SimulatedConnection) -> None:
        node = link.node
        if not link.client_open or not node.host_up:
            # A host that is down does not answer: the attempt ends by the client's timeout.
            return
        avoided = self._avoided.get((link.client.name, node), 0) > self.clock.now_us and not self.fault_free
        if not node.listening or avoided:
            self.after_delay(link.close_client_end, "connection refused")
            return
        self._conn += 1
        link.conn = self._conn
        link.node_open = True
        node.accept(link)
        self.after_delay(self._open, link)

    def _open(self, link: SimulatedConnection) -> None:
        if link.client_open and not link.cut_off:
            link.client.opened(link)

    @property
    def has_stale_links(self) -> bool:
        """Whether a client still uses a connection whose other end is gone."""
        return any(link.conn and (link.cut_off or not link.node_open) for link in self.links.values())

    def forget(self, link: SimulatedConnection) -> None:
        self.links.pop((link.client.name, link.number), None)

    def cut_one(self, *, half_open: bool) -> None:
        intact = [link for link in self.links.values() if not link.cut_off and link.node_open]
        if intact:
            self.random.choice(intact).cut(half_open=half_open)

    def move_one(self, duration_us: int) -> None:
        """Cuts one connection; its node refuses that client for a while, so that it goes to another one."""
        intact = [link for link in self.links.values() if not link.cut_off and link.node_open]
        if intact:
            link = self.random.choice(intact)
            self._avoided[link.client.name, link.node] = self.clock.now_us + duration_us
            link.cut(half_open=False)
            self.fault_counts.add(Fault.MOVED)

    def node_died(self, links: list[SimulatedConnection], *, silently: bool) -> None:
        """Ends the connections of a node: reset after a kill, without notice (`silently`) after a power cut."""
        for link in links:
            link.node_open = False
            if link.down.cut_us is None:
                link.down.cut_us = self.clock.now_us + 1 + self.random.randrange(self._high)
            if not silently and not link.cut_off:
                self.clock.after(self._high + 1 + self.random.randrange(5 * MS_US), link.close_client_end, "reset")
