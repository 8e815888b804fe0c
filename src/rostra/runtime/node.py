"""A node on asyncio: executes the effects of a broker with real sockets, timers and disks."""

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
from rostra.errors import DiskFull, StorageError
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
from rostra.log.journal import JOURNAL_REUSED
from rostra.log.store import Store
from rostra.model.ids import NodeId, text
from rostra.runtime.cluster_join import check_cluster, find_cluster
from rostra.runtime.disk.disk_reserve import DiskReserve
from rostra.runtime.disk.files import DiskFiles, files_open_max
from rostra.runtime.disk.storage import Storage
from rostra.runtime.identity import is_new, join_cluster, load_identity
from rostra.runtime.metrics.counters import Counters
from rostra.runtime.metrics.metrics_server import MetricsServer
from rostra.runtime.metrics.node_collector import registry_of
from rostra.runtime.network.addresses import (
    advertised_address,
    bind,
    bind_unix,
    bound_address,
    close_unix,
    default_peer_address,
    listen,
    listen_error,
    split_address,
)
from rostra.runtime.network.client_connection import ClientConnection
from rostra.runtime.network.handshake import NO_CLUSTER, NodeIdentity
from rostra.runtime.network.peer_links import PeerLinks
from rostra.runtime.network.peer_listener import PeerListener
from rostra.runtime.node_health import NodeHealth
from rostra.runtime.node_trace import NodeTrace
from rostra.runtime.settings import NodeSettings
from rostra.wire.frames import encode
from rostra.wire.messages import Failed

BACKLOG = 1024
PEER_NAMES_MAX = 4096
"""Names of peers that are remembered for the log; of further ones the ids are logged."""
PEER_FRAME_BYTES_MORE = 2 << 20
"""A peer's frame may be larger than a client's, since it carries several batches."""


