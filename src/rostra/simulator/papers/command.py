"""`rostra sim paper`: measures published results again; tables and an exit code."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rostra.errors import InvalidSetting
from rostra.simulator.papers.frame import Paper, Result
from rostra.simulator.papers.registry import PAPERS
from rostra.simulator.papers.report import screen_table, verdict, write_page, write_parquet

EVERY = "all"
EXIT_PASSED = 0
EXIT_MISSED = 1


def run_papers(
    name: str, workers: int = 0, parquet: str | None = None, write: str | None = None, output: str = "table"
) -> int:
    """Runs one paper or all, and reports; the exit code. Without a name it lists the papers."""
    if not name:
        return _list(output)
    if name != EVERY and name not in PAPERS:
        raise InvalidSetting("paper", f"{name!r} is none of {', '.join([*PAPERS, EVERY])}")
    chosen = list(PAPERS.values()) if name == EVERY else [PAPERS[name]]
    errors = Console(stderr=True)
    results: list[tuple[Paper, Result]] = []
    for paper in chosen:
        begin_s, begin_cpu_s = time.monotonic(), _cpu_s()
        result = _measure(paper, workers or os.cpu_count() or 1, errors)
        results.append((paper, result))
        if output == "table":
            Console().print(screen_table(paper, result))
        missed = sum(not row.passed for row in result.rows)
        verdict_text = "within the tolerance" if not missed else f"{missed} figures outside the tolerance"
        spent = f"{time.monotonic() - begin_s:.0f} s, {_cpu_s() - begin_cpu_s:.0f} s of CPU, {_peak_gib():.1f} GiB"
        errors.print(f"{paper.name}: {verdict_text}, {spent}", style="red" if missed else "", highlight=False)
    if output == "json":
        _write_lines(as_json(results))
    if parquet is not None:
        write_parquet(Path(parquet), results)
    if write is not None:
        write_page(Path(write), results, PAPERS.values())
    return EXIT_PASSED if all(result.passed for _, result in results) else EXIT_MISSED


def _cpu_s() -> float:
    """CPU time of this process and of those that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _peak_gib() -> float:
    """Most memory that one process has had so far."""
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(peaks) * 1024 / 2**30


def _measure(paper: Paper, workers: int, errors: Console) -> Result:
    with Progress(
        TextColumn(f"{paper.name}: {{task.description}}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as bar:
        task = bar.add_task("begins", total=1.0)

        def progress(share: float, what: str) -> None:
            bar.update(task, completed=share, description=what)
            if not errors.is_terminal:
                errors.print(f"{paper.name}: {share:4.0%} {what}", markup=False, highlight=False)

        return paper.run(workers, progress)


def _list(output: str) -> int:
    if output == "json":
        listed = [{"name": paper.name, "title": paper.title, "source": paper.source} for paper in PAPERS.values()]
        _write_lines(listed)
        return EXIT_PASSED
    table = Table()
    for name in ("paper", "what", "source"):
        table.add_column(name)
    for paper in PAPERS.values():
        table.add_row(paper.name, paper.title, paper.source)
    Console().print(table)
    return EXIT_PASSED


def _write_lines(values: Sequence[object]) -> None:
    for value in values:
        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def as_json(results: list[tuple[Paper, Result]]) -> list[dict[str, object]]:
    return [
        {
            "paper": paper.name,
            "passed": result.passed,
            "rows": [
                {
                    "case": row.case,
                    "quantity": row.quantity,
                    "published": row.published,
                    "ours": row.ours,
                    "lower": row.lower,
                    "upper": row.upper,
                    "verdict": verdict(row),
                }
                for row in result.rows
            ],
        }
        for paper, result in results
    ]
