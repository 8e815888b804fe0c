"""How a client finds the node that owns a partition, and follows it when it moves."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.client.core.events import Connected, Disconnected, MayDuplicate, Reconnected, Resent, Resubscribed
from rostra.client.core.links.node_links import ADDRESSES_MAX, LINKS_MAX, UNUSED_MS_MAX
from rostra.client.core.options import Options, ProducerSettings
from rostra.client.core.subscription.topic_subscription import FeedState
from rostra.errors import (
    Moved,
    NotAcknowledged,
    SequenceGap,
    TopicRecreated,
    Unavailable,
    UnknownTopic,
)
from rostra.model.batch import stamp
from rostra.wire.messages import (
    ClientMessage,
    Ended,
    Failed,
    Goodbye,
    Locate,
    Publish,
    Push,
    Subscribe,
    Subscribed,
    TopicSettings,
    Unsubscribe,
)
from tests.unit.client.cluster_play import ClusterPlay
from tests.unit.client.model_cluster import Cluster, Owner

SECOND_US = 1_000_000


def three(partitions: int = 1, **options: Any) -> ClusterPlay:
    """A client of three nodes, connected to the first; partition n is owned by node n."""
    cluster = Cluster("a:1", "b:2", "c:3")
    cluster.create("t", TopicSettings(partitions))
    play = ClusterPlay(cluster, Options(("a:1", "b:2", "c:3"), **options))
    play.connect()
    return play


def publish(play: ClusterPlay, value: bytes, partition: int | None = None) -> int:
    call = play.call()
    play.core.publish(play.now_us, call, "t", value, partition=partition)
    play.core.turn_publishers(play.now_us)
    play.run()
    return call


def kinds_to(play: ClusterPlay, address: str, kind: type[ClientMessage]) -> int:
    return sum(isinstance(message, kind) for there, message in play.sent if there == address)


# --- where things go -------------------------------------------------------------------------------


def test_each_partition_is_published_on_the_link_of_its_owner() -> None:
    play = three(3)
    calls = [publish(play, b"%d" % partition, partition) for partition in range(3)]
    play.settle()
    assert all(call in play.results for call in calls)
    assert [play.cluster.values("t", partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert [kinds_to(play, address, Publish) for address in ("a:1", "b:2", "c:3")] == [1, 1, 1]
    assert {type(event) for event in play.events} == {Connected}


def test_each_partition_is_subscribed_at_its_owner() -> None:
    play = three(3)
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    play.settle()
    for partition in range(3):
        publish(play, b"%d" % partition, partition)
        play.settle()
    assert sorted(value or b"" for value in play.values(subscription.number)) == [b"0", b"1", b"2"]
    assert [kinds_to(play, address, Subscribe) for address in ("a:1", "b:2", "c:3")] == [1, 1, 1]


def test_a_topic_owned_where_the_client_is_connected_needs_no_other_link() -> None:
    play = three()
    publish(play, b"v")
    play.settle()
    assert [wire.address for wire in play.wires.values()] == ["a:1"]


def test_questions_go_to_any_node_that_is_there() -> None:
    play = three(3)
    publish(play, b"v", 1)
    play.settle()
    play.crash("a:1")
    call = play.call()
    play.core.describe_topic(play.now_us, call, "t")
    play.run()
    play.settle()
    assert call in play.results


# --- when ownership moves --------------------------------------------------------------------------


def test_a_publish_told_that_its_partition_moved_goes_there_at_once() -> None:
    play = three()
    publish(play, b"0")
    play.settle()
    play.cluster.move("t", 0, "b:2")
    call = publish(play, b"1")
    play.settle()
    assert call in play.results
    assert play.cluster.values("t") == [b"0", b"1"]
    assert Resent("t", 0, 1, 1) in play.events
    assert not [event for event in play.events if isinstance(event, Disconnected | MayDuplicate)]


def test_what_waits_for_commit_is_sent_to_the_new_owner_and_stored_once() -> None:
    for cut in (False, True):
        play = three()
        play.cluster.commits = False
        producer = play.core.open_producer(play.now_us, play.call(), "t", ProducerSettings())
        play.run()
        play.settle()
        for n in range(5):
            producer.add(play.now_us, b"%d" % n)
            producer.close(play.now_us)
        play.run()
        play.settle()
        assert play.acknowledged == []
        play.cluster.commits = True
        play.cluster.move("t", 0, "b:2", cut=cut)
        play.settle()
        assert play.cluster.values("t") == [b"0", b"1", b"2", b"3", b"4"]
        assert producer.acked == 5
        assert not [event for event in play.events if isinstance(event, MayDuplicate)]


def test_a_subscription_goes_on_at_the_new_owner_where_it_stopped() -> None:
    play = three()
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    for n in range(3):
        publish(play, b"%d" % n)
        play.settle()
    play.cluster.move("t", 0, "c:3")
    play.settle()
    publish(play, b"3")
    play.settle()
    assert play.values(subscription.number) == [b"0", b"1", b"2", b"3"]
    assert Resubscribed("t", 0, 3) in play.events


def test_a_lane_that_learns_of_the_move_takes_the_subscription_along() -> None:
    play = three()
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    publish(play, b"0")
    play.settle()
    old = play.to("a:1")
    # The node still delivers, as a replica may; only publishes are turned away.
    play.cluster.owners[play.cluster.topics["t"].topic, 0] = Owner("b:2", 2)
    play.cluster.tell()
    publish(play, b"1")
    play.settle()
    assert kinds_to(play, "a:1", Unsubscribe) == 1
    assert old.member is not None
    assert old.member.feeds[old.number] == {}
    assert play.values(subscription.number) == [b"0", b"1"]


def deposed_unawares(play: ClusterPlay, address: str, epoch: int) -> None:
    """Another node owns the partition; the one before still delivers, as a replica may, but turns publishes away."""
    play.cluster.owners[play.cluster.topics["t"].topic, 0] = Owner(address, epoch)
    play.cluster.tell()


def test_what_the_node_that_was_left_still_says_of_a_subscription_changes_nothing() -> None:
    play = three()
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    for n in range(3):
        publish(play, b"%d" % n)
        play.settle()
    old, log = play.to("a:1"), play.cluster.logs[play.cluster.topics["t"].topic, 0]
    deposed_unawares(play, "b:2", 2)
    publish(play, b"3")
    play.hears(old)
    play.answers(old)
    play.settle()
    number = subscription.feeds[0].number
    batch = bytearray(log.batches[0][2])
    stamp(batch, partition=subscription.feeds[0]._identity, base_offset=9, owner_epoch=1)
    play.tell(old, Push(number, 10), bytes(batch))
    play.tell(old, Ended(number, "Unavailable", Unavailable("t", 0, "late").carried()))
    play.settle()
    assert play.values(subscription.number) == [b"0", b"1", b"2", b"3"]
    assert not [event for event in play.events if isinstance(event, Disconnected)]
    assert [kinds_to(play, address, Subscribe) for address in ("a:1", "b:2")] == [1, 1]


def test_the_end_of_an_earlier_subscription_is_not_taken_for_the_end_of_the_next() -> None:
    play = three()
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    publish(play, b"0")
    play.settle()
    old = play.to("a:1")
    deposed_unawares(play, "b:2", 2)
    publish(play, b"1")
    play.settle()
    deposed_unawares(play, "a:1", 3)
    publish(play, b"2")
    new = play.to("b:2")
    play.hears(new)
    play.answers(new)
    assert subscription.feeds[0].state is FeedState.ASKED
    number = subscription.feeds[0].number
    play.tell(old, Ended(number, "Moved", Moved("b:2", 2).carried()))
    play.settle()
    assert play.values(subscription.number) == [b"0", b"1", b"2"]
    assert [kinds_to(play, address, Subscribe) for address in ("a:1", "b:2")] == [2, 1]


def test_a_late_answer_to_a_subscription_that_was_moved_is_not_taken_for_the_new_one() -> None:
    play = three()
    play.settle()
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    producer = play.core.open_producer(play.now_us, play.call(), "t", ProducerSettings())
    play.run()
    old = play.to("a:1")
    play.hears(old, 1)
    play.answers(old)
    asked = [message for _, message in play.sent if isinstance(message, Subscribe)]
    play.hears(old)
    waiting = list(old.towards_client)
    old.towards_client.clear()
    deposed_unawares(play, "b:2", 2)
    producer.add(play.now_us, b"0")
    producer.turn(play.now_us)
    play.run()
    for message, payload in waiting:
        if not isinstance(message, Subscribed):
            play.tell(old, message, payload)
    play.hears(old)
    play.answers(old)
    assert subscription.feeds[0].link.address == "b:2"
    play.open_wire(play.to("b:2"))
    play.hears(play.to("b:2"), 1)
    play.answers(play.to("b:2"))
    assert subscription.feeds[0].state is FeedState.ASKED
    play.tell(old, Subscribed(asked[0].request, asked[0].subscription, 77, 77))
    publish(play, b"1")
    play.settle()
    assert play.values(subscription.number) == [b"0", b"1"]


def test_a_late_refusal_by_the_node_that_was_left_does_not_disturb_the_lane() -> None:
    play = three()
    settings = ProducerSettings()
    first, second = (play.core.open_producer(play.now_us, play.call(), "t", settings) for _ in range(2))
    play.run()
    play.settle()
    old = play.to("a:1")
    deposed_unawares(play, "b:2", 2)
    for producer in (first, second):
        producer.add(play.now_us, b"%d" % producer.number)
        producer.turn(play.now_us)
    play.run()
    asked = [message for _, message in play.sent if isinstance(message, Publish)]
    # The first is told that the partition moved, which moves the second too: it does not wait for its own answer.
    play.hears(old, 1)
    play.answers(old)
    play.tell(old, Failed(asked[1].request, "SequenceGap", SequenceGap(1, 2, 3).carried()))
    play.settle()
    assert (first.acked, second.acked) == (1, 1)
    assert play.cluster.values("t") == [b"1", b"2"]
    assert not [event for event in play.events if isinstance(event, MayDuplicate)]
    assert second.lanes[0].epoch == 0


def test_an_owner_named_by_others_is_followed_at_once_when_a_link_breaks() -> None:
    play = three()
    play.cluster.move("t", 0, "b:2")
    publish(play, b"0")
    play.settle()
    play.cluster.move("t", 0, "c:3")
    play.crash("b:2")
    call = publish(play, b"1")
    play.pass_time(0)
    assert call in play.results


@pytest.mark.requirement("CM-10")
def test_the_death_of_an_owner_is_survived_without_loss_or_repeat() -> None:
    play = three(3)
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    producer = play.core.open_producer(play.now_us, play.call(), "t", ProducerSettings(partition=1))
    play.run()
    play.settle()
    play.cluster.commits = False
    for n in range(4):
        producer.add(play.now_us, b"%d" % n)
        producer.close(play.now_us)
    play.run()
    play.hears(play.to("b:2"))
    play.crash("b:2")
    play.pass_time(SECOND_US)
    assert producer.acked == 0
    play.cluster.commits = True
    play.cluster.move("t", 1, "c:3")
    play.pass_time(3 * SECOND_US)
    assert producer.acked == 4
    assert play.cluster.values("t", 1) == [b"0", b"1", b"2", b"3"]
    assert play.values(subscription.number) == [b"0", b"1", b"2", b"3"]
    assert not [event for event in play.events if isinstance(event, MayDuplicate)]


def test_other_partitions_go_on_while_one_owner_is_away() -> None:
    play = three(3)
    for partition in range(3):
        publish(play, b"before", partition)
    play.settle()
    play.crash("b:2")
    play.cluster.move("t", 1, "")
    calls = [publish(play, b"during", partition) for partition in range(3)]
    play.settle()
    assert [call in play.results for call in calls] == [True, False, True]


def test_without_an_owner_the_client_asks_again_and_again_but_does_not_spin() -> None:
    play = three(1, backoff_ms=50, backoff_ms_max=2000)
    publish(play, b"0")
    play.settle()
    play.cluster.move("t", 0, "")
    call = publish(play, b"1")
    play.settle()
    before = len(play.sent)
    play.pass_time(20 * SECOND_US)
    assert 8 <= len(play.sent) - before <= 120
    assert call not in play.results
    play.cluster.move("t", 0, "c:3")
    play.pass_time(3 * SECOND_US)
    assert call in play.results
    assert play.cluster.values("t") == [b"0", b"1"]


def test_partitions_that_pause_are_not_woken_by_what_is_said_of_others() -> None:
    play = three(60, backoff_ms=50, backoff_ms_max=2000)
    play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    play.settle()
    for address in ("b:2", "c:3"):
        play.crash(address)
    # The node that is left believes that it owns everything, and then finds that it does not.
    topic = play.cluster.topics["t"].topic
    for partition in range(60):
        play.cluster.owners[topic, partition] = Owner("", 2)
        play.cluster.members["a:1"].believes[topic, partition] = Owner("a:1", 1)
        play.cluster.members["a:1"].deposed(topic, partition)
    before = kinds_to(play, "a:1", Subscribe)
    play.pass_time(20 * SECOND_US)
    assert kinds_to(play, "a:1", Subscribe) - before <= 60 * 20


def test_two_nodes_that_name_each_other_do_not_make_the_client_spin() -> None:
    play = three()
    publish(play, b"0")
    play.settle()
    topic = play.cluster.topics["t"].topic
    play.cluster.owners[topic, 0] = Owner("c:3", 9)
    play.cluster.members["a:1"].believes[topic, 0] = Owner("b:2", 5)
    play.cluster.members["b:2"].believes[topic, 0] = Owner("a:1", 5)
    play.cluster.members["c:3"].believes[topic, 0] = Owner("a:1", 5)
    call = publish(play, b"1")
    play.settle()
    assert sum(isinstance(message, Publish) for _, message in play.sent) < 10
    play.pass_time(10 * SECOND_US)
    assert sum(isinstance(message, Publish) for _, message in play.sent) < 80
    play.cluster.tell()
    play.pass_time(3 * SECOND_US)
    assert call in play.results


def test_a_node_that_is_cut_off_from_the_others_is_not_the_only_one_asked() -> None:
    """It goes on naming an owner that is dead; the others know better."""
    play = three(1)
    play.cluster.move("t", 0, "b:2")
    publish(play, b"0")
    play.settle()
    play.crash("b:2")
    play.cluster.move("t", 0, "c:3", told=False)
    play.cluster.tell("c:3")
    call = publish(play, b"1")
    play.pass_time(10 * SECOND_US)
    assert call in play.results
    assert play.cluster.values("t") == [b"0", b"1"]


def test_what_its_node_leaves_unanswered_goes_to_the_owner_that_others_name() -> None:
    play = three()
    publish(play, b"0")
    play.settle()
    play.dark["a:1"] = None
    call = publish(play, b"1")
    play.cluster.move("t", 0, "b:2")
    play.pass_time(5 * SECOND_US // 2)
    assert call in play.results
    assert play.cluster.values("t") == [b"0", b"1"]
    assert not [event for event in play.events if isinstance(event, Disconnected | MayDuplicate)]


def test_a_subscription_whose_node_leaves_a_ping_unanswered_goes_on_at_the_new_owner() -> None:
    cluster = Cluster("a:1", "b:2", "c:3")
    cluster.create("t", TopicSettings(1))
    cluster.members["a:1"].heartbeat_ms = 1_000
    play = ClusterPlay(cluster)
    play.connect()
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    play.settle()
    play.dark["a:1"] = None
    play.cluster.move("t", 0, "b:2")
    # A ping is due every second, and its node gets three of them before the link is given up.
    play.pass_time(5 * SECOND_US // 2)
    assert not [event for event in play.events if isinstance(event, Disconnected)]
    publish(play, b"0")
    play.settle()
    assert play.values(subscription.number) == [b"0"]


def test_an_owner_that_is_merely_slow_keeps_its_partitions() -> None:
    play = three()
    publish(play, b"0")
    play.settle()
    play.dark["a:1"] = None
    call = publish(play, b"1")
    play.pass_time(10 * SECOND_US)
    assert call not in play.results
    asked = kinds_to(play, "b:2", Locate) + kinds_to(play, "c:3", Locate)
    assert 2 <= asked <= 10, "others are asked again and again, and not more often than that"
    del play.dark["a:1"]
    play.settle()
    assert call in play.results
    assert [kinds_to(play, address, Publish) for address in ("a:1", "b:2", "c:3")] == [2, 0, 0]


def test_who_is_the_only_node_known_is_not_doubted() -> None:
    cluster = Cluster("a:1")
    cluster.create("t", TopicSettings(1))
    play = ClusterPlay(cluster)
    play.connect()
    publish(play, b"0")
    play.settle()
    play.dark["a:1"] = None
    publish(play, b"1")
    located = kinds_to(play, "a:1", Locate)
    play.pass_time(10 * SECOND_US)
    assert kinds_to(play, "a:1", Locate) == located
    assert len(play.wires) == 1


def test_an_owner_that_is_there_but_not_for_us_is_tried_again_with_pauses() -> None:
    play = three(1)
    play.dark["c:3"] = None
    play.cluster.move("t", 0, "c:3")
    call = publish(play, b"0")
    play.pass_time(20 * SECOND_US)
    assert 2 <= play.dialed.count("c:3") <= 20
    assert call not in play.results
    play.cluster.move("t", 0, "a:1")
    play.pass_time(5 * SECOND_US)
    assert call in play.results


def test_an_owner_that_comes_back_is_used_again() -> None:
    play = three(1)
    play.cluster.move("t", 0, "b:2")
    publish(play, b"0")
    play.settle()
    play.crash("b:2")
    call = publish(play, b"1")
    play.pass_time(SECOND_US)
    play.restart("b:2")
    play.pass_time(5 * SECOND_US)
    assert call in play.results
    assert [type(event) for event in play.events].count(Reconnected) == 1


def test_a_stopping_owner_is_left_for_whoever_takes_over() -> None:
    play = three(1)
    publish(play, b"0")
    play.settle()
    play.cluster.members["a:1"].stopping = True
    call = publish(play, b"1")
    play.settle()
    play.cluster.move("t", 0, "b:2")
    play.pass_time(SECOND_US)
    assert call in play.results
    play.tell(play.to("a:1"), Goodbye("the node is stopping"))
    play.settle()
    assert play.core.links.any() is not None


def test_records_without_acknowledgement_follow_their_partition_too() -> None:
    play = three()
    producer = play.core.open_producer(play.now_us, play.call(), "t", ProducerSettings(acks="none"))
    play.run()
    play.settle()
    play.cluster.move("t", 0, "b:2")
    for n in range(3):
        producer.add(play.now_us, b"%d" % n)
        producer.turn(play.now_us)
        play.run()
        play.settle()
    assert play.cluster.values("t") == [b"1", b"2"]
    assert producer.error is not None


def test_nobody_asks_where_a_partition_is_for_a_producer_that_is_closed() -> None:
    """What it published without acknowledgement may be refused later than that."""
    play = three()
    producer = play.core.open_producer(play.now_us, play.call(), "t", ProducerSettings(acks="none"))
    play.run()
    play.settle()
    play.cluster.members["a:1"].stopping = True
    producer.add(play.now_us, b"late")
    producer.turn(play.now_us)
    play.run()
    play.core.close_producer(producer)
    play.sent.clear()
    play.settle()
    play.pass_time(10 * SECOND_US)
    assert not [message for _, message in play.sent if isinstance(message, Locate)]


# --- deadlines -------------------------------------------------------------------------------------


@pytest.mark.requirement("CM-11")
def test_the_delivery_deadline_holds_across_any_number_of_owners() -> None:
    play = three(1, delivery_timeout_ms=5000)
    publish(play, b"0")
    play.settle()
    play.cluster.commits = False
    call = publish(play, b"1")
    play.settle()
    for turn in range(6):
        play.cluster.move("t", 0, ("b:2", "c:3", "a:1")[turn % 3], cut=True)
        play.pass_time(SECOND_US)
    error = play.errors[call]
    assert isinstance(error, NotAcknowledged)
    assert error.waited_ms >= 5000
    assert "delivery timeout" in str(error)


@pytest.mark.requirement("CM-11")
def test_a_subscription_that_finds_no_owner_fails_typed_when_its_call_is_due() -> None:
    play = three(1, call_timeout_ms=3000)
    play.cluster.move("t", 0, "")
    call = play.call()
    play.core.subscribe(play.now_us, call, "t", "earliest")
    play.run()
    play.settle()
    play.pass_time(2 * SECOND_US)
    assert call not in play.errors
    play.pass_time(2 * SECOND_US)
    assert play.errors[call].retryable
    before = len(play.sent)
    play.pass_time(60 * SECOND_US)
    assert not [message for _, message in play.sent[before:] if isinstance(message, Locate | Subscribe)]


def test_a_question_that_a_node_leaves_unanswered_is_put_to_another() -> None:
    play = three()
    call = play.call()
    play.dark["a:1"] = None
    play.core.describe_topic(play.now_us, call, "t")
    play.run()
    play.pass_time(20 * SECOND_US)
    assert call in play.results


def test_a_question_that_a_node_cannot_answer_is_put_to_another() -> None:
    play = three(1, call_timeout_ms=5000)
    play.cluster.members["a:1"].cut_off = True
    calls = [play.call(), play.call(), play.call()]
    play.core.describe_topic(play.now_us, calls[0], "t")
    play.core.list_topics(play.now_us, calls[1])
    play.core.create_topic(play.now_us, calls[2], "u", TopicSettings())
    play.run()
    play.settle()
    play.pass_time(SECOND_US)
    assert all(call in play.results for call in calls)


def test_what_a_node_that_was_removed_says_ends_nothing() -> None:
    play = three(1)
    play.cluster.move("t", 0, "b:2")
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    publish(play, b"0")
    play.settle()
    play.cluster.members["b:2"].removed = play.cluster.members["a:1"].removed = True
    play.cluster.move("t", 0, "c:3")
    call = publish(play, b"1")
    play.cut(play.to("b:2"))
    play.pass_time(10 * SECOND_US)
    assert call in play.results
    assert not subscription.ended and play.values(subscription.number) == [b"0", b"1"]


# --- topics that are gone --------------------------------------------------------------------------


def test_a_topic_that_was_deleted_while_its_owner_was_away_ends_its_producer() -> None:
    play = three()
    call = publish(play, b"0")
    play.settle()
    del play.cluster.topics["t"]
    play.crash("a:1")
    call = publish(play, b"1")
    play.pass_time(5 * SECOND_US)
    assert isinstance(play.errors[call], UnknownTopic)
    assert "t" not in play.cluster.topics


def test_a_topic_of_the_same_name_made_meanwhile_is_another_one() -> None:
    play = three()
    subscription = play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    publish(play, b"0")
    play.settle()
    play.cluster.create("t", TopicSettings(1))
    play.crash("a:1")
    call = publish(play, b"1")
    play.pass_time(5 * SECOND_US)
    assert isinstance(play.errors[call], TopicRecreated)
    assert isinstance(play.finished[subscription.number], TopicRecreated)
    # Whoever was asked knew which one was meant, and so that it must be certain.
    asked = [message.topic for _, message in play.sent if isinstance(message, Locate)]
    assert asked[0] == 0 and asked[-1] == subscription.topic


# --- bounds ----------------------------------------------------------------------------------------


def test_a_link_that_nobody_needs_is_closed_after_a_while() -> None:
    play = three()
    publish(play, b"0")
    play.settle()
    play.cluster.move("t", 0, "b:2")
    publish(play, b"1")
    play.settle()
    assert sorted(wire.address for wire in play.wires.values()) == ["a:1", "b:2"]
    play.pass_time(4 * UNUSED_MS_MAX * 1000)
    assert [wire.address for wire in play.wires.values()] == ["b:2"]
    call = publish(play, b"2")
    play.settle()
    assert call in play.results
    assert not [event for event in play.events if isinstance(event, Disconnected)]


def test_the_last_link_is_kept_even_if_nobody_needs_it() -> None:
    play = three()
    play.pass_time(10 * UNUSED_MS_MAX * 1000)
    assert len(play.wires) == 1


def test_links_and_known_addresses_are_bounded() -> None:
    addresses = tuple(f"n{number}:1" for number in range(LINKS_MAX + 20))
    cluster = Cluster(*addresses)
    cluster.create("t", TopicSettings(len(addresses)))
    play = ClusterPlay(cluster, Options(("n0:1",)))
    play.connect()
    play.core.subscribe(play.now_us, play.call(), "t", "earliest")
    play.run()
    play.settle()
    play.pass_time(5 * SECOND_US)
    assert len(play.wires) <= LINKS_MAX
    assert len(play.core.links.addresses) <= ADDRESSES_MAX


@pytest.mark.parametrize("address", ["nowhere:at:all", "unix:/run/somebody.sock"])
def test_an_address_that_is_none_is_not_dialed(address: str) -> None:
    """Nor is one that no node has a say of: a path on the client's own machine."""
    play = three()
    call = publish(play, b"0")
    play.hears(play.to("a:1"))
    play.answers(play.to("a:1"))
    wire = play.to("a:1")
    (asked, _) = wire.towards_node[-1]
    assert isinstance(asked, Publish)
    wire.towards_node.clear()
    play.tell(wire, Failed(asked.request, "Moved", Moved(address, 2).carried()))
    play.pass_time(SECOND_US)
    assert play.dialed == ["a:1"]
    assert call in play.results


def test_closing_the_client_closes_every_link() -> None:
    play = three(3)
    for partition in range(3):
        publish(play, b"v", partition)
    play.settle()
    assert len(play.wires) == 3
    play.core.close(play.now_us)
    play.run()
    assert play.wires == {}
    assert play.core.deadline_us() is None
