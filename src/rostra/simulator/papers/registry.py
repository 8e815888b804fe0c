"""The papers that can be run by name. A new one is a module with a `PAPER`, and a line here."""

from __future__ import annotations

from rostra.simulator.papers import (
    chord_churn,
    chord_failures,
    chord_load,
    chord_merge,
    chord_path,
    raft_availability,
    raft_split_votes,
)
from rostra.simulator.papers.frame import Paper

PAPERS: dict[str, Paper] = {
    module.PAPER.name: module.PAPER
    for module in (
        chord_path,
        chord_failures,
        chord_churn,
        chord_load,
        chord_merge,
        raft_split_votes,
        raft_availability,
    )
}
