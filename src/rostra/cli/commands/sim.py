"""`rostra sim`: seeds through the simulator."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rostra.cli.invocation import OutputOption, begin
from rostra.cli.output import reader_gone

EXAMPLES = """
rostra sim --seeds 0:200
rostra sim --seeds 0:2000 --nodes 1 --rerun 5%
rostra sim --seeds 4711 --trace"""


def simulate(
    context: typer.Context,
    seeds: Annotated[
        str, typer.Option(metavar="FIRST:END", help="Seeds to run, the end excluded; or a single one.")
    ] = "0:100",
    fabric: Annotated[str, typer.Option(metavar="NAME", help="How nodes work together: raft or flood.")] = "raft",
    nodes: Annotated[
        int, typer.Option(metavar="N", min=0, max=7, help="How many nodes; 0 means 3 to 7, as each seed draws.")
    ] = 0,
    workers: Annotated[int, typer.Option(metavar="N", min=0, help="Processes; 0 means one per core.")] = 0,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="SAFEGUARD", help="Switch a safeguard off, to see that its absence is found. Repeatable."),
    ] = None,
    rerun: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of the seeds to run again in another process, e.g. 5%.")
    ] = "0%",
    trace: Annotated[bool, typer.Option("--trace", help="Print everything that happens in a single seed.")] = False,
    output: OutputOption = None,
) -> None:
    """Run nodes and their clients on virtual time with faults, once per seed, and check every promise.

    A table counts the faults that took effect. Exit code 1 if a promise was broken; the seed that shows it is named,
    with the command that replays it.
    """
    share = parse_share(rerun)
    form = "json" if begin(context, output=output).output.is_json else "table"
    from rostra.simulator.command import simulate as run

    try:
        code = run(seeds, fabric, workers, without, share, trace, form, nodes)
        sys.stdout.flush()
    except BrokenPipeError:
        raise reader_gone() from None
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
