"""`rostra user`: users, each with a queue of the records published to the topics they subscribe to."""

from __future__ import annotations

from typing import Annotated

import typer

from rostra.cli.commands.sub import encoder, parse_timeout_s
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import ConfigOption, NodeOption, OutputOption, TopicArgument, begin
from rostra.cli.output import print_note

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
    """Create a user."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.create_user(user)
    print_note(f"user {user} created")


def subscribe(
    context: typer.Context,
    user: UserArgument,
    topic: TopicArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Queue records published to the topic from now on for the user; the topic is created if needed."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.user(user).subscribe(topic)
    print_note(f"user {user} subscribed to {topic}")


def unsubscribe(
    context: typer.Context,
    user: UserArgument,
    topic: TopicArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """End the subscription; queued records of the topic are dropped."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.user(user).unsubscribe(topic)
    print_note(f"user {user} unsubscribed from {topic}")


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
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait if no record is queued.")] = "1s",
    raw: Annotated[bool, typer.Option("--raw", help="The value only, unchanged.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the next queued record and remove it from the queue. Exit code 1 if there is none."""
    timeout_s = parse_timeout_s(timeout)
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        known = client.user(user)
        invocation.wait.done()
        record = known.receive(timeout_s)
        if record is not None:
            invocation.output.write(encoder(raw=raw, is_json=invocation.output.is_json)(record))
        known.close()
    if record is None:
        print_note(f"no record for user {user}")
        raise typer.Exit(ExitCode.FAILURE)


def destroy(
    context: typer.Context,
    user: UserArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete the user and its queue."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        client.user(user).destroy()
    print_note(f"user {user} deleted")
