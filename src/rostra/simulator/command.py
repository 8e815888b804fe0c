"""`rostra sim`: runs seeds, prints a summary and returns an exit code."""

from __future__ import annotations

import os
import sys

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from rostra.errors import InvalidSetting
from rostra.safeguards import OF_ONE_NODE, Safeguard, Without
from rostra.simulator.faults.fault_plan import NODES_MAX
from rostra.simulator.runner import EVERY_FAULT_FROM_SEEDS, Summary, run_seeds
from rostra.simulator.seed import SeedResult, run_seed

FABRICS = ("raft", "flood")
NODES = (1, *range(3, NODES_MAX + 1))
"""Allowed numbers of nodes; two nodes tolerate no failure."""
FAILED_SHOWN_MAX = 5
VIOLATIONS_SHOWN_MAX = 10
LINES_SHOWN = 20
LINE_CHARACTERS_MAX = 160

EXIT_CLEAN = 0
EXIT_VIOLATION = 1


def simulate(
    seeds: str = "0:100",
    fabric: str = "raft",
    workers: int = 0,
    without: list[str] | None = None,
    rerun: float = 0.0,
    trace: bool = False,
    output: str = "table",
    nodes: int = 0,
) -> int:
    """Runs the seeds, prints the summary and returns the exit code.

    `workers` 0 means one per core; `rerun` is the share of seeds that run again in a new process; `trace` prints the
    trace of a single seed; `output` is `table` or `json`; `nodes` 0 means as many as each seed draws. Wrong use
    raises `UsageError`.
    """
    chosen = parse_seeds(seeds)
    if fabric not in FABRICS:
        raise InvalidSetting("fabric", f"{fabric!r} is not one of {', '.join(FABRICS)}")
    if nodes and nodes not in NODES:
        raise InvalidSetting("nodes", f"{nodes} is neither 1 nor between 3 and {NODES_MAX}")
    switched_off = parse_without(without or [], nodes)
    if output not in ("table", "json"):
        raise InvalidSetting("output", f"{output!r} is neither 'table' nor 'json'")
    if not 0.0 <= rerun <= 1.0:
        raise InvalidSetting("rerun", "the share of seeds to rerun must be between 0 and 1")
    errors = Console(stderr=True)
    if trace:
        return _trace(chosen, fabric, nodes, switched_off, errors)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    ) as progress:
        task = progress.add_task("seeds", total=len(chosen))

        def done(result: SeedResult) -> None:
            progress.advance(task)
            if result.violations:
                progress.update(task, description=f"seeds, [red]{result.seed} failed[/red]")

        summary = run_seeds(
            chosen,
            fabric=fabric,
            nodes=nodes,
            workers=workers or os.cpu_count() or 1,
            without=switched_off,
            rerun=rerun,
            done=done,
        )
    if output == "json":
        sys.stdout.write(msgspec.json.encode(summary_json(summary, fabric)).decode() + "\n")
    else:
        Console().print(summary_table(summary, fabric))
    report_failures(summary, switched_off, errors)
    return EXIT_CLEAN if summary.clean else EXIT_VIOLATION


def parse_seeds(written: str) -> range:
    """`first:end`, the end excluded, or a single seed."""
    first, colon, end = written.partition(":")
    if not first.isdecimal() or not (end.isdecimal() or not colon):
        raise InvalidSetting("seeds", f"{written!r} is neither FIRST:END nor a single number")
    chosen = range(int(first), int(end) if colon else int(first) + 1)
    if not chosen:
        raise InvalidSetting("seeds", f"{written!r} is an empty range")
    return chosen


def parse_without(names: list[str], nodes: int = 0) -> Without:
    known = [safeguard.value for safeguard in (OF_ONE_NODE if nodes == 1 else Safeguard)]
    for name in names:
        if name not in known:
            raise InvalidSetting("without", f"{name!r} is not one of {', '.join(known)}")
    return frozenset(map(Safeguard, names))


def replay_command(seed: int, nodes: int, without: Without, fabric: str = "raft") -> str:
    """The command that runs a seed again, with its trace."""
    many = f" --nodes {nodes}" if nodes else ""
    of = f" --fabric {fabric}" if fabric != "raft" else ""
    switched_off = "".join(f" --without {name}" for name in sorted(without))
    return f"rostra sim --seeds {seed}{of}{many} --trace{switched_off}"


