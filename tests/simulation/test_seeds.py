"""Two hundred fixed seeds of one node and of clusters, under every fault."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from rostra.safeguards import ALL_ON, OF_ONE_NODE, Safeguard
from rostra.simulator.clock import SECOND_US
from rostra.simulator.faults.fault_plan import Fault
from rostra.simulator.runner import Summary, digests_in_new_process, run_seeds
from rostra.simulator.seed import SeedResult, run_seed
from rostra.simulator.world.world import World

ONE = 1
AS_DRAWN = 0
"""Three to seven nodes."""
SEEDS = range(200)
RERUN_EVERY = 20
SEEDS_PER_CORE_HOUR = 10_000
SEARCHED = 60
FOUND_IN_CLUSTERS = (
    Safeguard.PERSIST_BEFORE_REPLY,
    Safeguard.LOG_MATCH,
    Safeguard.UP_TO_DATE_VOTE,
    Safeguard.COMMIT_VISIBILITY,
    Safeguard.PARKED_DUPLICATES,
)
"""The other safeguards of Raft matter in sequences of events that seeds rarely hit; scenario tests cover those."""


pytestmark = pytest.mark.timeout(900)
"""Two hundred seeds take a minute and a half on two cores, more while other tests run."""


class SeedRun(NamedTuple):
    summary: Summary
    results: list[SeedResult]


@pytest.fixture(scope="module", params=(AS_DRAWN, ONE), ids=("several nodes", "one node"))
def nodes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def ran(nodes: int) -> SeedRun:
    results: list[SeedResult] = []
    summary = run_seeds(SEEDS, nodes=nodes, workers=os.cpu_count() or 1, done=results.append)
    return SeedRun(summary, results)


@pytest.mark.requirement("CM-14:kill", "CM-14:power", "RF-35:one-leader")
def test_two_hundred_seeds_violate_nothing(ran: SeedRun) -> None:
    assert {failed.seed: failed.violations[:3] for failed in ran.summary.failed} == {}


def test_every_fault_takes_effect(ran: SeedRun) -> None:
    assert [fault for fault in ran.summary.expected if not ran.summary.faults[fault]] == []


def test_every_seed_is_long_and_busy(ran: SeedRun) -> None:
    assert len(ran.results) == len(SEEDS)
    assert min(result.virtual_us for result in ran.results) >= 30 * SECOND_US
    assert min(result.operations for result in ran.results) >= 300


def test_all_seeds_take_different_courses(ran: SeedRun) -> None:
    assert len(set(ran.summary.digests.values())) == len(SEEDS)


def test_a_seed_takes_the_same_course_in_another_process_under_another_hash_seed(ran: SeedRun, nodes: int) -> None:
    chosen = SEEDS[::RERUN_EVERY]
    assert digests_in_new_process(chosen, nodes) == {seed: ran.summary.digests[seed] for seed in chosen}


def test_some_seeds_leave_a_minority_down_and_all_make_progress() -> None:
    worlds = [World(seed) for seed in range(8)]
    for world in worlds:
        world.run()
        assert {demand.what for demand in world.history.liveness_demands} >= {"a metadata change"}
        assert all(demand.since_us < demand.done_us <= demand.until_us for demand in world.history.liveness_demands)
    dead = [world.fault_counts.counts[Fault.LEFT_DOWN] for world in worlds]
    assert any(dead) and not all(dead)


def failing_seeds(safeguard: Safeguard, seeds: range, nodes: int) -> Iterator[SeedResult]:
    """Seeds that violate a guarantee without the safeguard."""
    for seed in seeds:
        result = run_seed(seed, nodes=nodes, without=frozenset({safeguard}))
        if result.violations:
            yield result


PROVES = {
    Safeguard.DEDUP: ("CM-5:stored-once", "a record is stored once"),
    Safeguard.SYNC_BEFORE_ACK: ("CM-14:power", "nothing acknowledged is lost"),
    Safeguard.CHECKSUM: ("CM-13:checksums", "damage is reported, not served"),
    Safeguard.SEQUENCE: ("CM-5:numbered", "nothing acknowledged is lost"),
    Safeguard.OWNERSHIP_LOGGED: ("HR-12", "only the strongest publisher is delivered"),
}


@pytest.mark.parametrize(
    ("safeguard", "promise"),
    [
        pytest.param(safeguard, promise, marks=pytest.mark.requirement(number), id=safeguard.value)
        for safeguard, (number, promise) in PROVES.items()
    ],
)
def test_without_a_safeguard_its_promise_is_broken_and_with_it_the_same_seed_is_clean(
    safeguard: Safeguard, promise: str
) -> None:
    found = next(
        (
            result
            for result in failing_seeds(safeguard, range(SEARCHED), ONE)
            if any(violation.startswith(promise) for violation in result.violations)
        ),
        None,
    )
    assert found is not None, f"no seed below {SEARCHED} fails without {safeguard.value}"
    assert run_seed(found.seed, nodes=ONE, without=ALL_ON).violations == ()


def test_every_safeguard_of_one_node_has_a_test() -> None:
    assert set(PROVES) == set(OF_ONE_NODE)


@pytest.mark.soak
@pytest.mark.requirement("CM-14:kill", "CM-14:power")
def test_two_thousand_seeds_of_one_node_violate_nothing_and_repeat_themselves() -> None:
    summary = run_seeds(range(2000), nodes=ONE, workers=os.cpu_count() or 1, rerun=0.05)
    assert {failed.seed: failed.violations[:3] for failed in summary.failed} == {}
    assert (summary.missing, summary.mismatched, summary.rerun) == ([], [], 100)
    # Measured in CPU time, so that a busy machine does not matter.
    assert summary.seeds * 3600 / summary.cpu_s >= SEEDS_PER_CORE_HOUR


@pytest.mark.soak
@pytest.mark.requirement("RF-34:fsynced", "RF-35:one-leader")
def test_five_thousand_seeds_of_several_nodes_violate_nothing_and_repeat_themselves() -> None:
    summary = run_seeds(range(5000), workers=os.cpu_count() or 1, rerun=0.02)
    assert {failed.seed: failed.violations[:3] for failed in summary.failed} == {}
    assert (summary.missing, summary.mismatched, summary.rerun) == ([], [], 100)
    assert summary.seeds * 3600 / summary.cpu_s >= SEEDS_PER_CORE_HOUR


@pytest.mark.soak
@pytest.mark.parametrize("safeguard", OF_ONE_NODE)
def test_a_thousand_seeds_notice_every_safeguard_that_is_off_and_are_clean_with_it(safeguard: Safeguard) -> None:
    found = [result.seed for result in failing_seeds(safeguard, range(1000), ONE)]
    assert found
    assert run_seeds(found, nodes=ONE, workers=os.cpu_count() or 1).failed == []


@pytest.mark.soak
@pytest.mark.parametrize("safeguard", FOUND_IN_CLUSTERS)
def test_a_thousand_seeds_of_several_nodes_notice_a_safeguard_that_is_off(safeguard: Safeguard) -> None:
    found = next(failing_seeds(safeguard, range(1000), AS_DRAWN), None)
    assert found is not None
    assert run_seed(found.seed, without=ALL_ON).violations == ()
