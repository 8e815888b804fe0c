"""The coordinator of consumer groups: assignment, positions, fencing of members whose lease expired."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rostra.broker.api import ConnectionCongested, ConnectionDrained, Stop, SyncFailed
from rostra.broker.broker import RETENTION
from rostra.broker.groups.group_table import GroupPartition, GroupPartitionKey
from rostra.broker.settings import BrokerSettings
from rostra.errors import (
    DiskUntrusted,
    GroupBusy,
    InvalidGroupName,
    InvalidPattern,
    InvalidTopicName,
    LimitExceeded,
    NotAMember,
    SettingsDiffer,
    StaleGeneration,
    UnknownGroup,
    UnknownPartition,
)
from rostra.fabric.api import TimerFired
from rostra.wire.groups import (
    CoordinatorLocation,
    DeleteGroup,
    DescribeGroup,
    FindCoordinator,
    GroupPage,
    JoinGroup,
    ListGroups,
    MemberAssignment,
    Position,
    ResetGroup,
)
from rostra.wire.messages import AlterTopic, DeleteTopic, Failed, ListTopics, TopicDropped, TopicPage
from tests.unit.broker.broker_driver import BrokerDriver
from tests.unit.broker.group_member_client import (
    LEASE_MS,
    GroupMemberClient,
    agreed,
    fire_group_timer,
    make_groups,
    settle_all,
    wait,
)

CONN = 1


@pytest.fixture
def driver() -> BrokerDriver:
    driver = BrokerDriver().start()
    driver.connect(CONN)
    make_groups(driver, CONN)
    return driver


def assigned_partitions(driver: BrokerDriver, name: str = "billing") -> dict[GroupPartitionKey, GroupPartition]:
    known = driver.broker.topic_table.by_name("_groups")
    assert known is not None
    for served in known.partitions:
        group = served.derived.groups.get(name)
        if group is not None:
            return dict(group.partitions)
    return {}


# --- locating ---


def test_the_first_lookup_creates_the_groups_topic() -> None:
    driver = BrokerDriver(BrokerSettings(group_partitions=3)).start()
    driver.connect(CONN)
    place = make_groups(driver, CONN)
    assert (place.address, place.known) == ("", True)
    driver.send(CONN, FindCoordinator(driver.request(), "billing"))
    assert driver.received(CONN, CoordinatorLocation)[0].partition == place.partition < 3


def test_concurrent_lookups_create_one_topic() -> None:
    driver = BrokerDriver().start()
    driver.connect(CONN)
    for name in ("a", "b", "c"):
        driver.send(CONN, FindCoordinator(driver.request(), name))
    driver.settle()
    assert len({place.topic for place in driver.received(CONN, CoordinatorLocation)}) == 1
    assert len(driver.broker.topic_table) == 1


def test_lookups_fail_with_the_disk_and_the_node_can_stop() -> None:
    driver = BrokerDriver().start()
    driver.connect(CONN)
    driver.send(CONN, FindCoordinator(driver.request(), "billing"))
    driver.step(SyncFailed(DiskUntrusted("gone")))
    assert isinstance(driver.error(CONN), DiskUntrusted)
    driver.send(CONN, FindCoordinator(driver.request(), "billing"))
    assert isinstance(driver.error(CONN), DiskUntrusted)
    driver.step(Stop())
    driver.settle()
    assert driver.stopped


def test_clients_cannot_use_the_groups_topic(driver: BrokerDriver) -> None:
    known = driver.broker.topic_table.by_name("_groups")
    assert known is not None
    driver.publish(CONN, known.topic.topic, b"mine")
    assert isinstance(driver.error(CONN), InvalidTopicName)
    driver.send(CONN, DeleteTopic(driver.request(), "_groups"))
    assert isinstance(driver.error(CONN), InvalidTopicName)
    driver.send(CONN, AlterTopic(driver.request(), "_groups", {"retention_ms": 1}))
    assert isinstance(driver.error(CONN), InvalidTopicName)
    driver.send(CONN, ListTopics(driver.request()))
    assert driver.received(CONN, TopicPage)[0].topics == ()


# --- assignment ---


def test_one_member_gets_every_partition(driver: BrokerDriver) -> None:
    topic = driver.make_topic(CONN, "orders", partitions=3)
    ann = GroupMemberClient(driver, 1)
    assert ann.join("orders") is None
    assert ann.assigned.keys() == {(topic, 0), (topic, 1), (topic, 2)}
    assert {(part.name, part.start) for part in ann.assigned.values()} == {("orders", "earliest")}


def test_nothing_is_sent_before_it_is_committed(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    driver.send(ann.conn, JoinGroup(driver.request(), ann.name, ann.member, ("orders",), LEASE_MS))
    assert not ann.receive()
    driver.settle()
    assert ann.receive()


def test_partitions_move_only_after_their_release(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=4)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders")
    bob.join("orders")
    assert bob.indices == []
    assert ann.receive()
    assert ann.indices == [0, 1]
    bob.receive()
    assert bob.indices == [], "still in the hands of the other"
    assert ann.move(5, (next(iter(ann.assigned))[0], 3)) is None, "a member commits its position before it releases"
    assert ann.release() is None
    bob.receive()
    assert bob.indices == [2, 3]
    assert [part.value for part in bob.assigned.values()] == [0, 5]


@pytest.mark.requirement("CM-8:shared")
def test_partitions_of_a_dead_member_go_to_the_others(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=4)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders")
    bob.join("orders")
    settle_all(ann, bob)
    wait(driver, LEASE_MS + 200, bob)
    bob.receive()
    assert bob.indices == [0, 1, 2, 3]
    assert [part.tries for _, part in sorted(bob.assigned.items())] == [1, 1, 0, 0], "the record may have killed it"
    ann.receive()
    assert isinstance(ann.ended[0], NotAMember)


def test_a_member_that_leaves_counts_no_try(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders")
    bob.join("orders")
    settle_all(ann, bob)
    assert ann.leave() is None
    bob.receive()
    assert bob.indices == [0, 1]
    assert {part.tries for part in bob.assigned.values()} == {0}


def test_a_revoked_partition_is_reassigned_when_its_holder_dies(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders")
    bob.join("orders")
    wait(driver, LEASE_MS + 200, bob)
    bob.receive()
    assert bob.indices == [0, 1]


def test_its_own_messages_keep_a_member_alive(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    for _ in range(20):
        driver.advance_ms(LEASE_MS // 2)
        assert ann.heartbeat() is None
        fire_group_timer(driver)
    assert ann.heartbeat() is None


def test_other_messages_on_its_connection_do_not(driver: BrokerDriver) -> None:
    """A client whose join timed out does not know that it has become a member."""
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    for _ in range(20):
        driver.advance_ms(LEASE_MS // 2)
        driver.send(ann.conn, ListTopics(driver.request()))
        fire_group_timer(driver)
    assert isinstance(ann.heartbeat(), NotAMember)


def test_a_member_may_reconnect_within_its_lease(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders")
    bob.join("orders")
    settle_all(ann, bob)
    held = dict(ann.assigned)
    driver.disconnect(ann.conn)
    wait(driver, LEASE_MS // 2, bob)
    again = GroupMemberClient(driver, 1, conn=77)
    assert again.join("orders") is None
    assert again.assigned == held
    assert not bob.receive()
    wait(driver, LEASE_MS * 2, again, bob)
    assert again.assigned == held


def test_a_member_that_was_silent_too_long_is_removed(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    driver.disconnect(ann.conn)
    wait(driver, LEASE_MS + 200)
    assert GroupMemberClient(driver, 2).described().members == ()


def test_a_node_that_was_stalled_expires_no_lease(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    driver.advance_ms(60_000)
    fire_group_timer(driver)
    assert ann.heartbeat() is None
    assert ann.indices == [0]


def test_a_member_that_joins_over_two_connections_is_bound_to_the_last(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann, double = GroupMemberClient(driver, 1), GroupMemberClient(driver, 1, conn=77)
    ann.join("orders")
    double.join("orders")
    ann.receive()
    assert isinstance(ann.ended[0], NotAMember)
    assert isinstance(ann.heartbeat(), NotAMember)
    assert double.heartbeat() is None


def test_a_congested_member_gets_one_assignment_when_it_reads_again(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=4)
    ann, bob, cem = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2), GroupMemberClient(driver, 3)
    ann.join("orders")
    driver.step(ConnectionCongested(ann.conn))
    bob.join("orders")
    cem.join("orders")
    assert not ann.receive()
    driver.step(ConnectionDrained(ann.conn))
    driver.settle()
    assert len(driver.received(ann.conn, MemberAssignment)) == 1
    assert ann.join("orders") is None
    settle_all(ann, bob, cem)
    assert sorted(len(client.assigned) for client in (ann, bob, cem)) == [1, 1, 2]


# --- positions ---


def test_the_next_holder_begins_at_the_committed_position(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    assert ann.move(42, tries=2) is None
    assert agreed(ann) == 1
    ann.leave()
    bob = GroupMemberClient(driver, 2)
    bob.join("orders")
    (part,) = bob.assigned.values()
    assert (part.start, part.value, part.tries) == ("offset", 42, 2)


def test_a_stale_generation_commits_no_position(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders")
    old = ann.generation
    bob.join("orders")
    settle_all(ann, bob)
    (given_away,) = bob.assigned
    assert isinstance(ann.move(7, given_away), StaleGeneration)
    bob.leave()
    ann.receive()
    assert given_away in ann.assigned
    assert isinstance(ann.move(7, given_away, generation=old), StaleGeneration), "it held that part at another time"
    assert assigned_partitions(driver)[GroupPartitionKey(*given_away)].start == "earliest"
    assert ann.move(7, given_away) is None


def test_a_removed_member_commits_no_position(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    wait(driver, LEASE_MS + 200)
    assert isinstance(ann.move(7), NotAMember)
    assert isinstance(ann.heartbeat(), NotAMember)
    assert ann.join("orders") is None
    assert ann.move(7) is None


def test_one_partition_that_is_not_held_refuses_the_whole_commit(driver: BrokerDriver) -> None:
    topic = driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    assert isinstance(ann.move(7, (topic, 0), (topic, 9)), StaleGeneration)
    assert assigned_partitions(driver)[GroupPartitionKey(topic, 0)].value == 0


# --- topics ---


def test_a_topic_created_later_is_assigned_from_its_first_record(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders/a")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders/#", "orders/a", start="latest")
    later = driver.make_topic(CONN, "orders/b")
    driver.make_topic(CONN, "other")
    driver.advance_ms(100)
    fire_group_timer(driver)
    ann.receive()
    assert sorted((part.name, part.start) for part in ann.assigned.values()) == [
        ("orders/a", "latest"),
        ("orders/b", "earliest"),
    ]
    driver.send(CONN, DeleteTopic(driver.request(), "orders/b"))
    driver.settle()
    assert driver.received(CONN, TopicDropped)
    driver.advance_ms(100)
    fire_group_timer(driver)
    ann.receive()
    assert (later, 0) not in ann.assigned
    assert GroupPartitionKey(later, 0) not in assigned_partitions(driver)


def test_a_topic_created_while_there_are_no_members_is_not_missed(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders/a")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders/+", start="latest")
    ann.leave()
    driver.make_topic(CONN, "orders/b")
    bob = GroupMemberClient(driver, 2)
    bob.join(start="latest")
    assert sorted((part.name, part.start) for part in bob.assigned.values()) == [
        ("orders/a", "latest"),
        ("orders/b", "earliest"),
    ]


def test_members_get_only_what_their_own_patterns_match(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    driver.make_topic(CONN, "bills", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders")
    assert bob.join("bills", "orders", alter=True) is None
    settle_all(ann, bob)
    assert {part.name for part in ann.assigned.values()} == {"orders"}
    assert {part.name for part in bob.assigned.values()} == {"bills"}


@pytest.mark.parametrize(
    ("patterns", "settings", "differing"),
    [
        (("bills",), {"tries_max": 3, "dead_letter": "dead"}, ("the topics", "orders", "bills")),
        (("orders",), {"tries_max": 4, "dead_letter": "dead"}, ("tries", "3", "4")),
        (("orders",), {"tries_max": 3}, ("the dead letter", "dead", "none")),
    ],
)
def test_a_member_whose_settings_differ_is_refused_and_changes_nothing(
    driver: BrokerDriver, patterns: tuple[str, ...], settings: dict[str, Any], differing: tuple[str, str, str]
) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders", tries_max=3, dead_letter="dead")
    settle_all(ann)
    before = ann.described()

    refusal = bob.join(*patterns, **settings)

    assert isinstance(refusal, SettingsDiffer)
    assert (refusal.setting, refusal.current, refusal.given, refusal.members) == (*differing, 1)
    assert ann.described() == before


def test_a_member_without_topics_takes_the_settings_of_the_group(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders", tries_max=3, dead_letter="dead")
    assert bob.join() is None
    settle_all(ann, bob)
    described = ann.described()
    assert (described.patterns, described.tries_max, described.dead_letter) == (("orders",), 3, "dead")


def test_a_group_without_other_members_takes_the_settings_of_the_next_one(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=2)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders", tries_max=3)
    assert ann.join("orders", tries_max=5) is None, "the only member joins again"
    ann.leave()
    assert bob.join("orders", tries_max=7) is None
    assert bob.described().tries_max == 7


# --- administration ---


def test_positions_are_reset_only_without_members(driver: BrokerDriver) -> None:
    topic = driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    reset = ResetGroup(driver.request(), "billing", (Position(topic, 0, 3),))
    assert isinstance(ann.ask(reset), GroupBusy)
    ann.leave()
    assert ann.ask(reset) is None
    (part,) = ann.described().partitions
    assert (part.name, part.start, part.value, part.holder) == ("orders", "offset", 3, 0)


def test_a_deleted_group_is_unknown(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    assert isinstance(ann.ask(DeleteGroup(driver.request(), "billing")), GroupBusy)
    ann.leave()
    assert ann.ask(DeleteGroup(driver.request(), "billing")) is None
    for message in (
        DeleteGroup(driver.request(), "billing"),
        DescribeGroup(driver.request(), "billing"),
        ResetGroup(driver.request(), "billing", ()),
    ):
        assert isinstance(ann.ask(message), UnknownGroup)


def test_groups_are_listed_in_pages(driver: BrokerDriver) -> None:
    names = {f"n{number}" for number in range(30)}
    for number, name in enumerate(sorted(names)):
        GroupMemberClient(driver, number + 1, name).join()
    known = driver.broker.topic_table.by_name("_groups")
    assert known is not None
    found: list[str] = []
    for partition in range(len(known.partitions)):
        after, more = "", True
        while more:
            driver.send(CONN, ListGroups(driver.request(), partition, after, 2))
            (page,) = driver.received(CONN, GroupPage)
            found += [group.name for group in page.groups]
            after, more = found[-1] if found else "", page.more
            assert all(group.members == 1 for group in page.groups)
    assert sorted(found) == sorted(names)
    driver.send(CONN, ListGroups(driver.request(), 99))
    assert isinstance(driver.error(CONN), UnknownPartition)


def test_a_large_assignment_is_sent_in_pages(driver: BrokerDriver) -> None:
    for number in range(3):
        driver.make_topic(CONN, f"wide/{number}", partitions=800)
    ann = GroupMemberClient(driver, 1)
    ann.join("wide/+")
    assert len(ann.assigned) == 2400
    seen: list[tuple[int, int]] = []
    more = True
    while more:
        page = ann.described(seen[-1] if seen else (0, -1))
        seen += [(part.topic, part.partition) for part in page.partitions]
        more = page.more
    assert sorted(seen) == sorted(ann.assigned)


# --- limits and bad input ---


@pytest.mark.parametrize(("name", "error"), [("", InvalidGroupName), ("a b", InvalidGroupName)])
def test_an_invalid_group_name_is_refused(driver: BrokerDriver, name: str, error: type[Exception]) -> None:
    assert isinstance(GroupMemberClient(driver, 1, name).join("orders"), error)


def test_an_invalid_pattern_is_refused(driver: BrokerDriver) -> None:
    assert isinstance(GroupMemberClient(driver, 1).join("#/a"), InvalidPattern)
    assert isinstance(GroupMemberClient(driver, 1).join("a", dead_letter="//"), InvalidTopicName)


@pytest.mark.requirement("CM-19:groups")
@pytest.mark.parametrize("limit", ["groups_max", "members_per_group_max", "groups_bytes_max"])
def test_a_group_or_member_beyond_the_limit_is_refused(limit: str) -> None:
    bound = {limit: 150 if limit == "groups_bytes_max" else 1}
    driver = BrokerDriver(msgspec.convert({"group_partitions": 1} | bound, BrokerSettings)).start()
    driver.connect(CONN)
    make_groups(driver, CONN)
    assert GroupMemberClient(driver, 1).join() is None
    other = GroupMemberClient(driver, 2, "billing" if limit.startswith("members") else "other")
    refusal = other.join()
    assert isinstance(refusal, LimitExceeded)
    assert refusal.limit == limit


def test_partitions_beyond_the_limit_stay_unassigned_and_the_log_says_so() -> None:
    driver = BrokerDriver(BrokerSettings(partitions_per_group_max=3)).start()
    driver.connect(CONN)
    make_groups(driver, CONN)
    driver.make_topic(CONN, "orders", partitions=5)
    ann = GroupMemberClient(driver, 1)
    assert ann.join("orders") is None
    assert ann.indices == [0, 1, 2]
    assert [note.about["partitions"] for note in driver.log_lines if "partition limit" in note.event] == [2]


# --- restarts ---


@pytest.mark.requirement("CM-8:kept")
def test_groups_are_the_same_after_a_restart(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders", partitions=4)
    ann, bob = GroupMemberClient(driver, 1), GroupMemberClient(driver, 2)
    ann.join("orders", tries_max=3, dead_letter="dead")
    bob.join("orders", tries_max=3, dead_letter="dead")
    settle_all(ann, bob)
    ann.move(9)
    before = ann.described()
    again = driver.restarted()
    fire_group_timer(again)
    eve = GroupMemberClient(again, 3)
    after = eve.described()
    assert (after.members, after.partitions, after.generation) == (before.members, before.partitions, before.generation)
    back = GroupMemberClient(again, 1, conn=70)
    assert back.join("orders", tries_max=3, dead_letter="dead") is None
    assert back.assigned.keys() == ann.assigned.keys()
    wait(again, LEASE_MS + 200, back)
    back.receive()
    assert back.indices == [0, 1, 2, 3]


def test_positions_survive_retention_of_all_but_the_last_segment() -> None:
    driver = BrokerDriver(BrokerSettings(group_partitions=1, group_segment_bytes=1 << 12)).start()
    driver.connect(CONN)
    make_groups(driver, CONN)
    driver.make_topic(CONN, "orders", partitions=2)
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    for offset in range(200):
        assert ann.move(offset) is None
    known = driver.broker.topic_table.by_name("_groups")
    assert known is not None
    driver.step(TimerFired(RETENTION))
    driver.settle()
    assert known.partitions[0].first > 0
    before = ann.described()
    again = driver.restarted()
    assert GroupMemberClient(again, 2).described() == before


def test_a_change_that_the_disk_refuses_is_undone(driver: BrokerDriver) -> None:
    driver.make_topic(CONN, "orders")
    ann = GroupMemberClient(driver, 1)
    ann.join("orders")
    before = assigned_partitions(driver)
    driver.full = True
    assert ann.move(7) is not None
    bob = GroupMemberClient(driver, 2)
    assert bob.join("orders") is not None
    driver.full = False
    assert assigned_partitions(driver) == before
    assert not driver.received(ann.conn, Failed)
    assert ann.move(8) is None
