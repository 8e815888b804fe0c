"""Guarantees of a fabric in which every node orders the records published to it, without waiting for others."""

from __future__ import annotations

import pytest

from rostra.errors import GroupBusy, TopicDeleted, UnknownGroup, UnknownTopic, UnsupportedByFabric
from rostra.model.encode import encode
from rostra.wire.messages import Publish, Published, Subscribe, Subscribed
from tests.contract.clients import Subscription
from tests.contract.facade import Cluster, Node
from tests.contract.guarantees import (
    ACKNOWLEDGED_IS_DURABLE,
    DELIVERED_HERE,
    GOES_ON_ALONE,
    GROUPS_ARE_LOCAL,
    MERGES_AFTER_A_SPLIT,
    NAMES_THE_VIEW,
    ORDERS_ORIGINS,
    ORDERS_PUBLISHES_HERE,
    OWNERSHIP_IS_SHARED,
    SEVERAL,
    TOPICS_OF_EACH_NODE,
    proves,
)

WALL_US = 1_700_000_000_000_000


def assert_each_once(cluster: Cluster, subscriptions: list[Subscription], wanted: set[bytes]) -> None:
    """Waits until each subscription has exactly these values, each once."""

    def all_there() -> bool:
        return all(wanted <= set(seen.values) for seen in subscriptions)

    cluster.run_until(all_there, f"{len(wanted)} records everywhere")
    for seen in subscriptions:
        assert sorted(value or b"" for value in seen.values) == sorted(wanted)


# --- records ---


