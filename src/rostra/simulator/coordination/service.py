"""The simulated service: one log of transactions, several servers that apply it, and the sessions.

A transaction is in the log once it is committed; each server applies it later, after a delay of its own, and shows
an older state until then. So a read may be stale, and a `SyncServer` waits for its server. A session reads what it
wrote, since its server answers a write only when it has applied it. A session whose client is silent for the timeout
is closed by a transaction, which deletes its ephemeral znodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random

from rostra.fabric.coordination import (
    Change,
    CoordinationAnswer,
    CoordinationRequest,
    GetChildren,
    GetData,
    GetStat,
    Read,
    RequestFailed,
    Result,
    SyncDone,
    SyncServer,
    WatchFired,
    Write,
)
from rostra.simulator.clock import SECOND_US, Clock
from rostra.simulator.coordination.znode_tree import ZnodeTree

SERVERS = 3
SESSION_TIMEOUT_US = 6 * SECOND_US

ServerMessage = CoordinationAnswer | WatchFired


class SessionChange(Enum):
    OPENED = "opened"
    CLOSED = "closed"


@dataclass(slots=True)
class Transaction:
    session: int
    change: Write | SessionChange
    connection: ServerConnection | None = None
    """Where the answer goes."""
    number: int = 0


class ServerConnection:
    """A client's connection as its server sees it: requests that wait, and where answers and watches go."""

    def __init__(self, session: int, server: CoordinationServer, send: Callable[[ServerMessage, int], None]) -> None:
        self.session = session
        self.server = server
        self.send = send
        """Takes a message and the last transaction that it shows."""
        self.on_close: Callable[[], None] | None = None
        """Called when the server ends the connection: the session moved or ended, or the server stopped."""
        self.open = True
        self.requests: deque[CoordinationRequest] = deque()
        self.waits_for = 0
        """The transaction that the server must have applied before the next request."""

    def receive(self, request: CoordinationRequest) -> None:
        if self.open:
            self.requests.append(request)
            self.server.serve(self)


class CoordinationServer:
    """One server: its tree, how far it is, and the watches that were set through it."""

    def __init__(self, service: CoordinationService, index: int) -> None:
        self.index = index
        self.tree = ZnodeTree()
        self.applied = 0
        self.lagging = False
        """Applies nothing for now; its reads are stale, and its writes and syncs wait."""
        self._service = service
        self._connections: list[ServerConnection] = []
        self._data_watches: dict[str, dict[ServerConnection, None]] = {}
        self._child_watches: dict[str, dict[ServerConnection, None]] = {}

    def reset(self) -> None:
        """Begins with an empty tree, to apply the log from its start."""
        self.tree = ZnodeTree()
        self.applied = 0
        self._data_watches.clear()
        self._child_watches.clear()

    def attach(self, connection: ServerConnection) -> None:
        self._connections.append(connection)

    def detach(self, connection: ServerConnection) -> None:
        connection.open = False
        self._connections.remove(connection)
        for watches in (self._data_watches, self._child_watches):
            for watching in watches.values():
                watching.pop(connection, None)

    # --- requests ---

    def serve(self, connection: ServerConnection) -> None:
        """Executes the requests of a connection in order, as far as this server has applied what they wait for."""
        while connection.open and connection.requests and self.applied >= connection.waits_for:
            request = connection.requests.popleft()
            match request.operation:
                case SyncServer() if self.applied < self._service.committed:
                    # The request comes up again when this server has applied all that is committed now.
                    connection.waits_for = self._service.committed
                    connection.requests.appendleft(request)
                    self._service.schedule_apply(self)
                case SyncServer():
                    self._answer(connection, request.number, SyncDone())
                case GetData() | GetChildren() | GetStat() as read:
                    self._answer(connection, request.number, self._read(connection, read))
                case write:
                    connection.waits_for = self._service.commit(
                        Transaction(connection.session, write, connection, request.number)
                    )

    def _read(self, connection: ServerConnection, read: Read) -> Result:
        result = self.tree.read(read)
        # Only `GetStat` leaves a watch on a missing znode.
        if read.watch and (isinstance(read, GetStat) or not isinstance(result, RequestFailed)):
            watches = self._child_watches if isinstance(read, GetChildren) else self._data_watches
            watches.setdefault(read.path, {})[connection] = None
        return result

    def _answer(self, connection: ServerConnection, number: int, result: Result) -> None:
        connection.send(CoordinationAnswer(number, result), self.applied)

    # --- transactions ---

    def apply_committed(self) -> None:
        """Applies all transactions of the log, fires watches and answers this server's own clients."""
        while not self.lagging and self.applied < self._service.committed:
            transaction = self._service.log[self.applied]
            self.applied += 1
            if transaction.change is SessionChange.OPENED:
                continue
            if transaction.change is SessionChange.CLOSED:
                self._fire(self.tree.close_session(transaction.session))
                continue
            result, changes = self.tree.apply(self.applied, transaction.session, transaction.change)
            self._fire(changes)
            connection = transaction.connection
            if connection is not None and connection.open and connection.server is self:
                self._answer(connection, transaction.number, result)
                self.serve(connection)
        for connection in tuple(self._connections):
            self.serve(connection)

    def _fire(self, changes: list[WatchFired]) -> None:
        for event in changes:
            watching: dict[ServerConnection, None] = {}
            if event.change is not Change.CHILDREN:
                watching |= self._data_watches.pop(event.path, {})
            if event.change in (Change.CHILDREN, Change.DELETED):
                watching |= self._child_watches.pop(event.path, {})
            for connection in watching:
                connection.send(event, self.applied)


