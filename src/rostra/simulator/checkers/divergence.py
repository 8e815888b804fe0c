"""Below the commit offset all replicas are equal: every node commits the same batch at an offset."""

from __future__ import annotations

import itertools

from rostra.model.ids import Partition
from rostra.simulator.history import History, StoredBatch


def check(history: History) -> list[str]:
    found = list(history.false_claims)
    for partition, known in history.committed.items():
        if not history.replicated and (partition.topic, partition.index) in history.flipped:
            # The only replica was damaged and reports it.
            continue
        ordered = sorted(known)
        for one, other in itertools.pairwise(ordered):
            if other.base < one.end:
                found.append(
                    f"{partition} holds {_span(one)} at node {known[one]} and {_span(other)} at node {known[other]}"
                )
    for (node, partition), batches in history.final_logs.items():
        # A flipped bit that was not read yet is no fault of the fabric.
        if (node, partition) not in history.flipped_at:
            found += _check_copy(node, partition, batches, history.committed.get(partition, {}))
    return found


def _check_copy(
    node: int, partition: Partition, batches: list[StoredBatch], known: dict[StoredBatch, int]
) -> list[str]:
    found = [
        f"node {node} ended with {_span(held)} in {partition}, which no node committed"
        for held in batches
        if held not in known
    ]
    for one, other in itertools.pairwise(batches):
        if other.base != one.end:
            found.append(f"node {node} ended with {partition} with a gap from {one.end} to {other.base}")
    return found


def _span(held: StoredBatch) -> str:
    return f"{held.base}-{held.end - 1} ({held.digest:016x})"
