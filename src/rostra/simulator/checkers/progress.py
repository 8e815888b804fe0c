"""A majority of the nodes makes progress within the time limit."""

from __future__ import annotations

from rostra.simulator.history import History


def check(history: History) -> list[str]:
    return [
        f"{demand.what} was not possible within {(demand.until_us - demand.since_us) / 1e6:.1f} s"
        for demand in history.liveness_demands
        if not demand.done_us or demand.done_us > demand.until_us
    ]
