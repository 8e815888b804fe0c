"""`rostra sim`: runs seeds in the simulator."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rostra.cli.invocation import OutputOption, begin
from rostra.cli.output import output_closed

EXAMPLES = """
rostra sim --seeds 0:200
rostra sim --seeds 0:2000 --nodes 1 --rerun 5%
rostra sim --seeds 4711 --trace"""


def simulate(
    context: typer.Context,
    seeds: Annotated[
        str, typer.Option(metavar="FIRST:END", help="Seeds to run, without the end; or a single seed.")
    ] = "0:100",
    fabric: Annotated[str, typer.Option(metavar="NAME", help="Replication: raft or flood.")] = "raft",
    nodes: Annotated[
        int, typer.Option(metavar="N", min=0, max=7, help="Number of nodes; 0: 3 to 7, chosen by the seed.")
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
    share = parse_share(rerun)
    form = "json" if begin(context, output=output).output.is_json else "table"
    from rostra.simulator.command import simulate as run

    try:
        code = run(seeds, fabric, workers, without, share, trace, form, nodes)
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
