"""Topic metadata is the same at all nodes; nodes join and leave."""

from __future__ import annotations

import pytest

from rostra.errors import TopicExists, UnknownTopic
from tests.contract.facade import Cluster
from tests.contract.guarantees import ONE_SET_OF_TOPICS, ORDERS_PARTITIONS, SEVERAL, proves

FEW = [b"%d" % number for number in range(20)]


@proves(ONE_SET_OF_TOPICS)
@pytest.mark.requirement("RF-5:topics", "RF-36")
def test_an_acknowledged_create_or_delete_is_visible_at_all_nodes(cluster: Cluster) -> None:
    nodes = cluster.running
    for node in nodes:
        cluster.create_topic(f"t{node}", at=node)
        for other in nodes:
            assert f"t{node}" in cluster.topics(at=other)
    for node in nodes:
        with pytest.raises(TopicExists):
            cluster.create_topic("t0", at=node)
    for node in reversed(nodes):
        cluster.delete_topic(f"t{node}", at=nodes[-1 - node])
        for other in nodes:
            assert f"t{node}" not in cluster.topics(at=other)
    with pytest.raises(UnknownTopic):
        cluster.delete_topic("t0", at=nodes[-1])


@proves(ORDERS_PARTITIONS, sizes=SEVERAL)
@pytest.mark.requirement("RF-37")
def test_partitions_are_spread_over_owners(cluster: Cluster) -> None:
    nodes = cluster.running
    cluster.create_topic("t", partitions=len(nodes))
    for node in nodes:
        cluster.create_topic(f"t{node}")

    def spread() -> bool:
        return sorted(cluster.owner("t", partition) for partition in range(len(nodes))) == nodes

    cluster.run_until(spread, "each node to own one")
    assert len({cluster.owner(f"t{node}") for node in nodes}) > 1


@proves(ONE_SET_OF_TOPICS, sizes=SEVERAL)
@pytest.mark.requirement("RF-10:joins", "RF-12")
def test_a_node_that_joins_has_all_topics_and_publishes_reach_earlier_subscribers(
    cluster: Cluster,
) -> None:
    cluster.create_topic("t")
    cluster.publish("t", *FEW)
    nodes = cluster.running
    subscriptions = [cluster.subscribe("t", at=node, start="latest") for node in nodes]
    new = cluster.join(through=nodes[-1])
    assert "t" in cluster.topics(at=new)
    cluster.publish("t", b"from the new one", at=new)
    cluster.run_until(lambda: all(seen.records for seen in subscriptions), "all subscribers to get it")
    assert [seen.values for seen in subscriptions] == [[b"from the new one"]] * len(nodes)
    assert cluster.read("t", at=new) == [*FEW, b"from the new one"]
    cluster.await_members(len(nodes) + 1)


@proves(ORDERS_PARTITIONS, sizes=SEVERAL)
@pytest.mark.requirement("CM-27:decommission", "RF-33:membership")
def test_a_member_is_removed_when_others_have_its_replicas(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    for partition in range(2):
        cluster.publish("t", *FEW, partition=partition)
    count = cluster.count
    new = cluster.join()
    cluster.await_members(count + 1)
    leaver = cluster.owner("t")
    cluster.leave(leaver)
    rest = cluster.running
    cluster.await_members(count)
    for partition in range(2):
        cluster.await_equal_copies("t", partition, count=3)
    # Two of three replicas continue without the third: the new one counts.
    cluster.crash(next(node for node in rest if node != new))
    assert cluster.read("t", at=new) == [*FEW, *FEW]
    cluster.publish("t", b"after", at=new)
