"""Several nodes that form one cluster, in this process or as child processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rostra import blocking
from rostra.testing.metrics import Metrics

PATIENCE_S = 60.0
POLL_S = 0.02


class ClusterNode(Protocol):
    """What a cluster needs of a node, embedded or not."""

    address: str
    peer_address: str
    join: tuple[str, ...]

    @property
    def running(self) -> bool: ...
    def launch(self) -> None: ...
    def await_ready(self) -> None: ...
    def stop(self) -> object: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def client(self) -> blocking.Client: ...
    def metrics(self) -> Metrics: ...


N = TypeVar("N", bound=ClusterNode)


class WaitTimedOut(AssertionError):
    """A condition that a test waited for did not become true in time."""


class Cluster(Generic[N]):
    """Nodes of one cluster: the first founds it, the others join it. Created by `rostra.testing.cluster`.

    >>> with rostra.testing.cluster(3) as cluster:  # doctest: +SKIP
    ...     cluster.owner("orders").kill()
    """

    def __init__(self, directory: Path, make: Callable[[Path], N]) -> None:
        self._directory = directory
        self._make = make
        self.nodes: list[N] = []

    def __iter__(self) -> Iterator[N]:
        return iter(self.nodes)

    def __getitem__(self, index: int) -> N:
        return self.nodes[index]

    def start(self, count: int) -> None:
        """Returns when every node knows every other and all of them vote."""
        if not self.nodes:
            founder = self._next()
            founder.launch()
            founder.await_ready()
        joining = [self._next() for _ in range(count - len(self.nodes))]
        for node in joining:
            node.join = (self.nodes[0].peer_address,)
            node.launch()
        for node in joining:
            node.await_ready()
        self.await_members()

    def _next(self) -> N:
        directory = self._directory / f"node-{len(self.nodes)}"
        directory.mkdir(parents=True, exist_ok=True)
        node = self._make(directory)
        self.nodes.append(node)
        return node

    def add(self) -> N:
        """Starts another node, which joins through the first running one."""
        joins = (self.running()[0].peer_address,)
        node = self._next()
        node.join = joins
        node.launch()
        node.await_ready()
        return node

    def stop(self) -> None:
        """Stops the nodes, last one first, so that each but the first can transfer its partitions."""
        for node in self.nodes:
            node.resume()
        for node in reversed(self.nodes):
            node.stop()

    # --- state ---

    def running(self) -> list[N]:
        return [node for node in self.nodes if node.running]

    def await_members(self, count: int | None = None) -> None:
        """Waits until every running node sees `count` members alive and voting; by default, all running ones."""
        wanted = len(self.running()) if count is None else count

        def all_joined() -> bool:
            seen = [node.metrics() for node in self.running()]
            return all(
                metrics.value("rostra_member_up") >= wanted and metrics.value("rostra_member_votes") >= wanted
                for metrics in seen
            )

        self.wait_until(all_joined, f"{wanted} members alive")

    def owner(self, topic: str, partition: int = 0) -> N:
        """The running node that owns the partition; waits until there is one."""
        found: list[N] = []

        def known() -> bool:
            found[:] = [node for node in self.running() if self._owns(node, topic, partition)]
            return len(found) == 1

        self.wait_until(known, f"one owner of {topic}/{partition}")
        return found[0]

    def _owns(self, node: N, topic: str, partition: int) -> bool:
        labels = {"topic": topic, "partition": str(partition)}
        return node.metrics().value("rostra_partition_owner", **labels) == 1

    def others(self, *nodes: N) -> list[N]:
        return [node for node in self.running() if node not in nodes]

    def wait_until(self, condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise WaitTimedOut(f"not within {patience_s:g} s: {what}")
            time.sleep(POLL_S)
