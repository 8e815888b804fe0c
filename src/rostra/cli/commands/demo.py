"""`rostra demo`: a failover demo of half a minute, and shorter demonstrations of single features."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from typing import Annotated

import typer

from rostra.cli.output import Output
from rostra.cli.quantities import parse_duration_ms

EXAMPLES = """
rostra demo
rostra demo --records 2000 --kills 1 --duration 4s
rostra demo --list
rostra demo raft-failover"""

RECORDS = 20_000
KILLS = 2
DURATION = "18s"


def demo(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A single demonstration.", show_default="the main demo")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the demonstrations.")] = False,
    records: Annotated[
        int | None, typer.Option(metavar="N", min=10, help="Records each publisher sends.", show_default=str(RECORDS))
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long the publishers take.", show_default=DURATION)
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="End with an audit by Spark, where pyspark is installed.")
    ] = True,
    kills: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=20, help="How often the owner is killed.", show_default=str(KILLS)),
    ] = None,
) -> None:
    """Run three nodes, kill the owner of a partition while records flow, and show that no record is lost.

    Starts real node processes, with publishers and subscribers at different nodes. The owner is killed with SIGKILL,
    another node takes over, and the killed one restarts on its files and catches up. A table at the end compares what
    was sent, acknowledged, expected and delivered; the exit code is 0 only if every record arrived once. Where pyspark
    is installed, Spark then audits the traces of all nodes and clients and writes a report. With a name, one of the
    short demonstrations of --list runs; its exit code is 0 only if it succeeded.
    """
    if listed:
        _list()
        return
    try:
        duration_s = parse_duration_ms(duration or DURATION) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--duration'") from None
    # SIGTERM cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if name is not None:
        if (records, duration, kills) != (None, None, None):
            raise typer.BadParameter(
                "--records, --duration and --kills are for the main demo only", param_hint="'NAME'"
            )
        raise typer.Exit(_run(name))
    from rostra.demo.run import run

    raise typer.Exit(
        run(
            records_per_publisher=records or RECORDS,
            kills=KILLS if kills is None else kills,
            duration_s=duration_s,
            with_spark=spark and find_spec("pyspark") is not None,
        )
    )


def _run(name: str) -> int:
    from rostra.demo.raft import DEMONSTRATIONS, run

    names = [one.name for one in DEMONSTRATIONS]
    if name not in names:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(names)}", param_hint="'NAME'")
    return run(name)


def _list() -> None:
    from rostra.demo.raft import DEMONSTRATIONS

    rows = [{"name": one.name, "shows": one.shows} for one in DEMONSTRATIONS]
    Output("auto").rows(rows, columns=("name", "shows"))