@proves(ORDERS_ORIGINS, sizes=SEVERAL)
@pytest.mark.requirement("CM-7:order", "FL-23:live")
def test_all_subscribers_get_every_record_once_and_in_publisher_order(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    subscriptions = [cluster.subscribe("t", at=node) for node in nodes]
    producers = [cluster.producer("t", at=node) for node in nodes]
    for burst in range(5):
        for number, producer in enumerate(producers):
            producer.send(*(b"%d-%d" % (number, burst * 8 + at) for at in range(8)))
    assert_each_once(cluster, subscriptions, {value for producer in producers for value in producer.sent})
    for seen in subscriptions:
        for producer in producers:
            assert [value for value in seen.values if value in set(producer.sent)] == producer.sent
    places = [{(got.partition, got.offset): got.value for got in seen.records} for seen in subscriptions]
    assert all(key == places[0] for key in places)


@proves(DELIVERED_HERE)
@pytest.mark.requirement("FL-24")
def test_a_late_subscriber_gets_all_records_at_any_node(cluster: Cluster) -> None:
    cluster.create_topic("t/of some ".replace(" ", "-") + "x" * 200)
    (name,) = cluster.topics()
    nodes = cluster.running
    wanted = {b"%d from %d" % (at, node) for at in range(3) for node in nodes} | {bytes(20_000)}
    for node in nodes:
        cluster.publish(name, *(b"%d from %d" % (at, node) for at in range(3)), at=node)
    cluster.publish(name, bytes(20_000), at=nodes[0])
    for node in nodes:
        topic = cluster.topics(at=node)[name]
        answer = cluster.request_node(node, Subscribe(1, 1, topic, 0, "earliest", 0, 1 << 20))
        assert isinstance(answer, Subscribed)
        assert_each_once(cluster, [cluster.subscribe(name, at=node)], wanted)


@proves(ORDERS_PUBLISHES_HERE)
@pytest.mark.requirement("FL-2:topics")
def test_every_node_takes_records_under_its_own_id_of_the_topic(cluster: Cluster) -> None:
    cluster.create_topic("t")
    subscriptions = [cluster.subscribe("t", at=node) for node in cluster.running]
    ids = {node: cluster.topics(at=node)["t"] for node in cluster.running}
    assert len(set(ids.values())) == len(ids)
    for node in cluster.running:
        batch = encode([b"%d" % node], timestamp_us=WALL_US)
        assert isinstance(cluster.request_node(node, Publish(1, ids[node], 0, "owner"), batch), Published)
    assert_each_once(cluster, subscriptions, {b"%d" % node for node in cluster.running})


@proves(NAMES_THE_VIEW)
@pytest.mark.requirement("CM-4:all-is-durable", "FL-8:view")
def test_the_reply_names_every_node_that_has_the_record_on_its_disk(cluster: Cluster) -> None:
    cluster.create_topic("t")
    ids = {node.address: node.node for node in cluster.state().nodes}

    def published(node: Node) -> set[int]:
        topic = cluster.topics(at=node)["t"]
        answer = cluster.request_node(node, Publish(1, topic, 0, "all"), encode([b"x"], timestamp_us=WALL_US))
        assert isinstance(answer, Published), answer
        return set(answer.view)

    assert published(0) == {ids[cluster.address(node)] for node in cluster.running}
    cluster.crash(*cluster.running[2:])
    assert published(0) >= {ids[cluster.address(node)] for node in (0, 1)}
    cluster.run_until(lambda: published(0) == {ids[cluster.address(node)] for node in (0, 1)}, "a smaller view")
    cluster.cut_power()
    cluster.restart(0, 1)
    assert cluster.read("t")[:2] == [b"x", b"x"]


# --- failures ---


@proves(GOES_ON_ALONE)
@pytest.mark.requirement("FL-21:rejoins")
def test_surviving_nodes_continue_and_restarted_ones_get_what_they_missed(cluster: Cluster) -> None:
    cluster.create_topic("t")
    wanted = {b"before %d" % node for node in cluster.running}
    for node in cluster.running:
        cluster.publish("t", b"before %d" % node, at=node)
    one, *others = cluster.running[1:]
    cluster.crash(one, *others)
    cluster.publish("t", b"alone", at=0)
    cluster.restart(one)
    cluster.publish("t", b"two", at=one)
    cluster.restart(*others)
    cluster.publish("t", b"three", at=2)
    subscriptions = [cluster.subscribe("t", at=node) for node in cluster.running]
    assert_each_once(cluster, subscriptions, wanted | {b"alone", b"two", b"three"})


@proves(GOES_ON_ALONE)
@pytest.mark.requirement("CM-5:stored-once", "FL-27:once")
def test_a_producer_that_fails_over_is_delivered_once_when_its_node_returns(
    cluster: Cluster,
) -> None:
    cluster.create_topic("t")
    subscription = cluster.subscribe("t", at=2)
    producer = cluster.producer("t", at=0)
    producer.send(*(b"0-%d" % at for at in range(60)))
    cluster.run_until(lambda: len(producer.acked) > 0, "the first acknowledgement")
    producer.send(*(b"1-%d" % at for at in range(60)))
    cluster.crash(0)
    producer.send(*(b"2-%d" % at for at in range(60)))
    cluster.run_until(lambda: producer.settled, "the others to go on")
    assert not producer.failed and not producer.warnings
    cluster.restart(0)
    producer.send(b"last")
    cluster.run_until(lambda: producer.settled and b"last" in subscription.values, "the last record")
    cluster.await_members(cluster.count)
    late = [cluster.subscribe("t", at=node) for node in cluster.running]
    assert_each_once(cluster, [subscription, *late], set(producer.sent))
    assert all(seen.values == producer.sent for seen in (subscription, *late)), "in its order, also for who comes late"


@proves(ACKNOWLEDGED_IS_DURABLE, ORDERS_ORIGINS)
@pytest.mark.requirement("CM-14:power")
def test_records_acknowledged_by_every_node_survive_a_power_cut_of_all(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    wanted: set[bytes] = set()
    for turn in range(3):
        some = [b"%d-%d" % (turn, at) for at in range(5)]
        cluster.publish("t", *some, at=nodes[turn % len(nodes)])
        wanted.update(some)
        cluster.cut_power()
        cluster.restart(*nodes)
        assert_each_once(cluster, [cluster.subscribe("t", at=nodes[-1])], wanted)


@proves(GOES_ON_ALONE)
@pytest.mark.requirement("CM-12:restarts")
def test_a_data_directory_restarts_a_node_as_the_same_origin(cluster: Cluster) -> None:
    cluster.create_topic("t")
    few = [b"%d" % number for number in range(20)]
    cluster.publish("t", *few)
    nodes = cluster.running
    before = {node.node: node.address for node in cluster.state().nodes}
    (placed,) = [one for one in cluster.state().partitions if one.end]
    for node in nodes:
        cluster.crash(node)
        cluster.restart(node)
    cluster.await_members(len(nodes))
    assert {node.node: node.address for node in cluster.state().nodes} == before

    def as_it_was() -> bool:
        (again,) = [one for one in cluster.state().partitions if one.end]
        return (again.partition, again.owner, again.end) == (placed.partition, placed.owner, placed.end)

    cluster.run_until(as_it_was, "the same origin of the same part")
    assert [cluster.read("t", at=node) for node in nodes] == [few] * len(nodes)


@proves(GOES_ON_ALONE)
@pytest.mark.requirement("FL-21:rejoins")
def test_a_node_down_longer_than_retention_gets_the_remaining_records(cluster: Cluster) -> None:
    cluster.create_topic("t", retention_bytes=8_000, segment_bytes=1 << 12)
    cluster.publish("t", b"first")
    cluster.crash(1)
    producer = cluster.producer("t", at=0)
    for number in range(12):
        producer.send(*(b"%d-%d %b" % (number, at, b"x" * 300) for at in range(10)))
        cluster.run_until(lambda: producer.settled, "the records")

    def trimmed() -> bool:
        return any(placed.first > 5 for placed in cluster.state(at=0).partitions)

    cluster.run_until(trimmed, "retention")
    cluster.restart(1)

    def caught_up() -> bool:
        placed = [one for one in cluster.state(at=0).partitions if one.end]
        return all(
            len(one.copies) == cluster.count and all(copy.match == one.end for copy in one.copies) for one in placed
        )

    cluster.run_until(caught_up, "the node to catch up")
    subscription = cluster.subscribe("t", at=1)
    cluster.run_until(lambda: producer.sent[-1] in subscription.values, "the last record")
    got = [value for value in subscription.values if value != b"first"]
    assert got == producer.sent[-len(got) :]


@proves(MERGES_AFTER_A_SPLIT)
@pytest.mark.requirement("FL-26")
def test_both_sides_of_a_split_continue_and_merge_without_duplicates(cluster: Cluster) -> None:
    cluster.create_topic("t")
    subscriptions = [cluster.subscribe("t", at=node) for node in cluster.running]
    cluster.publish("t", b"before")
    cluster.partition([0], cluster.others(0))
    cluster.publish("t", b"alone", at=0)
    cluster.publish("t", b"two", at=1)
    cluster.create_topic_at(2, "made-meanwhile")
    cluster.publish("made-meanwhile", b"x", at=2)
    for seen, other in zip(subscriptions, (b"alone", *(b"two" for _ in cluster.others(0))), strict=True):
        cluster.run_until(lambda: len(seen.records) == 2, "its own side's record")  # noqa: B023
        assert seen.values == [b"before", other]
    cluster.heal()
    assert_each_once(cluster, subscriptions, {b"before", b"alone", b"two"})
    cluster.run_until(lambda: "made-meanwhile" in cluster.topics(at=0), "a record to bring its topic along")
    assert_each_once(cluster, [cluster.subscribe("made-meanwhile", at=0)], {b"x"})


# --- topics and members ---


@proves(TOPICS_OF_EACH_NODE, sizes=SEVERAL)
@pytest.mark.requirement("CM-9:deleted", "FL-4:topics")
def test_a_topic_is_created_and_deleted_per_node_and_a_record_recreates_it(cluster: Cluster) -> None:
    cluster.create_topic_at(0, "t")
    others = cluster.others(0)
    assert [sorted(cluster.topics(at=node)) for node in cluster.running] == [["t"], *([] for _ in others)]
    with pytest.raises(UnknownTopic):
        cluster.delete_topic("t", at=1)
    cluster.publish("t", b"old", at=0)
    cluster.run_until(lambda: all("t" in cluster.topics(at=node) for node in cluster.running), "the record to arrive")
    subscriptions = [cluster.subscribe("t", at=node) for node in cluster.running]
    assert_each_once(cluster, subscriptions, {b"old"})
    cluster.delete_topic("t", at=2)
    cluster.run_until(lambda: subscriptions[2].ended is not None, "the subscription there to end")
    assert isinstance(subscriptions[2].ended, TopicDeleted)
    assert [sorted(cluster.topics(at=node)) for node in cluster.running] == [
        [] if node == 2 else ["t"] for node in cluster.running
    ]
    cluster.publish("t", b"new", at=0)
    assert_each_once(cluster, [*subscriptions[:2], *subscriptions[3:]], {b"old", b"new"})
    cluster.run_until(lambda: "t" in cluster.topics(at=2), "the record to make it anew")
    assert_each_once(cluster, [cluster.subscribe("t", at=2)], {b"new"})


@proves(TOPICS_OF_EACH_NODE, sizes=SEVERAL)
@pytest.mark.requirement("CM-27:decommission", "FL-20:joins-leaves")
def test_a_node_joins_a_running_ring_and_another_leaves_it(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", b"before")
    subscriptions = [cluster.subscribe("t", at=node) for node in cluster.running]
    count = cluster.count
    new = cluster.join(through=2)
    cluster.await_members(count + 1)
    cluster.run_until(lambda: "t" in cluster.topics(at=new), "the newcomer to be sent what there is")
    subscriptions.append(cluster.subscribe("t", at=new))
    cluster.publish("t", b"from the new one", at=new)
    assert_each_once(cluster, subscriptions, {b"before", b"from the new one"})
    cluster.leave(1)
    cluster.await_members(count)
    cluster.publish("t", b"after", at=2)
    assert_each_once(cluster, [subscriptions[0], *subscriptions[2:]], {b"before", b"from the new one", b"after"})


@proves(TOPICS_OF_EACH_NODE, sizes=SEVERAL)
@pytest.mark.requirement("CM-6:new-topics", "CM-6:patterns", "FL-5")
def test_a_pattern_gets_every_matching_topic_at_its_node(cluster: Cluster) -> None:
    subscriptions = [cluster.subscribe("a/#", at=node) for node in cluster.running]
    wanted: set[bytes] = set()
    for node in cluster.running:
        for name in ("a/all", f"a/of-{node}", "b"):
            if name not in cluster.topics(at=node):
                cluster.create_topic_at(node, name)
            cluster.publish(name, b"%b at %d" % (name.encode(), node), at=node)
        wanted |= {b"a/all at %d" % node, b"a/of-%d at %d" % (node, node)}
    assert_each_once(cluster, subscriptions, wanted)


@proves(OWNERSHIP_IS_SHARED)
def test_exclusive_ownership_is_refused_with_the_reason(cluster: Cluster) -> None:
    with pytest.raises(UnsupportedByFabric):
        cluster.create_topic("t", ownership="exclusive")


@proves(OWNERSHIP_IS_SHARED)
def test_a_strength_has_no_effect_where_all_publishers_are_delivered(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    strong, weak = cluster.publisher("t", 5, at=nodes[0]), cluster.publisher("t", 1, at=nodes[-1])
    cluster.publish_with(weak, b"weak")
    cluster.publish_with(strong, b"strong")
    cluster.set_strength(weak, 9)
    cluster.publish_with(weak, b"weak no more")
    assert_each_once(
        cluster, [cluster.subscribe("t", at=node) for node in nodes], {b"weak", b"strong", b"weak no more"}
    )
    cluster.leave_topic(strong)


# --- named subscriptions ---


@proves(GROUPS_ARE_LOCAL)
@pytest.mark.requirement("FL-2:users", "FL-4:users")
def test_a_group_is_local_to_its_node_and_gets_every_record_once(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    members = [cluster.member("billing", "t", at=node) for node in nodes]
    wanted = [b"%d from %d" % (at, node) for node in nodes for at in range(3)]
    for node in nodes:
        cluster.publish("t", *(b"%d from %d" % (at, node) for at in range(3)), at=node)
    for member in members:
        assert sorted(value or b"" for value in cluster.handle(member, len(wanted))) == sorted(wanted)
    cluster.leave_group(members[0])
    with pytest.raises(GroupBusy):
        cluster.reset_group("billing", "earliest", at=nodes[1])
    cluster.reset_group("billing", "earliest", at=nodes[0])
    assert cluster.describe_group("billing", at=nodes[0]).lag == len(wanted)
    assert (
        not cluster.describe_group("billing", at=nodes[0]).members
        and cluster.describe_group("billing", at=nodes[1]).members
    )
    with pytest.raises(UnknownGroup):
        cluster.describe_group("unknown", at=nodes[0])


@proves(GROUPS_ARE_LOCAL)
@pytest.mark.requirement("FL-7:vector", "FL-10:waits")
def test_records_wait_for_a_group_without_members_across_a_crash(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    member = cluster.member("billing", "t", at=nodes[0], start="latest")
    cluster.publish("t", b"first", at=nodes[0])
    assert cluster.handle(member, 1) == [b"first"]
    cluster.leave_group(member)
    cluster.crash(nodes[0])
    wanted = {b"from %d" % node for node in nodes[1:]}
    for node in nodes[1:]:
        cluster.publish("t", b"from %d" % node, at=node)
    cluster.restart(nodes[0])
    cluster.await_members(len(nodes))
    again = cluster.member("billing", "t", at=nodes[0], start="latest")
    assert set(cluster.handle(again, len(wanted))) == wanted
    cluster.publish("t", b"last", at=nodes[0])
    assert cluster.handle(again, 1) == [b"last"]


@proves(GROUPS_ARE_LOCAL)
def test_a_member_fails_over_to_another_node_with_its_unhandled_records(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    member = cluster.member("billing", "t", at=nodes[0], lease_ms=20_000)
    cluster.publish("t", b"0", b"1", b"2", at=nodes[1])
    assert cluster.handle(member, 3) == [b"0", b"1", b"2"]
    cluster.crash(nodes[0])
    cluster.publish("t", b"3", b"4", at=nodes[1])
    assert cluster.handle(member, 2) == [b"3", b"4"]
    cluster.publish("t", b"5", at=nodes[2])
    assert cluster.handle(member, 1) == [b"5"]


@proves(TOPICS_OF_EACH_NODE)
@pytest.mark.requirement("FL-23:alone")
def test_a_single_node_is_a_complete_ring(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", b"x", at=cluster.running[-1])
    assert_each_once(cluster, [cluster.subscribe("t", at=node) for node in cluster.running], {b"x"})


@proves(TOPICS_OF_EACH_NODE, sizes=SEVERAL)
@pytest.mark.requirement("FL-28")
def test_a_client_may_use_several_nodes_at_once(cluster: Cluster) -> None:
    cluster.create_topic("t")
    producers = [cluster.producer("t", at=node) for node in cluster.running]
    subscriptions = [cluster.subscribe("t", at=node) for node in (*cluster.running, *cluster.running)]
    for number, producer in enumerate(producers):
        producer.send(*(b"%d-%d" % (number, at) for at in range(10)))
    assert_each_once(cluster, subscriptions, {value for producer in producers for value in producer.sent})
