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
from tests.contract import test_sinks as sinks
from tests.contract.conftest import SEEDS
from tests.contract.facade import Cluster, ConditionTimeout
from tests.contract.guarantees import selection_of
from tests.contract.simulated import SimulatedCluster


@pytest.mark.parametrize(
    ("safeguard", "test"),
    [
        (Safeguard.COMMIT_VISIBILITY, failures.test_records_an_isolated_owner_could_not_commit_are_not_delivered),
        (Safeguard.COMMIT_VISIBILITY, failures.test_an_acknowledgement_needs_a_majority_however_many_are_unreachable),
        (Safeguard.COMMIT_VISIBILITY, failures.test_each_record_is_delivered_once_across_a_split),
        (Safeguard.OWNERSHIP_LOGGED, publishers.test_a_new_owner_takes_publishers_from_the_log),
        (
            Safeguard.CONFIRMED_WATCH,
            patterns.test_a_lagging_isolated_node_does_not_report_a_topic_as_deleted,
        ),
        (Safeguard.CHECKPOINT_BATCH, retention.test_retention_of_all_but_the_last_segment_loses_no_producer_sequence),
        (Safeguard.SYNC_BEFORE_ACK, failures.test_records_acknowledged_by_a_single_node_survive_its_power_cut),
        (Safeguard.GENERATION_FENCING, groups.test_a_late_position_commit_has_no_effect),
        (
            Safeguard.UNACKED_REDELIVERY,
            groups.test_members_share_the_partitions_and_lose_nothing_as_they_join_and_leave,
        ),
        (Safeguard.SINK_COMPARE_AND_SET, sinks.test_a_batch_that_does_not_follow_the_last_decision_is_refused),
        (Safeguard.FIRST_DECISION, sinks.test_a_repeated_commit_with_other_parts_publishes_nothing),
    ],
)
def test_contract_tests_fail_without_their_safeguard(safeguard: Safeguard, test: Callable[[Cluster], None]) -> None:
    required = selection_of(test)
    assert required is not None
    kind = required.fabrics()[0]
    for seed in SEEDS[required.sizes[0]]:
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
