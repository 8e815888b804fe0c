"""Guarantees under crashes, pauses and splits."""

from __future__ import annotations

import pytest

from rostra.errors import RostraError
from tests.contract.clients import Producer, Subscription
from tests.contract.facade import SHORT_TIMEOUT_MS, Cluster
from tests.contract.guarantees import (
    ACKNOWLEDGED_BY_SEVERAL,
    ACKNOWLEDGED_IS_DURABLE,
    ONE_SET_OF_TOPICS,
    ORDERS_PARTITIONS,
    REFUSES_IN_A_SPLIT,
    SEVERAL,
    SINGLE,
    SURVIVES_A_MINORITY,
    SURVIVES_ONE_NODE,
    proves,
)

FEW = [b"%d" % number for number in range(20)]


def assert_exactly_once(cluster: Cluster, producer: Producer, subscription: Subscription) -> None:
    cluster.run_until(lambda: producer.settled, f"all {len(producer.sent)} records to be settled")
    assert not producer.failed and not producer.warnings
    cluster.run_until(lambda: len(subscription.records) >= len(producer.sent), "all of them to be delivered")
    assert subscription.values == producer.sent
    assert cluster.read(producer.topic, at=cluster.running[0]) == producer.sent


# --- crashes ---


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-5:stored-once", "RF-32:majority")
def test_each_record_is_delivered_once_across_the_crash_of_its_owner(cluster: Cluster) -> None:
    cluster.create_topic("t")
    owner = cluster.owner("t")
    here, there, *_ = cluster.others(owner)
    producer, subscription = cluster.producer("t", at=here), cluster.subscribe("t", at=there)
    producer.send(*(b"%d-%d" % (0, at) for at in range(60)))
    cluster.run_until(lambda: len(producer.acked) > 0, "the first acknowledgement")
    producer.send(*(b"%d-%d" % (1, at) for at in range(60)))
    cluster.crash(owner)
    assert cluster.owner("t") != owner
    producer.send(*(b"%d-%d" % (2, at) for at in range(60)))
    assert_exactly_once(cluster, producer, subscription)
    cluster.restart(owner)
    cluster.await_equal_copies("t", count=3)


@proves(SURVIVES_A_MINORITY, ORDERS_PARTITIONS)
@pytest.mark.requirement("RF-32:majority")
def test_the_others_go_on_when_a_minority_of_the_copies_is_lost_at_once(cluster: Cluster) -> None:
    cluster.create_topic("t", replicas=cluster.count)
    owner = cluster.owner("t")
    producer = cluster.producer("t", at=owner)
    producer.send(*FEW[:10])
    cluster.run_until(lambda: producer.settled, "the first records")
    lost = [owner, cluster.others(owner)[0]]
    cluster.crash(*lost)
    here = cluster.running[0]
    subscription = cluster.subscribe("t", at=here)
    rest = cluster.producer("t", at=here)
    rest.send(*FEW[10:])
    cluster.run_until(lambda: rest.settled, "the others to go on")
    cluster.run_until(lambda: len(subscription.records) >= len(FEW), "all records")
    assert subscription.values == FEW and not rest.failed
    cluster.restart(*lost)
    cluster.await_equal_copies("t", count=cluster.count)


