"""A group of one node that starts again: all it holds is committed, and no entry says so."""

from __future__ import annotations

import msgspec

from rostra.errors import DiskFull
from rostra.fabric.api import WriteFailed
from rostra.fabric.consensus.hard_state import (
    GroupConfig,
    GroupConfigAt,
    key_of,
    pack_hard_state,
    unpack_hard_state,
)
from rostra.model.ids import NodeId, Partition
from tests.unit.raft.nodes import Cluster


def started_again(*, publishes: int = 1) -> tuple[Cluster, Partition]:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    for number in range(publishes):
        cluster.publish(partition, b"%d" % number)
    cluster[1].crash()
    cluster[1].start()
    cluster.run_until(lambda: cluster[1].leads(partition) and cluster[1].ready)
    return cluster, partition


def test_a_start_writes_nothing_to_the_logs_of_a_node_alone() -> None:
    cluster, partition = started_again(publishes=3)
    node, group = cluster[1], cluster[1].raft.groups[partition]
    end, term = group.log.end, group.term
    assert group.knows_commit and group.commit == end == node.commit[partition]
    for _ in range(3):
        node.crash()
        node.start()
        cluster.run_until(lambda: node.leads(partition) and node.ready)
    group = node.raft.groups[partition]
    assert group.log.end == end == node.commit[partition]
    assert group.term == term + 3, "each start is a term of its own all the same"
    assert node.values(partition) == [b"0", b"1", b"2"]


def test_what_is_published_after_such_a_start_is_of_its_term() -> None:
    cluster, partition = started_again()
    group = cluster[1].raft.groups[partition]
    cluster.publish(partition, b"after")
    assert group.log.last_epoch == group.term
    cluster.publish(partition, b"more")
    assert cluster[1].values(partition) == [b"0", b"after", b"more"]


def test_a_refused_write_after_such_a_start_leaves_what_was_there_committed() -> None:
    cluster, partition = started_again()
    node, group = cluster[1], cluster[1].raft.groups[partition]
    end = group.log.end
    cluster.publish(partition, b"refused")
    medium = node.disks[partition]
    medium.truncate(end, medium.generation + 1)
    group.commit = end
    node.step(WriteFailed(partition, end, medium.generation, DiskFull()))
    assert group.knows_commit and group.log.end == end
    cluster.run(2_000)
    cluster.publish(partition, b"taken")
    assert node.values(partition) == [b"0", b"taken"]


def test_who_joins_after_such_a_start_gets_everything() -> None:
    cluster, partition = started_again(publishes=3)
    cluster.add(2, 1)
    cluster.run_until(lambda: 2 in cluster[1].raft.groups[partition].config.voters, 60_000)
    cluster.run_until(lambda: cluster[2].values(partition) == [b"0", b"1", b"2"], 60_000)


def test_a_member_left_alone_by_a_change_that_may_be_cut_begins_its_term_with_an_entry() -> None:
    cluster, partition = started_again()
    node = cluster[1]
    copy = node.raft.groups[partition].log
    end, term = copy.end, copy.last_epoch
    node.crash()
    # As if the removal of another one had reached this log last, and nobody had said that it is committed.
    hard = unpack_hard_state(node.hard[key_of(partition)])
    last = GroupConfigAt(end, term, GroupConfig((NodeId(1),)))
    both = GroupConfigAt(0, 0, GroupConfig((NodeId(1), NodeId(2))))
    node.hard[key_of(partition)] = pack_hard_state(msgspec.structs.replace(hard, configs=(both, last)))
    node.start()
    cluster.run_until(lambda: node.leads(partition) and node.ready)
    group = node.raft.groups[partition]
    assert group.log.end == end + 1 and not group.skipped_noop and group.knows_commit
