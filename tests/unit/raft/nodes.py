"""Whole nodes on virtual time: all their groups, their disks, and the links between them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, assert_never

from rostra.errors import RostraError
from rostra.fabric.api import (
    Append,
    Blocked,
    Broken,
    Committed,
    Confirmed,
    Connect,
    Covered,
    Described,
    Disconnect,
    Drop,
    Echo,
    FabricEffect,
    FabricInput,
    Forwarded,
    ForwardReceived,
    HeldByAll,
    KnownNodes,
    LogLine,
    Open,
    OperationDone,
    PartitionJoined,
    PeerIdentified,
    PeerReceived,
    Persist,
    ProducerAdmitted,
    ProducerMigrated,
    ProposeTopic,
    Read,
    ReadDone,
    Ready,
    Refused,
    Send,
    ServedElsewhere,
    Serving,
    SetTimer,
    Started,
    StopPrepared,
    Sync,
    Synced,
    TimerFired,
    TopicChanged,
    TopicClosed,
    TopicOpened,
    TopicSpec,
    Trim,
    Truncate,
)
from rostra.fabric.cluster.metadata_entries import ClusterMember
from rostra.fabric.consensus.roles import Role
from rostra.fabric.raft.machine import Raft
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.cluster import ClusterState
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from tests.unit.raft.disk_model import DiskModel, StoredEntry
from tests.unit.raft.simulation import Simulation


def member(node: int) -> ClusterMember:
    return ClusterMember(NodeId(node), f"client:{node}", f"peer:{node}")


class Node:
    def __init__(self, cluster: Cluster, node: int, founders: tuple[int, ...], join: tuple[int, ...] = ()) -> None:
        self.cluster = cluster
        self.node = node
        self._founders = tuple(member(one) for one in founders)
        self._join = tuple(f"peer:{one}" for one in join)
        self.disks: dict[Partition, DiskModel] = {}
        self.hard: dict[str, bytes] = {}
        self.alive = False
        self.starts = 0
        self.journal_us = 0
        self._clear()

    def _clear(self) -> None:
        self.raft = self._machine()
        self.timers: dict[str, int] = {}
        self.topics: dict[str, TopicSpec] = {}
        self.opened: dict[int, str] = {}
        self.closed: list[int] = []
        self.changed: list[int] = []
        self.held: dict[Partition, int] = {}
        self.confirmed: list[int] = []
        self.operations_done: list[int] = []
        self.described: dict[int, ClusterState] = {}
        self.serving: dict[Partition, Serving | ServedElsewhere] = {}
        self.blocked: dict[Partition, RostraError] = {}
        self.commit: dict[Partition, int] = {}
        self.refused: dict[int, RostraError] = {}
        self.links: dict[NodeId, str] = {}
        self.notes: list[str] = []
        self.known_nodes: tuple[str, ...] = ()
        self.ready = self.stop_prepared = False

    def _machine(self) -> Raft:
        own = member(self.node)
        return Raft(
            own.node,
            own.address,
            own.peer_address,
            founders=self._founders,
            join=self._join,
            random=Random(self.cluster.random.getrandbits(64)),
            settings=self.cluster.settings,
        )

    def start(self) -> None:
        self.starts += 1
        self.alive = True
        self._clear()
        logs = tuple(medium.recovered(partition) for partition, medium in self.disks.items())
        self.step(Started(dict(self.hard), logs))

    def crash(self) -> None:
        self.alive = False
        for medium in self.disks.values():
            medium.crash(self.cluster.random)

    def guard(self, action: Callable[..., object], *given: Any) -> Callable[[], None]:
        starts = self.starts

        def run() -> None:
            if self.alive and self.starts == starts:
                action(*given)

        return run

    def step(self, given: FabricInput) -> list[FabricEffect]:
        effects = self.raft.step(self.cluster.now, given)
        self.carry_out(effects)
        return effects

    def carry_out(self, effects: list[FabricEffect] | tuple[FabricEffect, ...]) -> None:
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: FabricEffect) -> None:
        cluster = self.cluster
        match effect:
            case Send():
                cluster.send(self, effect)
            case Append():
                self.disks[effect.partition].append(effect.batch)
                if effect.sync:
                    self._sync(effect.partition)
            case Sync():
                self._sync(effect.partition)
            case Open():
                self.disks.setdefault(effect.partition, DiskModel()).empty(effect.first)
            case Drop():
                self.disks.pop(effect.partition, None)
            case Truncate():
                self.disks[effect.partition].truncate(effect.offset, effect.generation)
            case Trim():
                self.disks[effect.partition].trim(effect.first)
            case Persist():
                # A journal is written in order.
                self.journal_us = max(self.journal_us, cluster.us + cluster.random.randint(300, 3_000))
                cluster.at(self.journal_us, self.guard(self._persisted, effect))
            case Echo():
                self.step(effect)
            case Read():
                cluster.later(cluster.random.randint(50, 500), self.guard(self._read, effect))
            case SetTimer():
                self._set_timer(effect)
            case Connect():
                if effect.peer:
                    self.links[effect.peer] = effect.address
                else:
                    peer = NodeId(int(effect.address.split(":")[1]))
                    self.links[peer] = effect.address
                    cluster.later(1_000, self.guard(self.step, PeerIdentified(peer, effect.address)))
            case Disconnect():
                self.links.pop(effect.peer, None)
            case Refused():
                self.refused[effect.token] = effect.error
            case Committed():
                self.commit[effect.partition] = effect.offset
            case Serving() | ServedElsewhere():
                self.serving[effect.partition] = effect
            case TopicOpened():
                self.topics[effect.spec.name] = effect.spec
                if effect.token is not None:
                    self.opened[effect.token] = effect.spec.name
            case TopicChanged():
                self.topics[effect.spec.name] = effect.spec
                if effect.token is not None:
                    self.changed.append(effect.token)
            case HeldByAll():
                self.held[effect.partition] = effect.offset
            case TopicClosed():
                if effect.token is not None:
                    self.closed.append(effect.token)
                self.topics = {name: spec for name, spec in self.topics.items() if spec.topic != effect.topic}
            case Confirmed():
                self.confirmed.append(effect.token)
            case OperationDone():
                self.operations_done.append(effect.token)
            case Described():
                self.described[effect.token] = effect.state
            case Ready():
                self.ready = True
            case StopPrepared():
                self.stop_prepared = True
            case LogLine():
                self.notes.append(effect.event)
            case Blocked():
                self.blocked[effect.partition] = effect.error
            case KnownNodes():
                self.known_nodes = effect.addresses
            case (
                Broken()
                | Covered()
                | PartitionJoined()
                | Forwarded()
                | ForwardReceived()
                | ProducerAdmitted()
                | ProducerMigrated()
            ):
                raise AssertionError(f"not an effect of this fabric: {effect}")
            case _:
                assert_never(effect)

    def _set_timer(self, effect: SetTimer) -> None:
        if effect.at_us is None:
            self.timers.pop(effect.timer, None)
            return
        self.timers[effect.timer] = effect.at_us
        self.cluster.at(effect.at_us, self.guard(self._fire, effect.timer, effect.at_us))

    def _fire(self, timer: str, at_us: int) -> None:
        if self.timers.get(timer) == at_us:
            del self.timers[timer]
            self.step(TimerFired(timer))

    def _sync(self, partition: Partition) -> None:
        medium = self.disks[partition]
        under_way = [one for one in medium.stored if not one.durable]
        ended = self.guard(self._synced, partition, medium, under_way, medium.generation, medium.end)
        self.cluster.later(self.cluster.random.randint(300, 3_000), ended)

    def _synced(
        self, partition: Partition, medium: DiskModel, under_way: list[StoredEntry], generation: int, end: int
    ) -> None:
        for one in under_way:
            one.durable = True
        if self.disks.get(partition) is medium:
            self.step(Synced(partition, generation, end))

    def _persisted(self, effect: Persist) -> None:
        self.hard[effect.key] = effect.state
        self.carry_out(effect.then)

    def _read(self, effect: Read) -> None:
        medium = self.disks.get(effect.partition)
        if medium is not None:
            batches = medium.read(effect.offset, effect.end, effect.bytes_max)
            following = Batch(medium.stored[-1].batch).next_offset if batches else effect.offset
            self.step(ReadDone(effect.token, effect.partition, batches, following))

    # --- actions and state for tests ---

    def create(self, name: str, partitions: int = 1, token: int = 2, replicas: int = 0) -> None:
        topic = TopicId(self.cluster.random.getrandbits(62) + 1)
        self.step(ProposeTopic(token, TopicSpec(topic, name, partitions, b""), 1 << 20, replicas))

    def publish(self, partition: Partition, value: bytes) -> RostraError | tuple[int, int]:
        result, effects = self.raft.propose(self.cluster.now, partition, encode([value], timestamp_us=1))
        self.carry_out(effects)
        return result

    def leads(self, partition: Partition) -> bool:
        group = self.raft.groups.get(partition)
        return self.alive and group is not None and group.role is Role.LEADER

    def values(self, partition: Partition) -> list[bytes | None]:
        batches = [Batch(one.batch) for one in self.disks[partition].stored]
        return [value for batch in batches if not batch.header.is_control for value in batch.values()]


class Cluster(Simulation):
    def __init__(self, founders: int = 3, *, seed: int = 0, settings: RaftSettings | None = None) -> None:
        super().__init__(seed)
        self.settings = settings or RaftSettings()
        ids = tuple(range(1, founders + 1))
        self.nodes = {node: Node(self, node, ids) for node in ids}
        for node in self.nodes.values():
            node.start()

    def __getitem__(self, node: int) -> Node:
        return self.nodes[node]

    def add(self, node: int, *through: int) -> Node:
        added = self.nodes[node] = Node(self, node, (), through)
        added.start()
        return added

    def send(self, sender: Node, effect: Send) -> None:
        peer = effect.peer
        payload = b"".join(effect.payload)

        def arrive(message: object) -> None:
            node = self.nodes.get(peer)
            if node is not None and node.alive:
                given = PeerReceived(NodeId(sender.node), message, bytearray(payload) if payload else None)
                node.step(given)

        # As on a network: a link exists only if the node asked for it.
        if peer in sender.links:
            self.transmit(sender.node, peer, effect.message, arrive)

    # --- actions and state for tests ---

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.alive]

    def ready(self) -> None:
        self.run_until(lambda: all(node.ready for node in self.alive))

    def topic(self, name: str, partitions: int = 1, at: int = 1, replicas: int = 0) -> list[Partition]:
        """Creates a topic through this node; returns when every node knows it and every partition has a leader."""
        self.nodes[at].create(name, partitions, replicas=replicas)
        self.run_until(lambda: all(name in node.topics for node in self.alive))
        topic = self.nodes[at].topics[name].topic
        found = [Partition(topic, PartitionIndex(index)) for index in range(partitions)]
        self.run_until(lambda: all(self.leader(partition) is not None for partition in found))
        return found

    def leader(self, partition: Partition) -> Node | None:
        leaders = [node for node in self.alive if node.leads(partition)]
        return max(leaders, key=lambda node: node.raft.groups[partition].term, default=None)

    def publish(self, partition: Partition, value: bytes) -> int:
        """Publishes through the leader; returns when it is committed there."""
        self.run_until(lambda: self.leader(partition) is not None)
        leader = self.leader(partition)
        assert leader is not None
        placed = leader.publish(partition, value)
        assert isinstance(placed, tuple), placed
        self.run_until(lambda: leader.commit.get(partition, 0) > placed[1])
        return placed[0]
