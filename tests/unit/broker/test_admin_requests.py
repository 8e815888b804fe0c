"""Requests of operators, answered by any node."""

from __future__ import annotations

import pytest

from rostra.errors import NotAReplica, QuorumAtRisk, UnknownPartition, UnknownTopic
from rostra.wire.messages import (
    Agreed,
    ClusterDescribed,
    CreateTopic,
    DescribeCluster,
    Failed,
    RemoveMember,
    TopicSettings,
    TransferPartition,
)
from tests.unit.broker.broker_driver import FIRST, IDENTITY, BrokerDriver
from tests.unit.raft.broker_cluster import BrokerCluster


def started() -> BrokerDriver:
    driver = BrokerDriver().start()
    driver.connect(1)
    return driver


def test_a_node_alone_describes_itself() -> None:
    driver = started()
    topic = driver.make_topic(1, "t", partitions=2)
    driver.publish(1, topic, b"x")
    driver.settle()
    driver.send(1, DescribeCluster(driver.request()))
    (described,) = driver.received(1, ClusterDescribed)
    assert not described.more and described.state.fabric == "raft"
    assert [(node.node, node.alive, node.owns) for node in described.state.nodes] == [(IDENTITY.node, True, 2)]
    partitions = [one for one in described.state.partitions if one.topic == "t"]
    assert [(one.owner, one.commit, one.copies[0].match) for one in partitions] == [
        (IDENTITY.node, FIRST + 1, FIRST + 1),
        (IDENTITY.node, FIRST, FIRST),
    ]


def test_a_long_description_comes_in_pages() -> None:
    driver = started()
    driver.make_topic(1, "a", partitions=3)
    driver.make_topic(1, "b", partitions=2)
    seen: list[tuple[str, int]] = []
    after, more = ("", -1), True
    while more:
        driver.send(1, DescribeCluster(driver.request(), *after, limit=2))
        (described,) = driver.received(1, ClusterDescribed)
        seen += [(one.topic, one.partition) for one in described.state.partitions]
        after, more = seen[-1], described.more
    assert seen == [("", 0), ("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]


def test_a_node_alone_gives_nothing_away_and_is_not_removed() -> None:
    driver = started()
    driver.make_topic(1, "t")
    driver.send(1, TransferPartition(driver.request(), "t", 0, 77))
    assert isinstance(driver.error(1), NotAReplica)
    driver.send(1, RemoveMember(driver.request(), IDENTITY.node))
    assert isinstance(driver.error(1), QuorumAtRisk)
    driver.send(1, TransferPartition(driver.request(), "nowhere", 0, 77))
    assert isinstance(driver.error(1), UnknownTopic)
    driver.send(1, TransferPartition(driver.request(), "t", 9, 77))
    assert isinstance(driver.error(1), UnknownPartition)


def cluster() -> BrokerCluster:
    desks = BrokerCluster(3)
    desks.run_until_ready()
    desks.run(400)
    for driver in desks.brokers.values():
        driver.connect(1)
    desks[1].send(1, CreateTopic(desks[1].request(), "t", TopicSettings(partitions=3, replicas=2)))
    desks.run(300)
    return desks


def described(desks: BrokerCluster, at: int) -> ClusterDescribed:
    driver = desks[at]
    driver.received(1, ClusterDescribed)
    driver.send(1, DescribeCluster(driver.request()))
    desks.run(400)
    (answer,) = driver.received(1, ClusterDescribed)
    return answer


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_any_node_knows_how_far_every_copy_of_every_partition_is(asked: int) -> None:
    desks = cluster()
    state = described(desks, asked).state
    assert [node.node for node in state.nodes] == [1, 2, 3] and all(node.alive for node in state.nodes)
    assert sorted(state.answered) == [1, 2, 3] and state.answered[0] == asked
    metadata, *partitions = state.partitions
    assert metadata.topic == "" and len(metadata.copies) == 3
    assert [(one.topic, one.partition) for one in partitions] == [("t", 0), ("t", 1), ("t", 2)]
    for one in partitions:
        assert len(one.copies) == 2, "as many as the topic asked for"
        assert one.owner and {copy.match for copy in one.copies} == {one.end} == {one.commit}
    assert sum(node.owns for node in state.nodes) == 3 and sum(node.copies for node in state.nodes) == 6


def test_who_is_away_is_shown_so_and_not_waited_for() -> None:
    desks = cluster()
    desks.down.add(3)
    desks.run(1_000)
    state = described(desks, 1).state
    assert [node.alive for node in state.nodes] == [True, True, False] and sorted(state.answered) == [1, 2]


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_partition_is_transferred_by_whichever_node_is_asked(asked: int) -> None:
    desks = cluster()
    before = described(desks, 1).state.partitions[1]
    heir = next(copy.node for copy in before.copies if copy.node != before.owner)
    stranger = next(node for node in (1, 2, 3) if all(copy.node != node for copy in before.copies))
    driver = desks[asked]
    driver.send(1, TransferPartition(driver.request(), "t", 0, heir))
    desks.run(400)
    assert len(driver.received(1, Agreed)) == 1
    assert described(desks, asked).state.partitions[1].owner == heir
    driver.send(1, TransferPartition(driver.request(), "t", 0, stranger))
    desks.run(1_500)
    assert driver.received(1, Agreed) == [] and [failed.code for failed in driver.received(1, Failed)] == [
        "NotAReplica"
    ]


def test_a_member_is_removed_by_whichever_node_is_asked() -> None:
    desks = cluster()
    desks[2].send(1, RemoveMember(desks[2].request(), 3))
    desks.run(100)
    assert len(desks[2].received(1, Agreed)) == 1
    desks.run(5_000)
    state = described(desks, 1).state
    assert [node.node for node in state.nodes] == [1, 2]
    assert all(copy.node != 3 for one in state.partitions for copy in one.copies)
