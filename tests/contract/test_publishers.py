"""Publisher strength, exclusive ownership and history."""

from __future__ import annotations

import pytest

from rostra.client.core.options import Last
from rostra.model.batch import SUPPRESSED
from rostra.model.decode import iterate
from rostra.model.ids import Partition, PartitionIndex
from rostra.simulator.checkers.ownership import flaws_in
from rostra.simulator.history import StoredRecord, stored_in
from tests.contract.clients import Producer, Subscription
from tests.contract.facade import Cluster, Node
from tests.contract.guarantees import ORDERS_PARTITIONS, OWNERSHIP_CAN_BE_CHOSEN, SURVIVES_ONE_NODE, proves

SHORT_LEASE_MS = 400


def stored(cluster: Cluster, topic: str, node: Node) -> list[StoredRecord]:
    key = Partition(cluster.topics(at=node)[topic], PartitionIndex(0))
    log = b"".join(cluster.segments(node, key))
    return [one for batch in iterate(log) for one in stored_in(batch)]


def await_valid_log(cluster: Cluster, topic: str, copies: int) -> list[StoredRecord]:
    """Waits until all replicas are equal, checks that each suppresses by the rules, and returns the log."""
    cluster.await_equal_copies(topic, count=copies)
    logs = [stored(cluster, topic, node) for node in cluster.running]
    assert all(flaws_in(log) == [] for log in logs)
    return logs[0]


def copies_of(cluster: Cluster) -> int:
    return len(cluster.running)


def await_values(cluster: Cluster, subscription: Subscription, wanted: list[bytes]) -> None:
    cluster.run_until(lambda: len(subscription.records) >= len(wanted), f"{wanted} to be delivered")
    assert subscription.values == wanted


def sorted_by_id(*producers: Producer) -> list[Producer]:
    return sorted(producers, key=lambda producer: producer.publisher)


@proves(OWNERSHIP_CAN_BE_CHOSEN)
@pytest.mark.requirement("HR-12", "HR-13")
def test_all_nodes_deliver_the_strongest_and_among_equals_the_lowest_id(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count)
    nodes = cluster.running
    seen = [cluster.subscribe("t", at=node) for node in nodes]
    weak = cluster.publisher("t", 1, at=nodes[0])
    cluster.publish_with(weak, b"alone")
    first, second = sorted_by_id(cluster.publisher("t", 7, at=nodes[-1]), cluster.publisher("t", 7, at=nodes[0]))
    cluster.publish_with(weak, b"weaker")
    cluster.publish_with(second, b"equal, of a higher id")
    cluster.publish_with(first, b"strongest")
    cluster.publish_with(weak, b"weaker still")
    cluster.publish_with(first, b"last")
    for subscription in seen:
        await_values(cluster, subscription, [b"alone", b"strongest", b"last"])
    cluster.await_publishers("t", {first.publisher: 7, second.publisher: 7, weak.publisher: 1})
    await_valid_log(cluster, "t", copies_of(cluster))


@proves(OWNERSHIP_CAN_BE_CHOSEN)
@pytest.mark.requirement("HR-14:drops", "HR-14:lowers", "HR-15")
def test_the_next_strongest_takes_over_when_the_strongest_leaves_or_weakens(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count)
    nodes = cluster.running
    seen = cluster.subscribe("t", at=nodes[-1])
    one, other = cluster.publisher("t", 5, at=nodes[0]), cluster.publisher("t", 4, at=nodes[-1])
    cluster.publish_with(other, b"- too weak")
    cluster.publish_with(one, b"5 against 4")
    one.set_strength(3)
    cluster.publish_with(one, b"- weaker now")
    cluster.publish_with(other, b"4 against 3")
    one.set_strength(9)
    cluster.publish_with(one, b"9 against 4")
    cluster.publish_with(other, b"- too weak again")
    cluster.leave_topic(one)
    cluster.publish_with(other, b"alone")
    delivered = [b"5 against 4", b"4 against 3", b"9 against 4", b"alone"]
    await_values(cluster, seen, delivered)
    cluster.await_publishers("t", {other.publisher: 4})
    assert cluster.read("t", at=nodes[0]) == delivered
    await_valid_log(cluster, "t", copies_of(cluster))


