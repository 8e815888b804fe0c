"""Commit reports to the broker: at once where there are readers, throttled where there are none."""

from __future__ import annotations

from rostra.errors import DiskFull
from rostra.fabric.api import PeerReceived, Readers, WriteFailed
from rostra.fabric.raft.settings import RaftSettings
from rostra.fabric.replication.messages import AppendEntries
from rostra.fabric.replication.replica_state import COMMIT_REPORT_US
from rostra.model.batch import stamp
from rostra.model.encode import encode
from rostra.model.ids import Partition
from tests.unit.raft.nodes import Cluster, Node

HEARTBEAT_MS = RaftSettings().heartbeat_ms


def pair(cluster: Cluster) -> tuple[Partition, Node, Node]:
    """A partition with its leader and a follower, after the first records."""
    cluster.ready()
    (partition,) = cluster.topic("t", replicas=3)
    for number in range(5):
        cluster.publish(partition, b"%d" % number)
        cluster.run(5)
    leader = cluster.leader(partition)
    assert leader is not None
    return partition, leader, next(node for node in cluster.alive if node is not leader)


def reports(cluster: Cluster, node: Node, partition: Partition, records: int) -> int:
    """The number of commit reports to the broker while one record is appended per millisecond."""
    said: list[int] = []
    for number in range(records):
        cluster.publish(partition, b"%d" % number)
        cluster.run(1)
        commit = node.commit[partition]
        if not said or said[-1] != commit:
            said.append(commit)
    return len(said)


def test_without_readers_commit_reports_are_throttled() -> None:
    cluster = Cluster(3)
    partition, _, follower = pair(cluster)
    began_us = cluster.us
    told = reports(cluster, follower, partition, 200)
    elapsed_us = cluster.us - began_us
    most = elapsed_us // COMMIT_REPORT_US + elapsed_us // (HEARTBEAT_MS * 1000) + 2
    assert elapsed_us // (HEARTBEAT_MS * 1000) <= told <= most


def test_with_readers_each_commit_is_reported() -> None:
    cluster = Cluster(3)
    partition, _, follower = pair(cluster)
    follower.step(Readers(partition, True))
    cluster.run(20)
    for number in range(30):
        place = cluster.publish(partition, b"%d" % number)
        # Longer than a batch and the message of its commit may take, network and disk included.
        cluster.run(8)
        assert follower.commit[partition] > place


def test_a_new_reader_gets_the_commit_offset_this_node_knows() -> None:
    cluster = Cluster(3)
    partition, _, follower = pair(cluster)
    group = follower.raft.groups[partition]
    for number in range(100):
        cluster.publish(partition, b"%d" % number)
        cluster.run(0.1)
        if group.unreported_commit:
            break
    assert follower.commit[partition] < group.commit
    follower.step(Readers(partition, True))
    assert follower.commit[partition] == group.commit


def test_an_unreported_commit_is_reported_with_the_next_heartbeat() -> None:
    cluster = Cluster(3)
    partition, _, follower = pair(cluster)
    for number in range(10):
        cluster.publish(partition, b"%d" % number)
    group = follower.raft.groups[partition]
    cluster.run(2 * HEARTBEAT_MS)
    assert follower.commit[partition] == group.commit == group.log.end


def test_a_new_leader_has_reported_the_commit_it_knew() -> None:
    cluster = Cluster(3)
    partition, leader, _ = pair(cluster)
    for number in range(10):
        cluster.publish(partition, b"%d" % number)
    leader.crash()
    cluster.run_until(lambda: cluster.leader(partition) is not None)
    heir = cluster.leader(partition)
    assert heir is not None
    cluster.run_until(lambda: heir.raft.groups[partition].knows_commit)
    assert heir.commit[partition] == heir.raft.groups[partition].commit


def test_a_commit_beyond_a_log_cut_by_a_full_disk_is_reported_once_the_log_is_back() -> None:
    cluster = Cluster(3)
    partition, leader, follower = pair(cluster)
    group, medium = follower.raft.groups[partition], follower.disks[partition]
    group.commit_report_us = cluster.us + COMMIT_REPORT_US
    told, end = follower.commit[partition], group.log.end
    batch = encode([b"x"], timestamp_us=1)
    stamp(batch, partition=partition, base_offset=end, owner_epoch=group.term)
    # The others have it already.
    message = AppendEntries(partition, group.term, end, group.term, end + 1, group.log.first)
    follower.step(PeerReceived(leader.raft.node, message, batch))
    assert group.commit == group.unreported_commit == end + 1 > group.log.synced
    medium.truncate(end, medium.generation + 1)
    follower.step(WriteFailed(partition, end, medium.generation, DiskFull()))
    follower.step(Readers(partition, True))
    assert follower.commit[partition] == told, "nobody is shown what is not here"
    leader.publish(partition, b"x")
    cluster.run_until(lambda: follower.commit[partition] == group.commit == group.log.end > end)
