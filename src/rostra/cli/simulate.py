"""`rostra sim`: seeds through the simulator."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
rostra sim --seeds 0:200
rostra sim --seeds 4711 --trace trace.jsonl"""


def simulate(
    seeds: Annotated[
        str, typer.Option(metavar="FIRST:END", help="Seeds to run, the last one excluded; or one.")
    ] = "0:100",
) -> None:
    """Run a node and its clients on virtual time with faults, once per seed, and check every promise."""
    from rostra.simulator.command import simulate as run

    raise typer.Exit(run(seeds))
