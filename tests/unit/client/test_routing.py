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
    RecordTooLarge,
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
from tests.unit.client.cluster_harness import ClusterHarness
from tests.unit.client.model_cluster import ModelCluster, Owner

SECOND_US = 1_000_000


def three(partitions: int = 1, **options: Any) -> ClusterHarness:
    """A client of three nodes, connected to the first; partition n is owned by node n."""
    cluster = ModelCluster("a:1", "b:2", "c:3")
    cluster.create("t", TopicSettings(partitions))
    harness = ClusterHarness(cluster, Options(("a:1", "b:2", "c:3"), **options))
    harness.connect()
    return harness


def publish(harness: ClusterHarness, value: bytes, partition: int | None = None) -> int:
    call = harness.call()
    harness.core.publish(harness.now_us, call, "t", value, partition=partition)
    harness.core.end_turn(harness.now_us)
    harness.run()
    return call


def kinds_to(harness: ClusterHarness, address: str, kind: type[ClientMessage]) -> int:
    return sum(isinstance(message, kind) for there, message in harness.sent if there == address)


# --- where things go -------------------------------------------------------------------------------


def test_each_partition_is_published_on_the_link_of_its_owner() -> None:
    harness = three(3)
    calls = [publish(harness, b"%d" % partition, partition) for partition in range(3)]
    harness.settle()
    assert all(call in harness.results for call in calls)
    assert [harness.cluster.values("t", partition) for partition in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert [kinds_to(harness, address, Publish) for address in ("a:1", "b:2", "c:3")] == [1, 1, 1]
    assert {type(event) for event in harness.events} == {Connected}


def test_the_limit_for_records_is_that_of_the_owner_even_if_it_is_not_connected_yet() -> None:
    harness = three(3)
    for address, bytes_max in (("a:1", 1 << 20), ("b:2", 4 << 20), ("c:3", 1 << 16)):
        harness.cluster.members[address].batch_bytes_max = bytes_max
    large = bytes(3 << 20)

    assert [connection.address for connection in harness.connections.values()] == ["a:1"]
    accepted, refused = publish(harness, large, 1), publish(harness, bytes(1 << 17), 2)
    harness.settle()
    small = publish(harness, b"x", 2)
    harness.settle()

    assert harness.cluster.values("t", 1) == [large] and accepted in harness.results
    error = harness.errors[refused]
    assert isinstance(error, RecordTooLarge) and error.bytes_max == 1 << 16
    assert harness.cluster.values("t", 2) == [b"x"] and small in harness.results
    assert not any(isinstance(event, MayDuplicate) for event in harness.events)


def test_a_record_over_the_limit_of_its_owner_fails_alone_among_those_that_waited() -> None:
    harness = three(3)
    harness.cluster.members["c:3"].batch_bytes_max = 1 << 16
    state = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings(partition=2))
    harness.run()
    harness.unresponsive["c:3"] = None
    harness.settle()
    for value in (b"a", bytes(1 << 17), b"b", bytes(1 << 18), b"c"):
        state.add(harness.now_us, value)
        state.close(harness.now_us)
    harness.unresponsive.clear()
    flush = harness.call()
    state.flush(harness.now_us, flush)
    harness.run()
    harness.settle()
    assert harness.cluster.values("t", 2) == [b"a", b"b", b"c"]
    assert isinstance(harness.errors[flush], RecordTooLarge)
    state.add(harness.now_us, b"d")
    again = harness.call()
    state.flush(harness.now_us, again)
    harness.run()
    harness.settle()
    assert again in harness.results and harness.cluster.values("t", 2) == [b"a", b"b", b"c", b"d"]


def test_each_partition_is_subscribed_at_its_owner() -> None:
    harness = three(3)
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    harness.settle()
    for partition in range(3):
        publish(harness, b"%d" % partition, partition)
        harness.settle()
    assert sorted(value or b"" for value in harness.values(subscription.number)) == [b"0", b"1", b"2"]
    assert [kinds_to(harness, address, Subscribe) for address in ("a:1", "b:2", "c:3")] == [1, 1, 1]