@proves(OWNERSHIP_CAN_BE_CHOSEN)
@pytest.mark.requirement("HR-8", "HR-14:dies")
def test_a_silent_publisher_expires_at_all_nodes_and_its_records_stay(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count)
    nodes = cluster.running
    dying = cluster.publisher("t", 5, at=nodes[0], lease_ms=SHORT_LEASE_MS)
    cluster.publish_with(dying, b"before")
    left = cluster.publisher("t", 1, at=nodes[-1])
    dying.kill()
    cluster.await_publishers("t", {left.publisher: 1})
    cluster.publish_with(left, b"after")
    assert cluster.read("t", at=nodes[-1]) == [b"before", b"after"]
    await_valid_log(cluster, "t", copies_of(cluster))


@proves(OWNERSHIP_CAN_BE_CHOSEN)
@pytest.mark.requirement("HR-7", "HR-9")
def test_a_publisher_that_leaves_is_removed_and_a_deleted_topic_removes_all(cluster: Cluster) -> None:
    nodes = cluster.running
    for name in ("a", "b"):
        cluster.create_topic(name, ownership="exclusive", replicas=cluster.count)
    strong = {name: cluster.publisher(name, 5, at=nodes[0]) for name in ("a", "b")}
    weak = {name: cluster.publisher(name, 1, at=nodes[-1]) for name in ("a", "b")}
    cluster.leave_topic(strong["a"])
    for name in ("a", "b"):
        cluster.publish_with(weak[name], b"weak")
    cluster.await_publishers("a", {weak["a"].publisher: 1})
    cluster.await_publishers("b", {strong["b"].publisher: 5, weak["b"].publisher: 1})
    assert cluster.read("a", at=nodes[0]) == [b"weak"]
    assert cluster.read("b", at=nodes[0]) == []
    cluster.delete_topic("b", at=nodes[-1])
    cluster.create_topic("b", at=nodes[0], ownership="exclusive", replicas=cluster.count)
    cluster.owner("b")
    new_client = cluster.publisher("b", 0, at=nodes[-1])
    cluster.publish_with(new_client, b"new")
    cluster.await_publishers("b", {new_client.publisher: 0})
    assert cluster.read("b", at=nodes[-1]) == [b"new"]


