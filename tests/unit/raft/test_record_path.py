"""What a record costs and causes in a group, step by step: proposal, sync, entries, acknowledgement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import msgspec
import pytest

from rostra.fabric.api import Append, Committed, Fabric, LogLine, Now, PeerReceived, Synced
from rostra.fabric.replication.messages import AppendEntries, AppendEntriesReply
from rostra.model.batch import stamp
from rostra.model.encode import encode
from rostra.model.ids import Partition
from tests.unit.broker.broker_driver import BrokerDriver
from tests.unit.raft.nodes import Cluster, Node

NOW = Now(10**9, 10**9)
CALLS_MAX = 29
"""Two steps of the fabric; more than this and small batches cost noticeably more."""


def calls_of(action: Callable[[], object]) -> int:
    calls = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def one_publish(fabric: Fabric, partition: Partition, end: int) -> int:
    """The calls that a batch costs until it is committed; `end` is where the log ends before it."""
    batch = encode([b"x"], timestamp_us=1)
    proposed = calls_of(lambda: fabric.propose(NOW, partition, batch))
    synced = calls_of(lambda: fabric.step(NOW, Synced(partition, 0, end + 1)))
    return proposed + synced


def test_a_publish_on_a_single_node_takes_few_calls() -> None:
    desk = BrokerDriver().start()
    desk.connect(1)
    topic = desk.make_topic(1)
    desk.settle()
    (partition,) = [partition for partition in desk.logs if partition.topic == topic]
    assert one_publish(desk.broker.fabric, partition, desk.logs[partition].end) <= CALLS_MAX


def test_a_record_of_one_node_is_appended_synced_and_committed() -> None:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"first")
    node = cluster[1]
    group = node.raft.groups[partition]
    offsets, (appended,) = node.raft.propose(cluster.now, partition, encode([b"second"], timestamp_us=1))
    assert isinstance(appended, Append) and appended.sync
    end = group.log.end
    assert offsets == (end - 1, end - 1)
    assert node.raft.step(cluster.now, Synced(partition, 1, end)) == [], "of another generation"
    assert node.raft.step(cluster.now, Synced(partition, 0, end)) == [Committed(partition, end)]
    assert node.raft.step(cluster.now, Synced(partition, 0, end)) == []


def test_one_of_two_members_commits_nothing_alone() -> None:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"before")
    cluster.add(2, 1)
    cluster.run_until(lambda: 2 in cluster[1].raft.groups[partition].config.voters, 60_000)
    cluster[2].crash()
    leader = cluster.leader(partition)
    assert leader is not None
    placed = leader.publish(partition, b"x")
    cluster.run(200)
    if isinstance(placed, tuple):
        assert leader.commit[partition] <= placed[1], "one of two is no majority"


def test_partitions_of_a_node_alone_cost_nothing_while_nothing_happens() -> None:
    def beat(partitions: int) -> int:
        cluster = Cluster(1)
        cluster.ready()
        cluster.topic("t", partitions)
        cluster.run(2_000)
        return calls_of(lambda: cluster.run(1_000))

    assert beat(100) == beat(1)


def steady() -> tuple[Cluster, Partition, Node, Node]:
    """A partition, its leader and a follower that keeps up."""
    cluster = Cluster(3)
    cluster.ready()
    (partition,) = cluster.topic("t", replicas=3)
    for number in range(5):
        cluster.publish(partition, b"%d" % number)
        cluster.run(5)
    leader = cluster.leader(partition)
    assert leader is not None
    follower = next(node for node in cluster.alive if node is not leader)
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
    message = AppendEntries(partition, group.term, end, group.log.last_epoch, group.commit, group.log.first)
    for payload in (damaged, damaged[:50], batch[:-1], batch[:50]):
        (note,) = follower.raft.step(cluster.now, PeerReceived(leader.raft.node, message, payload))
        assert isinstance(note, LogLine) and note.level == "error" and group.log.end == end
    of_another_term = msgspec.structs.replace(message, prev_epoch=group.term - 1)
    if end > group.commit:
        follower.raft.step(cluster.now, PeerReceived(leader.raft.node, of_another_term, bytearray(batch)))
        assert group.log.end == end
    ahead = msgspec.structs.replace(message, commit=end + 100)
    cluster.run(1)
    (append, *_) = follower.raft.step(cluster.now, PeerReceived(leader.raft.node, ahead, batch))
    assert isinstance(append, Append) and group.log.end == end + 1
    assert group.commit == end + 1, "no more than it has"
    assert group.election.leader_heard_us == cluster.us


def test_a_leader_accepts_no_stale_reply() -> None:
    cluster, partition, leader, follower = steady()
    group = leader.raft.groups[partition]
    end = group.log.end
    leader.raft.propose(cluster.now, partition, encode([b"x"], timestamp_us=1))
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