def test_a_topic_owned_where_the_client_is_connected_needs_no_other_link() -> None:
    harness = three()
    publish(harness, b"v")
    harness.settle()
    assert [connection.address for connection in harness.connections.values()] == ["a:1"]


def test_questions_go_to_any_node_that_is_there() -> None:
    harness = three(3)
    publish(harness, b"v", 1)
    harness.settle()
    harness.crash("a:1")
    call = harness.call()
    harness.core.describe_topic(harness.now_us, call, "t")
    harness.run()
    harness.settle()
    assert call in harness.results


# --- when ownership moves --------------------------------------------------------------------------


def test_a_publish_told_that_its_partition_moved_goes_there_at_once() -> None:
    harness = three()
    publish(harness, b"0")
    harness.settle()
    harness.cluster.move("t", 0, "b:2")
    call = publish(harness, b"1")
    harness.settle()
    assert call in harness.results
    assert harness.cluster.values("t") == [b"0", b"1"]
    assert Resent("t", 0, 1, 1) in harness.events
    assert not [event for event in harness.events if isinstance(event, Disconnected | MayDuplicate)]


def test_what_waits_for_commit_is_sent_to_the_new_owner_and_stored_once() -> None:
    for cut in (False, True):
        harness = three()
        harness.cluster.commits = False
        producer = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings())
        harness.run()
        harness.settle()
        for n in range(5):
            producer.add(harness.now_us, b"%d" % n)
            producer.close(harness.now_us)
        harness.run()
        harness.settle()
        assert harness.acknowledged == []
        harness.cluster.commits = True
        harness.cluster.move("t", 0, "b:2", cut=cut)
        harness.settle()
        assert harness.cluster.values("t") == [b"0", b"1", b"2", b"3", b"4"]
        assert producer.acked == 5
        assert not [event for event in harness.events if isinstance(event, MayDuplicate)]


def test_a_subscription_goes_on_at_the_new_owner_where_it_stopped() -> None:
    harness = three()
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    for n in range(3):
        publish(harness, b"%d" % n)
        harness.settle()
    harness.cluster.move("t", 0, "c:3")
    harness.settle()
    publish(harness, b"3")
    harness.settle()
    assert harness.values(subscription.number) == [b"0", b"1", b"2", b"3"]
    assert Resubscribed("t", 0, 3) in harness.events


def test_a_sender_that_learns_of_a_move_redirects_the_subscription_too() -> None:
    harness = three()
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    publish(harness, b"0")
    harness.settle()
    old = harness.to("a:1")
    # The node still delivers, as a replica may; only publishes are refused.
    harness.cluster.owners[harness.cluster.topics["t"].topic, 0] = Owner("b:2", 2)
    harness.cluster.tell()
    publish(harness, b"1")
    harness.settle()
    assert kinds_to(harness, "a:1", Unsubscribe) == 1
    assert old.member is not None
    assert old.member.feeds[old.number] == {}
    assert harness.values(subscription.number) == [b"0", b"1"]


def deposed_unawares(harness: ClusterHarness, address: str, epoch: int) -> None:
    """Another node owns the partition; the previous one still delivers, as a replica may, but refuses publishes."""
    harness.cluster.owners[harness.cluster.topics["t"].topic, 0] = Owner(address, epoch)
    harness.cluster.tell()


def test_what_the_node_that_was_left_still_says_of_a_subscription_changes_nothing() -> None:
    harness = three()
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    for n in range(3):
        publish(harness, b"%d" % n)
        harness.settle()
    old, log = harness.to("a:1"), harness.cluster.logs[harness.cluster.topics["t"].topic, 0]
    deposed_unawares(harness, "b:2", 2)
    publish(harness, b"3")
    harness.forward_to_node(old)
    harness.forward_to_client(old)
    harness.settle()
    number = subscription.feeds[0].number
    batch = bytearray(log.batches[0][2])
    stamp(batch, partition=subscription.feeds[0]._identity, base_offset=9, owner_epoch=1)
    harness.send_to_client(old, Push(number, 10), bytes(batch))
    harness.send_to_client(old, Ended(number, "Unavailable", Unavailable("t", 0, "late").carried()))
    harness.settle()
    assert harness.values(subscription.number) == [b"0", b"1", b"2", b"3"]
    assert not [event for event in harness.events if isinstance(event, Disconnected)]
    assert [kinds_to(harness, address, Subscribe) for address in ("a:1", "b:2")] == [1, 1]


