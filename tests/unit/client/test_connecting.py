"""How a client finds a node, notices that it is gone, and comes back."""

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
from tests.unit.client.play import Play


def test_a_client_is_connected_once_a_node_has_welcomed_it() -> None:
    play = Play()
    play.core.start(play.now_us, 1)
    play.run()
    play.open()
    assert [type(message) for message in play.written] == [Hello]
    assert 1 not in play.results
    play.settle()
    assert play.results[1] is None
    assert play.events == [Connected("127.0.0.1:7400", 7, 1, "raft")]


@pytest.mark.requirement("CM-11")
def test_when_no_node_answers_the_error_names_the_addresses_and_the_reason() -> None:
    play = Play(Options(("a:1", "b:2"), connect_timeout_ms=400))
    play.reachable = False
    play.core.start(play.now_us, 1)
    play.run()
    play.lose("refused")
    play.pass_time(1_000_000)
    error = play.errors[1]
    assert isinstance(error, Unreachable)
    assert (error.addresses, error.reason, error.retryable) == ("a:1, b:2", "refused", True)
    assert {"a:1", "b:2"} <= set(play.dialed)


def test_an_address_that_swallows_everything_leaves_time_for_the_others() -> None:
    play = Play(Options(("black-hole:1", "node:2"), connect_timeout_ms=1000))
    play.core.start(play.now_us, 1)
    play.run()
    while play.dialed[-1] != "node:2":
        due = play.core.deadline_us()
        assert due is not None
        play.pass_time(due - play.now_us)
    play.settle()
    assert play.core.link.up
    assert 1 in play.results


def test_a_node_of_another_version_is_told_apart_from_one_that_is_away() -> None:
    play = Play()
    play.core.start(play.now_us, 1)
    play.run()
    play.open()
    error = IncompatibleVersion("1", "2-3")
    play.hear(Failed(1, "IncompatibleVersion", error.carried()))
    assert isinstance(play.errors[1], IncompatibleVersion)
    assert play.core.closed


@pytest.mark.requirement("CM-10")
def test_a_client_comes_back_through_any_address_it_knows() -> None:
    play = Play(Options(("a:1", "b:2")))
    play.connect()
    play.lose("cut")
    play.come_back()
    assert play.dialed == ["a:1", "b:2"]
    assert play.events[1:] == [Disconnected("a:1", "cut"), Reconnected("b:2", 7, 1, 1)]


def test_pauses_between_attempts_grow_and_differ_between_clients() -> None:
    moments: list[list[int]] = []
    for seed in (1, 2):
        play = Play(Options(backoff_ms=50, backoff_ms_max=2000), seed=seed)
        play.connect()
        play.reachable = False
        play.lose()
        seen: list[int] = []
        for _ in range(10):
            due = play.core.deadline_us()
            assert due is not None
            seen.append(due - play.now_us)
            play.pass_time(due - play.now_us)
        moments.append(seen)
        assert seen[0] <= 100_000
        assert seen[5] >= 500_000
        assert max(seen) <= 2_000_000
    assert moments[0] != moments[1]


def test_a_silent_node_is_given_up_after_three_heartbeats() -> None:
    play = Play()
    play.node.heartbeat_ms = 1000
    play.connect()
    play.pass_time(2_900_000)
    assert [type(message) for message in play.written].count(Ping) == 2
    assert play.core.link.up
    play.pass_time(200_000)
    assert not play.core.link.up
    assert isinstance(play.events[-1], Disconnected)


def test_a_node_that_answers_pings_is_kept_and_hears_from_the_client() -> None:
    play = Play()
    play.connect()
    for _ in range(20):
        play.pass_time(500_000)
        play.settle()
    assert play.core.link.up
    assert [type(message) for message in play.written].count(Ping) >= 9


def test_a_driver_that_slept_asks_before_it_blames_the_node() -> None:
    play = Play()
    play.connect()
    play.now_us += 3_600_000_000
    play.core.tick(play.now_us)
    play.run()
    assert play.core.link.up
    assert isinstance(play.written[-1], Ping)


def test_a_node_may_ask_too() -> None:
    play = Play()
    play.connect()
    play.hear(Ping(77))
    assert play.written[-1] == Pong(77)


@pytest.mark.requirement("CM-10")
def test_a_node_that_says_goodbye_is_left_and_looked_for_again() -> None:
    play = Play()
    play.connect()
    play.hear(Goodbye("the node is stopping"))
    assert play.events[-1] == Disconnected("127.0.0.1:7400", "the node is stopping")
    play.come_back()


def test_late_news_of_an_old_connection_changes_nothing() -> None:
    play = Play()
    play.connect()
    old = play.link
    assert old is not None
    play.lose()
    play.come_back()
    play.core.lost(play.now_us, old, "late")
    play.core.received(play.now_us, old, Goodbye("late"), None)
    play.run()
    assert play.core.link.up


