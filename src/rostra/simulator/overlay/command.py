"""`rostra sim overlay`: seeds of Chord rings in, a table and an exit code out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rostra.safeguards import ALL_ON, OF_AN_OVERLAY, Without
from rostra.simulator.overlay.seed import OverlaySeed, run_overlay_seed
from rostra.simulator.seed_command import WorldCommand, WorldSummary, digests_in_new_process, run_world_seeds

LARGER_RINGS_SHARE_MIN = 0.7
"""The invariants are claimed for rings of more than r nodes: so many seeds must have them."""
SHARE_FROM_SEEDS = 200
"""With fewer seeds chance may draw less."""

COMMAND = WorldCommand[OverlaySeed]("overlay", "Chord rings", run_overlay_seed, OF_AN_OVERLAY)


class OverlaySummary(WorldSummary[OverlaySeed]):
    def __init__(self) -> None:
        super().__init__()
        self.larger = 0
        self.rounds_max = 0

    def add(self, result: OverlaySeed) -> None:
        super().add(result)
        self.larger += result.claims_invariants
        self.rounds_max = max(self.rounds_max, result.rounds_to_heal)

    @property
    def larger_share(self) -> float:
        return self.larger / max(self.seeds, 1)

    def shortage(self) -> str | None:
        if self.seeds < SHARE_FROM_SEEDS or self.larger_share >= LARGER_RINGS_SHARE_MIN:
            return None
        return f"only {self.larger_share:.1%} of the seeds have more than r nodes"

    def first_rows(self) -> list[tuple[str, str]]:
        return [("seeds with more than r nodes", f"{self.larger_share:.1%}")]

    def last_rows(self) -> list[tuple[str, str]]:
        return [("most rounds until neighbours were right", f"{self.rounds_max:,}")]

    def as_json(self) -> dict[str, object]:
        return {
            **super().as_json(),
            "share_with_more_than_r_nodes": round(self.larger_share, 4),
            "rounds_max": self.rounds_max,
        }


def run_overlay_seeds(
    seeds: Sequence[int],
    *,
    workers: int = 1,
    without: Without = ALL_ON,
    done: Callable[[OverlaySeed], None] = lambda _: None,
) -> OverlaySummary:
    summary = OverlaySummary()
    run_world_seeds(run_overlay_seed, seeds, summary, workers=workers, without=without, done=done)
    return summary


def digests_elsewhere(seeds: Sequence[int], hash_seed: str) -> dict[int, str]:
    return digests_in_new_process(run_overlay_seed, seeds, hash_seed)


def simulate_overlay(
    seeds: range, workers: int = 0, without: list[str] | None = None, trace: bool = False, output: str = "table"
) -> int:
    """Runs the seeds and reports; the exit code."""
    return COMMAND.execute(seeds, OverlaySummary(), workers, without, trace, output)