def test_the_end_of_an_earlier_subscription_is_not_taken_for_the_end_of_the_next() -> None:
    harness = three()
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    publish(harness, b"0")
    harness.settle()
    old = harness.to("a:1")
    deposed_unawares(harness, "b:2", 2)
    publish(harness, b"1")
    harness.settle()
    deposed_unawares(harness, "a:1", 3)
    publish(harness, b"2")
    new = harness.to("b:2")
    harness.forward_to_node(new)
    harness.forward_to_client(new)
    assert subscription.feeds[0].state is FeedState.REQUESTED
    number = subscription.feeds[0].number
    harness.send_to_client(old, Ended(number, "Moved", Moved("b:2", 2).carried()))
    harness.settle()
    assert harness.values(subscription.number) == [b"0", b"1", b"2"]
    assert [kinds_to(harness, address, Subscribe) for address in ("a:1", "b:2")] == [2, 1]


def test_a_late_answer_to_a_subscription_that_was_moved_is_not_taken_for_the_new_one() -> None:
    harness = three()
    harness.settle()
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    producer = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings())
    harness.run()
    old = harness.to("a:1")
    harness.forward_to_node(old, 1)
    harness.forward_to_client(old)
    asked = [message for _, message in harness.sent if isinstance(message, Subscribe)]
    harness.forward_to_node(old)
    waiting = list(old.to_client)
    old.to_client.clear()
    deposed_unawares(harness, "b:2", 2)
    producer.add(harness.now_us, b"0")
    producer.end_turn(harness.now_us)
    harness.run()
    for message, payload in waiting:
        if not isinstance(message, Subscribed):
            harness.send_to_client(old, message, payload)
    harness.forward_to_node(old)
    harness.forward_to_client(old)
    assert subscription.feeds[0].link.address == "b:2"
    harness.open_connection(harness.to("b:2"))
    harness.forward_to_node(harness.to("b:2"), 1)
    harness.forward_to_client(harness.to("b:2"))
    assert subscription.feeds[0].state is FeedState.REQUESTED
    harness.send_to_client(old, Subscribed(asked[0].request, asked[0].subscription, 77, 77))
    publish(harness, b"1")
    harness.settle()
    assert harness.values(subscription.number) == [b"0", b"1"]


def test_a_late_refusal_by_the_previous_owner_does_not_disturb_the_sender() -> None:
    harness = three()
    settings = ProducerSettings()
    first, second = (harness.core.open_producer(harness.now_us, harness.call(), "t", settings) for _ in range(2))
    harness.run()
    harness.settle()
    old = harness.to("a:1")
    deposed_unawares(harness, "b:2", 2)
    for producer in (first, second):
        producer.add(harness.now_us, b"%d" % producer.number)
        producer.end_turn(harness.now_us)
    harness.run()
    asked = [message for _, message in harness.sent if isinstance(message, Publish)]
    # The first answer says that the partition moved, which moves the second batch, too, without its own answer.
    harness.forward_to_node(old, 1)
    harness.forward_to_client(old)
    harness.send_to_client(old, Failed(asked[1].request, "SequenceGap", SequenceGap(1, 2, 3).carried()))
    harness.settle()
    assert (first.acked, second.acked) == (1, 1)
    assert harness.cluster.values("t") == [b"1", b"2"]
    assert not [event for event in harness.events if isinstance(event, MayDuplicate)]
    assert second.senders[0].epoch == 0


def test_an_owner_named_by_others_is_followed_at_once_when_a_link_breaks() -> None:
    harness = three()
    harness.cluster.move("t", 0, "b:2")
    publish(harness, b"0")
    harness.settle()
    harness.cluster.move("t", 0, "c:3")
    harness.crash("b:2")
    call = publish(harness, b"1")
    harness.pass_time(0)
    assert call in harness.results


