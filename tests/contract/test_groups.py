"""Named subscriptions: whoever dies, nothing is lost, and nothing that was acknowledged comes again."""

from __future__ import annotations

import pytest

from rostra.errors import GroupBusy, UnknownGroup
from rostra.fabric.api import Order, SplitBehaviour, Survives
from rostra.wire.groups import DeleteGroup, DescribeGroup, GroupDescribed, Position, ResetGroup
from rostra.wire.messages import Agreed
from tests.contract.facade import Cluster
from tests.contract.members import NAME, People, ask_coordinator, coordinator, described
from tests.contract.promises import promised

PARTS = 5
SHORT_LEASE_MS = 600
"""A lease that ends before a node closes a silent connection."""
PATIENT_MS = 60_000
"""A lease that does not end while a promise is looked at."""
AT_REST_MS = 300
"""Within so long what a client has said reaches its node."""


def people_of(cluster: Cluster, parts: int) -> People:
    """Members with so many parts to share: of one topic, where it may have several."""
    if cluster.guarantees.order is Order.PARTITION:
        cluster.create_topic("orders", parts)
        return People(cluster, "orders")
    for number in range(parts):
        cluster.create_topic(f"orders/{number}")
    return People(cluster, "orders/+")


@promised()
@pytest.mark.requirement("CM-8:shared")
def test_members_share_the_parts_and_lose_nothing_as_they_come_and_go(cluster: Cluster) -> None:
    people = people_of(cluster, PARTS)
    ann = people.join()
    people.await_shared(PARTS)
    bob, cem = people.join(), people.join()
    people.await_shared(PARTS)
    people.await_progress()
    people.kill(bob)
    ann.leave()
    people.living.remove(ann)
    people.await_shared(PARTS)
    assert cem.parts.keys() == people.handled.up_to.keys()
    people.join()
    people.await_shared(PARTS)
    people.await_progress()


@promised(survives=Survives.MINORITY, groups_span_nodes=True)
@pytest.mark.requirement("CM-8:kept")
def test_the_death_of_the_coordinator_or_a_member_at_any_moment_loses_nothing(cluster: Cluster) -> None:
    people = people_of(cluster, PARTS)
    people.join()
    people.await_shared(PARTS)
    for turn in range(3):
        people.join()
        if turn == 1:
            people.kill(people.living[0])
        if turn == 2:
            people.await_progress(1)
        dead = coordinator(cluster)
        cluster.crash(dead)
        people.await_shared(PARTS)
        cluster.restart(dead)
        people.await_progress()


@promised(split=SplitBehaviour.REFUSES, groups_span_nodes=True)
def test_a_coordinator_that_is_cut_off_or_stands_still_agrees_to_nothing_that_is_lost(cluster: Cluster) -> None:
    people = people_of(cluster, PARTS)
    people.join()
    people.join()
    people.await_shared(PARTS)
    cut_off = coordinator(cluster)
    cluster.partition([cut_off], cluster.others(cut_off))
    people.await_progress()
    cluster.heal()
    people.join()
    people.await_shared(PARTS)
    still = coordinator(cluster)
    cluster.pause(still)
    people.await_progress()
    cluster.resume(still)
    people.await_shared(PARTS)
    people.await_progress()


@promised(survives=Survives.MINORITY, groups_span_nodes=True)
@pytest.mark.requirement("CM-8:kept")
def test_a_name_is_the_same_after_a_takeover_as_before(cluster: Cluster) -> None:
    people = people_of(cluster, PARTS)
    for _ in range(3):
        people.join(lease_ms=PATIENT_MS)
    people.await_shared(PARTS)
    people.await_progress()
    before = described_at_rest(cluster, people)
    assert sorted(member.parts for member in before.members) == [1, 2, 2]
    dead = coordinator(cluster)
    cluster.crash(dead)
    assert described(cluster) == before
    cluster.restart(dead)
    people.await_shared(PARTS)
    assert described(cluster).generation == before.generation, "nothing moved"