@proves(ACKNOWLEDGED_BY_SEVERAL)
@pytest.mark.requirement("RF-6:acknowledged", "RF-35:quorum")
def test_an_acknowledgement_needs_a_majority_however_many_are_unreachable(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    cluster.publish("t", b"three")
    owner = cluster.owner("t")
    one, other = cluster.holders("t", besides=owner)
    cluster.crash(one)
    cluster.publish("t", b"two", at=other)
    cluster.crash(other)
    with pytest.raises(RostraError):
        cluster.publish("t", b"one", at=owner, timeout_ms=SHORT_TIMEOUT_MS)
    cluster.restart(one)
    (ack,) = cluster.publish("t", b"two again", at=one)
    assert ack.offset > 0 and topic.name == "t"
    cluster.restart(other)
    cluster.await_equal_copies("t", count=3)
    assert [value for value in cluster.read("t") if value != b"one"] == [b"three", b"two", b"two again"]


@proves(ACKNOWLEDGED_IS_DURABLE, ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-14:power", "RF-34:fsynced")
def test_records_acknowledged_by_a_majority_survive_a_power_cut_of_all(cluster: Cluster) -> None:
    survives_power_cut(cluster)


@proves(sizes=(SINGLE,))
@pytest.mark.requirement("CM-14:power")
def test_records_acknowledged_by_a_single_node_survive_its_power_cut(cluster: Cluster) -> None:
    survives_power_cut(cluster)


def survives_power_cut(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    for turn in range(3):
        some = FEW[turn * 5 : turn * 5 + 5]
        cluster.publish("t", *some, at=nodes[turn % len(nodes)])
        cluster.cut_power()
        cluster.restart(*nodes)
        assert cluster.read("t", at=nodes[-1]) == FEW[: turn * 5 + 5]


@proves(sizes=(SINGLE,))
@pytest.mark.requirement("CM-12:restarts", "CM-14:kill")
def test_a_crashed_node_recovers_its_state(cluster: Cluster) -> None:
    restarts_as_it_was(cluster)


@proves(ONE_SET_OF_TOPICS, sizes=SEVERAL)
@pytest.mark.requirement("CM-12:restarts")
def test_a_data_directory_restarts_a_node_as_the_same_member(cluster: Cluster) -> None:
    restarts_as_it_was(cluster)


def restarts_as_it_was(cluster: Cluster) -> None:
    topic = cluster.create_topic("t")
    cluster.publish("t", *FEW)
    nodes = cluster.running
    before = {node.node: node.address for node in cluster.state().nodes}
    for node in nodes:
        cluster.crash(node)
        cluster.restart(node)
    cluster.await_members(len(nodes))
    assert {node.node: node.address for node in cluster.state().nodes} == before
    assert cluster.topics() == {"t": topic.topic}
    assert cluster.read("t") == FEW


# --- pauses ---


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS)
@pytest.mark.requirement("RF-33:terms")
def test_an_owner_that_was_paused_steps_down_and_nothing_is_lost_or_duplicated(cluster: Cluster) -> None:
    cluster.create_topic("t")
    owner = cluster.owner("t")
    here, there, *_ = cluster.others(owner)
    producer, subscription = cluster.producer("t", at=here), cluster.subscribe("t", at=there)
    producer.send(*(b"%d-%d" % (0, at) for at in range(40)))
    cluster.run_until(lambda: len(producer.acked) > 0, "the first acknowledgement")
    producer.send(*(b"%d-%d" % (1, at) for at in range(40)))
    cluster.pause(owner)
    cluster.run_until(lambda: (new := cluster.placed("t", at=here)) is not None and new.owner != 0, "an owner")
    cluster.run_until(lambda: producer.settled, "the others to continue")
    cluster.resume(owner)
    producer.send(*(b"%d-%d" % (2, at) for at in range(40)))
    assert_exactly_once(cluster, producer, subscription)
    cluster.await_equal_copies("t", count=3)


# --- splits ---


@proves(REFUSES_IN_A_SPLIT)
@pytest.mark.requirement("RF-35:quorum", "RF-36")
def test_the_side_without_a_majority_refuses_and_the_other_continues(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", b"before")
    owner = cluster.owner("t")
    cut_off = cluster.minority_with(owner, "t")
    rest = cluster.others(*cut_off)
    cluster.partition(cut_off, rest)
    with pytest.raises(RostraError):
        cluster.publish("t", b"minority", at=owner, timeout_ms=SHORT_TIMEOUT_MS)
    cluster.publish("t", b"majority", at=rest[0])
    cluster.create_topic("made meanwhile".replace(" ", "-"), at=rest[1])
    with pytest.raises(RostraError):
        # The list of this side may be stale.
        cluster.topics(at=owner, timeout_ms=SHORT_TIMEOUT_MS)
    cluster.heal()
    cluster.await_members(cluster.count)
    cluster.await_equal_copies("t", count=3)
    for node in cluster.running:
        shown = cluster.read("t", at=node)
        assert [value for value in shown if value != b"minority"] == [b"before", b"majority"]
        assert sorted(cluster.topics(at=node)) == ["made-meanwhile", "t"]


@proves(REFUSES_IN_A_SPLIT)
@pytest.mark.requirement("CM-4:shown-when-safe", "RF-6:majority")
def test_records_an_isolated_owner_could_not_commit_are_not_delivered(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", b"before")
    owner = cluster.owner("t")
    cut_off = cluster.minority_with(owner, "t")
    rest = cluster.others(*cut_off)
    subscription = cluster.subscribe("t", at=owner)
    cluster.run_until(lambda: subscription.values == [b"before"], "what is committed")
    cluster.partition(cut_off, rest)
    with pytest.raises(RostraError):
        cluster.publish("t", b"minority", at=owner, timeout_ms=SHORT_TIMEOUT_MS)
    assert subscription.values == [b"before"]
    cluster.publish("t", b"majority", at=rest[0])
    cluster.heal()
    cluster.run_until(lambda: b"majority" in subscription.values, "the other side's record")
    final = cluster.read("t", at=rest[0])
    cluster.run_until(lambda: len(subscription.records) >= len(final), "everything")
    assert subscription.values == final


@proves(REFUSES_IN_A_SPLIT)
@pytest.mark.requirement("CM-5:stored-once", "RF-33:terms")
def test_each_record_is_delivered_once_across_a_split(cluster: Cluster) -> None:
    cluster.create_topic("t")
    owner = cluster.owner("t")
    here, there, *_ = cluster.others(owner)
    producer, subscription = cluster.producer("t", at=here), cluster.subscribe("t", at=there)
    stranded = cluster.producer("t", at=owner)
    producer.send(*(b"%d-%d" % (0, at) for at in range(40)))
    cluster.run_until(lambda: producer.settled, "the first records")
    producer.send(*(b"%d-%d" % (1, at) for at in range(40)))
    cluster.partition([owner], cluster.others(owner))
    stranded.send(b"from the other side")
    producer.send(*(b"%d-%d" % (2, at) for at in range(40)))
    cluster.run_until(lambda: producer.settled, "the larger side to continue")
    assert not stranded.acked
    cluster.heal()
    cluster.run_until(lambda: stranded.settled, "the other side to be acknowledged")
    assert not (producer.failed or stranded.failed or producer.warnings or stranded.warnings)
    wanted = len(producer.sent) + 1
    cluster.run_until(lambda: len(subscription.records) >= wanted, "all of them to be delivered")
    assert [value for value in subscription.values if value not in stranded.sent] == producer.sent
    assert len(subscription.records) == wanted
    cluster.await_equal_copies("t", count=3)


@proves(sizes=SEVERAL)
@pytest.mark.requirement("RF-11")
def test_every_member_reports_a_node_that_is_down(cluster: Cluster) -> None:
    gone = cluster.running[-1]
    rest = cluster.others(gone)

    def all_report(there: bool) -> bool:
        seen = [cluster.node_state(gone, at=node) for node in rest]
        return all(state is not None and state.alive is there for state in seen)

    assert all_report(True)
    cluster.crash(gone)
    cluster.run_until(lambda: all_report(False), "all nodes to report it down")
    cluster.restart(gone)
    cluster.run_until(lambda: all_report(True), "all nodes to report it alive")
    cluster.partition([gone], rest)
    cluster.run_until(lambda: all_report(False), "all nodes to report it down")
    cluster.heal()
    cluster.run_until(lambda: all_report(True), "all nodes to report it alive")


# --- catch-up ---


@proves(ORDERS_PARTITIONS, sizes=SEVERAL)
@pytest.mark.requirement("RF-30:log")
def test_a_restarted_node_catches_up(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", *FEW[:5])
    away, needed = cluster.holders("t", besides=cluster.owner("t"))
    cluster.crash(away)
    rest = cluster.running
    cluster.publish("t", *FEW[5:], at=rest[0])
    cluster.create_topic("later", at=rest[1])
    cluster.restart(away)
    cluster.await_equal_copies("t", count=3)
    assert sorted(cluster.topics(at=away)) == ["later", "t"]
    # Now its replica is needed for a majority.
    cluster.crash(needed)
    assert cluster.read("t", at=away) == FEW


@proves(ORDERS_PARTITIONS, sizes=SEVERAL)
def test_a_node_down_longer_than_retention_catches_up_from_log_start(cluster: Cluster) -> None:
    cluster.create_topic("t", retention_bytes=8_000, segment_bytes=1 << 12)
    cluster.publish("t", b"first")
    away, _ = cluster.holders("t", besides=cluster.owner("t"))
    cluster.await_equal_copies("t", count=3)
    cluster.crash(away)
    here = cluster.running[0]
    producer = cluster.producer("t", at=here)
    for number in range(12):
        producer.send(*(b"%d-%d %b" % (number, at, b"x" * 300) for at in range(10)))
        cluster.run_until(lambda: producer.settled, "the records")
    cluster.run_until(lambda: (now := cluster.placed("t", at=here)) is not None and now.first > 5, "retention")
    cluster.restart(away)
    held = cluster.await_equal_copies("t", count=3)
    assert held[0].base > 5
    assert cluster.read("t", at=away)[-1] == producer.sent[-1]
