"""Two hundred fixed seeds of rings of three to seven brokers, under every fault, judged from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from rostra.safeguards import ALL_ON, OF_A_RING, Safeguard
from rostra.simulator.clock import SECOND_US
from rostra.simulator.runner import Summary, digests_elsewhere, run_seeds
from rostra.simulator.seed import SeedResult, run_seed

RING = "flood"
SEEDS = range(200)
RERUN_EVERY = 40
SEARCHED = 100

together = pytest.mark.xdist_group("seeds of rings")
"""What these tests look at is run once, for all of them."""

pytestmark = pytest.mark.timeout(900)
"""Two hundred seeds take a minute of two cores, which other tests want too."""


class Ran(NamedTuple):
    summary: Summary
    results: list[SeedResult]


@pytest.fixture(scope="module")
def ran() -> Ran:
    results: list[SeedResult] = []
    summary = run_seeds(SEEDS, fabric=RING, workers=os.cpu_count() or 1, done=results.append)
    return Ran(summary, results)


@together
@pytest.mark.requirement("FL-21", "FL-26")
def test_two_hundred_seeds_of_rings_violate_nothing(ran: Ran) -> None:
    assert {failed.seed: failed.violations[:3] for failed in ran.summary.failed} == {}


@together
def test_every_fault_takes_effect_in_rings(ran: Ran) -> None:
    assert [fault for fault in ran.summary.expected if not ran.summary.faults[fault]] == []


@together
def test_every_seed_of_a_ring_is_long_busy_and_unlike_the_others(ran: Ran) -> None:
    assert len(ran.results) == len(set(ran.summary.digests.values())) == len(SEEDS)
    assert min(result.virtual_us for result in ran.results) >= 30 * SECOND_US
    assert min(result.operations for result in ran.results) >= 300


@together
def test_a_ring_takes_the_same_course_in_another_process_under_another_hash_seed(ran: Ran) -> None:
    chosen = SEEDS[::RERUN_EVERY]
    assert digests_elsewhere(chosen, fabric=RING) == {seed: ran.summary.digests[seed] for seed in chosen}


def finders(safeguard: Safeguard, seeds: range) -> Iterator[SeedResult]:
    """Seeds in which the checkers, unaware of the switch, find that something is wrong."""
    for seed in seeds:
        result = run_seed(seed, fabric=RING, without=frozenset({safeguard}))
        if result.violations:
            yield result


PROVES = {
    Safeguard.DEDUP_BY_VECTOR: "FL-7",
    Safeguard.RESEND_BY_HOLDER: "FL-21",
    Safeguard.SYNC_BEFORE_MARK: "FL-8",
    Safeguard.HOP_BOUND: "FL-22",
    Safeguard.BARRIER_AND_FENCE: "FL-27",
    Safeguard.NEW_INCARNATION: "FL-7",
}


@pytest.mark.parametrize(
    "safeguard",
    [
        pytest.param(safeguard, marks=pytest.mark.requirement(number), id=safeguard.value)
        for safeguard, number in PROVES.items()
    ],
)
def test_without_a_safeguard_of_the_ring_a_promise_is_broken_and_with_it_the_same_seed_is_clean(
    safeguard: Safeguard,
) -> None:
    found = next(finders(safeguard, range(SEARCHED)), None)
    assert found is not None, f"no seed below {SEARCHED} notices that {safeguard} is off"
    assert run_seed(found.seed, fabric=RING, without=ALL_ON).violations == ()


def test_every_safeguard_of_a_ring_is_searched_for() -> None:
    assert set(PROVES) == set(OF_A_RING)


@pytest.mark.soak
@pytest.mark.requirement("FL-21", "FL-26")
def test_two_thousand_seeds_of_rings_violate_nothing_and_repeat_themselves() -> None:
    summary = run_seeds(range(2000), fabric=RING, workers=os.cpu_count() or 1, rerun=0.02)
    assert {failed.seed: failed.violations[:3] for failed in summary.failed} == {}
    assert (summary.missing, summary.unequal, summary.rerun) == ([], [], 40)


@pytest.mark.soak
@pytest.mark.parametrize("safeguard", OF_A_RING)
def test_a_thousand_seeds_notice_every_safeguard_of_the_ring_that_is_off(safeguard: Safeguard) -> None:
    found = [result.seed for result in finders(safeguard, range(1000))]
    assert found
    assert run_seeds(found, fabric=RING, workers=os.cpu_count() or 1).failed == []