@promised()
@pytest.mark.requirement("CM-8:kept")
def test_a_name_is_the_same_after_a_power_cut_of_all_as_before(cluster: Cluster) -> None:
    """Although retention has taken all segments of its log but the last."""
    people = people_of(cluster, PARTS)
    people.join(lease_ms=PATIENT_MS)
    people.await_shared(PARTS)
    partition = coordinator_partition(cluster)

    def trimmed() -> bool:
        people.act()
        placed = cluster.placed("_groups", partition, at=cluster.sharing[0])
        return placed is not None and placed.first > 0

    cluster.run_until(trimmed, "retention to take the first segment")
    before = described_at_rest(cluster, people)
    nodes = cluster.running
    cluster.cut_power()
    cluster.restart(*nodes)
    assert described(cluster) == before
    people.await_progress()


def described_at_rest(cluster: Cluster, people: People) -> GroupDescribed:
    """All members are dead, and what they had said before has arrived: a word on its way comes behind a question."""
    for member in people.living:
        member.die()
    seen: list[GroupDescribed] = []

    def is_still() -> bool:
        cluster.pass_time(AT_REST_MS)
        seen.append(described(cluster))
        return len(seen) > 1 and seen[-1] == seen[-2]

    cluster.run_until(is_still, "the last word of the dead to arrive")
    return seen[-1]


def coordinator_partition(cluster: Cluster) -> int:
    """The one of the two in which something is written."""
    busy = [one for one in cluster.state(at=cluster.sharing[0]).partitions if one.topic == "_groups"]
    return max(busy, key=lambda one: one.commit).partition


@promised(survives=Survives.MINORITY, groups_span_nodes=True)
def test_whoever_was_taken_for_dead_has_no_say_at_any_coordinator(cluster: Cluster) -> None:
    people = people_of(cluster, 2)
    sleeper = people.join()
    people.await_shared(2)
    people.living.remove(sleeper)
    people.join()
    people.await_shared(2)
    dead = coordinator(cluster)
    cluster.crash(dead)
    people.await_progress()

    def woke() -> bool:
        sleeper.act()
        people.act()
        return sleeper.is_member and len(sleeper.parts) == 1 and not overlap(people, sleeper.parts)

    cluster.run_until(woke, "the sleeper to be a member again")
    people.await_progress()


def overlap(people: People, parts: dict[tuple[int, int], int]) -> bool:
    return any(part in member.parts for member in people.living for part in parts)


@promised()
def test_a_position_that_comes_too_late_moves_nothing(cluster: Cluster) -> None:
    people = people_of(cluster, 2)
    sleeper = people.join(lease_ms=SHORT_LEASE_MS)
    people.await_shared(2)
    people.await_progress(3)
    people.living.remove(sleeper)
    other = people.join(lease_ms=PATIENT_MS)
    people.await_shared(2)
    people.await_progress(3)
    other.die()
    said = sleeper.insist()
    cluster.run_until(lambda: sleeper.was_answered(said), "an answer to the sleeper")
    shown = {(part.topic, part.partition): part.value for part in described(cluster).parts}
    assert all(shown[part] >= offset for part, offset in people.handled.acknowledged.items())


@promised()
def test_a_name_is_reset_and_deleted_only_while_nobody_is_there(cluster: Cluster) -> None:
    topic = cluster.create_topic("orders")
    people = People(cluster, "orders")
    ann = people.join()
    people.await_shared(1)
    reset = ResetGroup(5, NAME, (Position(topic.topic, 0, 7),))
    assert isinstance(ask_coordinator(cluster, reset, Agreed), GroupBusy)
    ann.leave()
    cluster.run_until(lambda: not described(cluster).members, "the member to be gone")
    assert ask_coordinator(cluster, reset, Agreed) == Agreed(5)
    assert [(part.start, part.value) for part in described(cluster).parts] == [("offset", 7)]
    assert ask_coordinator(cluster, DeleteGroup(6, NAME), Agreed) == Agreed(6)
    assert isinstance(ask_coordinator(cluster, DescribeGroup(7, NAME), GroupDescribed), UnknownGroup)
