"""Exactly-once sinks step by step: what is logged when, what outlives an owner, what expires, what is refused."""

from __future__ import annotations

import pytest

from rostra.broker.settings import BrokerSettings
from rostra.broker.sinks.node_messages import PinHandles
from rostra.model.ids import Partition, PartitionIndex
from rostra.safeguards import ALL_ON, Safeguard, Without
from rostra.wire.messages import Agreed
from rostra.wire.sinks import SinkCommitted
from tests.unit.broker.sink_harness import SINKS, SinkHarness

LEASE_MS = 1000
COORDINATOR = Partition(SINKS, PartitionIndex(0))


def test_a_commit_publishes_and_answers() -> None:
    harness = SinkHarness()
    parts = harness.stage(1, b"a", b"b"), harness.stage(2, b"c")
    harness.settle()
    assert harness.replies == [Agreed(1), Agreed(2)]
    assert harness.visible() == []
    harness.commit(5, *parts)
    harness.settle()
    assert harness.replies[2:] == [SinkCommitted(99, 5, False)]
    assert harness.visible() == [b"a", b"b", b"c"]
    assert not harness.target.derived.staged


def test_nothing_is_published_before_the_decision_is_committed() -> None:
    harness = SinkHarness()
    part = harness.stage(1, b"a")
    harness.commit_log(harness.target)
    harness.commit(0, part)
    harness.commit_log(harness.coordinating)
    harness.commit_log(harness.target)
    # The decision is in the log of the coordinator now, but it may still be truncated.
    row = harness.coordinating.derived.sinks.get("q")
    assert row is not None and row.phase == "publishing"
    harness.read_all()
    harness.pass_time(10_000)
    harness.read_all()
    assert harness.visible() == []
    harness.settle()
    assert harness.visible() == [b"a"]


def interrupted(without: Without) -> SinkHarness:
    """A new owner takes over between the first copy and the second."""
    harness = SinkHarness(without=without)
    parts = harness.stage(1, b"a"), harness.stage(2, b"b")
    harness.commit_log(harness.target)
    harness.commit(0, *parts)
    harness.commit_log(harness.coordinating)
    harness.commit_log(harness.target)
    harness.commit_log(harness.coordinating)
    harness.read_all()
    assert harness.visible() == [b"a"]
    harness.restart()
    harness.commit_log(harness.target)
    harness.commit_log(harness.coordinating)
    harness.pass_time(1)
    harness.settle()
    return harness


def test_a_new_owner_continues_behind_what_is_published() -> None:
    assert interrupted(ALL_ON).visible() == [b"a", b"b"]


def test_without_the_safeguard_a_new_owner_publishes_again() -> None:
    assert interrupted(frozenset({Safeguard.IDEMPOTENT_APPLY})).visible() == [b"a", b"a", b"b"]


def pinned_for_long(without: Without) -> SinkHarness:
    """The pinned handle is older than its lease when the decision is published."""
    harness = SinkHarness(BrokerSettings(sink_lease_ms=LEASE_MS), without)
    part = harness.stage(1, b"a")
    harness.commit_log(harness.target)
    harness.commit(0, part)
    harness.commit_log(harness.coordinating)
    harness.pass_time(2 * LEASE_MS)
    harness.settle()
    return harness


def test_a_pinned_handle_does_not_expire() -> None:
    harness = pinned_for_long(ALL_ON)
    assert harness.visible() == [b"a"]
    assert SinkCommitted(99, 0, False) in harness.replies


def test_without_the_safeguard_a_decided_batch_is_lost() -> None:
    harness = pinned_for_long(frozenset({Safeguard.PINNED_STAGING}))
    assert harness.visible() == []
    assert SinkCommitted(99, 0, False) in harness.replies


def test_a_handle_that_nobody_commits_expires_and_refuses_a_late_commit() -> None:
    harness = SinkHarness(BrokerSettings(sink_lease_ms=LEASE_MS))
    part = harness.stage(1, b"a")
    harness.settle()
    harness.pass_time(2 * LEASE_MS)
    assert not harness.target.derived.staged
    harness.commit(0, part)
    harness.settle()
    assert harness.refusals == ["StagingLost"]
    assert harness.visible() == []
    assert harness.coordinating.derived.sinks.get("q") is None


def test_the_slower_attempt_of_a_task_is_dropped_with_its_batch() -> None:
    harness = SinkHarness()
    chosen = harness.stage(1, b"a")
    harness.stage(2, b"the other attempt's a")
    harness.settle()
    harness.commit(0, chosen)
    harness.settle()
    assert harness.visible() == [b"a"]
    assert not harness.target.derived.staged
    harness.stage(3, b"later still")
    harness.settle()
    assert harness.replies[-1] == Agreed(3)
    assert not harness.target.derived.staged


def test_a_late_request_of_an_earlier_commit_pins_nothing() -> None:
    harness = SinkHarness()
    part = harness.stage(1, b"a")
    harness.settle()
    harness.commit(0, part)
    harness.settle()
    late = PinHandles(COORDINATOR, "q", 0, 1234, harness.target.partition, (part,))
    end = harness.target.end
    harness.sinks.staging.receive(late)
    assert harness.target.end == end


@pytest.mark.parametrize("setting", ["sink_query_bytes_max", "sink_bytes_max"])
def test_staged_bytes_are_bounded(setting: str) -> None:
    harness = SinkHarness(BrokerSettings(**{setting: 300}))
    harness.stage(1, bytes(100))
    harness.stage(2, bytes(100))
    harness.settle()
    assert harness.refusals == ["LimitExceeded"]
    assert harness.sinks.staging.staged_bytes() <= 300


def test_a_query_that_stopped_is_forgotten() -> None:
    harness = SinkHarness(BrokerSettings(sink_retention_ms=1000))
    harness.commit(3)
    harness.settle()
    harness.sinks.retention_check()
    assert harness.coordinating.derived.sinks.get("q") is not None
    harness.pass_time(2000)
    harness.sinks.retention_check()
    assert harness.coordinating.derived.sinks.get("q") is None


def test_the_tables_are_rebuilt_from_their_checkpoint() -> None:
    harness = SinkHarness()
    part = harness.stage(1, b"a")
    harness.settle()
    harness.commit(0, part)
    harness.settle()
    harness.stage(2, b"b", batch=1)
    for served in (harness.target, harness.coordinating):
        before = [*served.derived.staged.to_entries(), *served.derived.sinks.to_entries()]
        served.derived.restore(served.derived.checkpoint([]))
        assert [*served.derived.staged.to_entries(), *served.derived.sinks.to_entries()] == before
        assert before


def test_truncation_undoes_what_was_staged_pinned_and_published() -> None:
    harness = SinkHarness()
    harness.stage(1, b"a")
    end = harness.target.end
    before = harness.target.derived.staged.rows()
    harness.stage(2, b"b")
    harness.target.truncated(end, 1)
    assert harness.target.derived.staged.rows() == before
