"""Real nodes for tests, in this process or as child processes that can be killed; single nodes or clusters.

>>> import rostra.testing
>>> with rostra.testing.node() as node, node.client() as client:
...     client.publish("greetings", b"hello").offset
1

The pytest fixtures `rostra_node` and `rostra_cluster` give one node and three. Modules are imported when first used,
so that the plugin does not slow down the start of pytest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rostra.broker.settings import BrokerSettings
    from rostra.testing.clusters import Cluster
    from rostra.testing.embedded import EmbeddedNode
    from rostra.testing.process import ProcessNode

__all__ = ["cluster", "node", "process_cluster", "process_node"]


@contextmanager
def node(
    *,
    directory: str | Path | None = None,
    listen: str = "127.0.0.1:0",
    listen_unix: str | Path = "",
    peer_listen: str = "127.0.0.1:0",
    join: tuple[str, ...] = (),
    fabric: str = "raft",
    fabric_settings: Mapping[str, int | bool | str] | None = None,
    fsync: Literal["commit", "never"] = "commit",
    metrics: str = "",
    trace: str | Path = "",
    stop_deadline_ms: int = 10_000,
    limits: BrokerSettings | None = None,
    log_level: str = "warning",
) -> Iterator[EmbeddedNode]:
    """A node in this process, on its own thread, with real sockets and files.

    By default its directory is temporary and its port a free one.
    """
    from rostra.testing.directories import node_directory
    from rostra.testing.embedded import EmbeddedNode

    with node_directory(directory) as path:
        started = EmbeddedNode(
            path,
            listen=listen,
            listen_unix=listen_unix,
            peer_listen=peer_listen,
            join=join,
            fabric=fabric,
            fabric_settings=fabric_settings,
            fsync=fsync,
            metrics=metrics,
            trace=trace,
            stop_deadline_ms=stop_deadline_ms,
            limits=limits,
            log_level=log_level,
        )
        started.start()
        try:
            yield started
        finally:
            started.stop()


@contextmanager
def process_node(
    *,
    directory: str | Path | None = None,
    listen: str = "127.0.0.1:0",
    peer_listen: str = "127.0.0.1:0",
    join: tuple[str, ...] = (),
    fabric: str = "raft",
    fabric_settings: Mapping[str, int | bool | str] | None = None,
    fsync: Literal["commit", "never"] = "commit",
    metrics: str = "off",
    arguments: tuple[str, ...] = (),
) -> Iterator[ProcessNode]:
    """A node as a child process, which ends with the block and with this process, even if that is killed."""
    from rostra.testing.directories import node_directory
    from rostra.testing.process import ProcessNode

    with node_directory(directory) as path:
        started = ProcessNode(
            path,
            listen=listen,
            peer_listen=peer_listen,
            join=join,
            fabric=fabric,
            fabric_settings=fabric_settings,
            fsync=fsync,
            metrics=metrics,
            arguments=arguments,
        )
        try:
            started.start()
            yield started
        finally:
            started.stop()


@contextmanager
def cluster(
    nodes: int = 3,
    *,
    directory: str | Path | None = None,
    fabric: str = "raft",
    fabric_settings: Mapping[str, int | bool | str] | None = None,
    fsync: Literal["commit", "never"] = "commit",
    trace: str | Path = "",
    limits: BrokerSettings | None = None,
    log_level: str = "error",
) -> Iterator[Cluster[EmbeddedNode]]:
    """Nodes in this process that form one cluster, each on its own thread."""
    from rostra.testing.clusters import Cluster
    from rostra.testing.directories import node_directory
    from rostra.testing.embedded import EmbeddedNode

    def make(path: Path) -> EmbeddedNode:
        return EmbeddedNode(
            path,
            fabric=fabric,
            fabric_settings=fabric_settings,
            fsync=fsync,
            trace=trace,
            limits=limits,
            log_level=log_level,
        )

    with node_directory(directory) as path:
        started = Cluster(path, make)
        try:
            started.start(nodes)
            yield started
        finally:
            started.stop()


@contextmanager
def process_cluster(
    nodes: int = 3,
    *,
    directory: str | Path | None = None,
    fabric: str = "raft",
    fabric_settings: Mapping[str, int | bool | str] | None = None,
    fsync: Literal["commit", "never"] = "commit",
    arguments: tuple[str, ...] = (),
) -> Iterator[Cluster[ProcessNode]]:
    """Nodes as child processes that form one cluster; they end with the block or with this process."""
    from rostra.testing.clusters import Cluster
    from rostra.testing.directories import node_directory
    from rostra.testing.process import ProcessNode

    def make(path: Path) -> ProcessNode:
        return ProcessNode(
            path,
            fabric=fabric,
            fabric_settings=fabric_settings,
            fsync=fsync,
            metrics="127.0.0.1:0",
            arguments=arguments,
        )

    with node_directory(directory) as path:
        started = Cluster(path, make)
        try:
            started.start(nodes)
            yield started
        finally:
            started.stop()
