"""`rostra sim primary-backup`: seeds of a partition with a primary and backups in, a table and an exit code out."""

from __future__ import annotations

from collections.abc import Sequence

from rostra.safeguards import ALL_ON, OF_PRIMARY_BACKUP, Without
from rostra.simulator.primary_backup.seed import PartitionSeed, run_partition_seed
from rostra.simulator.seed_command import WorldCommand, WorldSummary, run_world_seeds

COMMAND = WorldCommand[PartitionSeed](
    "primary-backup", "a partition with a primary and backups", run_partition_seed, OF_PRIMARY_BACKUP
)


class PartitionSummary(WorldSummary[PartitionSeed]):
    def __init__(self) -> None:
        super().__init__()
        self.healed_us_max = 0

    def add(self, result: PartitionSeed) -> None:
        super().add(result)
        self.healed_us_max = max(self.healed_us_max, result.healed_us)

    def last_rows(self) -> list[tuple[str, str]]:
        return [("longest time until all was well again", f"{self.healed_us_max / 1e6:.1f} s")]

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "healed_s_max": self.healed_us_max / 1e6}


def run_partition_seeds(seeds: Sequence[int], *, workers: int = 1, without: Without = ALL_ON) -> PartitionSummary:
    summary = PartitionSummary()
    run_world_seeds(run_partition_seed, seeds, summary, workers=workers, without=without)
    return summary


def simulate_primary_backup(
    seeds: range, workers: int = 0, without: list[str] | None = None, trace: bool = False, output: str = "table"
) -> int:
    """Runs the seeds and reports; the exit code."""
    return COMMAND.execute(seeds, PartitionSummary(), workers, without, trace, output)
