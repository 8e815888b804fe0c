"""Settings of a topic change at every node, in the order of the metadata log."""

from __future__ import annotations

import pytest

from rostra.errors import UnknownTopic
from rostra.fabric.api import ProposeSettings, QueryHeldByAll
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import TopicId
from tests.unit.raft.nodes import Cluster


def ready(settings: RaftSettings | None = None) -> Cluster:
    cluster = Cluster(3, settings=settings) if settings is not None else Cluster(3)
    cluster.ready()
    return cluster


@pytest.mark.requirement("RF-5:topics")
@pytest.mark.parametrize("at", [1, 2, 3])
def test_every_node_learns_altered_settings_whoever_was_asked(at: int) -> None:
    cluster = ready()
    (partition,) = cluster.topic("t")
    cluster[at].step(ProposeSettings(70, partition.topic, b"other", 8192))
    cluster.run_until(lambda: 70 in cluster[at].changed)
    cluster.run_until(lambda: all(node.topics["t"].settings == b"other" for node in cluster.alive))


@pytest.mark.parametrize(("log_bytes", "changes"), [(1 << 20, 1), (3_000, 60)])
def test_a_node_that_was_away_learns_of_it_from_the_log_or_from_a_snapshot(log_bytes: int, changes: int) -> None:
    cluster = ready(RaftSettings(metadata_log_bytes=log_bytes))
    (partition,) = cluster.topic("t")
    cluster.run(300)
    away = cluster[3]
    away.crash()
    for token in range(70, 70 + 2 * changes, 2):
        cluster[1].step(ProposeSettings(token, partition.topic, b"other-%d" % token * 20, 8192))
        cluster.run_until(lambda token=token: token in cluster[1].changed)  # type: ignore[misc]
    away.start()
    last = cluster[1].topics["t"].settings
    cluster.run_until(lambda: "t" in away.topics and away.topics["t"].settings == last)


def test_a_topic_that_is_gone_cannot_be_altered() -> None:
    cluster = ready()
    cluster[2].step(ProposeSettings(70, TopicId(99), b"other", 8192))
    cluster.run_until(lambda: 70 in cluster[2].refused)
    assert isinstance(cluster[2].refused[70], UnknownTopic)


def test_what_every_copy_holds_is_what_the_slowest_has_on_stable_storage() -> None:
    cluster = ready()
    (partition,) = cluster.topic("t")
    cluster.publish(partition, b"x")
    cluster.run(1_000)
    leader = next(node for node in cluster.alive if node.raft.groups[partition].role.value == "leader")
    leader.step(QueryHeldByAll(partition))
    held = leader.held[partition]
    assert held == leader.raft.groups[partition].commit
    slow = next(node for node in cluster.alive if node is not leader)
    slow.crash()
    cluster.publish(partition, b"y")
    cluster.run(300)
    leader.step(QueryHeldByAll(partition))
    assert leader.held[partition] == held
