"""Clauses of the common requirements that every fabric must keep and no other contract test shows."""

from __future__ import annotations

import pytest

from rostra.client.core.options import Last, Offset
from rostra.errors import TopicExists, UnknownTopic
from rostra.wire.messages import TopicSettings
from tests.contract.facade import Cluster
from tests.contract.guarantees import (
    GROUPS_ARE_LOCAL,
    GROUPS_SPAN_NODES,
    ONE_SET_OF_TOPICS,
    ORDERS_PARTITIONS,
    SEVERAL,
    proves,
)

VALUES = [b"%d" % number for number in range(8)]


@proves()
@pytest.mark.requirement("CM-3:life")
def test_a_topic_is_created_listed_described_and_deleted_at_a_node(cluster: Cluster) -> None:
    node = cluster.running[-1]
    made = cluster.create_topic("t", at=node, retention_bytes=1 << 30)
    assert cluster.topics(at=node) == {"t": made.topic}
    described = cluster.describe("t", at=node)
    assert (described.topic, described.name, described.settings) == (made.topic, "t", made.settings)
    with pytest.raises(TopicExists):
        cluster.create_topic("t", at=node)
    cluster.delete_topic("t", at=node)
    assert cluster.topics(at=node) == {}
    with pytest.raises(UnknownTopic):
        cluster.delete_topic("t", at=node)
    with pytest.raises(UnknownTopic):
        cluster.describe("t", at=node)


@proves()
@pytest.mark.requirement("CM-6:start-ends")
def test_earliest_begins_with_the_first_record_and_latest_with_the_next_one(cluster: Cluster) -> None:
    cluster.create_topic("t")
    node = cluster.running[0]
    cluster.publish("t", *VALUES[:5], at=node)
    earliest, latest = (cluster.subscribe("t", at=node, start=start) for start in ("earliest", "latest"))
    cluster.publish("t", *VALUES[5:], at=node)
    cluster.run_until(lambda: earliest.values == VALUES and latest.values == VALUES[5:], "both to have theirs")


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-6:start-offset")
def test_a_subscription_begins_at_the_offset_it_names(cluster: Cluster) -> None:
    cluster.create_topic("t")
    acks = cluster.publish("t", *VALUES)
    for node in cluster.running:
        subscription = cluster.subscribe("t", at=node, start=Offset(acks[3].offset))
        cluster.run_until(lambda: subscription.values == VALUES[3:], "all from there on")  # noqa: B023


@proves()
@pytest.mark.requirement("CM-3:history-depth", "CM-6:start-last")
def test_the_last_records_are_as_many_as_asked_for_and_no_more_than_the_depth(cluster: Cluster) -> None:
    cluster.create_topic("t", history_depth=5)
    node = cluster.running[0]
    cluster.publish("t", *VALUES, at=node)
    for asked, given in ((3, 3), (5, 5), (100, 5)):
        subscription = cluster.subscribe("t", at=node, start=Last(asked))
        cluster.run_until(lambda: subscription.values == VALUES[-given:], f"the last {given}")  # noqa: B023


@proves()
@pytest.mark.requirement("CM-3:retention-age")
def test_records_that_are_too_old_go_and_others_stay(cluster: Cluster) -> None:
    node = cluster.running[0]
    for name, retention_ms in (("second", 1_000), ("hour", 3_600_000)):
        cluster.create_topic_at(node, name, TopicSettings(retention_ms=retention_ms, segment_bytes=4096))
        for number in range(20):
            cluster.publish(name, bytes(1000) + b"%d" % number, at=node)

    def is_nearly_empty() -> bool:
        return all(one.end - one.first < 10 for one in cluster.state(at=node).partitions if one.topic == "second")

    cluster.run_until(is_nearly_empty, "retention by age")
    cluster.alter_topic("second", at=node, retention_ms=3_600_000)
    cluster.publish("second", b"fresh", at=node)
    *old, last = cluster.read("second", at=node)
    assert (len(old) < 10, last) == (True, b"fresh")
    assert len(cluster.read("hour", at=node)) == 20


@proves(ORDERS_PARTITIONS, sizes=SEVERAL)
@pytest.mark.requirement("CM-3:replicas")
def test_a_partition_has_as_many_copies_as_the_topic_asks_for(cluster: Cluster) -> None:
    for replicas in (1, 3):
        name = f"copies-{replicas}"
        cluster.create_topic_at(0, name, TopicSettings(replicas=replicas))
        cluster.publish(name, b"x")

        def copies(name: str = name) -> int:
            placed = cluster.placed(name)
            return len(placed.copies) if placed is not None else 0

        cluster.run_until(lambda: copies() == replicas, f"{replicas} copies")  # noqa: B023


@proves(ONE_SET_OF_TOPICS, GROUPS_SPAN_NODES, sizes=SEVERAL)
@pytest.mark.requirement("RF-10:subscriptions")
def test_a_named_subscription_goes_on_at_a_node_that_joined_later(cluster: Cluster) -> None:
    cluster.create_topic("t")
    member = cluster.member("billing", "t")
    cluster.publish("t", *VALUES[:4])
    assert cluster.handle(member, 4) == VALUES[:4]
    cluster.run_until(lambda: cluster.describe_group("billing").lag == 0, "the position to be stored")
    cluster.leave_group(member)
    new = cluster.join(through=cluster.running[-1])
    cluster.publish("t", *VALUES[4:])
    assert cluster.handle(cluster.member("billing", "t", at=new), 4) == VALUES[4:]


@proves(GROUPS_ARE_LOCAL)
@pytest.mark.requirement("FL-10:bounded")
def test_what_waits_for_an_absent_subscriber_is_bounded_by_the_retention_of_its_topic(cluster: Cluster) -> None:
    cluster.create_topic("t", retention_bytes=8_000, segment_bytes=4096)
    node = cluster.running[0]
    member = cluster.member("billing", "t", at=node, start="latest")
    cluster.publish("t", b"first", at=node)
    assert cluster.handle(member, 1) == [b"first"]
    cluster.leave_group(member)
    sent: list[bytes] = []

    def trimmed() -> bool:
        sent.append(bytes(1000) + b"%d" % len(sent))
        cluster.publish("t", sent[-1], at=node)
        return max(one.first for one in cluster.state(at=node).partitions if one.topic == "t") > 10

    cluster.run_until(trimmed, "retention to remove what waits")
    again = cluster.member("billing", "t", at=node)

    def caught_up() -> bool:
        again.take(ack=True)
        return sent[-1] in again.values

    cluster.run_until(caught_up, "the last record")
    assert again.values == sent[-len(again.values) :]
    assert len(again.values) < len(sent)
