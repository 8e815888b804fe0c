"""Delivery of records without failures of nodes."""

from __future__ import annotations

import pytest

from rostra.errors import TopicDeleted, Unavailable
from rostra.model.encode import encode
from rostra.wire.messages import Failed, Publish, Subscribe, Subscribed
from tests.contract.facade import Cluster, Node, NodeReply
from tests.contract.guarantees import (
    DELIVERED_BY_REPLICAS,
    ONE_SET_OF_TOPICS,
    ORDERS_PARTITIONS,
    REDIRECTS_PUBLISHES,
    SINGLE,
    proves,
)


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-7:order")
def test_all_subscribers_see_one_order_per_partition_that_keeps_producer_order(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    nodes = cluster.running
    subscriptions = [cluster.subscribe("t", at=node) for node in nodes]
    producers = [cluster.producer("t", at=node) for node in nodes]
    for burst in range(5):
        for number, producer in enumerate(producers):
            producer.send(*(b"%d-%d" % (number, burst * 8 + at) for at in range(8)))
    everything = {value for producer in producers for value in producer.sent}
    cluster.run_until(
        lambda: all(len(seen.records) >= len(everything) for seen in subscriptions), "all records everywhere"
    )
    orders = [sorted(seen.records, key=lambda got: got.partition) for seen in subscriptions]
    assert all(order == orders[0] for order in orders)
    assert {got.value for got in orders[0]} == everything and len(orders[0]) == len(everything)
    for partition in range(2):
        offsets = [got.offset for got in orders[0] if got.partition == partition]
        assert offsets == sorted(set(offsets))
        for producer in producers:
            kept = [got.value for got in orders[0] if got.partition == partition and got.value in set(producer.sent)]
            assert kept == [value for value in producer.sent if value in set(kept)]


@proves()
@pytest.mark.requirement("RF-7", "RF-8")
def test_a_publish_at_any_node_reaches_all_subscribers_at_all_nodes(cluster: Cluster) -> None:
    for name in ("a", "b", "c"):
        cluster.create_topic(name)
    nodes = cluster.running
    held = {
        (node, name): cluster.subscribe(name, at=node, start="latest") for node in nodes for name in ("a", "b", "c")
    }
    for node in nodes:
        for name in ("a", "b", "c"):
            cluster.publish(name, b"%b from %d" % (name.encode(), node), at=node)
    for (_, name), subscription in held.items():
        wanted = [b"%b from %d" % (name.encode(), node) for node in nodes]
        cluster.run_until(lambda: len(subscription.records) >= len(wanted), f"all of {name}")  # noqa: B023
        assert subscription.values == wanted


@proves()
@pytest.mark.requirement("CM-9:unsubscribed", "RF-9")
def test_after_an_acknowledged_unsubscribe_no_later_publish_is_delivered(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    leaving = [cluster.subscribe("t", at=node) for node in nodes]
    staying = cluster.subscribe("t", at=nodes[-1])
    cluster.publish("t", b"before", at=nodes[0])
    cluster.run_until(lambda: all(seen.records for seen in [*leaving, staying]), "the first record everywhere")
    for subscription in leaving:
        cluster.unsubscribe(subscription)
    for node in nodes:
        cluster.publish("t", b"after %d" % node, at=node)
    cluster.run_until(lambda: len(staying.records) == 1 + len(nodes), "the others to get them")
    assert [subscription.values for subscription in leaving] == [[b"before"]] * len(nodes)


@proves(ONE_SET_OF_TOPICS)
@pytest.mark.requirement("CM-9:deleted")
def test_a_deleted_topic_ends_its_subscriptions_and_its_name_is_free_for_another(cluster: Cluster) -> None:
    first = cluster.create_topic("t")
    nodes = cluster.running
    subscriptions = [cluster.subscribe("t", at=node) for node in nodes]
    cluster.publish("t", b"old", at=nodes[0])
    cluster.delete_topic("t", at=nodes[-1])
    cluster.run_until(lambda: all(seen.ended is not None for seen in subscriptions), "the subscriptions to end")
    assert {type(seen.ended) for seen in subscriptions} == {TopicDeleted}
    second = cluster.create_topic("t", at=nodes[0])
    assert second.topic != first.topic
    cluster.publish("t", b"new", at=nodes[-1])
    assert cluster.read("t", at=nodes[0]) == [b"new"]


def settled_answer(
    cluster: Cluster, node: Node, message: Publish | Subscribe, payload: bytes | bytearray = b""
) -> NodeReply:
    """The reply of a node, retried while it knows no owner of a new topic."""
    answers: list[NodeReply] = []

    def settled() -> bool:
        answer = cluster.request_node(node, message, payload)
        answers.append(answer)
        return not isinstance(answer, Failed) or answer.code != Unavailable.__name__

    cluster.run_until(settled, f"node {node} to know where the topic is")
    return answers[-1]


@proves(DELIVERED_BY_REPLICAS)
def test_every_replica_serves_subscriptions(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", replicas=cluster.count)
    for node in cluster.running:
        answer = settled_answer(cluster, node, Subscribe(1, 1, topic.topic, 0, "earliest", 0, 1 << 20))
        assert isinstance(answer, Subscribed), (node, answer)


@proves(REDIRECTS_PUBLISHES)
def test_only_the_owner_takes_records_and_the_others_name_it(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    owner = cluster.owner("t")
    batch = encode([b"x"], timestamp_us=1_700_000_000_000_000)
    for node in cluster.others(owner):
        answer = settled_answer(cluster, node, Publish(1, topic.topic, 0, "all"), batch)
        assert isinstance(answer, Failed) and answer.code == "Moved"
        assert answer.carried["address"] == cluster.address(owner)
    assert not isinstance(settled_answer(cluster, owner, Publish(1, topic.topic, 0, "all"), batch), Failed)
    assert cluster.read("t", at=owner) == [b"x"]


@proves(ORDERS_PARTITIONS, sizes=(SINGLE,))
def test_a_single_node_is_a_complete_cluster(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=3)
    state = cluster.state()
    assert [(node.address, node.alive, node.owns) for node in state.nodes] == [(cluster.address(0), True, 3)]
    assert {placed.owner for placed in state.partitions} == {state.nodes[0].node}