class _LinePrinter:
    """Prints lines until the pipe is closed. It must not raise inside the seed, where that would be a violation."""

    def __init__(self) -> None:
        self.reader_gone: BrokenPipeError | None = None

    def show(self, line: str) -> None:
        if self.reader_gone is None:
            try:
                print(line)
            except BrokenPipeError as error:
                self.reader_gone = error


def _trace(seeds: range, fabric: str, nodes: int, without: Without, errors: Console) -> int:
    if len(seeds) != 1:
        raise InvalidSetting("trace", "only a single seed can be traced: --seeds 4711 --trace")
    lines = _LinePrinter()
    result = run_seed(seeds[0], fabric=fabric, nodes=nodes, without=without, show=lines.show)
    if lines.reader_gone is not None:
        raise lines.reader_gone
    for violation in result.violations:
        errors.print(f"violation: {violation}", style="red", markup=False, highlight=False)
    return EXIT_VIOLATION if result.violations else EXIT_CLEAN


def summary_table(summary: Summary, fabric: str) -> Table:
    """The summary of a run: how often each fault took effect, the amount of work, and the verdict."""
    shown = Table(title=f"{summary.seeds:,} seeds of {fabric}", title_justify="left")
    shown.add_column("fault")
    shown.add_column("took effect", justify="right")
    for fault in summary.expected:
        count, missing = summary.faults[fault], fault in summary.missing
        shown.add_row(fault.value, f"[red]{count}[/red]" if missing else f"{count:,}")
    shown.add_section()
    hours = summary.cpu_s / 3600 or 1e-9
    for what, number in (
        ("client operations", f"{summary.operations:,}"),
        ("virtual time (hours)", f"{summary.virtual_us / 3.6e9:,.1f}"),
        ("events", f"{summary.events:,}"),
        ("CPU time per event (µs)", f"{1e6 * summary.cpu_s / max(summary.events, 1):.1f}"),
        ("seeds per CPU hour", f"{summary.seeds / hours:,.0f}"),
        ("seeds rerun in a new process", f"{summary.rerun:,}"),
        ("reruns with another digest", f"{len(summary.mismatched):,}"),
        ("seeds with violations", f"{len(summary.failed):,}"),
    ):
        shown.add_row(what, number)
    return shown


def summary_json(summary: Summary, fabric: str) -> dict[str, object]:
    return {
        "fabric": fabric,
        "nodes": summary.nodes or f"3 to {NODES_MAX}",
        "seeds": summary.seeds,
        "clean": summary.clean,
        "faults": {fault.value: summary.faults[fault] for fault in summary.expected},
        "operations": summary.operations,
        "events": summary.events,
        "virtual_s": summary.virtual_us / 1e6,
        "cpu_s": round(summary.cpu_s, 3),
        "seeds_per_core_hour": round(summary.seeds * 3600 / max(summary.cpu_s, 1e-9)),
        "rerun": summary.rerun,
        "digest_mismatches": summary.mismatched,
        "failed": [{"seed": failed.seed, "violations": failed.violations} for failed in summary.failed],
    }


def report_failures(summary: Summary, without: Without, errors: Console) -> None:
    """Prints everything that makes the run fail, each with the command that shows it; the verdict comes last."""

    def write(text: str, style: str = "") -> None:
        errors.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    for fault in summary.missing:
        write(f"{fault.value}: never in {summary.seeds} seeds (expected from {EVERY_FAULT_FROM_SEEDS} seeds on)", "red")
    for seed in summary.mismatched:
        again = replay_command(seed, summary.nodes, without, summary.fabric)
        write(f"seed {seed} had another digest in a new process: {again}", "red")
    failed = sorted(summary.failed, key=lambda result: result.seed)[:FAILED_SHOWN_MAX]
    for result in failed[:1]:
        write(f"the trace of seed {result.seed} ends with:")
        for line in result.recent[-LINES_SHOWN:]:
            write(f"  {line[:LINE_CHARACTERS_MAX]}")
    for result in failed:
        write(f"seed {result.seed}: {len(result.violations)} violations", "red")
        for violation in result.violations[:VIOLATIONS_SHOWN_MAX]:
            write(f"  {violation}")
        write(f"  full trace: {replay_command(result.seed, summary.nodes, without, summary.fabric)}", "bold")
    if failed:
        write(f"failed: {len(summary.failed)} of {summary.seeds} seeds violate a guarantee", "red")
