"""Topic metadata at every node, and the offsets of records."""

from __future__ import annotations

from itertools import product

import pytest

from rostra.client.core.effects import Ack, Result
from rostra.errors import RostraError, TopicExists, UnknownTopic
from tests.contract.clients import CoreClient, Outcome
from tests.contract.facade import Cluster
from tests.contract.guarantees import ONE_SET_OF_TOPICS, ORDERS_PARTITIONS, SEVERAL, SURVIVES_ONE_NODE, proves


@proves(ONE_SET_OF_TOPICS)
@pytest.mark.requirement("CM-3:life")
def test_every_node_lists_and_describes_the_same_topics(cluster: Cluster) -> None:
    nodes = cluster.running
    made = cluster.create_topic("orders/eu", 2, at=nodes[-1], retention_bytes=1 << 30, segment_bytes=1 << 20)
    for partition, count in enumerate((3, 5)):
        cluster.publish("orders/eu", *(b"%d" % number for number in range(count)), partition=partition)
    for node in nodes:
        with pytest.raises(TopicExists):
            cluster.create_topic("orders/eu", at=node)
        assert cluster.topics(at=node) == {"orders/eu": made.topic}
        described = cluster.describe("orders/eu", at=node)
        assert (described.topic, described.name, described.settings) == (made.topic, made.name, made.settings)
        assert [state.state for state in described.partitions] == ["serving", "serving"]
        counts = [state.commit - state.first for state in described.partitions]
        assert counts[0] >= 3 and counts[1] >= 5, node
    cluster.delete_topic("orders/eu", at=nodes[0])
    for node in nodes:
        with pytest.raises(UnknownTopic):
            cluster.describe("orders/eu", at=node)
        with pytest.raises(UnknownTopic):
            cluster.delete_topic("orders/eu", at=node)
        assert cluster.topics(at=node) == {}


@proves(ONE_SET_OF_TOPICS, SURVIVES_ONE_NODE, ORDERS_PARTITIONS)
def test_a_lagging_node_deletes_the_topic_that_has_the_name_now(cluster: Cluster) -> None:
    """The topic it knows by that name may be deleted and recreated meanwhile."""
    cluster.create_topic("t")
    *others, away = cluster.running
    cluster.topics(at=away)
    cluster.partition(others, [away])
    cluster.delete_topic("t", at=others[0])
    cluster.create_topic_at(others[0], "t")
    cluster.heal()
    cluster.delete_topic("t", at=away)
    assert cluster.topics(at=others[0]) == {}


@proves(ORDERS_PARTITIONS, sizes=SEVERAL)
def test_a_node_without_a_replica_describes_a_topic_as_its_owner_does(cluster: Cluster) -> None:
    cluster.create_topic("t")
    (ack,) = cluster.publish("t", b"one")
    new = cluster.join()
    cluster.await_members(cluster.count)
    for node in cluster.running:
        (state,) = cluster.describe("t", at=node).partitions
        assert state.commit > ack.offset, node
    assert new in cluster.running


@proves()
def test_look_ups_that_create_a_topic_at_several_nodes_at_once_all_find_it(cluster: Cluster) -> None:
    """Two clients at each node publish to topics that do not exist, at once or one shortly after the other."""
    clients = [cluster.new_client(node, auto_create=True) for node in cluster.running * 2]
    results: list[Result | RostraError] = []
    topics, turns = 24, 24 + 3 * len(clients)
    for turn in range(turns):
        for number, at in product(range(topics), range(len(clients))):
            if turn == number + number % 4 * at:
                publish_first(clients[at], f"t/{number}", results.append)
        cluster.pass_time(10)
    cluster.run_until(lambda: len(results) == topics * len(clients), "all first records to be settled")
    assert [result for result in results if not isinstance(result, Ack)] == []


def publish_first(client: CoreClient, topic: str, outcome: Outcome) -> None:
    call = client.call(f"publish to {topic}", outcome)
    client.core.publish(client.now_us, call, topic, b"first")
    client.core.end_turn(client.now_us)
    client.run_effects()


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-1:gaps", "CM-1:partitions", "CM-3:partitions")
def test_offsets_rise_and_gaps_hold_no_record(cluster: Cluster) -> None:
    """With segments so small that control records lie between the records."""
    cluster.create_topic("t", 2, segment_bytes=1 << 12)
    acks = [cluster.publish("t", b"%d" % number * 700, partition=number % 2)[0] for number in range(24)]
    subscription = cluster.subscribe("t", at=cluster.running[-1])
    cluster.run_until(lambda: len(subscription.records) == 24, "all records")
    for partition in range(2):
        offsets = [got.offset for got in subscription.records if got.partition == partition]
        assert offsets == sorted(set(offsets))
        assert offsets == [ack.offset for ack in acks if ack.partition == partition]
        (state,) = [one for one in cluster.describe("t").partitions if one.partition == partition]
        assert state.commit - state.first > len(offsets), "the log's own entries take offsets too"
