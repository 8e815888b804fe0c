"""The group protocol: no record is lost or redelivered after its acknowledgement, whatever crashes."""

from __future__ import annotations

import pytest

from rostra.errors import GroupBusy, UnknownGroup
from rostra.wire.groups import DeleteGroup, DescribeGroup, GroupDescribed, Position, ResetGroup
from rostra.wire.messages import Agreed
from tests.contract.facade import Cluster
from tests.contract.guarantees import (
    GROUPS_SPAN_NODES,
    ORDERS_PARTITIONS,
    REFUSES_IN_A_SPLIT,
    SURVIVES_ONE_NODE,
    proves,
)
from tests.contract.wire_members import NAME, MemberPool, coordinator_node, describe_group, request_coordinator

PARTITIONS = 5
SHORT_LEASE_MS = 600
"""A lease that expires before a node closes a silent connection."""
LONG_LEASE_MS = 60_000
"""A lease that does not expire during a test."""
DELIVERY_MS = 300
"""Within this time a message of a client reaches its node."""


def pool_of(cluster: Cluster, partitions: int) -> MemberPool:
    """A pool of members that share so many partitions, of one topic where a topic may have several."""
    if ORDERS_PARTITIONS.holds(cluster.guarantees):
        cluster.create_topic("orders", partitions)
        return MemberPool(cluster, "orders")
    for number in range(partitions):
        cluster.create_topic(f"orders/{number}")
    return MemberPool(cluster, "orders/+")


@proves()
@pytest.mark.requirement("CM-8:shared")
def test_members_share_the_partitions_and_lose_nothing_as_they_join_and_leave(cluster: Cluster) -> None:
    pool = pool_of(cluster, PARTITIONS)
    first = pool.join()
    pool.await_balanced(PARTITIONS)
    second, third = pool.join(), pool.join()
    pool.await_balanced(PARTITIONS)
    pool.await_progress()
    pool.crash(second)
    first.leave()
    pool.members.remove(first)
    pool.await_balanced(PARTITIONS)
    assert third.partitions.keys() == pool.handled.up_to.keys()
    pool.join()
    pool.await_balanced(PARTITIONS)
    pool.await_progress()


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS, GROUPS_SPAN_NODES)
@pytest.mark.requirement("CM-8:kept")
def test_a_crash_of_the_coordinator_or_a_member_at_any_moment_loses_nothing(cluster: Cluster) -> None:
    pool = pool_of(cluster, PARTITIONS)
    pool.join()
    pool.await_balanced(PARTITIONS)
    for turn in range(3):
        pool.join()
        if turn == 1:
            pool.crash(pool.members[0])
        if turn == 2:
            pool.await_progress(1)
        dead = coordinator_node(cluster)
        cluster.crash(dead)
        pool.await_balanced(PARTITIONS)
        cluster.restart(dead)
        pool.await_progress()


@proves(REFUSES_IN_A_SPLIT, GROUPS_SPAN_NODES)
def test_an_isolated_or_paused_coordinator_commits_no_position_that_is_lost(cluster: Cluster) -> None:
    pool = pool_of(cluster, PARTITIONS)
    pool.join()
    pool.join()
    pool.await_balanced(PARTITIONS)
    cut_off = coordinator_node(cluster)
    cluster.partition([cut_off], cluster.others(cut_off))
    pool.await_progress()
    cluster.heal()
    pool.join()
    pool.await_balanced(PARTITIONS)
    paused = coordinator_node(cluster)
    cluster.pause(paused)
    pool.await_progress()
    cluster.resume(paused)
    pool.await_balanced(PARTITIONS)
    pool.await_progress()


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS, GROUPS_SPAN_NODES)
@pytest.mark.requirement("CM-8:kept")
def test_a_group_is_unchanged_after_a_failover(cluster: Cluster) -> None:
    pool = pool_of(cluster, PARTITIONS)
    for _ in range(3):
        pool.join(lease_ms=LONG_LEASE_MS)
    pool.await_balanced(PARTITIONS)
    pool.await_progress()
    before = describe_when_idle(cluster, pool)
    assert sorted(member.partitions for member in before.members) == [1, 2, 2]
    dead = coordinator_node(cluster)
    cluster.crash(dead)
    assert describe_group(cluster) == before
    cluster.restart(dead)
    pool.await_balanced(PARTITIONS)
    assert describe_group(cluster).generation == before.generation, "nothing moved"


