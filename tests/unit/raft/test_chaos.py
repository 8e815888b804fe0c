"""Many seeds, every fault, checkers that see each step; and the same with each safeguard gone."""

from __future__ import annotations

from collections import Counter

import pytest

from rostra.safeguards import Safeguard
from tests.unit.raft.chaos import finds, run_seed

SEEDS = range(120)


@pytest.mark.requirement("RF-35:one-leader")
def test_one_leader_per_term_and_nothing_committed_is_ever_lost_or_changed() -> None:
    took_effect: Counter[str] = Counter()
    for seed in SEEDS:
        chaos = run_seed(seed)
        took_effect += chaos.took_effect
    wanted = {"crash", "power cut", "unsynced writes lost", "split", "leader isolated", "one way", "lost", "repeated"}
    wanted |= {"damage", "trim", "transfer", "write refused", "members: add", "members: remove"}
    assert not wanted - set(took_effect), "each kind of fault happened"


def test_a_seed_gives_the_same_run_again() -> None:
    first, again = run_seed(3), run_seed(3)
    assert first.checkers.committed == again.checkers.committed
    assert first.sim.sent == again.sim.sent


@pytest.mark.parametrize(
    "safeguard",
    [
        Safeguard.PERSIST_BEFORE_REPLY,
        Safeguard.LOG_MATCH,
        Safeguard.UP_TO_DATE_VOTE,
        Safeguard.COMMIT_VISIBILITY,
    ],
)
def test_without_a_safeguard_the_same_seeds_find_a_violation(safeguard: Safeguard) -> None:
    assert finds(SEEDS, frozenset({safeguard})) is not None
