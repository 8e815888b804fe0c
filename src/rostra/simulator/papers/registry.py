"""The papers that can be run by name. A new one is a module with a `PAPER`, and a line here."""

from __future__ import annotations

from rostra.simulator.papers.chord import churn, failures, load, merge, path
from rostra.simulator.papers.frame import Paper
from rostra.simulator.papers.raft import availability, split_votes

PAPERS: dict[str, Paper] = {
    module.PAPER.name: module.PAPER
    for module in (
        path,
        failures,
        churn,
        load,
        merge,
        split_votes,
        availability,
    )
}