@pytest.mark.requirement("CM-10:resends", "CM-10:resubscribes")
def test_the_death_of_an_owner_is_survived_without_loss_or_repeat() -> None:
    harness = three(3)
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    producer = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings(partition=1))
    harness.run()
    harness.settle()
    harness.cluster.commits = False
    for n in range(4):
        producer.add(harness.now_us, b"%d" % n)
        producer.close(harness.now_us)
    harness.run()
    harness.forward_to_node(harness.to("b:2"))
    harness.crash("b:2")
    harness.pass_time(SECOND_US)
    assert producer.acked == 0
    harness.cluster.commits = True
    harness.cluster.move("t", 1, "c:3")
    harness.pass_time(3 * SECOND_US)
    assert producer.acked == 4
    assert harness.cluster.values("t", 1) == [b"0", b"1", b"2", b"3"]
    assert harness.values(subscription.number) == [b"0", b"1", b"2", b"3"]
    assert not [event for event in harness.events if isinstance(event, MayDuplicate)]


def test_other_partitions_go_on_while_one_owner_is_away() -> None:
    harness = three(3)
    for partition in range(3):
        publish(harness, b"before", partition)
    harness.settle()
    harness.crash("b:2")
    harness.cluster.move("t", 1, "")
    calls = [publish(harness, b"during", partition) for partition in range(3)]
    harness.settle()
    assert [call in harness.results for call in calls] == [True, False, True]


def test_without_an_owner_the_client_asks_again_and_again_but_does_not_spin() -> None:
    harness = three(1, backoff_ms=50, backoff_ms_max=2000)
    publish(harness, b"0")
    harness.settle()
    harness.cluster.move("t", 0, "")
    call = publish(harness, b"1")
    harness.settle()
    before = len(harness.sent)
    harness.pass_time(20 * SECOND_US)
    assert 8 <= len(harness.sent) - before <= 120
    assert call not in harness.results
    harness.cluster.move("t", 0, "c:3")
    harness.pass_time(3 * SECOND_US)
    assert call in harness.results
    assert harness.cluster.values("t") == [b"0", b"1"]


def test_paused_partitions_are_not_woken_by_answers_about_others() -> None:
    harness = three(60, backoff_ms=50, backoff_ms_max=2000)
    harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    harness.settle()
    for address in ("b:2", "c:3"):
        harness.crash(address)
    # The remaining node believes that it owns everything, and then finds that it does not.
    topic = harness.cluster.topics["t"].topic
    for partition in range(60):
        harness.cluster.owners[topic, partition] = Owner("", 2)
        harness.cluster.members["a:1"].believes[topic, partition] = Owner("a:1", 1)
        harness.cluster.members["a:1"].deposed(topic, partition)
    before = kinds_to(harness, "a:1", Subscribe)
    harness.pass_time(20 * SECOND_US)
    assert kinds_to(harness, "a:1", Subscribe) - before <= 60 * 20


def test_two_nodes_that_name_each_other_do_not_make_the_client_spin() -> None:
    harness = three()
    publish(harness, b"0")
    harness.settle()
    topic = harness.cluster.topics["t"].topic
    harness.cluster.owners[topic, 0] = Owner("c:3", 9)
    harness.cluster.members["a:1"].believes[topic, 0] = Owner("b:2", 5)
    harness.cluster.members["b:2"].believes[topic, 0] = Owner("a:1", 5)
    harness.cluster.members["c:3"].believes[topic, 0] = Owner("a:1", 5)
    call = publish(harness, b"1")
    harness.settle()
    assert sum(isinstance(message, Publish) for _, message in harness.sent) < 10
    harness.pass_time(10 * SECOND_US)
    assert sum(isinstance(message, Publish) for _, message in harness.sent) < 80
    harness.cluster.tell()
    harness.pass_time(3 * SECOND_US)
    assert call in harness.results


