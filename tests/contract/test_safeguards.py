"""Promises that cannot fail prove nothing: with a safeguard switched off where it acts, the same test must fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rostra.fabric.catalog import DEFAULT, FABRICS
from rostra.safeguards import Safeguard
from tests.contract import test_failures as failures
from tests.contract.conftest import SEEDS
from tests.contract.facade import Cluster
from tests.contract.promises import nodes_of
from tests.contract.simulated import SimulatedCluster


@pytest.mark.parametrize(
    ("safeguard", "promise"),
    [
        (
            Safeguard.COMMIT_VISIBILITY,
            failures.test_what_a_cut_off_owner_could_not_commit_is_shown_to_nobody,
        ),
        (Safeguard.PERSIST_BEFORE_REPLY, failures.test_what_a_majority_acknowledged_survives_a_power_cut_of_all),
    ],
    ids=lambda value: value.value if isinstance(value, Safeguard) else "",
)
def test_a_safeguard_that_is_off_is_missed(safeguard: Safeguard, promise: Callable[[Cluster], None]) -> None:
    kind = FABRICS[DEFAULT]
    kept = []
    for seed in SEEDS:
        cluster = SimulatedCluster(kind, nodes_of(kind.guarantees), seed, frozenset({safeguard}))
        try:
            promise(cluster)
        except (AssertionError, pytest.fail.Exception):
            return
        if cluster.judge():
            return
        kept.append(seed)
    pytest.fail(f"without {safeguard} nothing was missed under seeds {kept}")
