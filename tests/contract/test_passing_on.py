"""Publishes that a node passes on to the owner: in order, stored once, and the client is led to the owner.

Also what every driver does with messages to a node whose link is not up yet.
"""

from __future__ import annotations

from rostra.errors import SequenceGap, Unavailable
from rostra.model.encode import encode
from rostra.wire.messages import Failed, Publish, Published
from tests.contract.facade import Cluster, Node, NodeReply
from tests.contract.guarantees import NAMES_THE_OWNER, ORDERS_PARTITIONS, PASSES_PUBLISHES_ON, SEVERAL, proves
from tests.contract.passing_fabric import PASSING, PassingFabric

WALL_US = 1_700_000_000_000_000
PRODUCER = 77


def create_everywhere(cluster: Cluster) -> int:
    """Creates a topic and waits until every node knows it."""
    topic = cluster.create_topic("t").topic
    cluster.run_until(lambda: all("t" in cluster.topics(at=node) for node in cluster.running), "the topic everywhere")
    return topic


def publish_at(cluster: Cluster, node: Node, topic: int, sequence: int, *, again: bool = False) -> NodeReply:
    """A node's reply to one batch of a producer, repeated while the owner cannot be reached from there."""
    batch = encode([b"%d" % sequence], timestamp_us=WALL_US, producer=PRODUCER, producer_epoch=1, sequence=sequence)
    return cluster.request_node(node, Publish(1, topic, 0, "all", again), batch)


def stored_at(cluster: Cluster, node: Node, topic: int, sequence: int) -> Published:
    answers: list[NodeReply] = []

    def stored() -> bool:
        answers.append(publish_at(cluster, node, topic, sequence, again=bool(answers)))
        if isinstance(answers[-1], Failed):
            assert answers[-1].code == Unavailable.__name__, answers[-1]
        return isinstance(answers[-1], Published)

    cluster.run_until(stored, f"batch {sequence} to be stored through node {node}")
    assert isinstance(answers[-1], Published)
    return answers[-1]


@proves(NAMES_THE_OWNER, sizes=SEVERAL, also=(PASSING,))
def test_a_publish_passed_on_is_answered_with_the_owner_and_repeats_are_stored_once(cluster: Cluster) -> None:
    topic = create_everywhere(cluster)
    owner = cluster.owner("t")
    for sequence, node in enumerate(cluster.others(owner)):
        first = stored_at(cluster, node, topic, sequence)
        assert first.owner and first.owner != cluster.address(node) and first.epoch
        for other in cluster.running:
            again = stored_at(cluster, other, topic, sequence)
            assert again.offset == first.offset
            assert bool(again.owner) is (other != owner)
    assert cluster.read("t", at=owner) == [b"%d" % sequence for sequence, _ in enumerate(cluster.others(owner))]


@proves(NAMES_THE_OWNER, sizes=SEVERAL, also=(PASSING,))
def test_a_gap_is_reported_by_the_owner_alone_and_not_of_a_publish_passed_on(cluster: Cluster) -> None:
    topic = create_everywhere(cluster)
    owner = cluster.owner("t")
    node = cluster.others(owner)[0]
    stored_at(cluster, node, topic, 0)
    for sequence in (5, 9):
        answer = publish_at(cluster, node, topic, sequence)
        assert isinstance(answer, Failed) and answer.code == Unavailable.__name__
    answer = publish_at(cluster, owner, topic, 5)
    assert isinstance(answer, Failed) and answer.code == SequenceGap.__name__
    stored_at(cluster, node, topic, 1)
    assert cluster.read("t", at=owner) == [b"0", b"1"]


@proves(PASSES_PUBLISHES_ON, ORDERS_PARTITIONS, sizes=SEVERAL, also=(PASSING,))
def test_a_producer_at_any_node_keeps_its_order_and_stores_each_record_once(cluster: Cluster) -> None:
    create_everywhere(cluster)
    owner = cluster.owner("t")
    subscription = cluster.subscribe("t", at=owner)
    producers = [cluster.producer("t", at=node) for node in cluster.running]
    for burst in range(4):
        for number, producer in enumerate(producers):
            for at in range(5):
                # Each value in a batch of its own, so that many are on their way when the first answer arrives.
                producer.send(b"%d-%d" % (number, burst * 5 + at))
        cluster.pass_time(20)
    cluster.run_until(lambda: all(producer.settled for producer in producers), "all records to be settled")
    assert not [failure for producer in producers for failure in (*producer.failed, *producer.warnings)]
    everything = sorted(value for producer in producers for value in producer.sent)
    cluster.run_until(lambda: len(subscription.records) >= len(everything), "all of them to be delivered")
    assert sorted(value or b"" for value in subscription.values) == everything
    for producer in producers:
        assert [value for value in subscription.values if value in set(producer.sent)] == producer.sent


@proves(NAMES_THE_OWNER, sizes=SEVERAL, also=(PASSING,))
def test_a_client_goes_to_the_owner_that_the_first_answer_names(cluster: Cluster) -> None:
    create_everywhere(cluster)
    producer = cluster.producer("t", at=cluster.running[-1])
    cluster.publish_with(producer, b"first")
    answers = [publish_passed(cluster) for _ in range(2)]
    cluster.publish_with(producer, *(b"%d" % number for number in range(10)))
    assert publish_passed(cluster) == answers[0] == answers[1]
    assert cluster.read("t", at=cluster.owner("t")) == producer.sent


def publish_passed(cluster: Cluster) -> int:
    """How many publishes nodes have passed on so far, where that is counted."""
    made = [PassingFabric.made.get(cluster.address(node)) for node in cluster.running]
    return sum(fabric.passed for fabric in made if fabric is not None)


@proves(NAMES_THE_OWNER, sizes=SEVERAL, also=(PASSING,))
def test_what_is_sent_before_a_link_is_up_is_dropped(cluster: Cluster) -> None:
    fabrics = [fabric for node in cluster.running if (fabric := PassingFabric.made.get(cluster.address(node)))]
    members = [fabric for fabric in fabrics if not fabric.founder]
    cluster.run_until(lambda: all(fabric.views > 2 for fabric in members), "the links to work")
    assert [fabric.early for fabric in members] == [0] * len(members)
