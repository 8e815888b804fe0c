"""Exactly-once sinks: staged batches, one decision per batch of a query, publication whoever fails."""

from __future__ import annotations

import pytest

from rostra.client.core.effects import SinkDecision
from rostra.client.core.sink_requests import SinkTask
from rostra.errors import SinkInUse, SinkOutOfOrder, StagingLost, UnsupportedByFabric
from rostra.model.encode import encode
from rostra.wire.sinks import StagedPart
from tests.contract.facade import Cluster
from tests.contract.guarantees import SURVIVES_ONE_NODE, WRITES_AT_LEAST_ONCE, WRITES_EXACTLY_ONCE, proves

# `repeated` is not compared after a first commit: the client repeats it by itself when the coordinator moves.
NOW_US = 1_700_000_000_000_000


def staged(cluster: Cluster, batch: int, *values: bytes, topic: str = "t", at: int = 0) -> list[StagedPart]:
    """Stages one value per partition, and further ones again from the first partition on."""
    partitions = len(cluster.describe(topic, at=at).partitions)
    task = SinkTask("query", batch)
    return [
        cluster.stage(topic, place % partitions, encode([value], timestamp_us=NOW_US), task, at=at)
        for place, value in enumerate(values)
    ]


def visible(cluster: Cluster, topic: str = "t") -> list[bytes | None]:
    return sorted(cluster.read(topic, at=cluster.running[0]), key=lambda value: value or b"")


@proves(WRITES_EXACTLY_ONCE)
def test_what_is_staged_becomes_visible_with_its_commit_and_once(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    parts = staged(cluster, 0, b"a", b"b", b"c")
    cluster.publish("t", b"published")
    assert visible(cluster) == [b"published"]
    assert cluster.commit_sink("query", 0, parts).batch == 0
    assert visible(cluster) == [b"a", b"b", b"c", b"published"]
    assert cluster.commit_sink("query", 0, parts) == SinkDecision(0, True)
    assert visible(cluster) == [b"a", b"b", b"c", b"published"]


@proves(WRITES_EXACTLY_ONCE)
def test_a_repeated_commit_with_other_parts_publishes_nothing(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    cluster.commit_sink("query", 7, staged(cluster, 7, b"first"))
    # In the second partition nothing of the batch was published, so only the decision can refuse it.
    again = cluster.stage("t", 1, encode([b"again"], timestamp_us=NOW_US), SinkTask("query", 7, attempt=1))
    assert cluster.commit_sink("query", 7, [again]) == SinkDecision(7, True)
    assert cluster.commit_sink("query", 8, staged(cluster, 8, b"next")).batch == 8
    assert cluster.commit_sink("query", 7, []) == SinkDecision(8, True)
    assert visible(cluster) == [b"first", b"next"]


@proves(WRITES_EXACTLY_ONCE)
def test_a_batch_that_does_not_follow_the_last_decision_is_refused(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.commit_sink("query", 3, staged(cluster, 3, b"first"))
    with pytest.raises(SinkOutOfOrder):
        cluster.commit_sink("query", 5, staged(cluster, 5, b"too early"))
    assert visible(cluster) == [b"first"]


@proves(WRITES_EXACTLY_ONCE)
def test_a_driver_that_writes_a_decided_batch_again_goes_on(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    cluster.commit_sink("query", 0, staged(cluster, 0, b"a", b"b"))
    assert cluster.commit_sink("query", 0, staged(cluster, 0, b"a again", b"b again")) == SinkDecision(0, True)
    assert cluster.commit_sink("query", 1, staged(cluster, 1, b"c")).batch == 1
    assert visible(cluster) == [b"a", b"b", b"c"]


@proves(WRITES_EXACTLY_ONCE)
def test_a_missing_part_refuses_the_whole_batch(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    parts = staged(cluster, 0, b"there", b"aborted")
    cluster.abort_sink("query", 0, parts[1:])
    with pytest.raises(StagingLost):
        cluster.commit_sink("query", 0, parts)
    assert visible(cluster) == []
    assert cluster.commit_sink("query", 0, staged(cluster, 0, b"anew")).batch == 0
    assert visible(cluster) == [b"anew"]


@proves(WRITES_EXACTLY_ONCE)
def test_an_abort_after_the_commit_undoes_nothing(cluster: Cluster) -> None:
    cluster.create_topic("t")
    parts = staged(cluster, 0, b"kept")
    cluster.commit_sink("query", 0, parts)
    cluster.abort_sink("query", 0, parts)
    assert visible(cluster) == [b"kept"]


@proves(WRITES_EXACTLY_ONCE)
def test_a_batch_staged_in_a_topic_that_was_created_again_is_refused(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.create_topic("other")
    parts = staged(cluster, 0, b"old") + staged(cluster, 0, b"with it", topic="other")
    cluster.delete_topic("t")
    cluster.create_topic("t")
    with pytest.raises(StagingLost):
        cluster.commit_sink("query", 0, parts)
    assert visible(cluster) == visible(cluster, "other") == []


@proves(WRITES_EXACTLY_ONCE)
def test_another_writer_of_the_same_name_may_only_continue(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.commit_sink("query", 4, staged(cluster, 4, b"old checkpoint"), writer="one")
    with pytest.raises(SinkInUse):
        cluster.commit_sink("query", 0, [], writer="two")
    assert cluster.commit_sink("query", 5, staged(cluster, 5, b"continued"), writer="two").batch == 5
    assert visible(cluster) == [b"continued", b"old checkpoint"]


@proves(WRITES_EXACTLY_ONCE, SURVIVES_ONE_NODE)
def test_staged_batches_and_decisions_survive_the_crash_of_any_owner(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=3)
    cluster.commit_sink("query", 0, staged(cluster, 0, b"a", b"b", b"c"))
    parts = staged(cluster, 1, b"d", b"e", b"f")
    for victim in (cluster.owner("t", 0), cluster.owner("_sinks", cluster.sink_partition("query"))):
        if victim in cluster.running:
            cluster.crash(victim)
            survivor = cluster.running[0]
            cluster.run_until(lambda: cluster.owner("t", 0, at=survivor) in cluster.running, "a new owner")  # noqa: B023
            decided = cluster.commit_sink("query", 1, parts, at=survivor)
            assert decided.batch == 1
            cluster.restart(victim)
    assert visible(cluster) == [b"a", b"b", b"c", b"d", b"e", b"f"]


@proves(WRITES_EXACTLY_ONCE, SURVIVES_ONE_NODE)
def test_a_power_cut_loses_no_staged_batch_and_no_decision(cluster: Cluster) -> None:
    cluster.create_topic("t", partitions=2)
    cluster.commit_sink("query", 0, staged(cluster, 0, b"a", b"b"))
    parts = staged(cluster, 1, b"c", b"d")
    cluster.cut_power()
    cluster.restart(*range(cluster.count))
    assert cluster.commit_sink("query", 0, []) == SinkDecision(0, True)
    assert cluster.commit_sink("query", 1, parts).batch == 1
    assert visible(cluster) == [b"a", b"b", b"c", b"d"]


@proves(WRITES_AT_LEAST_ONCE)
def test_a_fabric_without_exactly_once_sinks_says_so(cluster: Cluster) -> None:
    cluster.create_topic("t")
    with pytest.raises(UnsupportedByFabric):
        cluster.commit_sink("query", 0, [])
