"""`rostra subscription`: lists, resets and deletes named subscriptions, and shows their lag."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rostra.cli.commands.sub import parse_start
from rostra.cli.invocation import ConfigOption, NodeOption, OutputOption, begin
from rostra.cli.output import Cell, print_note
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

LIST_COLUMNS = ("name", "members", "partitions")
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
        {"name": group.name, "members": group.members, "partitions": group.partitions, "generation": group.generation}
        for group in groups
    ]
    if not rows and not invocation.output.is_json:
        print_note("there are no named subscriptions; `rostra sub TOPIC --name NAME` creates one")
        return
    invocation.output.rows(rows, columns=LIST_COLUMNS)


def lag(
    context: typer.Context,
    name: NameArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Show position, lag and member of a named subscription in each partition.

    The position is the first offset that is not acknowledged, the lag the number of offsets from it to the end.
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
        for part in described.partitions
    ]


def reset(
    context: typer.Context,
    name: NameArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="earliest|latest|OFFSET|last:N|TIME|-AGO", help="The new position.")
    ],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="In this topic only.", show_default="in all")
    ] = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Set the position of a named subscription. It must have no members at that time."""
    start = parse_start(to, time.time_ns() // 1000, "'--to'")
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.reset_subscription(name, start, topic=topic)
        described = client.describe_subscription(name)
    invocation.output.rows(_rows(described), columns=LAG_COLUMNS, title=f"{name}: lag {described.lag}")


def delete(
    context: typer.Context,
    name: NameArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if it does not exist.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete a named subscription and its positions. It must have no members at that time."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.delete_subscription(name, if_exists=if_exists)
    print_note(f"subscription {name} deleted")
