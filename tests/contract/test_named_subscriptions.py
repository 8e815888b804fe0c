"""Named subscriptions through the client: positions kept by the cluster, shared partitions, retries, dead letters."""

from __future__ import annotations

import pytest

from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import Offset
from tests.contract.facade import Cluster
from tests.contract.group_members import GroupMember
from tests.contract.guarantees import GROUPS_SPAN_NODES, ORDERS_ORIGINS, ORDERS_PARTITIONS, SURVIVES_ONE_NODE, proves

SLOW_LEASE_MS = 3_000


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def in_order(cluster: Cluster, values: list[bytes | None]) -> list[bytes | None]:
    """The values in publish order; sorted where records of several nodes have no order."""
    return sorted(values, key=lambda value: int(value or 0)) if ORDERS_ORIGINS.holds(cluster.guarantees) else values


@proves()
@pytest.mark.requirement("CM-8:resumes", "RF-31:missed")
def test_a_named_subscriber_that_returns_gets_all_it_missed_in_order_and_once(cluster: Cluster) -> None:
    cluster.create_topic("t")
    nodes = cluster.running
    member = cluster.member("billing", "t", at=nodes[0], start="latest")
    cluster.publish("t", *numbers(0, 5), at=nodes[0])
    assert cluster.handle(member, 3) == numbers(0, 3)
    cluster.leave_group(member)
    for node in nodes:
        cluster.publish("t", *numbers(5 + 4 * node, 9 + 4 * node), at=node)
    everything = numbers(3, 5 + 4 * len(nodes))
    again = cluster.member("billing", "t", at=cluster.group_nodes[-1], start="latest")
    assert in_order(cluster, cluster.handle(again, len(everything))) == everything
    # While there is a member: a control record of a new owner counts as lag until a member has skipped it.
    cluster.run_until(
        lambda: cluster.describe_group("billing").lag == 0, "a member that has handled all to lag by nothing"
    )
    cluster.leave_group(again)
    last = cluster.member("billing", "t", at=nodes[0])
    cluster.publish("t", b"last", at=nodes[-1])
    assert cluster.handle(last, 1) == [b"last"]


@proves(ORDERS_PARTITIONS)
@pytest.mark.requirement("CM-8:shared")
def test_members_share_the_partitions_and_each_record_is_handled_by_one(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=4)
    first = cluster.member("billing", "t", at=cluster.group_nodes[0])
    sent = {partition: [b"%d-%d" % (partition, at) for at in range(6)] for partition in range(4)}
    for partition, values in sent.items():
        cluster.publish("t", *values[:3], partition=partition)
    assert len(cluster.handle(first, 12)) == 12
    second = cluster.member("billing", "t", at=cluster.group_nodes[-1])

    def shared() -> bool:
        first.take(ack=True)
        return len(first.membership.partitions) == len(second.membership.partitions) == 2

    cluster.run_until(shared, "each to have half of the partitions")
    for partition, values in sent.items():
        cluster.publish("t", *values[3:], partition=partition)

    def all_handled() -> bool:
        first.take(ack=True)
        second.take(ack=True)
        return len(first.taken) + len(second.taken) >= 24

    cluster.run_until(all_handled, "all records at either")
    for partition, values in sent.items():
        handled = [record.value for record in first.taken + second.taken if record.partition == partition]
        assert handled == values
    assert second.taken


