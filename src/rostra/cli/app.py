"""The command `rostra`: its commands, the options common to all, and how errors become messages and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from rostra import __version__
from rostra.cli.commands import (
    bench,
    cluster,
    config,
    demo,
    pipeline,
    pub,
    serve,
    sim,
    sub,
    subscription,
    topic,
    topic_alter,
    user,
    zookeeper,
)
from rostra.cli.exit_codes import MEANINGS, ExitCode, exit_code_of
from rostra.cli.flags import Command, CommandGroup
from rostra.cli.invocation import Common, ConfigOption, NodeOption, OutputOption
from rostra.cli.output import print_error
from rostra.cli.remedies import cli_remedy
from rostra.errors import RostraError

TRACEBACK_VARIABLE = "ROSTRA_TRACEBACK"

EXIT_CODES = "Exit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items())
EXAMPLES = """
rostra serve
rostra sub greetings --from earliest
rostra pub greetings hello"""


def examples(lines: str) -> str:
    return "Examples:\n" + "\n".join(f"$ {line}" for line in lines.strip().splitlines())


def _print_version(requested: bool) -> None:
    if requested:
        print(f"rostra {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="rostra",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"{examples(EXAMPLES)}\n\n{EXIT_CODES}",
)


@app.callback()
def rostra(
    context: typer.Context,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Durable publish/subscribe: start a node, publish to topics, subscribe to them.

    Settings come from flags, then ROSTRA_* variables, then ./rostra.toml and ~/.config/rostra/config.toml.
    """
    context.obj = Common(node, output, config)


def add(group: typer.Typer, name: str, command: Callable[..., None], lines: str) -> None:
    group.command(name, cls=Command, epilog=examples(lines))(command)


topics = typer.Typer(cls=CommandGroup, no_args_is_help=True, epilog=examples(topic.EXAMPLES))
add(topics, "create", topic.create, topic.CREATE_EXAMPLES)
add(topics, "alter", topic_alter.alter, topic_alter.EXAMPLES)
add(topics, "delete", topic.delete, topic.DELETE_EXAMPLES)
add(topics, "list", topic.list_topics, topic.LIST_EXAMPLES)
add(topics, "describe", topic.describe, topic.DESCRIBE_EXAMPLES)

clusters = typer.Typer(cls=CommandGroup, no_args_is_help=True, epilog=examples(cluster.EXAMPLES))
add(clusters, "status", cluster.status, cluster.STATUS_EXAMPLES)
add(clusters, "members", cluster.members, cluster.MEMBERS_EXAMPLES)
add(clusters, "ring", cluster.ring, cluster.RING_EXAMPLES)
add(clusters, "add", cluster.add, cluster.ADD_EXAMPLES)
add(clusters, "remove", cluster.remove, cluster.REMOVE_EXAMPLES)
add(clusters, "transfer", cluster.transfer, cluster.TRANSFER_EXAMPLES)

subscriptions = typer.Typer(cls=CommandGroup, no_args_is_help=True, epilog=examples(subscription.EXAMPLES))
add(subscriptions, "list", subscription.list_subscriptions, subscription.LIST_EXAMPLES)
add(subscriptions, "lag", subscription.lag, subscription.LAG_EXAMPLES)
add(subscriptions, "reset", subscription.reset, subscription.RESET_EXAMPLES)
add(subscriptions, "delete", subscription.delete, subscription.DELETE_EXAMPLES)

users = typer.Typer(cls=CommandGroup, no_args_is_help=True, epilog=examples(user.EXAMPLES))
add(users, "create", user.create, user.CREATE_EXAMPLES)
add(users, "subscribe", user.subscribe, user.SUBSCRIBE_EXAMPLES)
add(users, "unsubscribe", user.unsubscribe, user.UNSUBSCRIBE_EXAMPLES)
add(users, "publish", user.publish, user.PUBLISH_EXAMPLES)
add(users, "receive", user.receive, user.RECEIVE_EXAMPLES)
add(users, "destroy", user.destroy, user.DESTROY_EXAMPLES)

