"""Two hundred fixed seeds of the flood fabric, three to seven nodes, under every fault."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rostra.safeguards import ALL_ON, OF_FLOOD, Safeguard
from rostra.simulator.clock import SECOND_US
from rostra.simulator.runner import digests_in_new_process, run_seeds
from rostra.simulator.seed import SeedResult, run_seed

FLOOD = "flood"
SEEDS = range(200)
RERUN_EVERY = 40
SEARCHED = 100

pytestmark = pytest.mark.timeout(900)
"""Two hundred seeds take a minute on two cores, more while other tests run."""


@pytest.mark.requirement("FL-21:resent", "FL-26")
def test_two_hundred_seeds_of_rings_violate_nothing_under_every_fault_and_repeat_themselves() -> None:
    """One test, because with several every worker process would run the seeds again."""
    results: list[SeedResult] = []
    summary = run_seeds(SEEDS, fabric=FLOOD, workers=os.cpu_count() or 1, done=results.append)
    assert {failed.seed: failed.violations[:3] for failed in summary.failed} == {}
    assert [fault for fault in summary.expected if not summary.faults[fault]] == []
    assert len(results) == len(set(summary.digests.values())) == len(SEEDS), "seeds take different courses"
    assert min(result.virtual_us for result in results) >= 30 * SECOND_US
    assert min(result.operations for result in results) >= 300
    chosen = SEEDS[::RERUN_EVERY]
    elsewhere = digests_in_new_process(chosen, fabric=FLOOD)
    assert elsewhere == {seed: summary.digests[seed] for seed in chosen}, "also under another hash seed"


def failing_seeds(safeguard: Safeguard, seeds: range) -> Iterator[SeedResult]:
    """Seeds that violate a guarantee without the safeguard."""
    for seed in seeds:
        result = run_seed(seed, fabric=FLOOD, without=frozenset({safeguard}))
        if result.violations:
            yield result


PROVES = {
    Safeguard.DEDUP_BY_VECTOR: "FL-7:once",
    Safeguard.RESEND_BY_HOLDER: "FL-21:resent",
    Safeguard.SYNC_BEFORE_MARK: "FL-8:marks",
    Safeguard.HOP_BOUND: "FL-22:bounded",
    Safeguard.BARRIER_AND_FENCE: "FL-27:once",
    Safeguard.NEW_INCARNATION: "FL-7:incarnations",
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
    found = next(failing_seeds(safeguard, range(SEARCHED)), None)
    assert found is not None, f"no seed below {SEARCHED} fails without {safeguard}"
    assert run_seed(found.seed, fabric=FLOOD, without=ALL_ON).violations == ()


def test_every_safeguard_of_flood_has_a_test() -> None:
    assert set(PROVES) == set(OF_FLOOD)


@pytest.mark.soak
@pytest.mark.requirement("FL-21:resent", "FL-26")
def test_two_thousand_seeds_of_rings_violate_nothing_and_repeat_themselves() -> None:
    summary = run_seeds(range(2000), fabric=FLOOD, workers=os.cpu_count() or 1, rerun=0.02)
    assert {failed.seed: failed.violations[:3] for failed in summary.failed} == {}
    assert (summary.missing, summary.mismatched, summary.rerun) == ([], [], 40)


@pytest.mark.soak
@pytest.mark.parametrize("safeguard", OF_FLOOD)
def test_a_thousand_seeds_notice_every_safeguard_of_the_ring_that_is_off(safeguard: Safeguard) -> None:
    found = [result.seed for result in failing_seeds(safeguard, range(1000))]
    assert found
    assert run_seeds(found, fabric=FLOOD, workers=os.cpu_count() or 1).failed == []
