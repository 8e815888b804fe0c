"""What the simulator has shown with several nodes, each in its shortest form."""

from __future__ import annotations

import msgspec
import pytest

from rostra.errors import CorruptLog, DiskFull
from rostra.fabric.api import (
    Confirm,
    Drop,
    EpochStart,
    FabricEffect,
    PeerReceived,
    ProposeLogStart,
    ReadFailed,
    Recovered,
    WriteFailed,
)
from rostra.fabric.cluster.messages import CreateTopicRequest, DropTopicRequest
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.consensus.hard_state import HardState, key_of, pack_hard_state, unpack_hard_state
from rostra.fabric.consensus.roles import Role
from rostra.fabric.replication.snapshot_start import SnapshotStart, interrupted_snapshot_start
from rostra.model.ids import Partition, PartitionIndex, TopicId
from tests.unit.raft.nodes import Cluster, Node


def silent() -> Cluster:
    cluster = Cluster(3)
    cluster.ready()
    return cluster


def metadata_leader(cluster: Cluster) -> Node:
    return next(node for node in cluster.alive if node.raft.groups[METADATA_PARTITION].role is Role.LEADER)


def test_when_the_leader_of_a_silent_group_finds_its_copy_damaged_another_leads() -> None:
    cluster = silent()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"x")
    cluster.run(5_000)
    leader = cluster.leader(partition)
    assert leader is not None
    assert all(node.raft.groups[partition].quiescent for node in cluster.alive)
    leader.step(ReadFailed(1, partition, CorruptLog("some.log", 7, "body damaged")))
    assert not leader.leads(partition)
    cluster.run_until(lambda: cluster.leader(partition) not in (None, leader))
    # And the damaged copy is filled again.
    cluster.run_until(lambda: leader.raft.groups[partition].complete)


def test_a_wish_to_make_a_topic_that_arrives_twice_is_not_refused_for_its_own_topic() -> None:
    cluster = silent()
    leader = metadata_leader(cluster)
    asker = next(node for node in cluster.alive if node is not leader)
    cluster.topic("t", at=asker.node)
    spec = asker.topics["t"]
    asker.create("other", token=6)
    again = CreateTopicRequest(asker.raft.node, asker.raft.boot, 6, spec, 1 << 20, 0)
    leader.step(PeerReceived(asker.raft.node, again, None))
    cluster.run_until(lambda: 6 in asker.opened)
    assert asker.refused == {}


def test_a_topic_that_was_deleted_is_not_brought_back_by_a_wish_that_was_long_under_way() -> None:
    cluster = silent()
    leader = metadata_leader(cluster)
    cluster.topic("t", at=leader.node)
    spec = leader.topics["t"]
    leader.step(
        PeerReceived(leader.raft.node, DropTopicRequest(leader.raft.node, leader.raft.boot, 8, spec.topic), None)
    )
    cluster.run_until(lambda: all("t" not in node.topics for node in cluster.alive))
    late = CreateTopicRequest(leader.raft.node, leader.raft.boot, 2, spec, 1 << 20, 0)
    leader.step(PeerReceived(leader.raft.node, late, None))
    cluster.run(2_000)
    assert all("t" not in node.topics for node in cluster.alive)


def test_a_copy_that_is_filled_anew_confirms_nothing_before_it_has_applied_it() -> None:
    cluster = silent()
    cluster.topic("t")
    leader = metadata_leader(cluster)
    other = next(node for node in cluster.alive if node is not leader)
    group = other.raft.groups[METADATA_PARTITION]
    other.step(Confirm(12, "t"))
    group.set_complete(False)
    other.raft.metadata.applied = 0
    cluster.run_until(lambda: 12 in other.confirmed)
    assert other.raft.metadata.applied == group.commit


