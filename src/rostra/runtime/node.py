"""A node on asyncio: carries out a broker's effects with real sockets, timers and disks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import structlog

from rostra.broker.api import (
    AskDrain,
    BrokerEffect,
    BrokerInput,
    CloseConn,
    Conn,
    Drain,
    FindLast,
    Greeted,
    Listen,
    PushTo,
    Reply,
    Stop,
    Stopped,
    Survey,
    SyncBroke,
)
from rostra.broker.broker import Broker
from rostra.broker.disk import Disk, Job, LookUp
from rostra.busy import BusyPoll
from rostra.errors import StorageError
from rostra.fabric.api import (
    Append,
    Drop,
    Meet,
    Note,
    Now,
    Open,
    Part,
    Persist,
    Read,
    Send,
    SetTimer,
    Sync,
    TimerFired,
    Trim,
    Truncate,
)
from rostra.fabric.solo.machine import Solo
from rostra.log.store import Store
from rostra.model.ids import text
from rostra.runtime.connection import ClientConnection
from rostra.runtime.counters import Counters, registry_of
from rostra.runtime.exposition import Exposition
from rostra.runtime.files import DiskFiles
from rostra.runtime.identity import identify, is_new
from rostra.runtime.settings import NodeSettings, split_address
from rostra.runtime.workers import Workers
from rostra.wire.frames import encode
from rostra.wire.messages import Failed

BACKLOG = 1024
SYNCERS = 4
READERS = 2
FULL_DISK_RETRY_S = 0.1


class Node:
    """One broker with its connections and its log.

    `step` gives the broker one input and carries out what comes back; `settle` ends a turn: it writes what has gathered
    for the log and for each connection, and starts the next fsync. Nothing in a step waits.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self.counters = Counters()
        self.log = structlog.get_logger()
        self.address = ""
        self.metrics_address = ""
        self._files = DiskFiles(Path(settings.directory))
        self._disk = Disk(Store(self._files), syncs=settings.fsync == "commit")
        self._is_new = is_new(self._files)
        identity = identify(self._files)
        self.log = self.log.bind(node=text(identity.node))
        self.broker = Broker(identity, Solo(), settings.broker, random.SystemRandom())
        self._connections: dict[Conn, ClientConnection] = {}
        self._last_conn = 0
        self._sending: list[ClientConnection] = []
        self._draining: list[Conn] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._syncing = False
        self._servers: list[asyncio.Server] = []
        self._exposition: Exposition | None = None
        self._closed = False

    # --- life ---

    async def start(self) -> None:
        """Recovers the log, then listens. Returns when clients can connect."""
        self._loop = asyncio.get_running_loop()
        self._listening = self._loop.create_future()
        self._stopped = self._loop.create_future()
        self.busy = BusyPoll(self._loop, self._settings.busy_poll_ms)
        self._syncers = Workers(self._loop, "sync", SYNCERS)
        self._readers = Workers(self._loop, "read", READERS)
        boot, recovery = await self._loop.run_in_executor(None, self._disk.boot)
        for note in recovery.notes:
            self.log.warning("recovery", note=str(note))
        self.step(boot)
        self.settle()
        await self._listening
        await self._listen()
        if self._settings.metrics:
            self._exposition = Exposition(registry_of(self))
            self.metrics_address = await self._exposition.start(*split_address(self._settings.metrics))
        # Of a new directory there was no stop before that could have been clean.
        stop_before = {} if self._is_new else {"clean": recovery.clean}
        self.log.info("listening", address=self.address, metrics=self.metrics_address, **stop_before)

    async def _listen(self) -> None:
        host, port = split_address(self._settings.listen)
        server = await self._loop.create_server(lambda: ClientConnection(self), host, port, backlog=BACKLOG)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        self.address = f"{bound[0]}:{bound[1]}"

    async def stop(self, deadline_ms: int | None = None) -> bool:
        """Finishes what is under way, within the deadline, and closes. True if all was finished."""
        if self._closed:
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
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        if self._exposition is not None:
            await self._exposition.stop()
        for connection in list(self._connections.values()):
            connection.close()
        for server in self._servers:
            server.close()
        await self._loop.run_in_executor(None, self._syncers.stop)
        await self._loop.run_in_executor(None, self._readers.stop)
        self._disk.flush()
        try:
            self._disk.store.close(clean=clean and self.broker.broken is None)
        except StorageError as error:
            # The next start finds no clean mark and recovers.
            self.log.error("closing failed", error=str(error))
        self._files.close()

    def abandon(self) -> None:
        """As a crash would leave it, for tests: nothing is finished, nothing is marked clean."""
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._connections.values()):
            connection.abort()
        self._syncers.stop()
        self._readers.stop()
        self._files.close()

    # --- stepping ---

    def step(self, given: BrokerInput) -> None:
        if self._closed:
            return
        wall_us = time.time_ns() // 1000
        for effect in self.broker.step(Now(time.monotonic_ns() // 1000, wall_us), given):
            self._carry_out(effect)

    def settle(self) -> None:
        """The end of a turn. What the disk answers at once is stepped at once."""
        if self._closed:
            return
        while True:
            happened = self._disk.flush()
            for given in happened:
                self.step(given)
            if not happened:
                break
        if not self._syncing and self._disk.wants_sync:
            self._start_sync()
        while self._sending or self._draining:
            sending, self._sending = self._sending, []
            for connection in sending:
                connection.send()
            draining, self._draining = self._draining, []
            for conn in draining:
                # A connection whose send buffer is full says so itself when it has room again.
                if conn in self._connections and not self._connections[conn].full:
                    self.step(Drain(conn))

    def _settle_with(self, given: BrokerInput) -> None:
        self.step(given)
        self.settle()

    def _carry_out(self, effect: BrokerEffect) -> None:
        match effect:
            case Reply():
                self._reply(effect)
            case PushTo():
                self._push(effect)
            case Append():
                self.counters.batches_in += 1
                self.counters.bytes_appended += len(effect.batch)
                self._disk.change(effect)
            case Sync() | Open() | Drop() | Truncate() | Trim():
                self._disk.change(effect)
            case Read() | FindLast() | Survey():
                self.counters.reads += 1
                self._look_up(effect)
            case Persist():
                self._run(self._disk.begin_persist(effect), lambda: None)
            case SetTimer():
                self._set_timer(effect)
            case Note():
                getattr(self.log, effect.level)(effect.event, **effect.about)
            case AskDrain():
                self._draining.append(effect.conn)
            case Greeted():
                self._connections[effect.conn].greeted(self._settings.broker.frame_bytes_max)
            case CloseConn():
                self._close_connection(effect)
            case Listen():
                self._listening.set_result(None)
            case Stopped():
                self._stopped.set_result(None)
            case Send() | Meet() | Part():
                raise AssertionError(f"a node alone has no peers: {effect}")
            case _:
                assert_never(effect)

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
        self.counters.bytes_out += len(frame) + size
        self.counters.pushes += 1
        if not connection.out:
            self._sending.append(connection)
        connection.out.append(frame)
        connection.out += effect.batches

    def _close_connection(self, effect: CloseConn) -> None:
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

    # --- disk and time ---

    def _start_sync(self) -> None:
        """Back to back: the next sync begins when this one ends, and takes all that was written meanwhile."""
        job = self._disk.begin_sync()
        if job is None:
            if self._disk.wants_sync:
                self._loop.call_later(FULL_DISK_RETRY_S, self.settle)
            return
        self._syncing = True
        started = time.perf_counter()

        def done() -> None:
            self._syncing = False
            self.counters.synced((time.perf_counter() - started) * 1000)

        self._run(job, done)

    def _run(self, job: Job, done: Callable[[], None]) -> None:
        """Files sync in parallel: one after the other would add up. Then its inputs, or the failure, are stepped."""

        def over(error: BaseException | None) -> None:
            done()
            if self._closed:
                return
            try:
                if error is not None:
                    raise error
                happened = job.finish()
            except StorageError as failure:
                happened = [SyncBroke(failure)]
            for given in happened:
                self.step(given)
            self.settle()

        self._syncers.run(job.calls, over)

    def _look_up(self, effect: LookUp) -> None:
        """On a thread, so that a cold disk delays nobody but the subscriber that fell behind."""
        found: list[BrokerInput] = []

        def over(error: BaseException | None) -> None:
            if error is not None:
                raise error
            self._settle_with(found[0])

        self._readers.run([lambda: found.append(self._disk.look_up(effect))], over)

    def _set_timer(self, effect: SetTimer) -> None:
        pending = self._timers.pop(effect.timer, None)
        if pending is not None:
            pending.cancel()
        if effect.at_us is None:
            return
        delay_s = max(0.0, (effect.at_us - time.monotonic_ns() // 1000) / 1e6)
        self._timers[effect.timer] = self._loop.call_later(delay_s, lambda: self._settle_with(TimerFired(effect.timer)))
