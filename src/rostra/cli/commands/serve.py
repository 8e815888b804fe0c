"""`rostra serve`: runs a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rostra.cli.configuration import Configuration
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import ConfigOption, begin
from rostra.cli.settings import SETTINGS, parser_of
from rostra.errors import InvalidSetting

if TYPE_CHECKING:
    from rostra.runtime.settings import NodeSettings

EXAMPLES = """
rostra serve
rostra serve --data /var/lib/rostra --listen 127.0.0.1:7400 --metrics 127.0.0.1:9400
rostra serve --name second --data ./second --listen 127.0.0.1:7410 --join 127.0.0.1:7401
rostra serve --listen 0.0.0.0:7400 --advertise mars:7400 --advertise-peers mars:7401 --join venus:7401
rostra serve --listen-unix /run/rostra.sock
rostra serve --fabric flood --set both_ways=true --data ./first --listen 127.0.0.1:7400
rostra serve --limit batch_bytes_max=8MiB --limit heartbeat_ms=2s"""


def serve(
    context: typer.Context,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data directory.", show_default="./rostra-data")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the node in tables and logs.", show_default="its address"),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="ADDR", help="Address for clients.", show_default="127.0.0.1:7400")
    ] = None,
    listen_unix: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Also listen on a Unix socket for clients on this machine: --node unix:PATH. Lower latency.",
            show_default="none",
        ),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDR",
            help="Peer address of a member of the cluster to join; without it, found a new one. Repeatable.",
        ),
    ] = None,
    peer_listen: Annotated[
        str | None,
        typer.Option(metavar="ADDR", help="Address for other nodes.", show_default="the port after --listen"),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="ADDR", help="Address announced to clients.", show_default="what it listens on"),
    ] = None,
    advertise_peers: Annotated[
        str | None,
        typer.Option(metavar="ADDR", help="Address announced to other nodes.", show_default="what it listens on"),
    ] = None,
    fsync: Annotated[
        str | None,
        typer.Option(
            metavar="commit|never",
            help="commit: fsync before acknowledging. never: a power cut may lose acknowledged records.",
            show_default="commit",
        ),
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="ADDR|off", help="Address for Prometheus metrics.", show_default="off")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write a trace for `rostra pipeline audit`.", show_default="off"),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option(metavar="debug|info|warning|error", help="Least severe line to log.", show_default="info"),
    ] = None,
    stop_deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long a graceful stop may take.", show_default="10s")
    ] = None,
    busy_poll: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Poll sockets for this long after receiving before sleeping: lower latency, more CPU.",
            show_default="0ms",
        ),
    ] = None,
    fabric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Replication: raft, or flood (a ring of brokers).", show_default="raft"),
    ] = None,
    fabric_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the fabric, such as both_ways=true. Repeatable."
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A limit of the node; `rostra config` lists them. Repeatable."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Start a node, alone or as a member of a cluster.

    Start the first node of a cluster without --join, every other with --join and the peer address of any member, in any
    order. A node that has joined once finds its cluster again, with or without --join.

    The node runs until Ctrl-C or SIGTERM, then completes pending requests and exits with 0; a second Ctrl-C stops it at
    once. It logs to stderr: JSON lines, or coloured lines on a terminal.
    """
    flags = {
        "data": None if data is None else str(data),
        "name": name,
        "listen": listen,
        "listen_unix": listen_unix,
        "join": join or None,
        "peer_listen": peer_listen,
        "advertise": advertise,
        "advertise_peers": advertise_peers,
        "fsync": fsync,
        "metrics": metrics,
        "trace": trace,
        "log_level": log_level,
        "stop_deadline_ms": stop_deadline,
        "fabric": fabric,
        "set": fabric_settings or None,
        "busy_poll_ms": busy_poll,
        **_limits(limit or []),
    }
    configuration = begin(context, flags, config=config).configuration
    from rostra.runtime import serve as process

    finished = process.serve(node_settings(configuration), log_level=configuration.text("log_level"))
    raise typer.Exit(ExitCode.OK if finished else ExitCode.FAILURE)


def _limits(given: list[str]) -> dict[str, object]:
    names = [setting.name for setting in SETTINGS if setting.section == "limits"]
    limits: dict[str, object] = {}
    for written in given:
        name, equals, value = written.partition("=")
        if not equals or name not in names:
            raise typer.BadParameter(
                f"{written!r} is not NAME=VALUE with one of: {', '.join(names)}", param_hint="'--limit'"
            )
        limits[name] = value
    return limits


def fabric_settings_of(configuration: Configuration) -> dict[str, int | bool | str]:
    """The settings of the chosen fabric, as its own type declares them."""
    from rostra.fabric.registry import fabric_by_name

    kind = fabric_by_name(configuration.text("fabric"))
    fields = {field.name: field for field in msgspec.structs.fields(kind.settings)}
    found: dict[str, int | bool | str] = {}
    for written in configuration.texts("set"):
        name, equals, given = written.partition("=")
        if not equals or name not in fields:
            raise InvalidSetting("--set", f"{written!r} is not NAME=VALUE with one of: {', '.join(fields)}")
        try:
            value = parser_of(fields[name])(given)
        except ValueError as error:
            raise InvalidSetting(f"--set {name}", str(error)) from None
        assert not isinstance(value, tuple)
        found[name] = value
    return found


def node_settings(configuration: Configuration) -> NodeSettings:
    from rostra.broker.settings import BrokerSettings
    from rostra.runtime.settings import NodeSettings

    metrics = configuration.text("metrics")
    limits = {setting.name: configuration[setting.name] for setting in SETTINGS if setting.section == "limits"}
    return NodeSettings(
        directory=configuration.text("data"),
        name=configuration.text("name"),
        listen=configuration.text("listen"),
        listen_unix=configuration.text("listen_unix"),
        peer_listen=configuration.text("peer_listen"),
        advertise=configuration.text("advertise"),
        advertise_peers=configuration.text("advertise_peers"),
        join=configuration.texts("join"),
        fabric=configuration.text("fabric"),
        fabric_settings=fabric_settings_of(configuration),
        fsync="commit" if configuration.text("fsync") == "commit" else "never",
        metrics="" if metrics == "off" else metrics,
        trace=configuration.text("trace"),
        stop_deadline_ms=configuration.number("stop_deadline_ms"),
        busy_poll_ms=configuration.number("busy_poll_ms"),
        broker=msgspec.convert(limits, BrokerSettings),
    )
