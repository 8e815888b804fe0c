"""`rostra subscription`: named subscriptions, how far they are, and letting them go on elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rostra.cli.commands.sub import parse_start
from rostra.cli.invocation import ConfigOption, NodeOption, OutputOption, begin
from rostra.cli.output import Cell, note
from rostra.model.ids import text

if TYPE_CHECKING:
    from rostra import SubscriptionDescription

EXAMPLES = """
rostra subscription list
rostra subscription lag billing
rostra subscription reset billing --to earliest"""

LIST_EXAMPLES = """
rostra subscription list
rostra subscription list -o json | jq .name"""

LAG_EXAMPLES = """
rostra subscription lag billing
rostra subscription lag billing -o json | jq -s 'map(.lag) | add'"""

RESET_EXAMPLES = """
rostra subscription reset billing --to earliest
rostra subscription reset billing --to 1000 --topic orders
rostra subscription reset billing --to -2h"""

DELETE_EXAMPLES = """
rostra subscription delete billing
rostra subscription delete billing --if-exists"""

LIST_COLUMNS = ("name", "members", "parts")
LAG_COLUMNS = ("topic", "partition", "position", "end", "lag", "tries", "member")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.")]


def list_subscriptions(
    context: typer.Context, node: NodeOption = None, output: OutputOption = None, config: ConfigOption = None
) -> None:
    """List the named subscriptions of the cluster."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        groups = client.list_subscriptions()
    rows: list[dict[str, Cell]] = [
        {"name": group.name, "members": group.members, "parts": group.parts, "generation": group.generation}
        for group in groups
    ]
    if not rows and not invocation.output.is_json:
        note("no subscription has a name yet; `rostra sub TOPIC --name NAME` makes one")
        return
    invocation.output.rows(rows, columns=LIST_COLUMNS)


def lag(
    context: typer.Context,
    name: NameArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Show how far a named subscription is in each partition, and who handles it.

    The position is the first offset that is not acknowledged, the lag how many offsets lie between it and the end.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        described = client.describe_subscription(name)
    title = f"{name}: lag {described.lag}, {len(described.members)} members"
    invocation.output.rows(_rows(described), columns=LAG_COLUMNS, title=title)


def _rows(described: SubscriptionDescription) -> list[dict[str, Cell]]:
    return [
        {
            "topic": part.topic,
            "partition": part.partition,
            "position": part.offset,
            "end": part.end,
            "lag": part.lag,
            "tries": part.tries,
            "member": text(part.member) if part.member else None,
        }
        for part in described.parts
    ]


def reset(
    context: typer.Context,
    name: NameArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="earliest|latest|OFFSET|last:N|TIME|-AGO", help="Where it is to go on.")
    ],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="In this topic only.", show_default="in all")
    ] = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Let a named subscription go on elsewhere. It must have no members at the time."""
    start = parse_start(to, time.time_ns() // 1000, "'--to'")
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.reset_subscription(name, start, topic=topic)
        described = client.describe_subscription(name)
    invocation.output.rows(_rows(described), columns=LAG_COLUMNS, title=f"{name}: lag {described.lag}")


def delete(
    context: typer.Context,
    name: NameArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if there is none.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Forget a named subscription and its positions. It must have no members at the time."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.delete_subscription(name, if_exists=if_exists)
    note(f"{name} is forgotten")
