"""Checkers: each verifies one guarantee against the history of a seed.

Theory of operation. A checker is a function of the `History` alone, so it knows what clients and nodes did, but nothing
of how the system works, nor which safeguards are switched off. It returns one line per violation, and excuses only what
the guarantee excuses: expired or compacted records, reported damage, deleted topics (docs/simulator.md lists all).
Checkers run after every seed. `tests/simulation/test_checkers.py` shows each one a history that violates its guarantee.
"""

from __future__ import annotations

from collections.abc import Callable

from rostra.simulator.checkers import (
    bounds,
    commit,
    convergence,
    damage,
    deletion,
    divergence,
    duplicates,
    errors,
    groups,
    leaders,
    linearizability,
    loss,
    offsets,
    order,
    ownership,
    patterns,
    phantoms,
    progress,
    retention,
    sinks,
    starts,
    truncation,
)
from rostra.simulator.history import History

CHECKERS: dict[str, Callable[[History], list[str]]] = {
    "nothing acknowledged is lost": loss.check,
    "nothing is delivered that was not sent": phantoms.check,
    "a record is stored once": duplicates.check,
    "records keep their producer's order": order.check,
    "offsets rise without unexplained gaps": offsets.check,
    "only the strongest publisher is delivered": ownership.check,
    "subscriptions start where requested": starts.check,
    "pattern subscriptions get every topic once": patterns.check,
    "delivered records stay": commit.check,
    "damage is reported, not served": damage.check,
    "topics exist as acknowledged": deletion.check,
    "retention removes no more than it may": retention.check,
    "a group gets no acknowledged record again": groups.check_redelivery,
    "a group gets every record": groups.check_coverage,
    "a sink's batch is visible once and as a whole": sinks.check,
    "one leader per term": leaders.check,
    "replicas agree below commit": divergence.check,
    "committed records are never truncated": truncation.check,
    "topic metadata is linearizable": linearizability.check,
    "a majority makes progress": progress.check,
    "queues keep their bounds": bounds.check,
    "only typed errors": errors.check,
    "everything converges after healing": convergence.check,
}


def find_violations(history: History) -> list[str]:
    """All violations, each with the name of the guarantee."""
    return [f"{guarantee}: {found}" for guarantee, check in CHECKERS.items() for found in check(history)]
