"""Rostra as a ring of brokers, each a process: acknowledged when every broker has the record on stable storage."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import rostra.blocking
from benchmarks.contender import Durability, Endpoint, Stage
from benchmarks.ours import CALL_RECORDS, Rostra
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port
from benchmarks.trio import Launch, node_folders, start_together, wait_until
from rostra.model.cluster import ClusterState


class RostraRing(Rostra):
    """Publishes at the first broker and subscribes at the last: the longest path of a record."""

    def __init__(self, nodes: int) -> None:
        super().__init__(fsync=True)
        self._nodes = nodes
        self.name = f"Rostra, a ring of {nodes}"
        self.durability = Durability.FSYNC if nodes == 1 else Durability.ALL_FSYNC
        self.settings = (
            f"{nodes} nodes, --fabric flood, --fsync {self._fsync_mode}, acks=all: the circle has closed",
            f"asyncio client on uvloop, send_many of {CALL_RECORDS}, batches() received",
            "published at the first broker, received at the last",
        )

    def start(self, servers: Servers) -> Endpoint:
        folder = servers.new_folder("rostra-ring")
        ports, peer_ports = [[free_port() for _ in range(self._nodes)] for _ in range(2)]
        launches = [
            Launch(self._command(own, port, peer_port, peer_ports[0]), own, port)
            for own, port, peer_port in zip(node_folders(folder, self._nodes), ports, peer_ports, strict=True)
        ]
        pids = start_together(servers, launches)
        return Endpoint(port=ports[0], pids=pids, folder=folder, ports=tuple(ports))

    def _command(self, folder: Path, port: int, peer_port: int, founder_port: int) -> list[str | Path]:
        joining = [] if peer_port == founder_port else ["--join", f"127.0.0.1:{founder_port}"]
        return [
            *(sys.executable, "-m", "rostra", "serve", "--data", folder / "data", "--fsync", self._fsync_mode),
            *("--listen", f"127.0.0.1:{port}", "--peer-listen", f"127.0.0.1:{peer_port}", *joining),
            *("--fabric", "flood"),
        ]

    def create(self, endpoint: Endpoint, topic: str) -> None:
        """Returns when the ring has closed and every broker has the topic."""
        for port in endpoint.ports:
            with rostra.blocking.connect(f"127.0.0.1:{port}") as client:
                wait_until(lambda: self._is_closed(client.describe_cluster()), "the ring to close")
                client.create_topic(topic)

    def _is_closed(self, state: ClusterState) -> bool:
        return len(state.ring) == self._nodes and all(len(one.members) == self._nodes for one in state.ring)

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        super().subscribe(msgspec.structs.replace(endpoint, port=endpoint.ports[-1]), topic, stage, inboxes)
