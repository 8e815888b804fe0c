"""Members come and go while nodes crash and the network parts: nothing acknowledged is lost, every copy is the same."""

from __future__ import annotations

from collections import Counter

import pytest

from rostra.fabric.api import ProposeDrop, RemoveNode
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId, Partition
from tests.unit.raft.nodes import Cluster, Node

SETTINGS = RaftSettings(metadata_log_bytes=2_000, reassignments_max=2, window_bytes=4_000, read_bytes=1_000)
NODES_MAX = 6


class Churn:
    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(3, seed=seed, settings=SETTINGS)
        self.cluster.ready()
        self.partitions = self.cluster.topic("t", 4)
        self.random = self.cluster.random
        self.acknowledged: dict[Partition, dict[int, bytes]] = {partition: {} for partition in self.partitions}
        self.took_effect: Counter[str] = Counter()
        self._joined = 3
        self._token = 10_000

    def run(self, rounds: int = 40) -> None:
        actions = [self._join, self._remove, self._remove, self._crash, self._start, self._start, self._split]
        actions += [self._heal, self._heal, self._topic, self._power_cut]
        for number in range(rounds):
            self.cluster.run(self.random.choice([50, 300, 800]))
            self._publish(b"%d" % number)
            self.random.choice(actions)()
        self._recover()
        self._check()

    @property
    def members(self) -> list[Node]:
        return [node for node in self.cluster.nodes.values() if not node.raft.removed]

    def _publish(self, value: bytes) -> None:
        for partition in self.partitions:
            leader = self.cluster.leader(partition)
            if leader is not None and isinstance(placed := leader.publish(partition, value), tuple):
                self.cluster.run(10)
                if leader.alive and leader.commit.get(partition, 0) > placed[1]:
                    self.acknowledged[partition][placed[0]] = value

    # --- what happens ---

    def _some(self, alive: bool) -> Node | None:
        nodes = [node for node in self.members if node.alive is alive]
        return self.random.choice(nodes) if nodes else None

    def _join(self) -> None:
        through = [node.node for node in self.members if node.ready]
        if self._joined < NODES_MAX:
            self._joined += 1
            self.took_effect["join"] += 1
            self.cluster.add(self._joined, *through)

    def _remove(self) -> None:
        asked, victim = self._some(alive=True), self.random.choice(self.members)
        if asked is not None and len(self.members) > 3:
            self._token += 2
            self.took_effect["remove"] += 1
            asked.step(RemoveNode(self._token, NodeId(victim.node)))

    def _crash(self) -> None:
        node = self._some(alive=True)
        if node is not None:
            node.crash()

    def _start(self) -> None:
        for node in self.cluster.nodes.values():
            if not node.alive:
                node.start()

    def _power_cut(self) -> None:
        for node in self.cluster.alive:
            node.crash()
        self._start()

    def _split(self) -> None:
        nodes = list(self.cluster.nodes)
        self.random.shuffle(nodes)
        cut = self.random.randint(1, len(nodes) - 1)
        self.cluster.network.split(tuple(nodes[:cut]), tuple(nodes[cut:]))
        self.cluster.network.loss = 0.03

    def _heal(self) -> None:
        self.cluster.network.heal()

    def _topic(self) -> None:
        """One more topic, and one less: so that the metadata log is trimmed at times."""
        node = self._some(alive=True)
        if node is None:
            return
        self._token += 2
        node.create(f"u{self._token}", 2, self._token)
        surplus = [spec for name, spec in node.topics.items() if name != "t"]
        if surplus:
            self._token += 2
            node.step(ProposeDrop(self._token, self.random.choice(surplus).topic))

    # --- at the end ---

    def _recover(self) -> None:
        cluster = self.cluster
        cluster.network.heal()
        self._start()
        cluster.run_until(self._settled, 120_000)
        for partition in self.partitions:
            cluster.publish(partition, b"last")
        cluster.run(3_000)

    def _settled(self) -> bool:
        """No reassignment or removal is in progress, removed nodes know it, and all metadata states are equal."""
        members = self.members
        leader = self.cluster.leader(METADATA_PARTITION)
        if leader is None or not all(node.ready for node in members):
            return False
        state = leader.raft.metadata.state
        if state.reassigning or state.leaving or sorted(state.members) != [n.node for n in members]:
            return False
        return all(node.raft.metadata.applied == leader.raft.metadata.applied for node in members) and all(
            self.cluster.leader(partition) is not None for partition in self.partitions
        )

    def _check(self) -> None:
        cluster = self.cluster
        leader = cluster.leader(METADATA_PARTITION)
        assert leader is not None
        state = leader.raft.metadata.state
        for node in self.members:
            theirs = node.raft.metadata.state
            assert (theirs.members, theirs.topics, theirs.assignments) == (
                state.members,
                state.topics,
                state.assignments,
            )
        for partition in self.partitions:
            replicas = state.replica_assignment(partition).replicas
            assert len(replicas) >= min(3, len(self.members))
            logs = [[one.batch for one in cluster[node].disks[partition].stored] for node in replicas]
            assert all(log == logs[0] for log in logs), "every copy is the same"
            stored = {one.base: one.batch for one in cluster[replicas[0]].disks[partition].stored}
            assert all(value in stored[base] for base, value in self.acknowledged[partition].items())
            assert all(partition not in node.disks for node in self.members if node.node not in replicas)
        self.took_effect["removed"] += len(state.removed)
        self.took_effect["trimmed"] += cluster[leader.node].disks[METADATA_PARTITION].first > 0


@pytest.mark.requirement("RF-33:membership")
def test_nothing_acknowledged_is_lost_while_members_come_and_go() -> None:
    took_effect: Counter[str] = Counter()
    for seed in range(8):
        churn = Churn(seed)
        churn.run()
        took_effect += churn.took_effect
    assert not {"join", "remove", "removed", "trimmed"} - set(took_effect)
