"""A node on asyncio: carries out a broker's effects with real sockets, timers and disks."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any, assert_never

import msgspec
import structlog

from rostra.broker.api import (
    BrokerEffect,
    BrokerInput,
    CloseConnection,
    Compact,
    Conn,
    ConnectionDrained,
    FindLast,
    FindTime,
    Greeted,
    InspectLog,
    Listen,
    ListSegments,
    PushTo,
    Reply,
    RequestDrain,
    Stop,
    Stopped,
)
from rostra.broker.broker import Broker
from rostra.broker.disk import Disk
from rostra.busy_poll import BusyPoll
from rostra.errors import StorageError
from rostra.fabric.api import (
    METADATA,
    Append,
    Connect,
    Disconnect,
    Drop,
    LogLine,
    Now,
    Open,
    Persist,
    Read,
    Send,
    SetTimer,
    Sync,
    TimerFired,
    Trim,
    Truncate,
)
from rostra.fabric.registry import NodeSetup, fabric_by_name
from rostra.log.facts import LogSettings
from rostra.log.store import Store
from rostra.model.ids import text
from rostra.runtime.cluster_join import find_cluster
from rostra.runtime.disk.files import DiskFiles, files_open_max
from rostra.runtime.disk.storage import Storage
from rostra.runtime.identity import enter, identify, is_new
from rostra.runtime.metrics.counters import Counters
from rostra.runtime.metrics.metrics_server import MetricsServer
from rostra.runtime.metrics.node_collector import registry_of
from rostra.runtime.network.addresses import (
    bind,
    bind_unix,
    bound_address,
    close_unix,
    listen,
    next_door,
    split_address,
    told_address,
)
from rostra.runtime.network.client_connection import ClientConnection
from rostra.runtime.network.handshake import NO_CLUSTER, NodeIdentity
from rostra.runtime.network.peer_links import PeerLinks
from rostra.runtime.network.peer_listener import PeerListener
from rostra.runtime.node_trace import NodeTrace
from rostra.runtime.settings import NodeSettings
from rostra.wire.frames import encode
from rostra.wire.messages import Failed

BACKLOG = 1024
PEER_FRAME_BYTES_MORE = 2 << 20
"""Beyond what a client may send in a frame: batches travel several at a time between nodes."""


class Node:
    """One broker with its connections, its peers and its log.

    `step` gives the broker one input and carries out what comes back; `settle` ends a turn: it writes what has gathered
    for the log, for each peer and for each connection, and starts the next fsync. Nothing in a step waits.
    """

    broker: Broker

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.counters = Counters()
        self.log = structlog.get_logger()
        self.address = ""
        self.peer_address = ""
        self.metrics_address = ""
        self.fabric = fabric_by_name(settings.fabric)
        self._files = DiskFiles(Path(settings.directory))
        syncs = settings.fsync == "commit"
        self._disk = Disk(Store(self._files, LogSettings(files_open_max=files_open_max(), syncs=syncs)), syncs=syncs)
        self._is_new = is_new(self._files)
        self._card = identify(self._files, settings.fabric, settings.join)
        self._carriers: dict[type[BrokerEffect], Callable[[Any], None]] = {}
        """Of what every record causes: to find them among all effects would take longer than to carry them out."""
        self._connections: dict[Conn, ClientConnection] = {}
        self._last_conn = 0
        self._sending: list[ClientConnection] = []
        self._draining: list[Conn] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._servers: list[asyncio.Server] = []
        self._to_close: list[Callable[[], None]] = []
        """What was opened so far, from the first bound port on."""
        self._exposition: MetricsServer | None = None
        self.trace: NodeTrace | None = None
        self.closed = False

    # --- life ---

    async def start(self) -> None:
        """Recovers the log, finds the cluster, then listens. Returns when clients can connect."""
        self._loop = asyncio.get_running_loop()
        self._listening = self._loop.create_future()
        self._stopped = self._loop.create_future()
        self._busy = BusyPoll(self._loop, self._settings.busy_poll_ms, owns_loop=True)
        self._storage = Storage(self, self._disk, self._loop)
        self.log = self.log.bind(node=text(self._card.identity.node), role="starting")
        try:
            await self._start()
        except BaseException:
            self.abandon()
            raise

    async def _start(self) -> None:
        settings = self._settings
        for_clients = self._bind(settings.listen)
        for_peers = self._bind(settings.peer_listen or next_door(settings.listen))
        for_neighbours = self._bind_unix(settings.listen_unix) if settings.listen_unix else None
        self.address, self.peer_address = bound_address(for_clients), bound_address(for_peers)
        await self._take_seat(for_clients, for_peers)
        boot, recovery = await self._loop.run_in_executor(None, self._disk.boot)
        for note in recovery.notes:
            self.log.warning("recovery", note=str(note))
        self.step(boot)
        self.settle()
        await self._peer_listener.start(for_peers)
        await self._listening
        listen(for_clients, BACKLOG)
        server = await self._loop.create_server(lambda: ClientConnection(self), sock=for_clients, backlog=BACKLOG)
        self._servers.append(server)
        if for_neighbours is not None:
            server = await self._loop.create_unix_server(
                lambda: ClientConnection(self), sock=for_neighbours, backlog=BACKLOG
            )
            self._servers.append(server)
        if settings.metrics:
            self._exposition = MetricsServer(registry_of(self.counters, self.broker, self.fabric))
            self.metrics_address = await self._exposition.start(*split_address(settings.metrics))
        # Of a new directory there was no stop before that could have been clean.
        stop_before = {} if self._is_new else {"clean": recovery.clean}
        about = {"address": self.address, "peers": self.peer_address, "metrics": self.metrics_address}
        if settings.listen_unix:
            about["unix"] = settings.listen_unix
        self.log.info("listening", **about, **stop_before)

    def _bind(self, address: str) -> socket.socket:
        bound = bind(address)
        self._to_close.append(bound.close)
        return bound

    def _bind_unix(self, path: str) -> socket.socket:
        bound = bind_unix(path)
        self._to_close.append(lambda: close_unix(bound, path))
        return bound

    async def _take_seat(self, for_clients: socket.socket, for_peers: socket.socket) -> None:
        """Builds the broker and its fabric, once it is known to which cluster the node belongs."""
        settings, card, kind = self._settings, self._card, self.fabric
        address = told_address(for_clients, settings.advertise)
        peer_address = told_address(for_peers, settings.advertise_peers)
        join = settings.join or card.through
        own = NodeIdentity(card.identity.cluster, card.identity.node, peer_address, kind.name)
        frame_bytes_max = settings.broker.frame_bytes_max + PEER_FRAME_BYTES_MORE
        self._peer_listener = PeerListener(self, own, kind.peer_kinds, frame_bytes_max)
        self._to_close.append(self._peer_listener.close)
        if own.cluster == NO_CLUSTER:
            # Others that are to join may ask here meanwhile; they hear that this node does not know either.
            await self._peer_listener.start(for_peers)
            cluster = await find_cluster(own, join, self.log)
            self._card = card = enter(self._files, card, cluster)
            own = msgspec.structs.replace(own, cluster=cluster)
            self._peer_listener.own = own
        source = random.SystemRandom()
        seat = NodeSetup(own.node, address, peer_address, source, card.founded, join, both_ways=settings.both_ways)
        self.links = PeerLinks(self, own)
        self._carriers = {Append: self._append, Send: self.links.send, PushTo: self._push, Reply: self._reply}
        self._to_close.append(self.links.close)
        self.broker = Broker(card.identity, kind.make(seat), settings.broker, source)
        if settings.trace:
            self.trace = NodeTrace(settings.trace, own.node)
            self._to_close.append(self.trace.close)

    async def stop(self, deadline_ms: int | None = None) -> bool:
        """Finishes what is under way, within the deadline, and closes. True if all was finished."""
        if self.closed:
            return True
        for server in self._servers:
            server.close()
        patience_ms = self._settings.stop_deadline_ms if deadline_ms is None else deadline_ms
        self.step(Stop())
        self.settle()
        done, _ = await asyncio.wait([self._stopped], timeout=patience_ms / 1000)
        await self._close(clean=bool(done))
        self.log.info("stopped", finished=bool(done))
        return bool(done)

    async def _close(self, *, clean: bool) -> None:
        self.closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._exposition is not None:
            await self._exposition.stop()
        for connection in list(self._connections.values()):
            connection.close()
        self._close_sockets()
        await self._loop.run_in_executor(None, self._storage.stop)
        self._disk.flush()
        try:
            self._disk.store.close(clean=clean and self.broker.broken is None)
        except StorageError as error:
            # The next start finds no clean mark and recovers.
            self.log.error("closing failed", error=str(error))
        self._files.close()

    def _close_sockets(self) -> None:
        for server in self._servers:
            server.close()
        for close in reversed(self._to_close):
            close()

    def abandon(self) -> None:
        """As a crash would leave it, for tests: nothing is finished, nothing is marked clean."""
        if self.closed:
            return
        self.closed = True
        for timer in self._timers.values():
            timer.cancel()
        for connection in list(self._connections.values()):
            connection.abort()
        self._close_sockets()
        self._storage.stop()
        self._files.close()

    # --- stepping ---

    def step(self, given: BrokerInput) -> None:
        if self.closed:
            return
        carriers = self._carriers
        for effect in self.broker.step(Now(monotonic_ns() // 1000, time_ns() // 1000), given):
            carry = carriers.get(type(effect))
            if carry is not None:
                carry(effect)
            else:
                self._carry_out(effect)

    def settle(self) -> None:
        """The end of a turn. What the disk answers at once is stepped at once."""
        if self.closed:
            return
        links, disk = self.links, self._disk
        # Before the own disk is written: the others' disks take as long.
        if links.waiting:
            links.flush()
        while disk.needs_flush:
            for given in disk.flush():
                self.step(given)
        self._storage.carry_on()
        while self._sending or self._draining:
            sending, self._sending = self._sending, []
            for connection in sending:
                connection.send()
            draining, self._draining = self._draining, []
            for conn in draining:
                # A connection whose send buffer is full says so itself when it has room again.
                if conn in self._connections and not self._connections[conn].full:
                    self.step(ConnectionDrained(conn))
        if links.waiting:
            links.flush()

    def stir(self) -> None:
        """Bytes came in, and what they asked for is done: more may follow soon."""
        self._busy.extend()

    def _carry_out(self, effect: BrokerEffect) -> None:
        match effect:
            case Reply() | PushTo() | Append() | Send():
                self._carriers[type(effect)](effect)
            case Sync() | Open() | Drop() | Truncate() | Trim():
                self._disk.change(effect)
            case Read() | FindLast() | FindTime() | ListSegments() | InspectLog():
                self.counters.reads += 1
                self._storage.look_up(effect)
            case Persist():
                self._storage.persist(effect)
            case Compact():
                self._storage.compact(effect)
            case SetTimer():
                self._set_timer(effect)
            case LogLine():
                self._note(effect)
            case RequestDrain():
                self._draining.append(effect.conn)
            case Greeted():
                self._connections[effect.conn].greeted(self._settings.broker.frame_bytes_max)
            case CloseConnection():
                self._close_connection(effect)
            case Listen():
                self._listening.set_result(None)
            case Stopped():
                self._stopped.set_result(None)
            case Connect():
                self.links.meet(effect.peer, effect.address)
            case Disconnect():
                self.links.part(effect.peer)
            case _:
                assert_never(effect)

    def _append(self, effect: Append) -> None:
        self.counters.batches_in += 1
        self.counters.bytes_appended += len(effect.batch)
        if self.trace is not None:
            served = self.broker.topic_table.served.get(effect.partition)
            if served is not None:
                self.trace.stored(served, effect.batch)
        self._disk.change(effect)

    def _note(self, effect: LogLine) -> None:
        """Nodes are named in the log as they are everywhere else that people read."""
        about = {
            name: text(value) if name in ("node", "peer", "leader") and isinstance(value, int) else value
            for name, value in effect.about.items()
        }
        if about.get("partition") == METADATA and "role" in about:
            self.log = self.log.bind(role=about["role"])
        getattr(self.log, effect.level)(effect.event, **about)

    def _reply(self, effect: Reply) -> None:
        connection = self._connections.get(effect.conn)
        if connection is None:
            return
        if isinstance(effect.message, Failed):
            self.counters.refused[effect.message.code] += 1
        frame = encode(effect.message)
        self.counters.bytes_out += len(frame)
        if not connection.out:
            self._sending.append(connection)
        connection.out.append(frame)

    def _push(self, effect: PushTo) -> None:
        connection = self._connections.get(effect.conn)
        if connection is None:
            return
        size = sum(map(len, effect.batches))
        frame = encode(effect.message, size)
        if connection.out:
            connection.out.append(frame)
            connection.out += effect.batches
        else:
            # At once: the subscriber reads while this node still has to count, and to answer the publisher.
            connection.write([frame, *effect.batches])
        self.counters.bytes_out += len(frame) + size
        self.counters.pushes += 1
        if self.trace is not None:
            self.trace.sent(size)

    def _close_connection(self, effect: CloseConnection) -> None:
        if effect.violation:
            self.counters.violations[effect.violation] += 1
        connection = self._connections.get(effect.conn)
        if connection is not None:
            connection.ignore()
            self.log.debug("closing connection", client=connection.address, reason=effect.reason)
            # After the turn, so that the answers of this step leave first.
            self._loop.call_soon(connection.close)

    # --- connections ---

    def attach(self, connection: ClientConnection) -> Conn:
        self._last_conn += 1
        self._connections[self._last_conn] = connection
        self.counters.connections += 1
        return self._last_conn

    def detach(self, connection: ClientConnection) -> None:
        self._connections.pop(connection.number, None)

    # --- time ---

    def _set_timer(self, effect: SetTimer) -> None:
        pending = self._timers.pop(effect.timer, None)
        if pending is not None:
            pending.cancel()
        if effect.at_us is None:
            return
        delay_s = max(0.0, (effect.at_us - monotonic_ns() // 1000) / 1e6)
        self._timers[effect.timer] = self._loop.call_later(delay_s, self._fire, effect.timer)

    def _fire(self, timer: str) -> None:
        self.step(TimerFired(timer))
        self.settle()
