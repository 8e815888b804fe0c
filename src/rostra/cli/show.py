"""`rostra demo`: the main job in half a minute."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from rostra.cli.quantities import parse_duration_ms

EXAMPLES = """
rostra demo
rostra demo --records 2000 --kills 1 --duration 4s"""


def demo(
    records: Annotated[int, typer.Option(metavar="N", min=10, help="Records each publisher sends.")] = 20_000,
    duration: Annotated[str, typer.Option(metavar="TIME", help="How long the publishers take.")] = "18s",
    kills: Annotated[
        int, typer.Option(metavar="N", min=0, max=20, help="How often the owner is killed in mid-stream.")
    ] = 2,
) -> None:
    """Show a node that is killed in mid-stream, and clients that lose nothing.

    A real node process, publishers and subscribers; SIGKILL while records flow, a restart on the same files; at the
    end a table of what was sent, acknowledged, expected and delivered. Exit code 0 only if all of it arrived, once.
    """
    try:
        duration_s = parse_duration_ms(duration) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--duration'") from None
    # An ordinary kill cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    from rostra.demo.run import run

    raise typer.Exit(run(records_per_publisher=records, kills=kills, duration_s=duration_s))