def test_a_node_alone_whose_disk_refused_the_beginning_of_its_term_begins_it_again() -> None:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    (node,) = cluster.alive
    cluster.run_until(lambda: node.leads(partition))
    group, medium = node.raft.groups[partition], node.disks[partition]
    end = group.log.end - 1
    medium.truncate(end, medium.generation + 1)
    node.step(WriteFailed(partition, end, medium.generation, DiskFull()))
    assert not group.knows_commit
    cluster.run_until(lambda: group.knows_commit)
    assert node.commit[partition] > end


def test_metadata_whose_snapshot_was_interrupted_loses_no_topic() -> None:
    cluster = silent()
    cluster.topic("t")
    cluster.run(2_000)
    node = next(node for node in cluster.alive if node is not metadata_leader(cluster))
    node.crash()
    # The process ended when all had come from the leader, but not yet that the copy counts again.
    key = key_of(METADATA_PARTITION)
    node.hard[key] = pack_hard_state(msgspec.structs.replace(unpack_hard_state(node.hard[key]), complete=False))
    node.start()
    cluster.run_until(
        lambda: node.raft.groups.get(METADATA_PARTITION) is not None and node.raft.groups[METADATA_PARTITION].complete
    )
    cluster.run_until(lambda: "t" in node.topics)


def test_a_start_that_finds_a_commit_older_than_a_topic_keeps_the_topics_log() -> None:
    cluster = silent()
    node = next(node for node in cluster.alive if node is not metadata_leader(cluster))
    commit = node.raft.groups[METADATA_PARTITION].commit
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"acknowledged")
    cluster.run(2_000)
    for other in cluster.alive:
        other.crash()
    # Hard state keeps the commit now and then only, and the others stay away.
    key = key_of(METADATA_PARTITION)
    node.hard[key] = pack_hard_state(msgspec.structs.replace(unpack_hard_state(node.hard[key]), commit=commit))
    node.start()
    cluster.run(5_000)
    assert b"acknowledged" in node.values(partition)


def test_a_whole_copy_that_dies_before_its_old_log_is_dropped_counts_as_whole_again() -> None:
    cluster = silent()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"early")
    cluster.run(300)
    leader = cluster.leader(partition)
    assert leader is not None
    away, other = (node for node in cluster.nodes.values() if node is not leader)
    away.crash()
    for number in range(10):
        cluster.publish(partition, b"%d" % number)
    leader.step(ProposeLogStart(partition, leader.raft.groups[partition].commit - 3))
    with pytest.MonkeyPatch.context() as patch:
        carry_out = away._carry_out

        def die(effect: FabricEffect) -> None:
            if isinstance(effect, Drop):
                away.crash()
            if away.alive:
                carry_out(effect)

        patch.setattr(away, "_carry_out", die)
        away.start()
        cluster.run_until(lambda: not away.alive)
    assert away.disks[partition].first < leader.disks[partition].first, "the old log is there"
    other.crash()
    leader.crash()
    leader.start()
    away.start()
    cluster.run_until(lambda: cluster.leader(partition) is not None)
    cluster.publish(partition, b"late")
    cluster.run_until(lambda: away.values(partition) == [b"7", b"8", b"9", b"late"])


def test_a_copy_that_went_on_beyond_where_it_was_to_begin_anew_is_not_dropped_at_its_start() -> None:
    filled = SnapshotStart(5, (EpochStart(1, 0),))
    hard = HardState(term=1, snapshot_start=filled)
    partition = Partition(TopicId(1), PartitionIndex(0))
    assert interrupted_snapshot_start(hard.snapshot_start, True, Recovered(partition, 0, 3, ())) == 5
    assert interrupted_snapshot_start(hard.snapshot_start, True, Recovered(partition, 0, 6, ())) is None
    assert interrupted_snapshot_start(hard.snapshot_start, True, Recovered(partition, 5, 6, ())) is None
    assert interrupted_snapshot_start(hard.snapshot_start, True, Recovered(partition, 0, 3, (), damaged_at=2)) is None
    assert interrupted_snapshot_start(hard.snapshot_start, False, Recovered(partition, 0, 3, ())) is None