def test_a_node_that_is_cut_off_from_the_others_is_not_the_only_one_asked() -> None:
    """It keeps naming a dead owner; the others know better."""
    harness = three(1)
    harness.cluster.move("t", 0, "b:2")
    publish(harness, b"0")
    harness.settle()
    harness.crash("b:2")
    harness.cluster.move("t", 0, "c:3", told=False)
    harness.cluster.tell("c:3")
    call = publish(harness, b"1")
    harness.pass_time(10 * SECOND_US)
    assert call in harness.results
    assert harness.cluster.values("t") == [b"0", b"1"]


def test_what_its_node_leaves_unanswered_goes_to_the_owner_that_others_name() -> None:
    harness = three()
    publish(harness, b"0")
    harness.settle()
    harness.unresponsive["a:1"] = None
    call = publish(harness, b"1")
    harness.cluster.move("t", 0, "b:2")
    harness.pass_time(5 * SECOND_US // 2)
    assert call in harness.results
    assert harness.cluster.values("t") == [b"0", b"1"]
    assert not [event for event in harness.events if isinstance(event, Disconnected | MayDuplicate)]


def test_a_subscription_whose_node_leaves_a_ping_unanswered_goes_on_at_the_new_owner() -> None:
    cluster = ModelCluster("a:1", "b:2", "c:3")
    cluster.create("t", TopicSettings(1))
    cluster.members["a:1"].heartbeat_ms = 1_000
    harness = ClusterHarness(cluster)
    harness.connect()
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    harness.settle()
    harness.unresponsive["a:1"] = None
    harness.cluster.move("t", 0, "b:2")
    # A ping is due every second; the node gets three of them before the link is closed.
    harness.pass_time(5 * SECOND_US // 2)
    assert not [event for event in harness.events if isinstance(event, Disconnected)]
    publish(harness, b"0")
    harness.settle()
    assert harness.values(subscription.number) == [b"0"]


def test_an_owner_that_is_merely_slow_keeps_its_partitions() -> None:
    harness = three()
    publish(harness, b"0")
    harness.settle()
    harness.unresponsive["a:1"] = None
    call = publish(harness, b"1")
    harness.pass_time(10 * SECOND_US)
    assert call not in harness.results
    asked = kinds_to(harness, "b:2", Locate) + kinds_to(harness, "c:3", Locate)
    assert 2 <= asked <= 10, "others are asked again and again, and not more often than that"
    del harness.unresponsive["a:1"]
    harness.settle()
    assert call in harness.results
    assert [kinds_to(harness, address, Publish) for address in ("a:1", "b:2", "c:3")] == [2, 0, 0]


def test_the_only_known_node_is_never_suspected() -> None:
    cluster = ModelCluster("a:1")
    cluster.create("t", TopicSettings(1))
    harness = ClusterHarness(cluster)
    harness.connect()
    publish(harness, b"0")
    harness.settle()
    harness.unresponsive["a:1"] = None
    publish(harness, b"1")
    located = kinds_to(harness, "a:1", Locate)
    harness.pass_time(10 * SECOND_US)
    assert kinds_to(harness, "a:1", Locate) == located
    assert len(harness.connections) == 1


def test_an_owner_that_is_there_but_not_for_us_is_tried_again_with_pauses() -> None:
    harness = three(1)
    harness.unresponsive["c:3"] = None
    harness.cluster.move("t", 0, "c:3")
    call = publish(harness, b"0")
    harness.pass_time(20 * SECOND_US)
    assert 2 <= harness.dialed.count("c:3") <= 20
    assert call not in harness.results
    harness.cluster.move("t", 0, "a:1")
    harness.pass_time(5 * SECOND_US)
    assert call in harness.results


def test_an_owner_that_comes_back_is_used_again() -> None:
    harness = three(1)
    harness.cluster.move("t", 0, "b:2")
    publish(harness, b"0")
    harness.settle()
    harness.crash("b:2")
    call = publish(harness, b"1")
    harness.pass_time(SECOND_US)
    harness.restart("b:2")
    harness.pass_time(5 * SECOND_US)
    assert call in harness.results
    assert [type(event) for event in harness.events].count(Reconnected) == 1


def test_a_stopping_owner_is_left_for_its_successor() -> None:
    harness = three(1)
    publish(harness, b"0")
    harness.settle()
    harness.cluster.members["a:1"].stopping = True
    call = publish(harness, b"1")
    harness.settle()
    harness.cluster.move("t", 0, "b:2")
    harness.pass_time(SECOND_US)
    assert call in harness.results
    harness.send_to_client(harness.to("a:1"), Goodbye("the node is stopping"))
    harness.settle()
    assert harness.core.links.pick() is not None


def test_records_without_acknowledgement_follow_their_partition_too() -> None:
    harness = three()
    producer = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings(acks="none"))
    harness.run()
    harness.settle()
    harness.cluster.move("t", 0, "b:2")
    for n in range(3):
        producer.add(harness.now_us, b"%d" % n)
        producer.end_turn(harness.now_us)
        harness.run()
        harness.settle()
    assert harness.cluster.values("t") == [b"1", b"2"]
    assert producer.error is not None


def test_no_lookup_is_sent_for_a_closed_producer() -> None:
    """A batch published without acknowledgement may be refused later than that."""
    harness = three()
    producer = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings(acks="none"))
    harness.run()
    harness.settle()
    harness.cluster.members["a:1"].stopping = True
    producer.add(harness.now_us, b"late")
    producer.end_turn(harness.now_us)
    harness.run()
    harness.core.close_producer(producer)
    harness.sent.clear()
    harness.settle()
    harness.pass_time(10 * SECOND_US)
    assert not [message for _, message in harness.sent if isinstance(message, Locate)]


