"""`rostra demo`: the main job in half a minute."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLES = """
rostra demo
rostra demo --records 2000 --kills 1"""


def demo(
    records: Annotated[int, typer.Option(min=10, help="Records each publisher sends.")] = 20_000,
    kills: Annotated[int, typer.Option(min=0, max=20, help="How often the node is killed in mid-stream.")] = 3,
) -> None:
    """Show a node that is killed in mid-stream, and clients that lose nothing.

    A real node process, publishers and subscribers; SIGKILL while records flow, a restart on the same files; at the
    end a table of what was sent, acknowledged, expected and delivered. Exit code 0 only if all of it arrived, once.
    """
    from rostra.demo.run import run

    raise typer.Exit(run(records_per_publisher=records, kills=kills))
