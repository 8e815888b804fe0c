"""Contract tests fail when the safeguard behind them is switched off."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rostra.safeguards import Safeguard
from tests.contract import test_failures as failures
from tests.contract import test_groups as groups
from tests.contract import test_patterns as patterns
from tests.contract import test_publishers as publishers
from tests.contract import test_retention as retention
from tests.contract.conftest import SEEDS
from tests.contract.facade import Cluster, ConditionTimeout
from tests.contract.guarantees import guarantees_of
from tests.contract.simulated import SimulatedCluster


@pytest.mark.parametrize(
    ("safeguard", "test"),
    [
        (Safeguard.COMMIT_VISIBILITY, failures.test_what_a_cut_off_owner_could_not_commit_is_shown_to_nobody),
        (Safeguard.COMMIT_VISIBILITY, failures.test_an_acknowledgement_needs_a_majority_however_many_are_unreachable),
        (Safeguard.COMMIT_VISIBILITY, failures.test_each_record_is_delivered_once_across_a_split),
        (Safeguard.OWNERSHIP_LOGGED, publishers.test_a_new_owner_goes_by_the_log_and_not_by_whom_it_has_heard),
        (
            Safeguard.CONFIRMED_WATCH,
            patterns.test_a_node_that_is_behind_and_alone_makes_nobody_believe_that_a_topic_is_gone,
        ),
        (Safeguard.CHECKPOINT_BATCH, retention.test_retention_of_all_but_the_last_segment_loses_no_producer_sequence),
        (Safeguard.SYNC_BEFORE_ACK, failures.test_what_a_node_alone_acknowledged_survives_its_power_cut),
        (Safeguard.GENERATION_FENCING, groups.test_a_position_that_comes_too_late_moves_nothing),
        (Safeguard.UNACKED_REDELIVERY, groups.test_members_share_the_parts_and_lose_nothing_as_they_come_and_go),
    ],
)
def test_contract_tests_fail_without_their_safeguard(safeguard: Safeguard, test: Callable[[Cluster], None]) -> None:
    required = guarantees_of(test)
    assert required is not None
    kind = required.fabrics()[0]
    for seed in SEEDS:
        cluster = SimulatedCluster(kind, required.sizes[0], seed, frozenset({safeguard}))
        try:
            test(cluster)
        except ConditionTimeout:
            # A timeout may be slowness; only a wrong result counts.
            continue
        except (AssertionError, pytest.fail.Exception):
            return
        if cluster.find_violations():
            return
    pytest.fail(f"without {safeguard} no seed failed")
