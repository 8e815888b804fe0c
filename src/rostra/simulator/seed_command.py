"""Runs many seeds of one kind of world in several processes, adds up what came of them, and reports.

`rostra sim overlay` and `rostra sim primary-backup` are built on it; a world gives a function from a seed to a result.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Generic, Protocol, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rostra.errors import InvalidSetting
from rostra.safeguards import ALL_ON, Safeguard, Without

SEEDS_PER_TASK = 8
FAILED_SHOWN_MAX = 5
LINES_MAX = 50
"""Lines of progress where there is no terminal for a bar."""
EXIT_CLEAN = 0
EXIT_VIOLATION = 1


class WorldResult(Protocol):
    """What came of one seed."""

    @property
    def seed(self) -> int: ...
    @property
    def title(self) -> str:
        """What the world of the seed was like."""

    @property
    def events(self) -> int: ...
    @property
    def cpu_s(self) -> float: ...
    @property
    def digest(self) -> str: ...
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def violations(self) -> tuple[str, ...]: ...


Result = TypeVar("Result", bound=WorldResult)


class RunSeed(Protocol[Result]):
    def __call__(self, seed: int, without: Without = ALL_ON, show: Callable[[str], None] | None = None) -> Result: ...


class WorldSummary(Generic[Result]):
    """Adds up the results of seeds as they come in, in any order."""

    def __init__(self) -> None:
        self.seeds = 0
        self.events = 0
        self.cpu_s = 0.0
        self.counts: Counter[str] = Counter()
        self.failed: list[Result] = []
        self.digests: dict[int, str] = {}

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.cpu_s += result.cpu_s
        self.counts.update(result.counts)
        self.digests[result.seed] = result.digest
        if result.violations:
            self.failed.append(result)

    def shortage(self) -> str | None:
        """What the seeds as a whole lack, whatever each of them shows."""
        return None

    @property
    def clean(self) -> bool:
        return not self.failed and self.shortage() is None

    # --- as text ---

    def first_rows(self) -> list[tuple[str, str]]:
        return []

    def last_rows(self) -> list[tuple[str, str]]:
        return []

    def as_json(self) -> dict[str, object]:
        return {
            "seeds": self.seeds,
            "clean": self.clean,
            "counts": dict(self.counts),
            "events": self.events,
            "cpu_s": round(self.cpu_s, 3),
            "failed": [{"seed": one.seed, "violations": one.violations} for one in self.failed],
        }

    def table(self, what: str) -> Table:
        shown = Table(title=f"{self.seeds} seeds of {what}", title_justify="left")
        shown.add_column("what")
        shown.add_column("count", justify="right")
        for name, text in self.first_rows():
            shown.add_row(name, text)
        for name, count in self.counts.items():
            shown.add_row(name, f"{count:,}")
        shown.add_section()
        for name, text in (
            *self.last_rows(),
            ("events", f"{self.events:,}"),
            ("µs per event", f"{1e6 * self.cpu_s / max(self.events, 1):.1f}"),
            ("seeds with a violation", f"{len(self.failed):,}"),
        ):
            shown.add_row(name, text)
        return shown


def run_world_seeds(
    run: RunSeed[Result],
    seeds: Sequence[int],
    summary: WorldSummary[Result],
    *,
    workers: int = 1,
    without: Without = ALL_ON,
    done: Callable[[Result], None] = lambda _: None,
) -> None:
    """Runs the seeds and adds them to the summary."""
    for result in _results(run, seeds, workers, without):
        summary.add(result)
        done(result)


def _results(run: RunSeed[Result], seeds: Sequence[int], workers: int, without: Without) -> Iterator[Result]:
    if workers <= 1 or len(seeds) <= SEEDS_PER_TASK:
        yield from (run(seed, without) for seed in seeds)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield from pool.map(partial(run, without=without), seeds, chunksize=SEEDS_PER_TASK)


def digests_in_new_process(run: RunSeed[Result], seeds: Sequence[int], hash_seed: str) -> dict[int, str]:
    """The digests of seeds in a new process under another hash seed."""
    name = getattr(run, "__name__", "")
    program = (
        "import sys\n"
        f"from {run.__module__} import {name}\n"
        f"for seed in sys.argv[1:]: print(seed, {name}(int(seed)).digest)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, seeds)], env=environment, capture_output=True, text=True, check=True
    )
    return {int(seed): digest for seed, digest in (line.split() for line in ran.stdout.splitlines())}


class WorldCommand(msgspec.Struct, Generic[Result], frozen=True):
    """One of the commands `rostra sim <name>`."""

    name: str
    what: str
    """What the seeds are of, in the title of the table."""
    run: RunSeed[Result]
    safeguards: tuple[Safeguard, ...]
    """Those that may be switched off."""

    def execute(
        self,
        seeds: range,
        summary: WorldSummary[Result],
        workers: int = 0,
        without: list[str] | None = None,
        trace: bool = False,
        output: str = "table",
    ) -> int:
        """Runs the seeds and reports; the exit code."""
        switched_off = self.parse_without(without or [])
        errors = Console(stderr=True)
        if trace:
            return self._trace(seeds, switched_off, errors)
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

            def done(result: Result) -> None:
                progress.advance(task)
                if result.violations:
                    progress.update(task, description=f"seeds, [red]{result.seed} violates[/red]")
                ended, total = summary.seeds, len(seeds)
                if not errors.is_terminal and ended * LINES_MAX // total > (ended - 1) * LINES_MAX // total:
                    line = f"{ended:,} of {total:,} seeds, {len(summary.failed)} violated"
                    errors.print(line, markup=False, highlight=False)

            count = workers or os.cpu_count() or 1
            run_world_seeds(self.run, seeds, summary, workers=count, without=switched_off, done=done)
        if output == "json":
            sys.stdout.write(msgspec.json.encode(summary.as_json()).decode() + "\n")
        else:
            Console().print(summary.table(self.what))
        self.complain(summary, switched_off, errors)
        return EXIT_CLEAN if summary.clean else EXIT_VIOLATION

    def parse_without(self, names: list[str]) -> Without:
        known = [safeguard.value for safeguard in self.safeguards]
        for name in names:
            if name not in known:
                raise InvalidSetting("without", f"{name!r} is none of {', '.join(known)}")
        return frozenset(map(Safeguard, names))

    def _trace(self, seeds: range, without: Without, errors: Console) -> int:
        if len(seeds) != 1:
            raise InvalidSetting("trace", "it shows a single seed: --seeds 4711 --trace")
        result = self.run(seeds[0], without, print)
        for violation in result.violations:
            errors.print(f"violation: {violation}", style="red", markup=False, highlight=False)
        return EXIT_VIOLATION if result.violations else EXIT_CLEAN

    def complain(self, summary: WorldSummary[Result], without: Without, errors: Console) -> None:
        """Everything that makes the run fail, each with the command that shows it."""

        def say(text: str, style: str = "") -> None:
            errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

        shortage = summary.shortage()
        if shortage is not None:
            say(shortage, "red")
        switched_off = "".join(f" --without {name}" for name in sorted(without))
        for result in sorted(summary.failed, key=lambda one: one.seed)[:FAILED_SHOWN_MAX]:
            say(f"seed {result.seed}: {result.title}", "red")
            for violation in result.violations:
                say(f"  {violation}")
            command = f"rostra sim {self.name} --seeds {result.seed} --trace{switched_off}"
            say(f"  to see all that happened: {command}", "bold")
        if summary.failed:
            say(f"violated: {len(summary.failed)} of {summary.seeds} seeds", "red")