@proves(OWNERSHIP_CAN_BE_CHOSEN)
@pytest.mark.requirement("HR-11", "HR-16")
def test_history_is_the_newest_delivered_records_then_live_ones(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count, history_depth=5)
    nodes = cluster.running
    one, other = cluster.publisher("t", 5, at=nodes[0]), cluster.publisher("t", 4, at=nodes[-1])
    delivered: list[bytes] = []
    for turn in range(6):
        # The weaker publishes last: its record is never delivered, even if it becomes the strongest.
        cluster.set_strength(one, 5 if turn % 2 else 3)
        strong, weak = (one, other) if turn % 2 else (other, one)
        delivered.append(b"delivered %d" % turn)
        cluster.publish_with(strong, delivered[-1])
        cluster.publish_with(weak, b"suppressed %d" % turn)
    late = [cluster.subscribe("t", at=node, start=Last(asked)) for node in nodes for asked in (3, 100)]
    cluster.set_strength(one, 9)
    cluster.publish_with(one, b"live")
    cluster.leave_topic(one)
    cluster.publish_with(other, b"live of another")
    live = [b"live", b"live of another"]
    for subscription, asked in zip(late, (3, 5) * len(nodes), strict=True):
        await_values(cluster, subscription, delivered[-asked:] + live)
    assert cluster.read("t", at=nodes[0]) == delivered + live
    log = await_valid_log(cluster, "t", copies_of(cluster))
    marked = [one.value for one in log if one.owner_flags & SUPPRESSED]
    assert marked == [b"suppressed %d" % turn for turn in range(6)]


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("HR-17:shared")
def test_a_topic_is_shared_by_default_and_delivers_all_publishers(cluster: Cluster) -> None:
    cluster.create_topic("t", replicas=cluster.count)
    nodes = cluster.running
    strong, weak = cluster.publisher("t", 5, at=nodes[0]), cluster.publisher("t", 1, at=nodes[-1])
    cluster.publish_with(weak, b"weak")
    cluster.publish_with(strong, b"strong")
    cluster.publish("t", b"unregistered", at=nodes[-1])
    cluster.await_publishers("t", {strong.publisher: 5, weak.publisher: 1})
    assert cluster.read("t", at=nodes[0]) == [b"weak", b"strong", b"unregistered"]


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS, OWNERSHIP_CAN_BE_CHOSEN)
def test_publishers_are_unchanged_after_a_failover(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count)
    owner = cluster.owner("t")
    here, there, *_ = cluster.others(owner)
    seen = cluster.subscribe("t", at=there)
    strong, weak = cluster.publisher("t", 5, at=here), cluster.publisher("t", 1, at=there)
    alive = {strong.publisher: 5, weak.publisher: 1}
    cluster.publish_with(weak, b"- before")
    cluster.publish_with(strong, b"before")
    cluster.crash(owner)
    assert cluster.owner("t") != owner
    cluster.await_publishers("t", alive)
    # Before the strong one sends again: it is alive according to the log.
    cluster.publish_with(weak, b"- after")
    cluster.publish_with(strong, b"after")
    cluster.restart(owner)
    cluster.set_strength(strong, 0)
    cluster.publish_with(weak, b"stronger now")
    await_values(cluster, seen, [b"before", b"after", b"stronger now"])
    cluster.await_publishers("t", {weak.publisher: 1, strong.publisher: 0})
    await_valid_log(cluster, "t", copies_of(cluster))


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS, OWNERSHIP_CAN_BE_CHOSEN)
def test_an_idle_publisher_stays_registered_across_owners(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count)
    owner = cluster.owner("t")
    here, there, *_ = cluster.others(owner)
    idle = cluster.publisher("t", 5, at=here, lease_ms=SHORT_LEASE_MS)
    for node in (there, owner):
        cluster.transfer("t", node)
        cluster.pass_time(4 * SHORT_LEASE_MS)
        cluster.await_publishers("t", {idle.publisher: 5})


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS, OWNERSHIP_CAN_BE_CHOSEN)
def test_a_new_owner_takes_publishers_from_the_log(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count)
    owner = cluster.owner("t")
    here, there, *_ = cluster.others(owner)
    strong, weak = cluster.publisher("t", 5, at=here), cluster.publisher("t", 1, at=there)
    cluster.publish_with(strong, b"before")
    strong.kill()
    cluster.crash(owner)
    assert cluster.owner("t") != owner
    # It stays alive for another lease, although the new owner never got a message from it.
    cluster.publish_with(weak, b"after")
    assert cluster.read("t", at=there) == [b"before"]
    await_valid_log(cluster, "t", copies_of(cluster))


@proves(OWNERSHIP_CAN_BE_CHOSEN)
def test_publishers_survive_a_power_cut_of_all_and_retention(cluster: Cluster) -> None:
    cluster.create_topic("t", ownership="exclusive", replicas=cluster.count, segment_bytes=4096, retention_bytes=1)
    nodes = cluster.running
    strong, weak = cluster.publisher("t", 5, at=nodes[0]), cluster.publisher("t", 1, at=nodes[-1])
    alive = {strong.publisher: 5, weak.publisher: 1}
    for number in range(8):
        cluster.publish_with(weak, b"%d" % number * 1500)

    def trimmed() -> bool:
        placed = cluster.placed("t", at=nodes[0])
        return placed is not None and placed.first > 8

    cluster.run_until(trimmed, "retention to take the registrations")
    cluster.cut_power()
    cluster.restart(*nodes)
    cluster.await_publishers("t", alive)
    cluster.publish_with(weak, b"weak")
    cluster.publish_with(strong, b"strong")
    assert cluster.read("t", at=nodes[0]) == [b"strong"]
    await_valid_log(cluster, "t", copies_of(cluster))
