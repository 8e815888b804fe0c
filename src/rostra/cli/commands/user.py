"""`rostra user`: users with topics, for whom what is published there waits until they receive it."""

from __future__ import annotations

from typing import Annotated

import typer

from rostra.cli.commands.sub import encoder, parse_patience_s
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import ConfigOption, NodeOption, OutputOption, TopicArgument, begin
from rostra.cli.output import note

EXAMPLES = """
rostra user create alice
rostra user subscribe alice news
rostra user receive alice --timeout 5s"""

CREATE_EXAMPLES = """
rostra user create alice"""

SUBSCRIBE_EXAMPLES = """
rostra user subscribe alice news"""

UNSUBSCRIBE_EXAMPLES = """
rostra user unsubscribe alice news"""

PUBLISH_EXAMPLES = """
rostra user publish alice news 'hello everybody'"""

RECEIVE_EXAMPLES = """
rostra user receive alice
rostra user receive alice --timeout 5s --raw"""

DESTROY_EXAMPLES = """
rostra user destroy alice"""

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


def create(
    context: typer.Context,
    user: UserArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a user."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.create_user(user)
    note(f"{user} is there now")


def subscribe(
    context: typer.Context,
    user: UserArgument,
    topic: TopicArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """From now on, what is published to the topic waits for the user; a topic that is not there is made."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.user(user).subscribe(topic)
    note(f"{user} is subscribed to {topic}")


def unsubscribe(
    context: typer.Context,
    user: UserArgument,
    topic: TopicArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """The user gets nothing more of the topic, not even what waits."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.user(user).unsubscribe(topic)
    note(f"{user} is not subscribed to {topic} any more")


def publish(
    context: typer.Context,
    user: UserArgument,
    topic: TopicArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What to publish.")],
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Publish a record, as `rostra pub` does."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        ack = client.user(user).publish(topic, value.encode())
    if invocation.output.is_json:
        invocation.output.row({"topic": ack.topic, "partition": ack.partition, "offset": ack.offset})
    else:
        invocation.output.line(f"{ack.topic}/{ack.partition}  offset {ack.offset}")


def receive(
    context: typer.Context,
    user: UserArgument,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="How long to wait for one if none waits for the user.")
    ] = "1s",
    raw: Annotated[bool, typer.Option("--raw", help="The value only, as it is.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Take the next record that waits for the user. Exit code 1 if there is none."""
    patience_s = parse_patience_s(timeout)
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        known = client.user(user)
        record = known.receive(patience_s)
        if record is not None:
            invocation.output.write(encoder(raw=raw, is_json=invocation.output.is_json)(record))
        known.close()
    if record is None:
        note(f"nothing waits for {user}")
        raise typer.Exit(ExitCode.FAILURE)


def destroy(
    context: typer.Context,
    user: UserArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """The user is no more, and nothing waits for it."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.user(user).destroy()
    note(f"{user} is no more")
