"""How a client connects to nodes, detects lost ones, and reconnects."""

from __future__ import annotations

import pytest

from rostra.client.core.events import Connected, Disconnected, Reconnected
from rostra.client.core.options import Options, host_and_port
from rostra.client.core.routing.pending_requests import Answer, PendingRequest
from rostra.errors import (
    IncompatibleVersion,
    InvalidSetting,
    NotSupported,
    PeerViolation,
    RostraError,
    TimedOut,
    TopicExists,
    Unreachable,
)
from rostra.wire.features import FEATURES
from rostra.wire.messages import (
    Failed,
    Goodbye,
    Hello,
    ListTopics,
    Ping,
    Pong,
    TopicDescribed,
    TopicPage,
    TopicSettings,
)
from tests.unit.client.core_harness import CoreHarness


def test_a_client_is_connected_once_a_node_has_welcomed_it() -> None:
    harness = CoreHarness()
    harness.core.start(harness.now_us, 1)
    harness.run()
    harness.open()
    assert [type(message) for message in harness.written] == [Hello]
    assert 1 not in harness.results
    harness.settle()
    assert harness.results[1] is None
    assert harness.events == [Connected("127.0.0.1:7400", 7, 1, "raft")]


def test_when_no_node_answers_the_error_names_the_addresses_and_the_reason() -> None:
    harness = CoreHarness(Options(("a:1", "b:2"), connect_timeout_ms=400))
    harness.reachable = False
    harness.core.start(harness.now_us, 1)
    harness.run()
    harness.disconnect("refused")
    harness.pass_time(1_000_000)
    error = harness.errors[1]
    assert isinstance(error, Unreachable)
    assert (error.addresses, error.reason, error.retryable) == ("a:1, b:2", "refused", True)
    assert {"a:1", "b:2"} <= set(harness.dialed)


def test_an_address_that_swallows_everything_leaves_time_for_the_others() -> None:
    harness = CoreHarness(Options(("black-hole:1", "node:2"), connect_timeout_ms=1000))
    harness.core.start(harness.now_us, 1)
    harness.run()
    while harness.dialed[-1] != "node:2":
        due = harness.core.deadline_us()
        assert due is not None
        harness.pass_time(due - harness.now_us)
    harness.settle()
    assert harness.core.link.up
    assert 1 in harness.results


def test_a_node_of_another_version_is_told_apart_from_one_that_is_away() -> None:
    harness = CoreHarness()
    harness.core.start(harness.now_us, 1)
    harness.run()
    harness.open()
    error = IncompatibleVersion("1", "2-3")
    harness.receive(Failed(1, "IncompatibleVersion", error.carried()))
    assert isinstance(harness.errors[1], IncompatibleVersion)
    assert harness.core.closed


@pytest.mark.requirement("CM-10:reconnects", "CM-10:told")
def test_a_client_comes_back_through_any_address_it_knows() -> None:
    harness = CoreHarness(Options(("a:1", "b:2")))
    harness.connect()
    harness.disconnect("cut")
    harness.reconnect()
    assert harness.dialed == ["a:1", "b:2"]
    assert harness.events[1:] == [Disconnected("a:1", "cut"), Reconnected("b:2", 7, 1, 1)]


@pytest.mark.requirement("CM-10:reconnects")
def test_pauses_between_attempts_grow_and_differ_between_clients() -> None:
    moments: list[list[int]] = []
    for seed in (1, 2):
        harness = CoreHarness(Options(backoff_ms=50, backoff_ms_max=2000), seed=seed)
        harness.connect()
        harness.reachable = False
        harness.disconnect()
        seen: list[int] = []
        for _ in range(10):
            due = harness.core.deadline_us()
            assert due is not None
            seen.append(due - harness.now_us)
            harness.pass_time(due - harness.now_us)
        moments.append(seen)
        assert seen[0] <= 100_000
        assert seen[5] >= 500_000
        assert max(seen) <= 2_000_000
    assert moments[0] != moments[1]


def test_a_silent_node_is_given_up_after_three_heartbeats() -> None:
    harness = CoreHarness()
    harness.node.heartbeat_ms = 1000
    harness.connect()
    harness.pass_time(2_900_000)
    assert [type(message) for message in harness.written].count(Ping) == 2
    assert harness.core.link.up
    harness.pass_time(200_000)
    assert not harness.core.link.up
    assert isinstance(harness.events[-1], Disconnected)


def test_a_node_that_answers_pings_is_kept_and_hears_from_the_client() -> None:
    harness = CoreHarness()
    harness.connect()
    for _ in range(20):
        harness.pass_time(500_000)
        harness.settle()
    assert harness.core.link.up
    assert [type(message) for message in harness.written].count(Ping) >= 9


def test_a_driver_that_slept_pings_before_it_gives_up_the_node() -> None:
    harness = CoreHarness()
    harness.connect()
    harness.now_us += 3_600_000_000
    harness.core.tick(harness.now_us)
    harness.run()
    assert harness.core.link.up
    assert isinstance(harness.written[-1], Ping)


def test_a_node_may_ask_too() -> None:
    harness = CoreHarness()
    harness.connect()
    harness.receive(Ping(77))
    assert harness.written[-1] == Pong(77)


@pytest.mark.requirement("CM-10:reconnects")
def test_a_node_that_says_goodbye_is_left_and_looked_for_again() -> None:
    harness = CoreHarness()
    harness.connect()
    harness.receive(Goodbye("the node is stopping"))
    assert harness.events[-1] == Disconnected("127.0.0.1:7400", "the node is stopping")
    harness.reconnect()