def test_a_question_outlives_its_connection() -> None:
    play = Play()
    play.node._create("t", TopicSettings())
    play.connect()
    call = play.call()
    play.core.describe_topic(play.now_us, call, "t")
    play.run()
    play.lose()
    play.come_back()
    assert play.results[call] is not None


def test_what_was_created_or_deleted_by_a_lost_attempt_is_no_error_at_the_next() -> None:
    play = Play()
    play.connect()
    made, gone = play.call(), play.call()
    for call in (made, gone):
        if call == made:
            play.core.create_topic(play.now_us, call, "t", TopicSettings(3))
        else:
            play.core.delete_topic(play.now_us, call, "t")
        play.run()
        play.node_hears(1)
        play.lose()
        play.come_back()
        assert call in play.results


@pytest.mark.requirement("CM-11")
def test_a_topic_that_somebody_else_made_is_an_error_even_at_the_second_attempt() -> None:
    play = Play()
    play.connect()
    call = play.call()
    play.core.create_topic(play.now_us, call, "t", TopicSettings(3))
    play.run()
    play.lose()
    play.node._create("t", TopicSettings(2))
    play.come_back()
    assert isinstance(play.errors[call], TopicExists)


@pytest.mark.requirement("CM-11")
def test_a_question_without_answer_times_out_and_its_late_answer_finds_nobody() -> None:
    play = Play(Options(call_timeout_ms=300))
    play.node.heartbeat_ms = 60_000
    play.node._create("t", TopicSettings())
    play.connect()
    call = play.call()
    play.core.describe_topic(play.now_us, call, "t")
    play.run()
    play.node_hears(1)
    play.pass_time(400_000)
    error = play.errors[call]
    assert isinstance(error, TimedOut)
    assert (error.what, error.waited_ms, error.retryable) == ("describe t", 300, True)
    assert isinstance(play.towards_client[0][0], TopicDescribed)
    play.settle()
    assert call not in play.results


def test_all_topics_are_listed_however_many_pages_that_takes() -> None:
    play = Play()
    play.node.page = 2
    for n in range(5):
        play.node._create(f"t{n}", TopicSettings())
    play.connect()
    call = play.call()
    play.core.list_topics(play.now_us, call)
    play.run()
    play.settle()
    topics = play.results[call]
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
    play = Play()
    play.connect()
    call = play.call()
    play.core.describe_topic(play.now_us, call, "t")
    play.run()
    violation = PeerViolation("typed part malformed", "kind 7")
    play.hear(Failed(0, "PeerViolation", violation.carried()))
    assert isinstance(play.errors[call], PeerViolation)
    play.lose("closed by the node")
    play.come_back()
    assert [type(message).__name__ for message in play.written].count("DescribeTopic") == 1


# --- features --------------------------------------------------------------------------------------


def question(play: Play, feature: str) -> tuple[list[Answer], list[RostraError]]:
    """Asks for the topics as if that needed a feature; the answers and errors it brings."""
    answers: list[Answer] = []
    errors: list[RostraError] = []

    def answered(now_us: int, message: Answer) -> None:
        answers.append(message)

    def failed(now_us: int, error: RostraError) -> None:
        errors.append(error)

    ask = PendingRequest("list topics", ListTopics, answered, failed, play.now_us + 1_000_000, feature)
    play.core._asks.add(play.now_us, ask)
    play.run()
    play.settle()
    return answers, errors


def test_a_client_offers_every_feature_it_knows() -> None:
    play = Play()
    play.connect()
    (hello,) = [message for message in play.written if isinstance(message, Hello)]
    assert hello.features == FEATURES


def test_a_call_that_needs_a_feature_the_node_lacks_fails_typed_and_unsent() -> None:
    play = Play()
    play.connect()
    answers, (error,) = question(play, "patterns")
    assert isinstance(error, NotSupported)
    assert (error.feature, error.retryable, answers) == ("patterns", False, [])
    assert not any(isinstance(message, ListTopics) for message in play.written)
    assert play.core.link.up


def test_a_call_that_needs_a_feature_is_sent_to_a_node_that_has_it() -> None:
    play = Play()
    play.node.features = ("patterns",)
    play.connect()
    (answer,), errors = question(play, "patterns")
    assert (type(answer), errors) == (TopicPage, [])


def test_a_feature_is_asked_of_the_node_that_is_connected_and_not_of_the_one_before() -> None:
    play = Play()
    play.node.features = ("patterns",)
    play.connect()
    play.lose()
    play.node.features = ()
    _, errors = question(play, "patterns")
    assert errors == []
    play.come_back()
    assert [type(error) for error in errors] == [NotSupported]
