"""One run of a command: the options before and after its name, the resulting configuration, its output."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rostra.cli.completion import complete_topic
from rostra.cli.configuration import Configuration, find_files
from rostra.cli.output import Output, print_note
from rostra.cli.wait_note import WaitNote

if TYPE_CHECKING:
    from rostra import ClientEvent
    from rostra.blocking import Client

CALL_TIMEOUT_MS = 30_000

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
    typer.Option("--config", metavar="FILE", help="TOML file to read instead of the default ones."),
]
TraceOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write a trace for `rostra pipeline audit`.", show_default="off")
]
TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)
]


class Common(msgspec.Struct, frozen=True):
    """Options that may also be given before the command's name."""

    node: list[str] | None = None
    output: str | None = None
    config: Path | None = None


class Invocation:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.output = Output(configuration.text("output"))
        self.wait = WaitNote(configuration.texts("node"))

    def connect(self, *addresses: str, trace: Path | None = None, call_timeout_ms: int = CALL_TIMEOUT_MS) -> Client:
        """Connects to `addresses`, or to the configured nodes if there are none.

        A note says after a second what the command waits for, until `wait.done()` or the end of the command.
        """
        from rostra import blocking

        self.wait.begin()
        return blocking.connect(
            *(addresses or self.configuration.texts("node")),
            connect_timeout_ms=self.configuration.number("connect_timeout_ms"),
            call_timeout_ms=call_timeout_ms,
            name="rostra-cli",
            trace=None if trace is None else str(trace),
            on_event=self._event,
        )

    def _event(self, event: ClientEvent) -> None:
        from rostra import Retrying

        if isinstance(event, Retrying):
            self.wait.reason(f"{event.topic}/{event.partition} is not acknowledged yet: {event.reason}")
        else:
            _print_event(event)


def _print_event(event: ClientEvent) -> None:
    """Notes on stderr that explain why records stop, repeat or are missing."""
    from rostra import DeadLettered, Disconnected, MayDuplicate, MembershipLost, Reconnected, Skipped

    match event:
        case Disconnected(reason="interrupted"):
            # Ctrl-C needs no explanation.
            pass
        case Disconnected():
            print_note(f"note: the connection to {event.address} was lost ({event.reason}); reconnecting")
        case Reconnected():
            print_note(f"note: reconnected to {event.address}")
        case DeadLettered():
            outcome = f"moved to {event.dead_letter}" if event.dead_letter else "skipped"
            position = f"{event.topic}/{event.partition}@{event.offset}"
            print_note(f"note: {position} was {outcome} after {event.tries} tries")
        case Skipped():
            partition = f"{event.topic}/{event.partition}"
            print_note(f"note: retention removed {partition} from {event.offset} on; continuing at {event.first}")
        case MembershipLost():
            print_note(f"note: {event.reason}")
        case MayDuplicate():
            print_note(f"note: {event.records} records of {event.topic} may be stored twice: {event.reason}")
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
    """`flags` are further settings by name; None means that the flag was not given."""
    common: Common = context.obj or Common()
    given = {**(flags or {}), "node": node or common.node, "output": output or common.output}
    files = find_files(config or common.config, os.environ)
    invocation = Invocation(Configuration(given, os.environ, files))
    context.call_on_close(invocation.wait.done)
    return invocation
