"""Rostra as three nodes, each a process: topics with three copies, acknowledged when a majority has them."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

import rostra.blocking
from benchmarks.contender import Durability, Endpoint, Pace, Stage
from benchmarks.ours import BY_UNIX, CALL_RECORDS, SOCKET, Rostra, address
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port
from benchmarks.trio import NODES, Launch, node_folder, node_folders, start_together, wait_until
from rostra.model.cluster import ClusterState, PlacedPartition


class RostraTrio(Rostra):
    def __init__(self, *, fsync: bool) -> None:
        super().__init__(fsync=fsync)
        self.name = "Rostra, 3 nodes" if fsync else "Rostra, 3 nodes, no fsync"
        self.durability = Durability.MAJORITY_FSYNC if fsync else Durability.MAJORITY_LATER
        self.settings = (
            f"three nodes, --fsync {self._fsync_mode}, topic with replicas=3, acks=all",
            f"asyncio client on uvloop, send_many of {CALL_RECORDS}, batches() received",
            "clients connected to the topic's owner",
        )

    def start(self, servers: Servers) -> Endpoint:
        folder = servers.new_folder("rostra-3")
        ports, peer_ports = [[free_port() for _ in range(NODES)] for _ in range(2)]
        launches = [
            Launch(self._command(own, port, peer_port, peer_ports[0]), own, port)
            for own, port, peer_port in zip(node_folders(folder), ports, peer_ports, strict=True)
        ]
        pids = start_together(servers, launches)
        return Endpoint(port=ports[0], pids=pids, folder=folder, ports=tuple(ports))

    def _command(self, folder: Path, port: int, peer_port: int, founder_port: int) -> list[str | Path]:
        joining = [] if peer_port == founder_port else ["--join", f"127.0.0.1:{founder_port}"]
        return [
            *(sys.executable, "-m", "rostra", "serve", "--data", folder / "data", "--fsync", self._fsync_mode),
            *("--listen", f"127.0.0.1:{port}", "--peer-listen", f"127.0.0.1:{peer_port}", *joining),
        ]

    def create(self, endpoint: Endpoint, topic: str) -> None:
        """Returns when all nodes are members and vote, and the topic's three copies are there and agree."""
        with rostra.blocking.connect(address(endpoint)) as client:
            wait_until(lambda: are_members(client.describe_cluster()), "three members that vote")
            client.create_topic(topic, replicas=NODES)
            wait_until(lambda: is_placed(client.describe_cluster(), topic), f"three copies of {topic}")

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        super().publish(at_owner(endpoint, topic), topic, stage, messages)

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        """Publishes with a producer, without waiting for acknowledgements: a slow one delays no later record."""
        with (
            rostra.blocking.connect(self.address(at_owner(endpoint, topic))) as client,
            client.producer(topic, acks="all") as producer,
        ):
            stage.ready()
            stage.wait_for_start()
            for value in pace.values():
                producer.send_nowait(value)
            producer.flush()
            stage.finished()

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        super().subscribe(at_owner(endpoint, topic), topic, stage, inboxes)


class RostraTrioBlocking(RostraTrio):
    """The same nodes with blocking clients at both ends, for latency."""

    def __init__(self, *, fsync: bool, unix: bool = False) -> None:
        super().__init__(fsync=fsync)
        self._unix = unix
        self.name += ", blocking client"
        clients = "blocking clients connected to the topic's owner, producer.send_nowait, batches() received"
        self.settings = (self.settings[0], clients)
        if unix:
            self.name += ", Unix socket"
            self.settings = (*self.settings, BY_UNIX)

    def _command(self, folder: Path, port: int, peer_port: int, founder_port: int) -> list[str | Path]:
        command = super()._command(folder, port, peer_port, founder_port)
        return [*command, "--listen-unix", folder / SOCKET] if self._unix else command

    def address(self, endpoint: Endpoint) -> str:
        if not self._unix or endpoint.folder is None:
            return super().address(endpoint)
        return f"unix:{node_folder(endpoint.folder, endpoint.ports.index(endpoint.port)) / SOCKET}"

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        (inbox,) = inboxes
        self.subscribe_blocking(at_owner(endpoint, topic), topic, stage, inbox)


def are_members(state: ClusterState) -> bool:
    return sum(node.alive and node.votes for node in state.nodes) == NODES


def is_placed(state: ClusterState, topic: str) -> bool:
    placed = partition_of(state, topic)
    if placed is None or not placed.owner:
        return False
    return sum(copy.votes and copy.match >= placed.commit for copy in placed.copies) == NODES


def partition_of(state: ClusterState, topic: str) -> PlacedPartition | None:
    return next((placed for placed in state.partitions if placed.topic == topic), None)


def at_owner(endpoint: Endpoint, topic: str) -> Endpoint:
    """The endpoint with the port of the topic's owner, so that no record is forwarded."""
    owners: list[str] = []

    def is_known() -> bool:
        owners[:] = owner_addresses(client.describe_cluster(), topic)
        return bool(owners)

    with rostra.blocking.connect(address(endpoint)) as client:
        wait_until(is_known, f"an owner of {topic}")
    return msgspec.structs.replace(endpoint, port=int(owners[0].rpartition(":")[2]))


def owner_addresses(state: ClusterState, topic: str) -> list[str]:
    """The address of the owner, or none while it is not known."""
    placed = partition_of(state, topic)
    return [] if placed is None else [node.address for node in state.nodes if node.node == placed.owner]