@proves()
@pytest.mark.requirement("CM-8:kept")
def test_a_group_is_unchanged_after_a_power_cut_of_all(cluster: Cluster) -> None:
    """Also after retention has removed all segments of its log but the last."""
    pool = pool_of(cluster, PARTITIONS)
    pool.join(lease_ms=LONG_LEASE_MS)
    pool.await_balanced(PARTITIONS)
    partition = coordinator_partition(cluster)

    def trimmed() -> bool:
        pool.step()
        placed = cluster.placed("_groups", partition, at=cluster.group_nodes[0])
        return placed is not None and placed.first > 0

    cluster.run_until(trimmed, "retention to take the first segment")
    before = describe_when_idle(cluster, pool)
    nodes = cluster.running
    cluster.cut_power()
    cluster.restart(*nodes)
    assert describe_group(cluster) == before
    pool.await_progress()


def describe_when_idle(cluster: Cluster, pool: MemberPool) -> GroupDescribed:
    """Crashes all members and describes the group once their last messages have arrived."""
    for member in pool.members:
        member.crash()
    seen: list[GroupDescribed] = []

    def is_still() -> bool:
        cluster.pass_time(DELIVERY_MS)
        seen.append(describe_group(cluster))
        return len(seen) > 1 and seen[-1] == seen[-2]

    cluster.run_until(is_still, "the last messages of the members to arrive")
    return seen[-1]


def coordinator_partition(cluster: Cluster) -> int:
    """The partition of the group log that holds the group."""
    busy = [one for one in cluster.state(at=cluster.group_nodes[0]).partitions if one.topic == "_groups"]
    return max(busy, key=lambda one: one.commit).partition


@proves(SURVIVES_ONE_NODE, ORDERS_PARTITIONS, GROUPS_SPAN_NODES)
def test_an_expired_member_is_fenced_at_every_coordinator(cluster: Cluster) -> None:
    pool = pool_of(cluster, 2)
    sleeper = pool.join()
    pool.await_balanced(2)
    pool.members.remove(sleeper)
    pool.join()
    pool.await_balanced(2)
    dead = coordinator_node(cluster)
    cluster.crash(dead)
    pool.await_progress()

    def woke() -> bool:
        sleeper.step()
        pool.step()
        return sleeper.is_member and len(sleeper.partitions) == 1 and not overlap(pool, sleeper.partitions)

    cluster.run_until(woke, "the expired member to rejoin")
    pool.await_progress()


def overlap(pool: MemberPool, partitions: dict[tuple[int, int], int]) -> bool:
    return any(part in member.partitions for member in pool.members for part in partitions)


@proves()
def test_a_late_position_commit_has_no_effect(cluster: Cluster) -> None:
    pool = pool_of(cluster, 2)
    sleeper = pool.join(lease_ms=SHORT_LEASE_MS)
    pool.await_balanced(2)
    pool.await_progress(3)
    pool.members.remove(sleeper)
    other = pool.join(lease_ms=LONG_LEASE_MS)
    pool.await_balanced(2)
    pool.await_progress(3)
    other.crash()
    request = sleeper.acknowledge_first()
    cluster.run_until(lambda: sleeper.was_answered(request), "a reply to the expired member")
    shown = {(part.topic, part.partition): part.value for part in describe_group(cluster).partitions}
    assert all(shown[part] >= offset for part, offset in pool.handled.acknowledged.items())


@proves()
def test_a_group_is_reset_and_deleted_only_without_members(cluster: Cluster) -> None:
    topic = cluster.create_topic("orders")
    pool = MemberPool(cluster, "orders")
    first = pool.join()
    pool.await_balanced(1)
    reset = ResetGroup(5, NAME, (Position(topic.topic, 0, 7),))
    assert isinstance(request_coordinator(cluster, reset, Agreed), GroupBusy)
    first.leave()
    cluster.run_until(lambda: not describe_group(cluster).members, "the member to be gone")
    assert request_coordinator(cluster, reset, Agreed) == Agreed(5)
    assert [(part.start, part.value) for part in describe_group(cluster).partitions] == [("offset", 7)]
    assert request_coordinator(cluster, DeleteGroup(6, NAME), Agreed) == Agreed(6)
    assert isinstance(request_coordinator(cluster, DescribeGroup(7, NAME), GroupDescribed), UnknownGroup)
