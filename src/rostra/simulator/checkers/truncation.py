"""What is committed is never cut."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    return [
        f"node {cut.node} cut {cut.partition} at {cut.offset}, behind which lay what is committed (at {cut.at_us} us)"
        for cut in history.truncated_commits
    ]
