"""Whose records an exclusive topic delivers: what the owner logs, when, and what subscribers see of it."""

from __future__ import annotations

import pytest

from rostra.broker.publish.ownership import LEASES
from rostra.broker.settings import BrokerSettings
from rostra.errors import (
    BatchRejected,
    DiskFull,
    InvalidSetting,
    LimitExceeded,
    NodeStopping,
    NotRegistered,
    TopicDeleted,
)
from rostra.model.batch import read_header
from rostra.wire.messages import (
    Agreed,
    AlterTopic,
    DeleteTopic,
    DescribeTopic,
    Ping,
    Published,
    PublisherRegistered,
    PublisherState,
    Register,
    Resign,
    TopicDescribed,
    Unregistered,
)
from tests.unit.broker.desk import part
from tests.unit.broker.exclusive import LEASE_MS, STRONG, THIRD, WEAK, Exclusive


@pytest.fixture
def desk() -> Exclusive:
    return Exclusive().begin()


@pytest.mark.requirement("HR-12", "HR-16")
def test_only_the_strongest_is_delivered_and_the_weaker_are_stored_and_marked(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.write(3, WEAK, b"w")
    desk.write(2, STRONG, b"s")
    assert desk.story() == ["30 has 5", "20 has 4", "-w", "+s"]
    assert desk.delivered() == [b"s"]
    assert len(desk.heard(3, Published)) == 1


@pytest.mark.requirement("HR-13")
def test_of_equals_the_lowest_id_is_delivered(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 5)
    desk.write(2, STRONG, b"a")
    desk.write(3, WEAK, b"b")
    assert desk.delivered() == [b"b"]


@pytest.mark.requirement("HR-14", "HR-15")
def test_a_change_of_strength_counts_from_its_place_in_the_log_on(desk: Exclusive) -> None:
    desk.connect(3)
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.write(3, WEAK, b"w1")
    desk.register(2, STRONG, 3)
    desk.write(3, WEAK, b"w2")
    desk.register(2, STRONG, 6)
    desk.write(3, WEAK, b"w3")
    desk.write(2, STRONG, b"s3")
    assert desk.story() == ["30 has 5", "20 has 4", "-w1", "30 has 3", "+w2", "30 has 6", "-w3", "+s3"]
    assert [answer.strongest for answer in desk.heard(2, PublisherRegistered)] == [STRONG, WEAK, STRONG]


@pytest.mark.requirement("HR-9", "HR-14")
def test_when_the_strongest_leaves_the_next_takes_over_at_once(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.resign(2, STRONG)
    assert desk.heard(2, Agreed)
    desk.write(3, WEAK, b"w")
    assert desk.story()[2:] == ["30 went: left", "+w"]


@pytest.mark.requirement("HR-8", "HR-14")
def test_a_publisher_that_is_not_heard_for_its_lease_departs_and_the_next_takes_over(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.pass_ms(LEASE_MS - 20, 3)
    desk.write(3, WEAK, b"early")
    desk.pass_ms(40, 3)
    desk.write(3, WEAK, b"late")
    assert desk.story()[2:] == ["-early", "30 went: silent for its lease", "+late"]


def test_the_departure_is_logged_when_the_lease_ends_also_if_nobody_writes(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.pass_ms(LEASE_MS + 20)
    assert desk.story() == ["30 has 5", "30 went: silent for its lease"]
    assert not desk.timers.get(LEASES)


def test_a_lease_that_ended_is_seen_before_the_next_batch_however_late_the_timer(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4, 60_000)
    desk.after_ms(LEASE_MS)
    desk.write(3, WEAK, b"w")
    assert desk.story()[2:] == ["30 went: silent for its lease", "+w"]


@pytest.mark.parametrize("sign", ["a heartbeat", "a write"])
def test_a_heartbeat_or_a_write_renews_the_lease(desk: Exclusive, sign: str) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    for turn in range(3):
        desk.pass_ms(LEASE_MS - 100, 3)
        if sign == "a write":
            desk.write(2, STRONG, b"s%d" % turn)
        else:
            desk.say(2, Ping(desk.request()))
    desk.write(3, WEAK, b"w")
    assert desk.story()[-1] == "-w"
    assert not any("went" in line for line in desk.story())


def test_a_lost_connection_is_no_departure_before_the_lease_ends(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.pass_ms(400, 2, 3)
    desk.lose(2)
    desk.pass_ms(LEASE_MS - 50, 3)
    desk.register(4, STRONG, 5)
    desk.pass_ms(LEASE_MS - 50, 3)
    desk.write(3, WEAK, b"w")
    # The same registration on another connection is nothing new: the log need not hear of it.
    assert desk.story() == ["30 has 5", "20 has 4", "-w"]


def test_who_is_not_registered_is_the_weakest_and_the_log_says_so_first(desk: Exclusive) -> None:
    desk.connect(2)
    desk.connect(3)
    desk.write(2, STRONG, b"alone")
    desk.write(3, WEAK, b"lower id")
    desk.write(2, STRONG, b"higher id")
    assert desk.story() == ["30 has 0", "+alone", "20 has 0", "+lower id", "-higher id"]


def test_who_believes_to_be_registered_and_is_not_must_register_before_it_is_judged(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.pass_ms(LEASE_MS + 20, 3)
    assert desk.heard(2, Unregistered) == [Unregistered(desk.topic, 0, STRONG, lapsed=True)]
    desk.write(2, STRONG, b"s")
    assert isinstance(desk.error(2), NotRegistered)
    desk.sequences.clear()
    desk.register(2, STRONG, 5)
    desk.write(2, STRONG, b"s")
    assert desk.story()[2:] == ["30 went: silent for its lease", "30 has 5", "+s"]


@pytest.mark.requirement("HR-16")
def test_what_was_suppressed_is_not_delivered_later_nor_given_as_history(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.write(3, WEAK, b"w1", b"w2")
    desk.write(2, STRONG, b"s1")
    desk.write(3, WEAK, b"w3")
    desk.resign(2, STRONG)
    desk.write(3, WEAK, b"w4")
    assert desk.delivered() == [b"s1", b"w4"]
    desk.effects.clear()
    desk.connect(4)
    desk.subscribe(4, desk.topic, start="last", value=2)
    desk.settle()
    assert desk.delivered() == [b"s1", b"w4"]


@pytest.mark.requirement("CM-3:history-depth", "HR-11")
def test_history_is_bounded_by_the_topics_depth_and_goes_on_live_without_gap_or_repeat() -> None:
    desk = Exclusive().begin(history_depth=3)
    desk.connect(2)
    for number in range(5):
        desk.write(2, STRONG, b"%d" % number)
    desk.effects.clear()
    desk.lose(1)
    desk.connect(4)
    desk.subscribe(4, desk.topic, start="last", value=10)
    # What is stored while the place is looked for is live: it comes behind the history, once.
    desk.publish(2, desk.topic, b"5", producer=STRONG, sequence=5)
    desk.settle()
    desk.sequences[STRONG] = 6
    desk.write(2, STRONG, b"6")
    assert desk.delivered() == [b"2", b"3", b"4", b"5", b"6"]


def test_a_shared_topic_delivers_everybody_and_remembers_who_registered() -> None:
    desk = Exclusive().begin()
    desk.topic = desk.make_topic(1, "shared", ownership="shared")
    desk.subscribe(1, desk.topic, 7)
    desk.register(2, STRONG, 5)
    desk.connect(3)
    desk.write(3, WEAK, b"w")
    desk.write(2, STRONG, b"s")
    assert desk.story() == ["30 has 5", "+w", "+s"]
    assert desk.delivered() == [b"w", b"s"]


@pytest.mark.requirement("HR-7")
def test_a_topic_that_is_dropped_takes_its_publishers_along(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.say(2, DeleteTopic(desk.request(), "t"))
    desk.settle()
    desk.register(2, STRONG, 5)
    assert isinstance(desk.error(2), TopicDeleted)
    desk.topic = desk.make_topic(1, "t", ownership="exclusive")
    desk.say(1, DescribeTopic(desk.request(), "t"))
    desk.settle()
    (described,) = desk.heard(1, TopicDescribed)
    assert described.partitions[0].publishers == ()
    desk.pass_ms(LEASE_MS + 20)
    assert desk.story() == []


def test_describing_a_topic_shows_its_publishers_the_strongest_first(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 8)
    desk.register(4, THIRD, 5)
    desk.say(1, DescribeTopic(desk.request(), "t"))
    desk.settle()
    (described,) = desk.heard(1, TopicDescribed)
    ranked = ((WEAK, 8), (THIRD, 5), (STRONG, 5))
    wanted = tuple(PublisherState(publisher, strength, LEASE_MS) for publisher, strength in ranked)
    assert described.partitions[0].publishers == wanted


def test_a_start_finds_the_publishers_and_gives_each_a_whole_lease(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    desk.pass_ms(LEASE_MS - 50)
    again = Exclusive(logs=desk.logs, hard=desk.hard)
    again.now, again.topic, again.sequences = desk.now, desk.topic, {}
    again.start()
    again.connect(3)
    again.pass_ms(LEASE_MS - 20, 3)
    again.write(3, WEAK, b"early")
    again.pass_ms(40, 3)
    again.write(3, WEAK, b"late")
    assert again.story()[2:] == ["-early", "30 went: silent for its lease", "+late"]


def test_registrations_survive_a_checkpoint_when_all_before_it_is_gone() -> None:
    desk = Exclusive().begin(segment_bytes=4096)
    desk.register(2, STRONG, 5)
    desk.connect(3)
    for number in range(40):
        desk.write(3, WEAK, b"%d" % number * 100)
    log = desk.logs[part(desk.topic)]
    assert len(log.segments()) > 1
    log.trim(read_header(log.segments()[-1][0]).base_offset)
    again = Exclusive(logs=desk.logs, hard=desk.hard)
    again.topic, again.sequences, again.now = desk.topic, dict(desk.sequences), desk.now
    again.start()
    again.connect(2)
    again.connect(3)
    again.write(3, WEAK, b"w")
    again.write(2, STRONG, b"s")
    assert again.story()[-2:] == ["-w", "+s"]


def test_the_answer_to_a_registration_waits_until_it_is_safe(desk: Exclusive) -> None:
    desk.connect(2)
    for message in (Register(1, desk.topic, 0, STRONG, 5), Register(2, desk.topic, 0, STRONG, 5)):
        desk.say(2, message)
    assert not desk.heard(2, PublisherRegistered)
    desk.settle()
    assert [answer.request for answer in desk.heard(2, PublisherRegistered)] == [1, 2]
    for resign in (Resign(3, desk.topic, 0, STRONG), Resign(4, desk.topic, 0, STRONG)):
        desk.say(2, resign)
    assert not desk.heard(2, Agreed)
    desk.settle()
    assert [answer.request for answer in desk.heard(2, Agreed)] == [3, 4]


def test_a_registration_that_the_disk_refuses_never_was(desk: Exclusive) -> None:
    desk.register(2, STRONG, 5)
    desk.full = True
    desk.register(3, WEAK, 9)
    assert isinstance(desk.error(3), DiskFull)
    desk.full = False
    desk.register(3, WEAK, 4)
    desk.write(2, STRONG, b"s")
    assert desk.story() == ["30 has 5", "20 has 4", "+s"]


def test_more_publishers_than_the_bound_are_refused_until_one_departs() -> None:
    desk = Exclusive(BrokerSettings(publishers_per_partition_max=1)).begin()
    desk.register(2, STRONG, 5)
    desk.register(3, WEAK, 4)
    assert isinstance(desk.error(3), LimitExceeded)
    desk.write(3, WEAK, b"w")
    assert isinstance(desk.error(3), LimitExceeded)
    desk.sequences.clear()
    desk.resign(2, STRONG)
    desk.write(3, WEAK, b"w")
    assert desk.story() == ["30 has 5", "30 went: left", "20 has 0", "+w"]


def test_an_exclusive_topic_takes_nothing_from_nobody(desk: Exclusive) -> None:
    desk.connect(2)
    desk.publish(2, desk.topic, b"x")
    assert isinstance(desk.error(2), BatchRejected)


def test_ownership_stays_and_the_depth_of_history_may_be_altered(desk: Exclusive) -> None:
    desk.connect(2)
    for number in range(5):
        desk.write(2, STRONG, b"%d" % number)
    desk.say(2, AlterTopic(desk.request(), "t", {"ownership": "shared"}))
    desk.settle()
    assert isinstance(desk.error(2), InvalidSetting)
    desk.say(2, AlterTopic(desk.request(), "t", {"history_depth": 2}))
    desk.settle()
    desk.effects.clear()
    desk.subscribe(2, desk.topic, 5, start="last", value=9)
    desk.settle()
    assert desk.delivered() == [b"3", b"4"]


def test_a_node_that_is_stopping_registers_nobody(desk: Exclusive) -> None:
    desk.connect(2)
    desk.broker.stopping = True
    desk.register(2, STRONG, 5)
    assert isinstance(desk.error(2), NodeStopping)
