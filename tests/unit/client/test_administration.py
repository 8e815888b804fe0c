"""An operator's calls: their answers, their errors, and nodes too old for them."""

from __future__ import annotations

from rostra.errors import NotSupported, UnknownMember, UnknownTopic
from rostra.model.cluster import ClusterState
from rostra.wire.features import ADMINISTRATION
from rostra.wire.messages import CreateTopic, TopicSettings
from tests.unit.client.play import Play


def connected() -> Play:
    play = Play()
    play.node.features = (ADMINISTRATION,)
    play.connect()
    return play


def test_the_cluster_is_described() -> None:
    play = connected()
    play.core.describe_cluster(play.now_us, 1)
    play.run()
    play.settle()
    state = play.results[1]
    assert isinstance(state, ClusterState) and [node.node for node in state.nodes] == [1]


def test_orders_are_answered_or_fail_typed() -> None:
    play = connected()
    play.core.remove_member(play.now_us, 1, 77)
    play.core.transfer_partition(play.now_us, 2, "nowhere", 0, 77)
    play.run()
    play.settle()
    assert isinstance(play.errors[1], UnknownMember) and isinstance(play.errors[2], UnknownTopic)
    play.node.received(0, CreateTopic(0, "t", TopicSettings()), None)
    play.core.transfer_partition(play.now_us, 3, "t", 0, 1)
    play.run()
    play.settle()
    assert play.results[3] is None


def test_a_node_that_is_too_old_is_not_asked() -> None:
    play = Play()
    play.connect()
    play.core.describe_cluster(play.now_us, 1)
    play.run()
    play.settle()
    assert isinstance(play.errors[1], NotSupported)