pipelines = typer.Typer(cls=CommandGroup, no_args_is_help=True, epilog=examples(pipeline.EXAMPLES))
add(pipelines, "archive", pipeline.archive, pipeline.ARCHIVE_EXAMPLES)
add(pipelines, "compact", pipeline.compact, pipeline.COMPACT_EXAMPLES)
add(pipelines, "rollup", pipeline.rollup, pipeline.ROLLUP_EXAMPLES)
add(pipelines, "audit", pipeline.audit, pipeline.AUDIT_EXAMPLES)
add(pipelines, "report", pipeline.report, pipeline.REPORT_EXAMPLES)

zookeepers = typer.Typer(cls=CommandGroup, no_args_is_help=True, epilog=examples(zookeeper.EXAMPLES))
add(zookeepers, "start", zookeeper.start, zookeeper.START_EXAMPLES)

simulations = typer.Typer(cls=CommandGroup, invoke_without_command=True, epilog=examples(sim.EXAMPLES))
simulations.callback()(sim.simulate)
add(simulations, "overlay", sim.overlay, sim.OVERLAY_EXAMPLES)
add(simulations, "paper", sim.paper, sim.PAPER_EXAMPLES)

add(app, "serve", serve.serve, serve.EXAMPLES)
app.add_typer(topics, name="topic", help="Create, alter, delete, list and describe topics.")
app.add_typer(clusters, name="cluster", help="Show the members and partitions of a cluster, and change them.")
add(app, "pub", pub.publish, pub.EXAMPLES)
add(app, "sub", sub.subscribe, sub.EXAMPLES)
app.add_typer(subscriptions, name="subscription", help="List, reset and delete named subscriptions; show their lag.")
app.add_typer(users, name="user", help="Users with a queue of records: create, subscribe, publish, receive.")
app.add_typer(pipelines, name="pipeline", help="Process topics with Spark: archive, aggregate in windows, audit.")
add(app, "demo", demo.demo, demo.EXAMPLES)
app.add_typer(simulations, name="sim")
app.add_typer(zookeepers, name="zookeeper", help="Run a local ZooKeeper server for demos and tests.")
add(app, "bench", bench.bench, bench.EXAMPLES)
add(app, "config", config.config, config.EXAMPLES)
add(app, "version", config.version, config.VERSION_EXAMPLES)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; errors are printed in one line, never as a traceback."""
    try:
        return int(app(list(arguments), prog_name="rostra", standalone_mode=False) or ExitCode.OK)
    except typer.TyperException as wrong:
        return _usage_error(wrong)
    except RostraError as error:
        carried = error.carried()
        print_error(error.fact.format(**carried), cli_remedy(error))
        return exit_code_of(error)
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except OSError as error:
        print_error(*_system_error(error))
        return ExitCode.FAILURE
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        print_error(
            f"internal error: {type(error).__name__}: {error}",
            f"please report it, with the traceback that {TRACEBACK_VARIABLE}=1 in the environment shows",
        )
        return ExitCode.FAILURE


def _usage_error(wrong: typer.TyperException) -> int:
    context = getattr(wrong, "ctx", None)
    path = context.command_path if context is not None else "rostra"
    # Without arguments the help has been printed already and the message is empty.
    print_error(wrong.format_message() or f"{path} needs a command", f"`{path} --help` shows how it is used")
    return wrong.exit_code


def _system_error(error: OSError) -> tuple[str, str]:
    what = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
    match error.errno:
        case errno.ENOENT | errno.EEXIST | errno.ENOTDIR | errno.EISDIR:
            return what, "name a directory that exists or can be created; for a node, with --data"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return what, "choose a directory you may write to, or change its permissions"
        case errno.ENOSPC:
            return what, "free some space"
        case _:
            return what, ""