class CoordinationService:
    """The servers of one service and what they agree on."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        *,
        servers: int = SERVERS,
        session_timeout_us: int = SESSION_TIMEOUT_US,
        apply_delay_us_max: int = 0,
    ) -> None:
        self.log: list[Transaction] = []
        self.servers = tuple(CoordinationServer(self, index) for index in range(servers))
        self.running = True
        self._clock = clock
        self._random = random
        self.session_timeout_us = session_timeout_us
        self._apply_delay_us_max = apply_delay_us_max
        self._connections: dict[int, ServerConnection | None] = {}
        """The connection of each living session; None while its client is away."""
        self._sessions_opened = 0
        self._generation = 0
        """Rises whenever the service starts anew; timers of earlier generations do nothing."""

    @property
    def committed(self) -> int:
        return len(self.log)

    # --- transactions ---

    def commit(self, transaction: Transaction) -> int:
        self.log.append(transaction)
        for server in self.servers:
            self.schedule_apply(server)
        return self.committed

    def schedule_apply(self, server: CoordinationServer) -> None:
        self._clock.after(self._random.randint(0, self._apply_delay_us_max), server.apply_committed)

    def lag(self, index: int, lagging: bool) -> None:
        """Makes a server stop to apply transactions, or go on."""
        self.servers[index].lagging = lagging
        if not lagging:
            self.schedule_apply(self.servers[index])

    # --- sessions ---

    def is_alive(self, session: int) -> bool:
        return session in self._connections

    def open_session(self) -> int:
        self._sessions_opened += 1
        session = self._sessions_opened
        self._connections[session] = None
        self.commit(Transaction(session, SessionChange.OPENED))
        self._await_return(session)
        return session

    def connect(
        self, session: int, index: int, last_seen: int, send: Callable[[ServerMessage, int], None]
    ) -> ServerConnection | None:
        """Connects the client of a living session with a server; requests that wait at its former one are dropped.

        None if the server cannot take it: the service is down, or the server is behind what the client has seen.
        """
        server = self.servers[index]
        if not self.running or server.applied < last_seen:
            return None
        self._drop(session)
        connection = self._connections[session] = ServerConnection(session, server, send)
        server.attach(connection)
        return connection

    def client_left(self, connection: ServerConnection) -> None:
        """The connection ended; without another one the session expires after its timeout."""
        if self._connections.get(connection.session) is connection:
            self._await_return(connection.session)

    def expire(self, session: int) -> None:
        """Ends a session and its connection now."""
        if session in self._connections:
            self._drop(session)
            del self._connections[session]
            self.commit(Transaction(session, SessionChange.CLOSED))

    def _drop(self, session: int) -> None:
        connection = self._connections[session]
        if connection is not None:
            self._connections[session] = None
            connection.server.detach(connection)
            if connection.on_close is not None:
                connection.on_close()

    def _await_return(self, session: int) -> None:
        connection, generation = self._connections[session], self._generation

        def expire_unless_returned() -> None:
            if generation == self._generation and self._connections.get(session, self) is connection:
                self.expire(session)

        self._clock.after(self.session_timeout_us, expire_unless_returned)

    # --- faults of the whole service ---

    def stop(self) -> None:
        """All servers stop; nothing expires meanwhile."""
        self.running = False
        self._generation += 1
        for session in self._connections:
            self._drop(session)

    def start(self, committed: int | None = None) -> None:
        """The servers start again, or, with a number, on a snapshot of the log as it was then: 0 wipes the service."""
        self.stop()
        if committed is not None:
            del self.log[committed:]
            for server in self.servers:
                server.reset()
            self._connections = {}
            for transaction in self.log:
                if transaction.change is SessionChange.OPENED:
                    self._connections[transaction.session] = None
                elif transaction.change is SessionChange.CLOSED:
                    del self._connections[transaction.session]
        self.running = True
        for server in self.servers:
            self.schedule_apply(server)
        for session in self._connections:
            self._await_return(session)
