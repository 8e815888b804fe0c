"""Pattern subscriptions and start times: the same at every node, also under crashes and splits."""

from __future__ import annotations

import pytest

from rostra.client.core.events import TopicGone
from rostra.client.core.options import Time
from rostra.errors import RostraError
from tests.contract.clients import Subscription
from tests.contract.facade import SHORT_TIMEOUT_MS, Cluster
from tests.contract.guarantees import (
    ONE_SET_OF_TOPICS,
    ORDERS_PARTITIONS,
    REFUSES_IN_A_SPLIT,
    SINGLE,
    SURVIVES_ONE_NODE,
    proves,
)


def await_all(cluster: Cluster, subscription: Subscription, expected: set[bytes], what: str) -> None:
    """Waits until the subscription has exactly these values, each once."""
    cluster.run_until(lambda: len(subscription.records) >= len(expected), f"{what}, {len(expected)} records")
    assert len(subscription.records) == len(expected)
    assert set(subscription.values) == expected


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-6:patterns")
def test_a_record_is_delivered_once_however_many_patterns_match_its_topic(cluster: Cluster) -> None:
    nodes = cluster.running
    cluster.create_topic("sensors/a/temp", partitions=2)
    cluster.create_topic("sensors/b/hum", at=nodes[-1])
    cluster.create_topic("sensors", at=nodes[-1])
    cluster.create_topic("other")
    cluster.publish("sensors/a/temp", b"before 0", partition=0)
    cluster.publish("sensors/a/temp", b"before 1", partition=1)
    subscriptions = [
        cluster.subscribe("sensors/#", "sensors/+/temp", "sensors/a/temp", "sensors/+/+", at=node) for node in nodes
    ]
    expected = {b"before 0", b"before 1"}
    for node in nodes:
        for topic in ("sensors/a/temp", "sensors/b/hum", "sensors"):
            value = b"%b at %d" % (topic.encode(), node)
            cluster.publish(topic, value, at=node)
            expected.add(value)
        cluster.publish("other", b"not for them", at=node)
    for subscription in subscriptions:
        await_all(cluster, subscription, expected, "what the patterns match")


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-6:new-topics")
def test_a_topic_created_later_is_delivered_from_its_first_record_at_every_node(cluster: Cluster) -> None:
    nodes = cluster.running
    cluster.create_topic("a/old")
    cluster.publish("a/old", b"before")
    subscriptions = [cluster.subscribe("a/+", "b/#", at=node, start="latest") for node in nodes]
    expected: set[bytes] = set()
    for node in nodes:
        for topic, partitions in ((f"a/{node}", 1), (f"b/{node}/deep", 2), (f"c/{node}", 1)):
            cluster.create_topic(topic, partitions, at=node)
            # The first records are stored before the last of the topics is announced.
            cluster.publish(topic, topic.encode(), at=nodes[-1])
        expected |= {b"a/%d" % node, b"b/%d/deep" % node}
    for subscription in subscriptions:
        await_all(cluster, subscription, expected, "the new topics")


@proves()
@pytest.mark.requirement("CM-9:unsubscribed")
def test_after_an_acknowledged_unsubscribe_no_pattern_delivers_anything(cluster: Cluster) -> None:
    nodes = cluster.running
    cluster.create_topic("a/one")
    leaving = [cluster.subscribe("a/#", "a/+", at=node) for node in nodes]
    staying = cluster.subscribe("a/#", at=nodes[-1])
    cluster.publish("a/one", b"before")
    cluster.run_until(lambda: all(seen.records for seen in [*leaving, staying]), "the first record everywhere")
    for subscription in leaving:
        cluster.unsubscribe(subscription)
    cluster.create_topic("a/two", at=nodes[-1])
    for topic in ("a/one", "a/two"):
        cluster.publish(topic, b"after in " + topic.encode(), at=nodes[0])
    cluster.run_until(lambda: len(staying.records) == 3, "the other to get them")
    assert [subscription.values for subscription in leaving] == [[b"before"]] * len(nodes)


