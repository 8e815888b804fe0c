"""Rings of three to seven brokers under every fault, judged by what could be seen from outside."""

from __future__ import annotations

import os

import pytest

from rostra.safeguards import ALL_ON, OF_A_RING, Safeguard
from rostra.simulator.runner import digests_elsewhere, run_seeds
from rostra.simulator.seed import run_seed

RING = "flood"
SEEDS = range(60)
RERUN_EVERY = 20


@pytest.mark.requirement("FL-21", "FL-26")
def test_seeds_of_rings_violate_nothing_and_repeat_themselves() -> None:
    summary = run_seeds(SEEDS, fabric=RING, workers=os.cpu_count() or 1)
    assert {failed.seed: failed.violations[:3] for failed in summary.failed} == {}
    chosen = SEEDS[::RERUN_EVERY]
    assert digests_elsewhere(chosen, fabric=RING) == {seed: summary.digests[seed] for seed in chosen}


@pytest.mark.soak
@pytest.mark.requirement("FL-21", "FL-26")
def test_two_thousand_seeds_of_rings_violate_nothing() -> None:
    summary = run_seeds(range(2000), fabric=RING, workers=os.cpu_count() or 1, rerun=0.02)
    assert {failed.seed: failed.violations[:3] for failed in summary.failed} == {}
    assert (summary.missing, summary.unequal) == ([], [])


@pytest.mark.soak
@pytest.mark.parametrize("safeguard", OF_A_RING)
def test_a_thousand_seeds_notice_a_safeguard_of_the_ring_that_is_off(safeguard: Safeguard) -> None:
    for seed in range(1000):
        if run_seed(seed, fabric=RING, without=frozenset({safeguard})).violations:
            assert run_seed(seed, fabric=RING, without=ALL_ON).violations == ()
            return
    pytest.fail(f"without {safeguard} nothing was missed")
