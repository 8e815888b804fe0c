"""One run of a command: the options given before and behind its name, the configuration they lead to, its output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rostra.cli.completion import complete_topic
from rostra.cli.configuration import Configuration, find_files
from rostra.cli.output import Output, note

if TYPE_CHECKING:
    from rostra import ClientEvent
    from rostra.blocking import Client

NodeOption = Annotated[
    list[str] | None,
    typer.Option("--node", "-n", metavar="ADDR", help="Node to connect to; repeat it or use commas for several."),
]
OutputOption = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="table|json", help="Table, or NDJSON; by default NDJSON on a pipe."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file to read instead of those in the usual places."),
]
TraceOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Note what is done, for `rostra pipeline audit`.", show_default="off")
]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)
]


class Common(msgspec.Struct, frozen=True):
    """Options that may stand before the command's name, where they serve as its defaults."""

    node: list[str] | None = None
    output: str | None = None
    config: Path | None = None


class Invocation:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.output = Output(configuration.text("output"))

    def connect(self, *addresses: str, trace: Path | None = None) -> Client:
        """To the nodes that are configured, unless others are named."""
        from rostra import blocking

        return blocking.connect(
            *(addresses or self.configuration.texts("node")),
            connect_timeout_ms=self.configuration.number("connect_timeout_ms"),
            name="rostra-cli",
            trace=None if trace is None else str(trace),
            on_event=_tell,
        )


def _tell(event: ClientEvent) -> None:
    """Someone who waits for records wants to know why none come."""
    from rostra import DeadLettered, Disconnected, MayDuplicate, MembershipLost, Reconnected, Skipped

    match event:
        case Disconnected(reason="interrupted"):
            # By Ctrl-C, which needs no explanation.
            pass
        case Disconnected():
            note(f"note: the connection to {event.address} was lost ({event.reason}); trying again")
        case Reconnected():
            note(f"note: connected again, to {event.address}")
        case DeadLettered():
            where = f"is in {event.dead_letter} now" if event.dead_letter else "is given up"
            note(f"note: {event.topic}/{event.partition}@{event.offset} was tried {event.tries} times and {where}")
        case Skipped():
            place = f"{event.topic}/{event.partition}"
            note(f"note: retention has removed {place} from {event.offset} on; going on at {event.first}")
        case MembershipLost():
            note(f"note: {event.reason}")
        case MayDuplicate():
            note(f"note: {event.records} records of {event.topic} may be stored twice: {event.reason}")
        case _:
            pass


def begin(
    context: typer.Context,
    flags: Mapping[str, object] | None = None,
    *,
    node: list[str] | None = None,
    output: str | None = None,
    config: Path | None = None,
) -> Invocation:
    """`flags` are further settings by name; None stands for a flag that was not given."""
    common: Common = context.obj or Common()
    given = {**(flags or {}), "node": node or common.node, "output": output or common.output}
    files = find_files(config or common.config, os.environ)
    return Invocation(Configuration(given, os.environ, files))