class Node:
    """One broker with its connections, its peers and its log.

    `step` gives the broker one input and executes the resulting effects. `end_turn` writes what they queued for the
    log, for each peer and for each connection, and starts the next fsync. Nothing in a step waits.
    """

    broker: Broker
    health: NodeHealth

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.counters = Counters()
        self.log = structlog.get_logger()
        self.name = ""
        self._peer_names: dict[NodeId, str] = {}
        self.address = ""
        self.peer_address = ""
        self.metrics_address = ""
        self.fabric = fabric_by_name(settings.fabric)
        self._files = DiskFiles(Path(settings.directory))
        syncs = settings.fsync == "commit"
        store = Store(self._files, LogSettings(files_open_max=files_open_max(), syncs=syncs))
        self._reserve = DiskReserve(Path(settings.directory))
        self._disk = Disk(store, syncs=syncs, free_reserve=self._reserve.free)
        self._disk_full = False
        self._is_new = is_new(self._files)
        self._identity = load_identity(self._files, settings.fabric, settings.join)
        self._handlers: dict[type[BrokerEffect], Callable[[Any], None]] = {}
        """Handlers of the frequent effects: finding them with `match` would take longer than executing them."""
        self._connections: dict[Conn, ClientConnection] = {}
        self._last_conn = 0
        self._sending: list[ClientConnection] = []
        self._draining: list[Conn] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._servers: list[asyncio.Server] = []
        self._to_close: list[Callable[[], None]] = []
        """Closes what was opened so far, in reverse order."""
        self._metrics_server: MetricsServer | None = None
        self.trace: NodeTrace | None = None
        self.closed = False

    # --- start and stop ---

    async def start(self) -> None:
        """Recovers the log, finds the cluster, then listens. Returns when clients can connect."""
        self._loop = asyncio.get_running_loop()
        self._listening = self._loop.create_future()
        self._stopped = self._loop.create_future()
        self._busy = BusyPoll(self._loop, self._settings.busy_poll_ms, owns_loop=True)
        self._storage = Storage(self, self._disk, self._loop)
        self.log = self.log.bind(node=self._settings.name or self._settings.listen, role="starting")
        try:
            await self._start()
        except BaseException:
            self.abandon()
            raise

    async def _start(self) -> None:
        settings = self._settings
        for_clients = self._bind(settings.listen)
        for_peers = self._bind(settings.peer_listen or default_peer_address(settings.listen), "--peer-listen")
        for_local_clients = self._bind_unix(settings.listen_unix) if settings.listen_unix else None
        self.address, self.peer_address = bound_address(for_clients), bound_address(for_peers)
        self.name = settings.name or advertised_address(for_clients, settings.advertise)
        self.log = self.log.bind(node=self.name)
        self._peer_names[self._identity.identity.node] = self.name
        await self._build_broker(for_clients, for_peers)
        boot, recovery = await self._loop.run_in_executor(None, self._disk.boot)
        self._reserve.keep()
        for note in recovery.notes:
            self.log.warning("recovery", note=str(note))
            if note.event == JOURNAL_REUSED:
                self._disk.full = True
        self.step(boot)
        self.end_turn()
        await self._peer_listener.start(for_peers)
        await self._listening
        listen(for_clients, BACKLOG)
        server = await self._loop.create_server(lambda: ClientConnection(self), sock=for_clients, backlog=BACKLOG)
        self._servers.append(server)
        if for_local_clients is not None:
            server = await self._loop.create_unix_server(
                lambda: ClientConnection(self), sock=for_local_clients, backlog=BACKLOG
            )
            self._servers.append(server)
        if settings.metrics:
            registry = registry_of(self.counters, self.broker, self.fabric, self.health)
            self._metrics_server = MetricsServer(registry, self.health)
            try:
                self.metrics_address = await self._metrics_server.start(*split_address(settings.metrics))
            except OSError as error:
                raise listen_error(error, settings.metrics, "--metrics") from None
        # In a new directory there was no previous stop.
        stop_before = {} if self._is_new else {"clean": recovery.clean}
        about = {
            "address": self.address,
            "peers": self.peer_address,
            "metrics": self.metrics_address,
            "id": text(self._identity.identity.node),
        }
        if settings.listen_unix:
            about["unix"] = settings.listen_unix
        self.log.info("listening", **about, **stop_before)

    def _bind(self, address: str, option: str = "--listen") -> socket.socket:
        bound = bind(address, option)
        self._to_close.append(bound.close)
        return bound

    def _bind_unix(self, path: str) -> socket.socket:
        bound = bind_unix(path)
        self._to_close.append(lambda: close_unix(bound, path))
        return bound

    async def _build_broker(self, for_clients: socket.socket, for_peers: socket.socket) -> None:
        """Builds the broker and its fabric when the cluster of the node is known."""
        settings, identity_file, kind = self._settings, self._identity, self.fabric
        address = advertised_address(for_clients, settings.advertise)
        peer_address = advertised_address(for_peers, settings.advertise_peers)
        join = settings.join or identity_file.through
        own = NodeIdentity(
            identity_file.identity.cluster,
            identity_file.identity.node,
            peer_address,
            kind.name,
            self.name,
            client_address=address,
        )
        frame_bytes_max = settings.broker.frame_bytes_max + PEER_FRAME_BYTES_MORE
        self._peer_listener = PeerListener(self, own, kind.peer_kinds, frame_bytes_max)
        self._to_close.append(self._peer_listener.close)
        if own.cluster != NO_CLUSTER and settings.join:
            await check_cluster(own, settings.join)
        if own.cluster == NO_CLUSTER:
            # Other joining nodes may ask here meanwhile and learn that this node has no cluster yet.
            await self._peer_listener.start(for_peers)
            cluster = await find_cluster(own, join, self.log)
            self._identity = identity_file = join_cluster(self._files, identity_file, cluster)
            own = msgspec.structs.replace(own, cluster=cluster)
            self._peer_listener.own = own
        source = random.SystemRandom()
        setup = NodeSetup(
            own.node,
            address,
            peer_address,
            source,
            identity_file.founded,
            join,
            name=settings.name,
            settings=kind.with_settings(settings.fabric_settings),
        )
        self.links = PeerLinks(self, own)
        self._handlers = {Append: self._append, Send: self.links.send, PushTo: self._push, Reply: self._reply}
        self._to_close.append(self.links.close)
        self.broker = Broker(identity_file.identity, kind.make(setup), settings.broker, source)
        self.health = NodeHealth(self.broker, self._disk, settings.directory)
        if settings.trace:
            self.trace = NodeTrace(settings.trace, own.node)
            self._to_close.append(self.trace.close)

    async def stop(self, deadline_ms: int | None = None) -> bool:
        """Finishes pending work within the deadline and closes. True if all was finished."""
        if self.closed:
            return True
        for server in self._servers:
            server.close()
        patience_ms = self._settings.stop_deadline_ms if deadline_ms is None else deadline_ms
        self.step(Stop())
        self.end_turn()
        done, _ = await asyncio.wait([self._stopped], timeout=patience_ms / 1000)
        await self._close(clean=bool(done))
        self.log.info("stopped", finished=bool(done))
        return bool(done)

    async def _close(self, *, clean: bool) -> None:
        self.closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._metrics_server is not None:
            await self._metrics_server.stop()
        for connection in list(self._connections.values()):
            connection.close()
        self._close_sockets()
        await self._loop.run_in_executor(None, self._storage.stop)
        self._disk.flush()
        try:
            self._disk.store.close(clean=clean and self.broker.broken is None)
        except StorageError as error:
            # The next start finds no clean-stop mark and runs a full recovery.
            self.log.error("closing failed", error=str(error))
        self._files.close()

    def _close_sockets(self) -> None:
        for server in self._servers:
            server.close()
        for close in reversed(self._to_close):
            close()

    def abandon(self) -> None:
        """Stops as a crash would: nothing is finished, no clean-stop mark is written."""
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

    # --- inputs and effects ---

    def step(self, given: BrokerInput) -> None:
        if self.closed:
            return
        handlers = self._handlers
        for effect in self.broker.step(Now(monotonic_ns() // 1000, time_ns() // 1000), given):
            carry = handlers.get(type(effect))
            if carry is not None:
                carry(effect)
            else:
                self._execute(effect)

    def _disk_state_changed(self) -> None:
        self._disk_full = self._disk.full
        if self._disk_full:
            self.log.error("disk full", directory=self._settings.directory, error=str(DiskFull()))
        else:
            self.log.info("disk has space again", directory=self._settings.directory)
            self._reserve.keep()

    def end_turn(self) -> None:
        """Sends and writes what the turn has queued; inputs that the disk returns at once are stepped at once."""
        if self.closed:
            return
        links, disk = self.links, self._disk
        # Before the local write, so that the disks of the peers work at the same time.
        if links.waiting:
            links.flush()
        while disk.needs_flush:
            for given in disk.flush():
                self.step(given)
        if disk.full is not self._disk_full:
            self._disk_state_changed()
        self._storage.start_pending()
        while self._sending or self._draining:
            sending, self._sending = self._sending, []
            for connection in sending:
                connection.send()
            draining, self._draining = self._draining, []
            for conn in draining:
                # A connection with a full send buffer reports itself when it is drained.
                if conn in self._connections and not self._connections[conn].full:
                    self.step(ConnectionDrained(conn))
        if links.waiting:
            links.flush()

    def extend_polling(self) -> None:
        """Bytes were received and handled: poll for more if busy polling is on."""
        self._busy.extend()

    def _execute(self, effect: BrokerEffect) -> None:
        match effect:
            case Reply() | PushTo() | Append() | Send():
                self._handlers[type(effect)](effect)
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
                self.links.connect(effect.peer, effect.address)
            case Disconnect():
                self.links.disconnect(effect.peer)
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
        """Nodes have names in the log, as in the tables of the command line."""
        about = {
            name: self.name_of(NodeId(value))
            if name in ("node", "peer", "leader") and isinstance(value, int)
            else value
            for name, value in effect.about.items()
        }
        if about.get("partition") == METADATA and "role" in about:
            self.log = self.log.bind(role=about["role"])
        getattr(self.log, effect.level)(effect.event, **about)

    def name_of(self, node: NodeId) -> str:
        return self._peer_names.get(node) or text(node)

    def peer_named(self, node: NodeId, name: str) -> None:
        if len(self._peer_names) < PEER_NAMES_MAX or node in self._peer_names:
            self._peer_names[node] = name

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
            # Written now: the subscriber can read while this node still answers the publisher.
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
            # After the turn, so that the replies of this step leave first.
            self._loop.call_soon(connection.close)

    # --- connections ---

    def attach(self, connection: ClientConnection) -> Conn:
        self._last_conn += 1
        self._connections[self._last_conn] = connection
        self.counters.connections += 1
        return self._last_conn

    def detach(self, connection: ClientConnection) -> None:
        self._connections.pop(connection.number, None)

    # --- timers ---

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
        self.end_turn()