@proves(ONE_SET_OF_TOPICS)
def test_a_deleted_topic_leaves_a_pattern_and_a_recreated_one_joins_it(cluster: Cluster) -> None:
    nodes = cluster.running
    first = cluster.create_topic("a/one")
    cluster.create_topic("a/two")
    cluster.publish("a/one", b"old")
    subscriptions = [cluster.subscribe("a/+", at=node) for node in nodes]
    for subscription in subscriptions:
        await_all(cluster, subscription, {b"old"}, "what there was")
    cluster.delete_topic("a/one", at=nodes[-1])
    gone = TopicGone("a/one", first.topic)
    cluster.run_until(lambda: all(gone in subscription.events for subscription in subscriptions), "the deletion")
    cluster.create_topic("a/one", at=nodes[0])
    cluster.publish("a/one", b"new", at=nodes[-1])
    cluster.publish("a/two", b"as ever", at=nodes[-1])
    for subscription in subscriptions:
        await_all(cluster, subscription, {b"old", b"new", b"as ever"}, "the topics that are there")
        assert subscription.ended is None


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-6:new-topics")
def test_no_topic_is_missed_when_the_node_that_watches_crashes(cluster: Cluster) -> None:
    nodes = cluster.running
    subscriptions = [cluster.subscribe("a/#", at=node, start="latest") for node in nodes]
    expected: set[bytes] = set()
    for turn, node in enumerate(nodes[:2]):
        cluster.create_topic(f"a/{turn}/before", at=node)
        cluster.crash(node)
        one, other, *_ = cluster.others(node)
        for topic in (f"a/{turn}/before", f"a/{turn}/meanwhile"):
            if topic.endswith("meanwhile"):
                cluster.create_topic(topic, at=one)
            cluster.publish(topic, topic.encode(), at=other)
            expected.add(topic.encode())
        cluster.restart(node)
    for subscription in subscriptions:
        await_all(cluster, subscription, expected, "all topics in spite of crashes")


@proves(sizes=(SINGLE,))
@pytest.mark.requirement("CM-6:new-topics")
def test_a_pattern_subscription_continues_after_a_restart_of_the_node(cluster: Cluster) -> None:
    cluster.create_topic("a/one")
    subscription = cluster.subscribe("a/#", start="latest")
    cluster.crash(0)
    cluster.restart(0)
    cluster.create_topic("a/two")
    cluster.publish("a/two", b"2")
    cluster.publish("a/one", b"1")
    await_all(cluster, subscription, {b"1", b"2"}, "both topics")


@proves(REFUSES_IN_A_SPLIT)
@pytest.mark.requirement("CM-6:new-topics")
def test_no_topic_created_during_a_split_is_missed(cluster: Cluster) -> None:
    alone, *rest = cluster.running
    one, other, *_ = rest
    subscription = cluster.subscribe("a/#", at=alone, start="latest")
    cluster.partition([alone], rest)
    cluster.create_topic("a/one", at=one)
    cluster.publish("a/one", b"1", at=other)
    cluster.heal()
    await_all(cluster, subscription, {b"1"}, "the topic that was made behind its back")


@proves(REFUSES_IN_A_SPLIT)
def test_a_lagging_isolated_node_does_not_report_a_topic_as_deleted(cluster: Cluster) -> None:
    behind, *rest = cluster.running
    one, other, *_ = rest
    subscription = cluster.subscribe("a/#", at=one)
    cluster.partition([behind], rest)
    cluster.create_topic("a/one", at=one)
    cluster.publish("a/one", b"1", at=other)
    await_all(cluster, subscription, {b"1"}, "the topic that one node does not know")
    cluster.crash(*rest)
    cluster.heal()
    with pytest.raises(RostraError):
        cluster.topics(at=behind, timeout_ms=SHORT_TIMEOUT_MS)
    cluster.restart(*rest)
    cluster.publish("a/one", b"2", at=other)
    await_all(cluster, subscription, {b"1", b"2"}, "both records, each once")
    assert not [event for event in subscription.events if isinstance(event, TopicGone)]


@proves()
@pytest.mark.requirement("CM-6:start-time", "CM-25:same-result")
def test_a_start_time_selects_the_first_record_not_earlier_at_every_node(cluster: Cluster) -> None:
    nodes = cluster.running
    cluster.create_topic("t")
    second = 1_000_000
    base_us = 1_700_000_000 * second
    stamps = [10, 20, 15, 40, 30, 50]
    for at in stamps:
        cluster.publish("t", b"%d" % at, at=nodes[0], timestamp_us=base_us + at * second)
    for wanted, expected in ((0, stamps), (11, stamps[1:]), (21, stamps[3:]), (41, stamps[5:])):
        for node in nodes:
            subscription = cluster.subscribe("t", at=node, start=Time(base_us + wanted * second))
            count = len(expected)
            cluster.run_until(lambda: len(subscription.records) >= count, f"records from {wanted} s on")  # noqa: B023
            assert subscription.values == [b"%d" % at for at in expected]
            cluster.unsubscribe(subscription)
    future = cluster.subscribe("t", at=nodes[-1], start=Time(base_us + 60 * second))
    for at in (55, 70, 65):
        cluster.publish("t", b"%d" % at, at=nodes[0], timestamp_us=base_us + at * second)
    cluster.run_until(lambda: len(future.records) >= 2, "the records that were to come")
    assert future.values == [b"70", b"65"]