@proves()
@pytest.mark.requirement("CM-8:slow-handler")
def test_a_slow_handler_is_not_a_dead_member(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", *numbers(0, 3))
    # Longer than the machine may stall, because the member and its node are threads of this process.
    slow = cluster.member("billing", "t", lease_ms=SLOW_LEASE_MS)
    (record,) = take_unacked(cluster, slow)
    other = cluster.member("billing", "t", at=cluster.group_nodes[-1])
    end_us = cluster.now_us + SLOW_LEASE_MS * 1500
    cluster.run_until(lambda: cluster.now_us >= end_us, "more than its lease to pass")
    assert other.take() == []
    record.ack()
    assert [*slow.values, *cluster.handle(slow, 2)] == numbers(0, 3)
    assert {record.tries for record in slow.taken} == {0}


def take_unacked(cluster: Cluster, member: GroupMember, count: int = 1) -> list[GroupRecord]:
    """Lets a member take so many records without acknowledging them."""
    before = len(member.taken)

    def enough() -> bool:
        member.take(count - len(member.taken) + before)
        return len(member.taken) - before >= count

    cluster.run_until(enough, f"{count} records in hand")
    return member.taken[before:]


@proves()
@pytest.mark.requirement("CM-8:acknowledges")
def test_unacknowledged_records_of_a_crashed_member_are_redelivered(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", *numbers(0, 6))
    doomed = cluster.member("billing", "t", lease_ms=1_500)
    assert cluster.handle(doomed, 2) == numbers(0, 2)
    take_unacked(cluster, doomed, 2)
    cluster.run_until(lambda: cluster.describe_group("billing").lag == 4, "the positions to be kept")
    doomed.crash()
    heir = cluster.member("billing", "t", at=cluster.group_nodes[-1])
    assert cluster.handle(heir, 4) == numbers(2, 6)
    assert [record.tries for record in heir.taken] == [1, 0, 0, 0]


@proves()
def test_after_the_last_try_a_record_goes_to_the_dead_letter_topic(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.create_topic("dead")
    cluster.publish("t", *numbers(0, 3))
    member = cluster.member("billing", "t", tries=3, dead_letter="dead")

    def all_handled() -> bool:
        for record in member.take():
            if record.value == b"1":
                record.retry()
            else:
                record.ack()
        return cluster.describe_group("billing").lag == 0

    cluster.run_until(all_handled, "no lag")
    assert [record.tries for record in member.taken if record.value == b"1"] == [0, 1, 2]
    assert sorted(set(member.values), key=str) == numbers(0, 3)
    assert cluster.read("dead") == [b"1"]


@proves()
def test_a_reset_group_continues_at_the_new_position_and_reports_its_lag(cluster: Cluster) -> None:
    cluster.create_topic("t")
    offsets = [ack.offset for ack in cluster.publish("t", *numbers(0, 5))]
    member = cluster.member("billing", "t")
    assert cluster.handle(member, 5) == numbers(0, 5)
    cluster.leave_group(member)
    assert cluster.describe_group("billing").lag == 0
    for start, expected in (("earliest", numbers(0, 5)), (Offset(offsets[2]), numbers(2, 5)), ("latest", [])):
        cluster.reset_group("billing", start, at=cluster.group_nodes[-1])
        assert (cluster.describe_group("billing").lag == 0) == (not expected)
        again = cluster.member("billing", "t", at=cluster.group_nodes[-1])
        assert cluster.handle(again, len(expected)) == expected
        cluster.leave_group(again)


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS, GROUPS_SPAN_NODES)
@pytest.mark.requirement("RF-5:subscriptions", "RF-31:replicated")
def test_members_fail_over_to_another_coordinator_and_keep_their_positions(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.publish("t", *numbers(0, 4))
    nodes = cluster.running
    member = cluster.member("billing", "t", at=nodes[0], lease_ms=20_000)
    assert cluster.handle(member, 4) == numbers(0, 4)
    cluster.run_until(lambda: cluster.describe_group("billing").lag == 0, "the position to be kept")
    coordinator = cluster.coordinator("billing")
    cluster.crash(coordinator)
    (survivor, *_) = cluster.others(coordinator)
    cluster.publish("t", *numbers(4, 8), at=survivor)
    assert cluster.handle(member, 4) == numbers(4, 8)
    cluster.run_until(lambda: cluster.describe_group("billing", at=survivor).lag == 0, "the position to be kept again")
    cluster.leave_group(member)
    heir = cluster.member("billing", "t", at=survivor)
    cluster.publish("t", b"last", at=survivor)
    assert cluster.handle(heir, 1) == [b"last"]
