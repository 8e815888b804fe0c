"""The fast path does what the full step does: the same cluster run twice, with equal effects."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from rostra.errors import CorruptLog, DiskFull
from rostra.fabric.api import (
    Append,
    Committed,
    FabricEffect,
    FabricInput,
    LogLine,
    Now,
    PeerReceived,
    Propose,
    ProposeLogStart,
    Readers,
    ReadFailed,
    Synced,
    WriteFailed,
)
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.machine import Raft
from rostra.fabric.raft.messages import AppendEntries, AppendEntriesReply
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.batch import stamp
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition
from tests.unit.raft.nodes import Cluster, Node

STEPS = 500
FULL = DiskFull()
DAMAGED = CorruptLog("a segment", 0, "a bit differs")
Steps = list[tuple[Now, NodeId, FabricInput, list[FabricEffect]]]


def run_cluster(seed: int, steps: Steps) -> Cluster:
    """Publishes records with random faults in between."""
    cluster = Cluster(3, seed=seed, settings=RaftSettings(window_messages=4 if seed % 2 else 64))
    cluster.ready()
    (partition,) = cluster.topic("t", replicas=3)
    random = Random(seed)
    steps.clear()
    cluster.network.delay_us = (100, random.choice((300, 3_000, 30_000)))
    for number in range(STEPS):
        for node in cluster.alive:
            # Two nodes may believe that they lead.
            if node.leads(partition) and random.random() < 0.8:
                node.publish(partition, b"%d" % number, token=1000 + 2 * number)
        if random.random() < 0.15:
            inject_fault(cluster, partition, random)
        cluster.run(random.choice((0.05, 0.5, 5, 50)))
    cluster.network.heal()
    for node in cluster.nodes.values():
        if not node.alive:
            node.start()
    cluster.run(5_000)
    return cluster


def inject_fault(cluster: Cluster, partition: Partition, random: Random) -> None:
    node = random.choice(list(cluster.nodes.values()))
    match random.randrange(10):
        case 0:
            cluster.network.loss, cluster.network.repeat = 0.1, 0.1
        case 1:
            others = tuple(other for other in cluster.nodes if other != node.node)
            cluster.network.split((node.node,), others)
        case 2:
            cluster.network.heal()
        case 3 if node.alive:
            node.crash()
        case 4 if not node.alive:
            node.start()
        case 5 if node.alive:
            node.step(Readers(partition, random.random() < 0.5))
        case 6 if node.alive and partition in node.disks:
            refuse_end(node, partition)
        case 7 if node.alive and node.leads(partition):
            node.step(ProposeLogStart(partition, random.randint(0, node.raft.groups[partition].commit)))
        case 8 if node.alive and random.random() < 0.3:
            node.step(ReadFailed(2, partition, DAMAGED))
        case _:
            cluster.network.heal()


def refuse_end(node: Node, partition: Partition) -> None:
    """The disk is full: the last batch that it was given is not there."""
    medium, group = node.disks[partition], node.raft.groups.get(partition)
    if group is None or group.log.synced == group.log.end:
        return
    end = group.log.synced
    medium.truncate(end, medium.generation + 1)
    node.step(WriteFailed(partition, end, medium.generation, FULL))


@pytest.mark.parametrize("seed", range(40))
def test_both_paths_have_the_same_effects(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: Steps = []
    step = Raft.step

    def note(raft: Raft, now: Now, given: FabricInput) -> list[FabricEffect]:
        effects = step(raft, now, given)
        steps.append((now, raft.node, given, list(effects)))
        return effects

    monkeypatch.setattr(Raft, "step", note)
    ends = [state_of(run_cluster(seed, steps))]
    by_fast_path = list(steps)
    monkeypatch.setattr(RaftGroup, "update_fast_path", RaftGroup.leave_fast_path)
    ends.append(state_of(run_cluster(seed, steps)))
    differing = next((pair for pair in zip(by_fast_path, steps, strict=False) if pair[0] != pair[1]), None)
    assert differing is None and len(by_fast_path) == len(steps)
    assert ends[0] == ends[1]


def state_of(cluster: Cluster) -> list[tuple[int, int, int, int, int]]:
    return [
        (node.node, group.term, group.commit, group.log.end, group.log.synced)
        for node in cluster.nodes.values()
        for group in node.raft.groups.values()
    ]


def test_records_of_three_nodes_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: Counter[str] = Counter()
    at_length = Raft._full_step

    def note(raft: Raft, given: FabricInput) -> list[FabricEffect]:
        message = getattr(given, "message", given)
        ways[type(message).__name__] += 1
        return at_length(raft, given)

    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t", replicas=3)
    for number in range(5):
        cluster.publish(partition, b"%d" % number)
    cluster.run(100)
    cluster.publish(partition, b"the first one wakes the group")
    cluster.run(10)
    monkeypatch.setattr(Raft, "_full_step", note)
    for number in range(20):
        cluster.publish(partition, b"%d" % number)
    # A heartbeat may come in between; of what a record causes nothing took the full step.
    assert not {name for name in ways if name in {"Propose", "Synced", "AppendEntries", "AppendEntriesReply"}}


def steady() -> tuple[Cluster, Partition, Node, Node]:
    """A partition, its leader and a follower, both on the fast path."""
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t", replicas=3)
    for number in range(5):
        cluster.publish(partition, b"%d" % number)
        cluster.run(5)
    leader = cluster.leader(partition)
    assert leader is not None and leader.raft.groups[partition].fast_leader
    follower = next(node for node in cluster.alive if node is not leader)
    assert follower.raft.groups[partition].fast_follower
    return cluster, partition, leader, follower


@pytest.mark.parametrize("at", [0, 5, 10, 25, 33, 37, 45, 60, 90])
def test_a_batch_that_was_damaged_on_its_way_is_no_entry(at: int) -> None:
    cluster, partition, leader, follower = steady()
    group = follower.raft.groups[partition]
    end = group.log.end
    batch = encode([b"x" * 20], timestamp_us=1)
    stamp(batch, partition=partition, base_offset=end, owner_epoch=group.term)
    damaged = bytearray(batch)
    damaged[at] ^= 1
    message = AppendEntries(partition, group.term, end, group.log.last_term, group.commit, group.log.first)
    for payload in (damaged, damaged[:50], batch[:-1], batch[:50]):
        (note,) = follower.raft.step(cluster.now, PeerReceived(leader.raft.node, message, payload))
        assert isinstance(note, LogLine) and note.level == "error" and group.log.end == end
    of_another_term = msgspec.structs.replace(message, prev_term=group.term - 1)
    if end > group.commit:
        follower.raft.step(cluster.now, PeerReceived(leader.raft.node, of_another_term, bytearray(batch)))
        assert group.log.end == end
    ahead = msgspec.structs.replace(message, commit=end + 100)
    cluster.run(1)
    (append, *_) = follower.raft.step(cluster.now, PeerReceived(leader.raft.node, ahead, batch))
    assert isinstance(append, Append) and group.log.end == end + 1
    assert group.commit == end + 1, "no more than it has"
    assert group.election.leader_heard_us == cluster.us


def test_the_fast_path_accepts_no_stale_reply() -> None:
    cluster, partition, leader, follower = steady()
    group = leader.raft.groups[partition]
    end = group.log.end
    leader.raft.step(cluster.now, Propose(2000, partition, encode([b"x"], timestamp_us=1)))
    peer, term = follower.raft.node, group.term
    before = AppendEntriesReply(partition, term, end + 1, end + 1, end, snapshots=-1, has_readers=False)
    other_term = AppendEntriesReply(partition, term - 1, end + 1, end + 1, end, has_readers=False)
    for reply in (before, other_term):
        assert leader.raft.step(cluster.now, PeerReceived(peer, reply, None)) == []
    assert leader.raft.step(cluster.now, Synced(partition, 7, end + 1)) == [], "of another generation"
    assert group.commit == end and group.log.synced == end
    assert leader.raft.step(cluster.now, Synced(partition, 0, end + 1)) == []
    reply = AppendEntriesReply(partition, term, end + 1, end + 1, end, has_readers=False)
    assert leader.raft.step(cluster.now, PeerReceived(peer, reply, None)) == [Committed(partition, end + 1)]
