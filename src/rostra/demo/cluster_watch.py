"""A thread that polls the state of the cluster through a client."""

from __future__ import annotations

from threading import Event, Thread

from rostra import blocking
from rostra.errors import RostraError
from rostra.model.cluster import ClusterState, CopyState, PlacedPartition

INTERVAL_S = 0.1
CALL_MS = 2_000


class ClusterWatch(Thread):
    """Polls any node that answers. `state` is the last reply."""

    def __init__(self, *addresses: str) -> None:
        super().__init__(name="watch", daemon=True)
        self.leave = Event()
        self.state: ClusterState | None = None
        self._addresses = addresses

    def run(self) -> None:
        while not self.leave.is_set():
            try:
                with blocking.connect(*self._addresses, name="watch", call_timeout_ms=CALL_MS) as client:
                    while not self.leave.wait(INTERVAL_S):
                        self.state = client.describe_cluster()
            except RostraError:
                # The node that was asked has been killed; connect to another.
                self.leave.wait(INTERVAL_S)

    def partition(self, topic: str, index: int) -> PlacedPartition | None:
        state = self.state
        found = (one for one in state.partitions if (one.topic, one.partition) == (topic, index)) if state else ()
        return next(iter(found), None)

    def replicas_on(self, node: int) -> list[tuple[PlacedPartition, CopyState]]:
        """The replicas of topics on a node."""
        state = self.state
        if state is None:
            return []
        return [
            (placed, copy) for placed in state.partitions if placed.topic for copy in placed.copies if copy.node == node
        ]

    def node_at(self, address: str) -> int:
        state = self.state
        return next((node.node for node in state.nodes if node.address == address), 0) if state else 0
