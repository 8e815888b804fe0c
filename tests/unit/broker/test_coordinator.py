"""Named subscriptions: members share parts, positions last, and whoever is taken for dead has no say."""

from __future__ import annotations

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
    StaleGeneration,
    UnknownGroup,
    UnknownPartition,
)
from rostra.fabric.api import TimerFired
from rostra.wire.groups import (
    Assignment,
    DeleteGroup,
    DescribeGroup,
    FindGroup,
    GroupPage,
    GroupPlace,
    JoinGroup,
    ListGroups,
    Position,
    ResetGroup,
)
from rostra.wire.messages import AlterTopic, DeleteTopic, Failed, ListTopics, TopicDropped, TopicPage
from tests.unit.broker.desk import Desk
from tests.unit.broker.members import LEASE_MS, Person, agreed, fire, make_groups, settle_all, wait

CONN = 1


@pytest.fixture
def desk() -> Desk:
    desk = Desk().start()
    desk.connect(CONN)
    make_groups(desk, CONN)
    return desk


def parts_of(desk: Desk, name: str = "billing") -> dict[GroupPartitionKey, GroupPartition]:
    known = desk.broker.topic_table.by_name("_groups")
    assert known is not None
    for served in known.partitions:
        group = served.derived.groups.get(name)
        if group is not None:
            return dict(group.partitions)
    return {}


# --- finding ---


def test_whoever_asks_first_makes_the_topic_of_names() -> None:
    desk = Desk(BrokerSettings(group_partitions=3)).start()
    desk.connect(CONN)
    place = make_groups(desk, CONN)
    assert (place.address, place.known) == ("", True)
    desk.say(CONN, FindGroup(desk.request(), "billing"))
    assert desk.heard(CONN, GroupPlace)[0].partition == place.partition < 3


def test_many_who_ask_at_once_make_one_topic() -> None:
    desk = Desk().start()
    desk.connect(CONN)
    for name in ("a", "b", "c"):
        desk.say(CONN, FindGroup(desk.request(), name))
    desk.settle()
    assert len({place.topic for place in desk.heard(CONN, GroupPlace)}) == 1
    assert len(desk.broker.topic_table) == 1


def test_whoever_asks_when_the_disk_fails_is_told_so_and_the_node_can_stop() -> None:
    desk = Desk().start()
    desk.connect(CONN)
    desk.say(CONN, FindGroup(desk.request(), "billing"))
    desk.step(SyncFailed(DiskUntrusted("gone")))
    assert isinstance(desk.error(CONN), DiskUntrusted)
    desk.say(CONN, FindGroup(desk.request(), "billing"))
    assert isinstance(desk.error(CONN), DiskUntrusted)
    desk.step(Stop())
    desk.settle()
    assert desk.stopped


def test_the_topic_of_names_is_nobodys_to_use(desk: Desk) -> None:
    known = desk.broker.topic_table.by_name("_groups")
    assert known is not None
    desk.publish(CONN, known.topic.topic, b"mine")
    assert isinstance(desk.error(CONN), InvalidTopicName)
    desk.say(CONN, DeleteTopic(desk.request(), "_groups"))
    assert isinstance(desk.error(CONN), InvalidTopicName)
    desk.say(CONN, AlterTopic(desk.request(), "_groups", {"retention_ms": 1}))
    assert isinstance(desk.error(CONN), InvalidTopicName)
    desk.say(CONN, ListTopics(desk.request()))
    assert desk.heard(CONN, TopicPage)[0].topics == ()


# --- sharing ---


def test_one_member_gets_every_part(desk: Desk) -> None:
    topic = desk.make_topic(CONN, "orders", partitions=3)
    ann = Person(desk, 1)
    assert ann.join("orders") is None
    assert ann.parts.keys() == {(topic, 0), (topic, 1), (topic, 2)}
    assert {(part.name, part.start) for part in ann.parts.values()} == {("orders", "earliest")}


