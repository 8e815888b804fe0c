"""A node in this process, on its own thread."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal, TypeVar

import structlog
import uvloop
from prometheus_client import generate_latest

from rostra import blocking
from rostra.broker.settings import BrokerSettings
from rostra.fabric.registry import DEFAULT
from rostra.runtime.metrics.node_collector import registry_of
from rostra.runtime.node import Node
from rostra.runtime.settings import NodeSettings
from rostra.testing.metrics import Metrics
from rostra.testing.reserved_address import ReservedAddresses

T = TypeVar("T")

PATIENCE_S = 60.0
"""How long to wait for the thread of the node; in a stop, in addition to its deadline."""


class EmbeddedNode:
    """A real node on its own thread and event loop. Created by `rostra.testing.node`.

    >>> with rostra.testing.node() as node:  # doctest: +SKIP
    ...     node.kill()
    ...     node.restart()
    """

    def __init__(
        self,
        directory: Path,
        *,
        listen: str = "127.0.0.1:0",
        listen_unix: str | Path = "",
        peer_listen: str = "127.0.0.1:0",
        advertise: str = "",
        advertise_peers: str = "",
        join: tuple[str, ...] = (),
        fabric: str = DEFAULT,
        fabric_settings: Mapping[str, int | bool | str] | None = None,
        fsync: Literal["commit", "never"] = "commit",
        metrics: str = "",
        trace: str | Path = "",
        stop_deadline_ms: int = 10_000,
        limits: BrokerSettings | None = None,
        log_level: str = "warning",
    ) -> None:
        self.directory = directory
        self.address = ""
        """Where clients connect; kept across restarts."""
        self.peer_address = ""
        """Where other nodes connect; kept across restarts."""
        self.metrics_address = ""
        self._listen = listen
        self._listen_unix = str(listen_unix)
        self._peer_listen = peer_listen
        self._advertise = advertise
        self._advertise_peers = advertise_peers
        self.join = join
        self._fabric = fabric
        self._fabric_settings = dict(fabric_settings or {})
        self._fsync: Literal["commit", "never"] = fsync
        self._metrics = metrics
        self._trace = str(trace)
        self._stop_deadline_ms = stop_deadline_ms
        self._limits = limits or BrokerSettings()
        self._log_level = log_level
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._starting: Future[Node] | None = None
        self._resumed: Event | None = None
        self._reserved = ReservedAddresses()

    # --- start and stop ---

    @property
    def running(self) -> bool:
        return self._node is not None

    def start(self) -> None:
        """Returns when clients can connect."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Begins to start and does not wait."""
        if self._thread is not None:
            return
        self._loop = uvloop.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="rostra-node", daemon=True)
        self._thread.start()
        self._starting = asyncio.run_coroutine_threadsafe(self._started(), self._loop)

    def await_ready(self) -> None:
        if self._node is not None or self._starting is None:
            return
        try:
            self._node = self._starting.result(PATIENCE_S)
        except BaseException:
            self._starting.cancel()
            self._end_thread()
            raise
        finally:
            self._starting = None
        node = self._node
        self.address, self.peer_address, self.metrics_address = node.address, node.peer_address, node.metrics_address

    async def _started(self) -> Node:
        node = Node(
            NodeSettings(
                directory=str(self.directory),
                # A restarted node keeps its addresses.
                listen=self.address or self._reserved.fix(self._listen),
                listen_unix=self._listen_unix,
                peer_listen=self.peer_address or self._reserved.fix(self._peer_listen),
                advertise=self._advertise,
                advertise_peers=self._advertise_peers,
                join=self.join,
                fabric=self._fabric,
                fabric_settings=self._fabric_settings,
                fsync=self._fsync,
                metrics=self.metrics_address or self._reserved.fix(self._metrics),
                trace=self._trace,
                stop_deadline_ms=self._stop_deadline_ms,
                broker=self._limits,
            )
        )
        node.log = separate_log(self._log_level)
        await node.start()
        return node

    def stop(self, deadline_ms: int | None = None) -> bool:
        """Stops gracefully: completes pending requests. True if all were completed, or the node was not running."""
        self.resume()
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
            self._end_thread()
        if self._node is None:
            return True
        node, self._node = self._node, None
        try:
            patience_ms = self._stop_deadline_ms if deadline_ms is None else deadline_ms
            return self._call(node.stop(patience_ms), PATIENCE_S + patience_ms / 1000)
        finally:
            self._end_thread()

    def kill(self) -> None:
        """Stops abruptly: no request is completed, the log is not marked clean, unwritten data is lost."""
        if self._node is None:
            return
        node, self._node = self._node, None
        # A paused node abandons its work in the same turn of the loop, before it could do anything else.
        self._running_loop().call_soon_threadsafe(node.abandon)
        self.resume()
        self._end_thread()

    def pause(self) -> None:
        """Blocks the node's thread until `resume`, like SIGSTOP: its connections stay open."""
        if self._resumed is None:
            self._resumed = Event()
            paused = Event()
            self._running_loop().call_soon_threadsafe(_hold, paused, self._resumed)
            paused.wait(PATIENCE_S)

    def resume(self) -> None:
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    def restart(self) -> None:
        """Starts again on the same files and port, after a graceful stop unless it was killed."""
        self.stop()
        self.start()

    # --- use ---

    def client(self, *, name: str = "rostra-testing") -> blocking.Client:
        """A blocking client of this node."""
        return blocking.connect(self.address, name=name)

    def metrics(self) -> Metrics:
        """The current metrics of the node."""
        return Metrics(self._call(_exposed(self._running_node())))

    # --- the thread ---

    def _running_node(self) -> Node:
        assert self._node is not None, "the node is not running"
        return self._node

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the node is not running"
        return self._loop

    def _call(self, work: Coroutine[Any, Any, T], patience_s: float = PATIENCE_S) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result(patience_s)

    def _end_thread(self) -> None:
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        assert loop is not None and thread is not None
        # Sockets close in the turn of the loop after `close`.
        asyncio.run_coroutine_threadsafe(_last_turns(loop), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


def _hold(paused: Event, resumed: Event) -> None:
    paused.set()
    resumed.wait()


async def _exposed(node: Node) -> str:
    return generate_latest(registry_of(node.counters, node.broker, node.fabric, node.health)).decode()


async def _last_turns(loop: asyncio.AbstractEventLoop) -> None:
    rest = [task for task in asyncio.all_tasks(loop) if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)
    await loop.shutdown_default_executor()


def separate_log(level: str) -> Any:
    """A logger of its own on stderr, which leaves the application's logging unchanged."""
    return structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
    )
