"""Judges of a history, one file each. They know what was promised, and nothing of how it is kept."""

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
    "the strongest publisher is delivered": ownership.check,
    "subscriptions begin where asked": starts.check,
    "patterns get every topic once": patterns.check,
    "what was shown stays": commit.check,
    "damage is reported, not served": damage.check,
    "topics are made and end as told": deletion.check,
    "retention removes no more than it may": retention.check,
    "what a name has acknowledged comes to nobody again": groups.check_redelivery,
    "every record comes to a member of each name": groups.check_coverage,
    "one leader in a term": leaders.check,
    "copies agree below commit": divergence.check,
    "what is committed is not cut": truncation.check,
    "the catalogue is one": linearizability.check,
    "a majority is enough": progress.check,
    "queues keep their bounds": bounds.check,
    "only typed errors": errors.check,
    "everything converges after healing": convergence.check,
}


def find_violations(history: History) -> list[str]:
    """Every violation, with the name of the promise it breaks."""
    return [f"{promise}: {found}" for promise, check in CHECKERS.items() for found in check(history)]