def test_nothing_is_told_before_it_is_committed(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    desk.say(ann.conn, JoinGroup(desk.request(), ann.name, ann.member, ("orders",), LEASE_MS))
    assert not ann.listen()
    desk.settle()
    assert ann.listen()


def test_parts_move_only_when_their_holder_has_let_go(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=4)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders")
    bob.join("orders")
    assert bob.indices == []
    assert ann.listen()
    assert ann.indices == [0, 1]
    bob.listen()
    assert bob.indices == [], "still in the hands of the other"
    assert ann.move(5, (next(iter(ann.parts))[0], 3)) is None, "whoever lets go moves its position first"
    assert ann.release() is None
    bob.listen()
    assert bob.indices == [2, 3]
    assert [part.value for part in bob.parts.values()] == [0, 5]


@pytest.mark.requirement("CM-8:shared")
def test_a_member_that_dies_leaves_its_parts_to_the_others(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=4)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders")
    bob.join("orders")
    settle_all(ann, bob)
    wait(desk, LEASE_MS + 200, bob)
    bob.listen()
    assert bob.indices == [0, 1, 2, 3]
    assert [part.tries for _, part in sorted(bob.parts.items())] == [1, 1, 0, 0], "it may have died of what it had"
    ann.listen()
    assert isinstance(ann.ended[0], NotAMember)


def test_a_member_that_leaves_counts_no_try(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=2)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders")
    bob.join("orders")
    settle_all(ann, bob)
    assert ann.leave() is None
    bob.listen()
    assert bob.indices == [0, 1]
    assert {part.tries for part in bob.parts.values()} == {0}


def test_what_was_to_be_let_go_of_is_given_away_when_its_holder_dies(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=2)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders")
    bob.join("orders")
    wait(desk, LEASE_MS + 200, bob)
    bob.listen()
    assert bob.indices == [0, 1]


def test_what_it_says_itself_keeps_a_member_alive(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    for _ in range(20):
        desk.after_ms(LEASE_MS // 2)
        assert ann.beat() is None
        fire(desk)
    assert ann.beat() is None


def test_what_others_say_on_its_connection_does_not(desk: Desk) -> None:
    """A client that gave up joining, and was refused for a doubt, does not know that it has become a member."""
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    for _ in range(20):
        desk.after_ms(LEASE_MS // 2)
        desk.say(ann.conn, ListTopics(desk.request()))
        fire(desk)
    assert isinstance(ann.beat(), NotAMember)


def test_a_member_comes_back_over_another_connection_within_its_lease(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=2)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders")
    bob.join("orders")
    settle_all(ann, bob)
    held = dict(ann.parts)
    desk.lose(ann.conn)
    wait(desk, LEASE_MS // 2, bob)
    again = Person(desk, 1, conn=77)
    assert again.join("orders") is None
    assert again.parts == held
    assert not bob.listen()
    wait(desk, LEASE_MS * 2, again, bob)
    assert again.parts == held


def test_a_member_that_was_gone_too_long_is_gone(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    desk.lose(ann.conn)
    wait(desk, LEASE_MS + 200)
    assert Person(desk, 2).described().members == ()


def test_a_node_that_stood_still_blames_nobody(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    desk.after_ms(60_000)
    fire(desk)
    assert ann.beat() is None
    assert ann.indices == [0]


def test_a_name_joined_over_two_connections_is_heard_on_the_last(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann, double = Person(desk, 1), Person(desk, 1, conn=77)
    ann.join("orders")
    double.join("orders")
    ann.listen()
    assert isinstance(ann.ended[0], NotAMember)
    assert isinstance(ann.beat(), NotAMember)
    assert double.beat() is None


def test_whoever_does_not_read_is_told_once_when_it_does(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=4)
    ann, bob, cem = Person(desk, 1), Person(desk, 2), Person(desk, 3)
    ann.join("orders")
    desk.step(ConnectionCongested(ann.conn))
    bob.join("orders")
    cem.join("orders")
    assert not ann.listen()
    desk.step(ConnectionDrained(ann.conn))
    desk.settle()
    assert len(desk.heard(ann.conn, Assignment)) == 1
    assert ann.join("orders") is None
    settle_all(ann, bob, cem)
    assert sorted(len(person.parts) for person in (ann, bob, cem)) == [1, 1, 2]


# --- positions ---


def test_a_position_is_where_the_next_holder_begins(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    assert ann.move(42, tries=2) is None
    assert agreed(ann) == 1
    ann.leave()
    bob = Person(desk, 2)
    bob.join("orders")
    (part,) = bob.parts.values()
    assert (part.start, part.value, part.tries) == ("offset", 42, 2)


def test_a_stale_generation_moves_no_position(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=2)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders")
    old = ann.generation
    bob.join("orders")
    settle_all(ann, bob)
    (given_away,) = bob.parts
    assert isinstance(ann.move(7, given_away), StaleGeneration)
    bob.leave()
    ann.listen()
    assert given_away in ann.parts
    assert isinstance(ann.move(7, given_away, generation=old), StaleGeneration), "it held that part at another time"
    assert parts_of(desk)[GroupPartitionKey(*given_away)].start == "earliest"
    assert ann.move(7, given_away) is None


def test_whoever_was_taken_for_dead_moves_no_position(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    wait(desk, LEASE_MS + 200)
    assert isinstance(ann.move(7), NotAMember)
    assert isinstance(ann.beat(), NotAMember)
    assert ann.join("orders") is None
    assert ann.move(7) is None


def test_one_part_that_is_not_held_moves_none(desk: Desk) -> None:
    topic = desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    assert isinstance(ann.move(7, (topic, 0), (topic, 9)), StaleGeneration)
    assert parts_of(desk)[GroupPartitionKey(topic, 0)].value == 0


# --- topics ---


def test_a_topic_made_later_is_handed_out_from_its_earliest_record(desk: Desk) -> None:
    desk.make_topic(CONN, "orders/a")
    ann = Person(desk, 1)
    ann.join("orders/#", "orders/a", start="latest")
    later = desk.make_topic(CONN, "orders/b")
    desk.make_topic(CONN, "other")
    desk.after_ms(100)
    fire(desk)
    ann.listen()
    assert sorted((part.name, part.start) for part in ann.parts.values()) == [
        ("orders/a", "latest"),
        ("orders/b", "earliest"),
    ]
    desk.say(CONN, DeleteTopic(desk.request(), "orders/b"))
    desk.settle()
    assert desk.heard(CONN, TopicDropped)
    desk.after_ms(100)
    fire(desk)
    ann.listen()
    assert (later, 0) not in ann.parts
    assert GroupPartitionKey(later, 0) not in parts_of(desk)


def test_a_topic_made_while_nobody_was_there_is_not_missed(desk: Desk) -> None:
    desk.make_topic(CONN, "orders/a")
    ann = Person(desk, 1)
    ann.join("orders/+", start="latest")
    ann.leave()
    desk.make_topic(CONN, "orders/b")
    bob = Person(desk, 2)
    bob.join(start="latest")
    assert sorted((part.name, part.start) for part in bob.parts.values()) == [
        ("orders/a", "latest"),
        ("orders/b", "earliest"),
    ]


def test_members_get_only_what_their_own_patterns_match(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=2)
    desk.make_topic(CONN, "bills", partitions=2)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders")
    bob.join("bills", "orders")
    settle_all(ann, bob)
    assert {part.name for part in ann.parts.values()} == {"orders"}
    assert {part.name for part in bob.parts.values()} == {"bills"}


# --- without members ---


def test_positions_are_reset_only_while_nobody_is_there(desk: Desk) -> None:
    topic = desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    reset = ResetGroup(desk.request(), "billing", (Position(topic, 0, 3),))
    assert isinstance(ann.ask(reset), GroupBusy)
    ann.leave()
    assert ann.ask(reset) is None
    (part,) = ann.described().parts
    assert (part.name, part.start, part.value, part.holder) == ("orders", "offset", 3, 0)


def test_a_deleted_name_is_forgotten(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    assert isinstance(ann.ask(DeleteGroup(desk.request(), "billing")), GroupBusy)
    ann.leave()
    assert ann.ask(DeleteGroup(desk.request(), "billing")) is None
    for message in (
        DeleteGroup(desk.request(), "billing"),
        DescribeGroup(desk.request(), "billing"),
        ResetGroup(desk.request(), "billing", ()),
    ):
        assert isinstance(ann.ask(message), UnknownGroup)


def test_names_are_listed_in_pages(desk: Desk) -> None:
    names = {f"n{number}" for number in range(30)}
    for number, name in enumerate(sorted(names)):
        Person(desk, number + 1, name).join()
    known = desk.broker.topic_table.by_name("_groups")
    assert known is not None
    found: list[str] = []
    for partition in range(len(known.partitions)):
        after, more = "", True
        while more:
            desk.say(CONN, ListGroups(desk.request(), partition, after, 2))
            (page,) = desk.heard(CONN, GroupPage)
            found += [group.name for group in page.groups]
            after, more = found[-1] if found else "", page.more
            assert all(group.members == 1 for group in page.groups)
    assert sorted(found) == sorted(names)
    desk.say(CONN, ListGroups(desk.request(), 99))
    assert isinstance(desk.error(CONN), UnknownPartition)


def test_a_wide_subscription_is_told_in_pages(desk: Desk) -> None:
    for number in range(3):
        desk.make_topic(CONN, f"wide/{number}", partitions=800)
    ann = Person(desk, 1)
    ann.join("wide/+")
    assert len(ann.parts) == 2400
    seen: list[tuple[int, int]] = []
    more = True
    while more:
        page = ann.described(seen[-1] if seen else (0, -1))
        seen += [(part.topic, part.partition) for part in page.parts]
        more = page.more
    assert sorted(seen) == sorted(ann.parts)


# --- bounds and bad input ---


@pytest.mark.parametrize(("name", "error"), [("", InvalidGroupName), ("a b", InvalidGroupName)])
def test_a_name_that_cannot_be_one_is_refused(desk: Desk, name: str, error: type[Exception]) -> None:
    assert isinstance(Person(desk, 1, name).join("orders"), error)


def test_a_pattern_that_cannot_be_one_is_refused(desk: Desk) -> None:
    assert isinstance(Person(desk, 1).join("#/a"), InvalidPattern)
    assert isinstance(Person(desk, 1).join("a", dead_letter="//"), InvalidTopicName)


@pytest.mark.requirement("CM-19:groups")
@pytest.mark.parametrize("limit", ["groups_max", "members_per_group_max", "groups_bytes_max"])
def test_a_name_or_member_beyond_the_bound_is_refused(limit: str) -> None:
    bound = {limit: 150 if limit == "groups_bytes_max" else 1}
    desk = Desk(msgspec.convert({"group_partitions": 1} | bound, BrokerSettings)).start()
    desk.connect(CONN)
    make_groups(desk, CONN)
    assert Person(desk, 1).join() is None
    other = Person(desk, 2, "billing" if limit.startswith("members") else "other")
    refusal = other.join()
    assert isinstance(refusal, LimitExceeded)
    assert refusal.limit == limit


def test_partitions_beyond_the_limit_stay_unassigned_and_the_log_says_so() -> None:
    desk = Desk(BrokerSettings(partitions_per_group_max=3)).start()
    desk.connect(CONN)
    make_groups(desk, CONN)
    desk.make_topic(CONN, "orders", partitions=5)
    ann = Person(desk, 1)
    assert ann.join("orders") is None
    assert ann.indices == [0, 1, 2]
    assert [note.about["partitions"] for note in desk.notes if "partition limit" in note.event] == [2]


# --- restarts ---


@pytest.mark.requirement("CM-8:kept")
def test_everything_is_the_same_after_a_restart(desk: Desk) -> None:
    desk.make_topic(CONN, "orders", partitions=4)
    ann, bob = Person(desk, 1), Person(desk, 2)
    ann.join("orders", tries_max=3, dead_letter="dead")
    bob.join("orders")
    settle_all(ann, bob)
    ann.move(9)
    before = ann.described()
    again = desk.restarted()
    fire(again)
    eve = Person(again, 3)
    after = eve.described()
    assert (after.members, after.parts, after.generation) == (before.members, before.parts, before.generation)
    back = Person(again, 1, conn=70)
    assert back.join("orders") is None
    assert back.parts.keys() == ann.parts.keys()
    wait(again, LEASE_MS + 200, back)
    back.listen()
    assert back.indices == [0, 1, 2, 3]


def test_positions_survive_retention_of_all_but_the_last_segment() -> None:
    desk = Desk(BrokerSettings(group_partitions=1, group_segment_bytes=1 << 12)).start()
    desk.connect(CONN)
    make_groups(desk, CONN)
    desk.make_topic(CONN, "orders", partitions=2)
    ann = Person(desk, 1)
    ann.join("orders")
    for offset in range(200):
        assert ann.move(offset) is None
    known = desk.broker.topic_table.by_name("_groups")
    assert known is not None
    desk.step(TimerFired(RETENTION))
    desk.settle()
    assert known.partitions[0].first > 0
    before = ann.described()
    again = desk.restarted()
    assert Person(again, 2).described() == before


def test_what_the_disk_refuses_has_not_happened(desk: Desk) -> None:
    desk.make_topic(CONN, "orders")
    ann = Person(desk, 1)
    ann.join("orders")
    before = parts_of(desk)
    desk.full = True
    assert ann.move(7) is not None
    bob = Person(desk, 2)
    assert bob.join("orders") is not None
    desk.full = False
    assert parts_of(desk) == before
    assert not desk.heard(ann.conn, Failed)
    assert ann.move(8) is None