# --- deadlines -------------------------------------------------------------------------------------


def test_the_delivery_deadline_holds_across_any_number_of_owners() -> None:
    harness = three(1, delivery_timeout_ms=5000)
    publish(harness, b"0")
    harness.settle()
    harness.cluster.commits = False
    call = publish(harness, b"1")
    harness.settle()
    for turn in range(6):
        harness.cluster.move("t", 0, ("b:2", "c:3", "a:1")[turn % 3], cut=True)
        harness.pass_time(SECOND_US)
    error = harness.errors[call]
    assert isinstance(error, NotAcknowledged)
    assert error.waited_ms >= 5000
    assert "delivery timeout" in str(error)


def test_a_subscription_that_finds_no_owner_fails_typed_when_its_call_is_due() -> None:
    harness = three(1, call_timeout_ms=3000)
    harness.cluster.move("t", 0, "")
    call = harness.call()
    harness.core.subscribe(harness.now_us, call, "t", "earliest")
    harness.run()
    harness.settle()
    harness.pass_time(2 * SECOND_US)
    assert call not in harness.errors
    harness.pass_time(2 * SECOND_US)
    assert harness.errors[call].retryable
    before = len(harness.sent)
    harness.pass_time(60 * SECOND_US)
    assert not [message for _, message in harness.sent[before:] if isinstance(message, Locate | Subscribe)]


def test_a_question_that_a_node_leaves_unanswered_is_put_to_another() -> None:
    harness = three()
    call = harness.call()
    harness.unresponsive["a:1"] = None
    harness.core.describe_topic(harness.now_us, call, "t")
    harness.run()
    harness.pass_time(20 * SECOND_US)
    assert call in harness.results


def test_a_question_that_a_node_cannot_answer_is_put_to_another() -> None:
    harness = three(1, call_timeout_ms=5000)
    harness.cluster.members["a:1"].cut_off = True
    calls = [harness.call(), harness.call(), harness.call()]
    harness.core.describe_topic(harness.now_us, calls[0], "t")
    harness.core.list_topics(harness.now_us, calls[1])
    harness.core.create_topic(harness.now_us, calls[2], "u", TopicSettings())
    harness.run()
    harness.settle()
    harness.pass_time(SECOND_US)
    assert all(call in harness.results for call in calls)


def test_what_a_node_that_was_removed_says_ends_nothing() -> None:
    harness = three(1)
    harness.cluster.move("t", 0, "b:2")
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    publish(harness, b"0")
    harness.settle()
    harness.cluster.members["b:2"].removed = harness.cluster.members["a:1"].removed = True
    harness.cluster.move("t", 0, "c:3")
    call = publish(harness, b"1")
    harness.cut(harness.to("b:2"))
    harness.pass_time(10 * SECOND_US)
    assert call in harness.results
    assert not subscription.ended and harness.values(subscription.number) == [b"0", b"1"]


