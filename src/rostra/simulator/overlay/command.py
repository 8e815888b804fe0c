"""`rostra sim overlay`: seeds of Chord rings in, a table and an exit code out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rostra.errors import InvalidSetting
from rostra.safeguards import ALL_ON, OF_AN_OVERLAY, Safeguard, Without
from rostra.simulator.overlay.seed import OverlaySeed, run_overlay_seed

SEEDS_PER_TASK = 8
FAILED_SHOWN_MAX = 5
LARGER_RINGS_SHARE_MIN = 0.7
"""The invariants are claimed for rings of more than r nodes: so many seeds must have them."""
SHARE_FROM_SEEDS = 200
"""With fewer seeds chance may draw less."""

LINES_MAX = 50
"""Lines of progress where there is no terminal for a bar."""

EXIT_CLEAN = 0
EXIT_VIOLATION = 1


class OverlaySummary:
    """Adds up the results of seeds as they come in, in any order."""

    def __init__(self) -> None:
        self.seeds = 0
        self.larger = 0
        self.events = 0
        self.cpu_s = 0.0
        self.rounds_max = 0
        self.counts: Counter[str] = Counter()
        self.failed: list[OverlaySeed] = []
        self.digests: dict[int, str] = {}

    def add(self, result: OverlaySeed) -> None:
        self.seeds += 1
        self.larger += result.claims_invariants
        self.events += result.events
        self.cpu_s += result.cpu_s
        self.rounds_max = max(self.rounds_max, result.rounds_to_heal)
        self.counts.update(result.counts)
        self.digests[result.seed] = result.digest
        if result.violations:
            self.failed.append(result)

    @property
    def larger_share(self) -> float:
        return self.larger / max(self.seeds, 1)

    @property
    def clean(self) -> bool:
        enough = self.seeds < SHARE_FROM_SEEDS or self.larger_share >= LARGER_RINGS_SHARE_MIN
        return enough and not self.failed


def run_overlay_seeds(
    seeds: Sequence[int],
    *,
    workers: int = 1,
    without: Without = ALL_ON,
    done: Callable[[OverlaySeed], None] = lambda _: None,
) -> OverlaySummary:
    summary = OverlaySummary()
    for result in _results(seeds, workers, without):
        summary.add(result)
        done(result)
    return summary


def _results(seeds: Sequence[int], workers: int, without: Without) -> Iterator[OverlaySeed]:
    if workers <= 1 or len(seeds) <= SEEDS_PER_TASK:
        yield from (run_overlay_seed(seed, without) for seed in seeds)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(partial(run_overlay_seed, without=without), seeds, chunksize=SEEDS_PER_TASK)


def digests_elsewhere(seeds: Sequence[int], hash_seed: str) -> dict[int, str]:
    """The digests of seeds in a new process under another hash seed."""
    program = (
        "import sys\n"
        "from rostra.simulator.overlay.seed import run_overlay_seed\n"
        "for seed in sys.argv[1:]: print(seed, run_overlay_seed(int(seed)).digest)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, seeds)], env=environment, capture_output=True, text=True, check=True
    )
    return {int(seed): digest for seed, digest in (line.split() for line in ran.stdout.splitlines())}


def simulate_overlay(
    seeds: range, workers: int = 0, without: list[str] | None = None, trace: bool = False, output: str = "table"
) -> int:
    """Runs the seeds and reports; the exit code."""
    switched_off = parse_without(without or [])
    errors = Console(stderr=True)
    if trace:
        return _trace(seeds, switched_off, errors)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        ended = violated = 0

        def done(result: OverlaySeed) -> None:
            nonlocal ended, violated
            ended += 1
            violated += bool(result.violations)
            progress.advance(task)
            if result.violations:
                progress.update(task, description=f"seeds, [red]{result.seed} violates[/red]")
            if not errors.is_terminal and ended * LINES_MAX // len(seeds) > (ended - 1) * LINES_MAX // len(seeds):
                errors.print(f"{ended:,} of {len(seeds):,} seeds, {violated} violated", markup=False, highlight=False)

        summary = run_overlay_seeds(seeds, workers=workers or os.cpu_count() or 1, without=switched_off, done=done)
    if output == "json":
        sys.stdout.write(msgspec.json.encode(as_json(summary)).decode() + "\n")
    else:
        Console().print(table(summary))
    complain(summary, switched_off, errors)
    return EXIT_CLEAN if summary.clean else EXIT_VIOLATION


def parse_without(names: list[str]) -> Without:
    known = [safeguard.value for safeguard in OF_AN_OVERLAY]
    for name in names:
        if name not in known:
            raise InvalidSetting("without", f"{name!r} is none of {', '.join(known)}")
    return frozenset(map(Safeguard, names))


def _trace(seeds: range, without: Without, errors: Console) -> int:
    if len(seeds) != 1:
        raise InvalidSetting("trace", "it shows a single seed: --seeds 4711 --trace")
    result = run_overlay_seed(seeds[0], without, show=print)
    for violation in result.violations:
        errors.print(f"violation: {violation}", style="red", markup=False, highlight=False)
    return EXIT_VIOLATION if result.violations else EXIT_CLEAN


def table(summary: OverlaySummary) -> Table:
    shown = Table(title=f"{summary.seeds} seeds of Chord rings", title_justify="left")
    shown.add_column("what")
    shown.add_column("count", justify="right")
    shown.add_row("seeds with more than r nodes", f"{summary.larger_share:.1%}")
    for what, count in summary.counts.items():
        shown.add_row(what, f"{count:,}")
    shown.add_section()
    for what, text in (
        ("most rounds until neighbours were right", f"{summary.rounds_max:,}"),
        ("events", f"{summary.events:,}"),
        ("µs per event", f"{1e6 * summary.cpu_s / max(summary.events, 1):.1f}"),
        ("seeds with a violation", f"{len(summary.failed):,}"),
    ):
        shown.add_row(what, text)
    return shown


def as_json(summary: OverlaySummary) -> dict[str, object]:
    return {
        "seeds": summary.seeds,
        "clean": summary.clean,
        "share_with_more_than_r_nodes": round(summary.larger_share, 4),
        "counts": dict(summary.counts),
        "rounds_max": summary.rounds_max,
        "events": summary.events,
        "cpu_s": round(summary.cpu_s, 3),
        "failed": [{"seed": one.seed, "violations": one.violations} for one in summary.failed],
    }


def complain(summary: OverlaySummary, without: Without, errors: Console) -> None:
    """Everything that makes the run fail, each with the command that shows it."""

    def say(text: str, style: str = "") -> None:
        errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    if not summary.clean and not summary.failed:
        say(f"only {summary.larger_share:.1%} of the seeds have more than r nodes", "red")
    switched_off = "".join(f" --without {name}" for name in sorted(without))
    for result in sorted(summary.failed, key=lambda one: one.seed)[:FAILED_SHOWN_MAX]:
        say(f"seed {result.seed}: {result.nodes} nodes, lists of {result.successors_max}", "red")
        for violation in result.violations:
            say(f"  {violation}")
        say(f"  to see all that happened: rostra sim overlay --seeds {result.seed} --trace{switched_off}", "bold")
    if summary.failed:
        say(f"violated: {len(summary.failed)} of {summary.seeds} seeds", "red")
