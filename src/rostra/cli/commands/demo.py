"""`rostra demo`: the main job in half a minute, and shorter demonstrations of single things."""

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
        typer.Option(
            metavar="N", min=0, max=20, help="How often the owner is killed in mid-stream.", show_default=str(KILLS)
        ),
    ] = None,
) -> None:
    """Show three nodes whose owner is killed in mid-stream, and clients that lose nothing.

    Real node processes, publishers and subscribers at different nodes; SIGKILL of the owner while records flow, another
    in its place, the old one back on the same files and caught up; at the end a table of what was sent, acknowledged,
    expected and delivered. Exit code 0 only if all of it arrived, once. Then, where pyspark is installed, Spark comes
    to its own count from traces of all that took part, and writes a report. With a name: one of the short
    demonstrations that --list shows; exit code 0 only if what it shows came true.
    """
    if listed:
        _list()
        return
    try:
        duration_s = parse_duration_ms(duration or DURATION) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--duration'") from None
    # An ordinary kill cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
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
