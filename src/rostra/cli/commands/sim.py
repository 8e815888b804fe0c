"""`rostra sim`: runs seeds in the simulator, of whole nodes or of Chord rings, and measures published results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from rostra.cli.invocation import OutputOption, begin
from rostra.cli.output import output_closed

EXAMPLES = """
rostra sim --seeds 0:200
rostra sim --seeds 0:2000 --nodes 1 --rerun 5%
rostra sim --seeds 4711 --trace
rostra sim overlay --seeds 0:500
rostra sim paper chord-path"""
OVERLAY_EXAMPLES = """
rostra sim overlay --seeds 0:500
rostra sim overlay --seeds 4711 --trace
rostra sim overlay --seeds 0:100 --without rectify"""
PAPER_EXAMPLES = """
rostra sim paper
rostra sim paper chord-path
rostra sim paper all --parquet papers.parquet"""


def simulate(
    context: typer.Context,
    seeds: Annotated[
        str, typer.Option(metavar="FIRST:END", help="Seeds to run, without the end; or a single seed.")
    ] = "0:100",
    fabric: Annotated[str, typer.Option(metavar="NAME", help="Replication: raft or flood.")] = "raft",
    nodes: Annotated[
        int, typer.Option(metavar="N", min=0, max=15, help="Number of nodes; 0: 3 to 15, chosen by the seed.")
    ] = 0,
    workers: Annotated[int, typer.Option(metavar="N", min=0, help="Processes; 0: one per core.")] = 0,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="SAFEGUARD", help="Switch a safeguard off, to show that the checkers notice. Repeatable."),
    ] = None,
    rerun: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of the seeds to run again in another process, e.g. 5%.")
    ] = "0%",
    trace: Annotated[bool, typer.Option("--trace", help="Print every event of a single seed.")] = False,
    output: OutputOption = None,
) -> None:
    """Run simulated nodes and clients with injected faults, once per seed, and check all guarantees.

    A table counts the faults that took effect. The exit code is 1 if a guarantee was broken; the failing seed is
    printed with the command that replays it.
    """
    if context.invoked_subcommand is not None:
        return
    share = parse_share(rerun)
    form = _form(context, output)
    from rostra.simulator.command import simulate as run

    _exit(lambda: run(seeds, fabric, workers, without, share, trace, form, nodes))


def overlay(
    context: typer.Context,
    seeds: Annotated[
        str, typer.Option(metavar="FIRST:END", help="Seeds to run, the end excluded; or a single one.")
    ] = "0:100",
    workers: Annotated[int, typer.Option(metavar="N", min=0, help="Processes; 0 means one per core.")] = 0,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="SAFEGUARD", help="Switch a safeguard off, to see that its absence is found. Repeatable."),
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print every event of a single seed.")] = False,
    output: OutputOption = None,
) -> None:
    """Run Chord rings of 4 to 64 nodes under joins, crashes, restarts and splits, once per seed.

    Zave's invariants are checked after every event for rings of more nodes than a successor list holds; when all is
    quiet every neighbour and finger must be right in time. Exit code 1 if something is not.
    """
    form = _form(context, output)
    from rostra.simulator.command import parse_seeds
    from rostra.simulator.overlay.command import simulate_overlay

    _exit(lambda: simulate_overlay(parse_seeds(seeds), workers, without, trace, form))


def paper(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which one, or all; without it they are listed.")] = "",
    workers: Annotated[int, typer.Option(metavar="N", min=0, help="Processes; 0 means one per core.")] = 0,
    parquet: Annotated[str | None, typer.Option(metavar="FILE", help="Write every figure as Parquet.")] = None,
    write: Annotated[str | None, typer.Option(metavar="DIR", help="Write papers.md and its pictures there.")] = None,
    output: OutputOption = None,
) -> None:
    """Measure published results again, with the protocols of this product on virtual time.

    A table shows the published figure, the accepted range and ours. Exit code 1 if one lies outside.
    """
    form = _form(context, output)
    from rostra.simulator.papers.command import run_papers

    _exit(lambda: run_papers(name, workers, parquet, write, form))


def _form(context: typer.Context, output: str | None) -> str:
    return "json" if begin(context, output=output).output.is_json else "table"


def _exit(run: Callable[[], int]) -> NoReturn:
    """Ends the command with the code that a run returns."""
    try:
        code = run()
        sys.stdout.flush()
    except BrokenPipeError:
        raise output_closed() from None
    raise typer.Exit(code)


def parse_share(written: str) -> float:
    """`5%` or `0.05`."""
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{written!r} is not a share such as 5%", param_hint="'--rerun'") from None
    if not 0 <= share <= 1:
        raise typer.BadParameter(f"{written!r} is not between 0% and 100%", param_hint="'--rerun'")
    return share
