"""A group of one member is as lean as a node that stands alone, and keeps to the rules all the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from rostra.fabric.api import Accepted, Append, Committed, Fabric, Now, Propose, Synced
from rostra.model.encode import encode
from rostra.model.ids import Partition
from tests.unit.broker.broker_driver import BrokerDriver
from tests.unit.raft.nodes import Cluster

NOW = Now(10**9, 10**9)
CALLS_MAX = 7
"""Two steps of the fabric, in each the group's own, the stamp, and the test's two."""


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
    proposed = calls_of(lambda: fabric.step(NOW, Propose(6, partition, batch)))
    synced = calls_of(lambda: fabric.step(NOW, Synced(partition, 0, end + 1)))
    return proposed + synced


def test_a_publish_on_a_single_node_takes_few_calls() -> None:
    driver = BrokerDriver().start()
    driver.connect(1)
    topic = driver.make_topic(1)
    driver.settle()
    (partition,) = [partition for partition in driver.logs if partition.topic == topic]
    assert one_publish(driver.broker.fabric, partition, driver.logs[partition].end) <= CALLS_MAX


def test_the_fast_path_of_one_node_has_the_effects_of_the_full_step() -> None:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"first")
    node = cluster[1]
    group = node.raft.groups[partition]
    assert group.fast_single
    said = node.step(Propose(6, partition, encode([b"second"], timestamp_us=1)))
    appended, accepted = said
    assert isinstance(appended, Append) and appended.sync and isinstance(accepted, Accepted)
    end = group.log.end
    assert node.raft.step(cluster.now, Synced(partition, 1, end)) == [], "of another generation"
    assert node.raft.step(cluster.now, Synced(partition, 0, end)) == [Committed(partition, end)]
    assert node.raft.step(cluster.now, Synced(partition, 0, end)) == []


def test_a_second_member_ends_the_fast_path_of_one_node() -> None:
    cluster = Cluster(1)
    cluster.ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"before")
    cluster.add(2, 1)
    cluster.run_until(lambda: 2 in cluster[1].raft.groups[partition].config.voters, 60_000)
    assert not cluster[1].raft.groups[partition].fast_single
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