def test_late_news_of_an_old_connection_changes_nothing() -> None:
    harness = CoreHarness()
    harness.connect()
    old = harness.link
    assert old is not None
    harness.disconnect()
    harness.reconnect()
    harness.core.lost(harness.now_us, old, "late")
    harness.core.received(harness.now_us, old, Goodbye("late"), None)
    harness.run()
    assert harness.core.link.up


def test_a_question_outlives_its_connection() -> None:
    harness = CoreHarness()
    harness.node._create("t", TopicSettings())
    harness.connect()
    call = harness.call()
    harness.core.describe_topic(harness.now_us, call, "t")
    harness.run()
    harness.disconnect()
    harness.reconnect()
    assert harness.results[call] is not None


def test_what_was_created_or_deleted_by_a_lost_attempt_is_no_error_at_the_next() -> None:
    harness = CoreHarness()
    harness.connect()
    made, gone = harness.call(), harness.call()
    for call in (made, gone):
        if call == made:
            harness.core.create_topic(harness.now_us, call, "t", TopicSettings(3))
        else:
            harness.core.delete_topic(harness.now_us, call, "t")
        harness.run()
        harness.deliver_to_node(1)
        harness.disconnect()
        harness.reconnect()
        assert call in harness.results


def test_a_topic_that_somebody_else_made_is_an_error_even_at_the_second_attempt() -> None:
    harness = CoreHarness()
    harness.connect()
    call = harness.call()
    harness.core.create_topic(harness.now_us, call, "t", TopicSettings(3))
    harness.run()
    harness.disconnect()
    harness.node._create("t", TopicSettings(2))
    harness.reconnect()
    assert isinstance(harness.errors[call], TopicExists)


def test_an_unanswered_request_times_out_and_a_late_answer_is_ignored() -> None:
    harness = CoreHarness(Options(call_timeout_ms=300))
    harness.node.heartbeat_ms = 60_000
    harness.node._create("t", TopicSettings())
    harness.connect()
    call = harness.call()
    harness.core.describe_topic(harness.now_us, call, "t")
    harness.run()
    harness.deliver_to_node(1)
    harness.pass_time(400_000)
    error = harness.errors[call]
    assert isinstance(error, TimedOut)
    assert (error.what, error.waited_ms, error.retryable) == ("describe t", 300, True)
    assert isinstance(harness.to_client[0][0], TopicDescribed)
    harness.settle()
    assert call not in harness.results


def test_all_topics_are_listed_however_many_pages_that_takes() -> None:
    harness = CoreHarness()
    harness.node.page = 2
    for n in range(5):
        harness.node._create(f"t{n}", TopicSettings())
    harness.connect()
    call = harness.call()
    harness.core.list_topics(harness.now_us, call)
    harness.run()
    harness.settle()
    topics = harness.results[call]
    assert isinstance(topics, tuple)
    assert [topic.name for topic in topics] == ["t0", "t1", "t2", "t3", "t4"]


def test_addresses_have_a_port_or_get_one() -> None:
    assert host_and_port("node") == ("node", 7400)
    assert host_and_port("node:99") == ("node", 99)
    assert host_and_port("[::1]:99") == ("::1", 99)
    for wrong in ("", ":1", "node:x", "node:0", "node:65536"):
        with pytest.raises(InvalidSetting):
            host_and_port(wrong)


def test_a_request_the_node_calls_a_violation_fails_instead_of_being_repeated() -> None:
    harness = CoreHarness()
    harness.connect()
    call = harness.call()
    harness.core.describe_topic(harness.now_us, call, "t")
    harness.run()
    violation = PeerViolation("typed part malformed", "kind 7")
    harness.receive(Failed(0, "PeerViolation", violation.carried()))
    assert isinstance(harness.errors[call], PeerViolation)
    harness.disconnect("closed by the node")
    harness.reconnect()
    assert [type(message).__name__ for message in harness.written].count("DescribeTopic") == 1


# --- features --------------------------------------------------------------------------------------


def question(harness: CoreHarness, feature: str) -> tuple[list[Answer], list[RostraError]]:
    """List the topics as if that needed a feature; return the answers and errors."""
    answers: list[Answer] = []
    errors: list[RostraError] = []

    def answered(now_us: int, message: Answer) -> None:
        answers.append(message)

    def failed(now_us: int, error: RostraError) -> None:
        errors.append(error)

    ask = PendingRequest("list topics", ListTopics, answered, failed, harness.now_us + 1_000_000, feature)
    harness.core._requests.add(harness.now_us, ask)
    harness.run()
    harness.settle()
    return answers, errors


def test_a_client_offers_every_feature_it_knows() -> None:
    harness = CoreHarness()
    harness.connect()
    (hello,) = [message for message in harness.written if isinstance(message, Hello)]
    assert hello.features == FEATURES


def test_a_call_that_needs_a_feature_the_node_lacks_fails_typed_and_unsent() -> None:
    harness = CoreHarness()
    harness.connect()
    answers, (error,) = question(harness, "patterns")
    assert isinstance(error, NotSupported)
    assert (error.feature, error.retryable, answers) == ("patterns", False, [])
    assert not any(isinstance(message, ListTopics) for message in harness.written)
    assert harness.core.link.up


def test_a_call_that_needs_a_feature_is_sent_to_a_node_that_has_it() -> None:
    harness = CoreHarness()
    harness.node.features = ("patterns",)
    harness.connect()
    (answer,), errors = question(harness, "patterns")
    assert (type(answer), errors) == (TopicPage, [])


def test_a_feature_is_asked_of_the_node_that_is_connected_and_not_of_the_one_before() -> None:
    harness = CoreHarness()
    harness.node.features = ("patterns",)
    harness.connect()
    harness.disconnect()
    harness.node.features = ()
    _, errors = question(harness, "patterns")
    assert errors == []
    harness.reconnect()
    assert [type(error) for error in errors] == [NotSupported]
