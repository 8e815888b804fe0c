"""The metadata log is bounded: a snapshot replaces everything before it."""

from __future__ import annotations

import pytest

from rostra.broker.partition.control_batch import read_epochs
from rostra.fabric.api import ProposeDrop, RemoveNode
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION, MetadataSnapshot
from rostra.fabric.raft.replica_assignments import ReplicaAssignments
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.decode import Batch
from rostra.model.ids import NodeId
from tests.unit.raft.nodes import Cluster

SMALL = RaftSettings(metadata_log_bytes=3_000)


def churned(cluster: Cluster, rounds: int = 30, at: int = 1) -> None:
    """Creates and deletes topics; the last three remain."""
    for number in range(rounds):
        (partition,) = cluster.topic(f"t{number}", at=at)
        if number < rounds - 3:
            token = 1000 + 2 * number
            cluster[at].step(ProposeDrop(token, partition.topic))
            cluster.run_until(lambda token=token: token in cluster[at].closed)  # type: ignore[misc]


def names(cluster: Cluster) -> list[list[str]]:
    return [sorted(node.topics) for node in cluster.alive]


@pytest.mark.requirement("RF-33:snapshots")
def test_the_metadata_log_is_trimmed_at_every_node() -> None:
    cluster = Cluster(3, settings=SMALL)
    cluster.ready()
    churned(cluster)
    cluster.run(1_000)
    for node in cluster.nodes.values():
        log = node.disks[METADATA_PARTITION]
        assert log.first > 0 and sum(len(one.batch) for one in log.stored) < 4 * SMALL.metadata_log_bytes
        assert isinstance(ReplicaAssignments.codec.read(log.stored[0].batch), MetadataSnapshot), (
            "a log begins with what was before it"
        )
    assert names(cluster) == [["t27", "t28", "t29"]] * 3


@pytest.mark.requirement("RF-30:snapshot")
def test_a_node_that_was_away_meanwhile_gets_the_snapshot() -> None:
    cluster = Cluster(3, settings=SMALL)
    cluster.ready()
    (kept,) = cluster.topic("kept")
    (gone,) = cluster.topic("gone")
    cluster.run(300)
    away = cluster[3]
    away.crash()
    cluster[1].step(ProposeDrop(900, gone.topic))
    cluster.run_until(lambda: 900 in cluster[1].closed)
    churned(cluster)
    cluster.run(500)
    assert cluster[1].disks[METADATA_PARTITION].first > away.disks[METADATA_PARTITION].end
    away.start()
    cluster.run_until(lambda: sorted(away.topics) == ["kept", "t27", "t28", "t29"])
    assert gone not in away.disks and kept in away.disks
    cluster.publish(kept, b"x")
    cluster.run_until(lambda: away.values(kept) == [b"x"])


def test_a_trimmed_metadata_log_survives_a_power_cut_of_all_nodes() -> None:
    cluster = Cluster(3, settings=SMALL)
    cluster.ready()
    churned(cluster)
    cluster.run(500)
    for node in cluster.nodes.values():
        node.crash()
    for node in cluster.nodes.values():
        node.start()
    cluster.ready()
    cluster.run_until(lambda: names(cluster) == [["t27", "t28", "t29"]] * 3)
    cluster.topic("later", at=2)


def test_a_node_that_joins_later_gets_members_topics_and_placements_from_the_snapshot() -> None:
    cluster = Cluster(4, settings=SMALL)
    cluster.ready()
    (moved,) = cluster.topic("moved")
    cluster.publish(moved, b"x")
    holder = next(node.node for node in cluster.nodes.values() if moved in node.disks)
    at = holder % 4 + 1
    cluster[at].step(RemoveNode(70, NodeId(holder)))
    cluster.run_until(lambda: cluster[holder].raft.removed, 60_000)
    cluster[holder].crash()
    churned(cluster, at=at)
    cluster.run(500)
    new = cluster.add(9, at)
    cluster.run_until(lambda: "t29" in new.topics and new.ready)
    ours, theirs = new.raft.metadata.state, cluster[at].raft.metadata.state
    cluster.run_until(lambda: new.raft.metadata.applied == cluster[at].raft.metadata.applied)
    assert ours.members == theirs.members and ours.assignments == theirs.assignments
    assert list(ours.removed) == [holder] and ours.topics == theirs.topics


def test_a_snapshot_reads_as_the_checkpoint_of_any_log() -> None:
    cluster = Cluster(1, settings=SMALL)
    cluster.ready()
    churned(cluster)
    cluster.run_until(lambda: cluster[1].disks[METADATA_PARTITION].first > 0)
    (value,) = Batch(cluster[1].disks[METADATA_PARTITION].stored[0].batch).values()
    assert value is not None
    assert read_epochs(value)[0][0] == 1
