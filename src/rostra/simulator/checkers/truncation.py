"""Committed records are never truncated."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    return [
        f"node {cut.node} truncated {cut.partition} to {cut.offset} and removed committed records (at {cut.at_us} us)"
        for cut in history.truncated_commits
    ]