# --- topics that are gone --------------------------------------------------------------------------


def test_a_topic_that_was_deleted_while_its_owner_was_away_ends_its_producer() -> None:
    harness = three()
    call = publish(harness, b"0")
    harness.settle()
    del harness.cluster.topics["t"]
    harness.crash("a:1")
    call = publish(harness, b"1")
    harness.pass_time(5 * SECOND_US)
    assert isinstance(harness.errors[call], UnknownTopic)
    assert "t" not in harness.cluster.topics


def test_a_topic_of_the_same_name_made_meanwhile_is_another_one() -> None:
    harness = three()
    subscription = harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    publish(harness, b"0")
    harness.settle()
    harness.cluster.create("t", TopicSettings(1))
    harness.crash("a:1")
    call = publish(harness, b"1")
    harness.pass_time(5 * SECOND_US)
    assert isinstance(harness.errors[call], TopicRecreated)
    assert isinstance(harness.finished[subscription.number], TopicRecreated)
    # The request carried the topic id, so the node had to be certain.
    asked = [message.topic for _, message in harness.sent if isinstance(message, Locate)]
    assert asked[0] == 0 and asked[-1] == subscription.topic


# --- bounds ----------------------------------------------------------------------------------------


def test_an_unused_link_is_closed_after_a_while() -> None:
    harness = three()
    publish(harness, b"0")
    harness.settle()
    harness.cluster.move("t", 0, "b:2")
    publish(harness, b"1")
    harness.settle()
    assert sorted(connection.address for connection in harness.connections.values()) == ["a:1", "b:2"]
    harness.pass_time(4 * UNUSED_MS_MAX * 1000)
    assert [connection.address for connection in harness.connections.values()] == ["b:2"]
    call = publish(harness, b"2")
    harness.settle()
    assert call in harness.results
    assert not [event for event in harness.events if isinstance(event, Disconnected)]


def test_the_last_link_is_kept_even_if_it_is_unused() -> None:
    harness = three()
    harness.pass_time(10 * UNUSED_MS_MAX * 1000)
    assert len(harness.connections) == 1


def test_links_and_known_addresses_are_bounded() -> None:
    addresses = tuple(f"n{number}:1" for number in range(LINKS_MAX + 20))
    cluster = ModelCluster(*addresses)
    cluster.create("t", TopicSettings(len(addresses)))
    harness = ClusterHarness(cluster, Options(("n0:1",)))
    harness.connect()
    harness.core.subscribe(harness.now_us, harness.call(), "t", "earliest")
    harness.run()
    harness.settle()
    harness.pass_time(5 * SECOND_US)
    assert len(harness.connections) <= LINKS_MAX
    assert len(harness.core.links.addresses) <= ADDRESSES_MAX


@pytest.mark.parametrize("address", ["nowhere:at:all", "unix:/run/somebody.sock"])
def test_an_address_that_is_none_is_not_dialed(address: str) -> None:
    """Nor is one that a node must not name: a path on the client's own machine."""
    harness = three()
    call = publish(harness, b"0")
    harness.forward_to_node(harness.to("a:1"))
    harness.forward_to_client(harness.to("a:1"))
    connection = harness.to("a:1")
    (asked, _) = connection.to_node[-1]
    assert isinstance(asked, Publish)
    connection.to_node.clear()
    harness.send_to_client(connection, Failed(asked.request, "Moved", Moved(address, 2).carried()))
    harness.pass_time(SECOND_US)
    assert harness.dialed == ["a:1"]
    assert call in harness.results


def test_closing_the_client_closes_every_link() -> None:
    harness = three(3)
    for partition in range(3):
        publish(harness, b"v", partition)
    harness.settle()
    assert len(harness.connections) == 3
    harness.core.close(harness.now_us)
    harness.run()
    assert harness.connections == {}
    assert harness.core.deadline_us() is None
