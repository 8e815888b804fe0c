"""`rostra cluster`: the state of members and partitions, and changes of both."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rostra.cli.commands.cluster_rows import (
    MEMBER_COLUMNS,
    RING_COLUMNS,
    Members,
    member_row,
    member_table_row,
    partition_row,
    partition_table_rows,
    ring_row,
    ring_table_row,
    status_columns,
    summary,
    topic_of,
)
from rostra.cli.completion import complete_topic
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import ConfigOption, Invocation, NodeOption, OutputOption, begin
from rostra.cli.output import Cell, print_error, print_note
from rostra.errors import LinkError, MemberRemoved, UnknownPartition, UnknownTopic
from rostra.model.ids import NodeId, text

if TYPE_CHECKING:
    from rostra.blocking import Client
    from rostra.model.cluster import ClusterState, NodeState, PlacedPartition

EXAMPLES = """
rostra cluster status
rostra cluster members
rostra cluster transfer orders/0 127.0.0.1:7410"""

STATUS_EXAMPLES = """
rostra cluster status
rostra cluster status orders
rostra cluster status -o json | jq 'select(.quorum | not)'"""

MEMBERS_EXAMPLES = """
rostra cluster members
rostra cluster members -o json | jq -r 'select(.alive | not) | .address'"""

RING_EXAMPLES = """
rostra cluster ring
rostra cluster ring -o json | jq -r 'select(.backlog > 0) | .next'"""

ADD_EXAMPLES = """
rostra cluster add
rostra -n mars:7400 cluster add -o json | jq -r .command"""

REMOVE_EXAMPLES = """
rostra cluster remove second
rostra cluster remove 3f8f
rostra cluster remove 127.0.0.1:7420 --no-wait"""

TRANSFER_EXAMPLES = """
rostra cluster transfer orders/0 second
rostra cluster transfer orders 127.0.0.1:7410"""

POLL_S = 0.1
SETTLE_S = 10.0
"""How long to wait until the node that is asked knows the new owner after a transfer."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORT_STEP = 10
PORT_MAX = 65_000

MemberArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Name of the member, its address, its id or a unique prefix of that.")
]


def status(
    context: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Only this topic.", autocompletion=complete_topic, show_default="all"),
    ] = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Show every partition: owner and its epoch, commit offset, end, and the lag of each replica.

    The first line of a partition is its owner, the others are the other replicas. Below `match` a replica has on disk
    what the owner has; `lag` is the number of offsets it lacks. `_metadata` is the metadata of the cluster.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    placed = [one for one in state.partitions if topic is None or topic_of(one) == topic]
    if topic is not None and not placed:
        raise UnknownTopic(topic)
    members = Members(state)
    if invocation.output.is_json:
        invocation.output.rows([partition_row(one, members) for one in placed], columns=())
        print_note("; ".join(summary(state)))
        return
    table = [row for one in placed for row in partition_table_rows(one, members)]
    invocation.output.rows(table, columns=status_columns(state), blank="")
    invocation.output.line("")
    for line in summary(state):
        invocation.output.line(line)


def members(
    context: typer.Context, node: NodeOption = None, output: OutputOption = None, config: ConfigOption = None
) -> None:
    """List the members: state, vote, and how many partitions and replicas each has."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    as_row = member_row if invocation.output.is_json else member_table_row
    invocation.output.rows([as_row(one) for one in state.nodes], columns=MEMBER_COLUMNS)


def ring(
    context: typer.Context, node: NodeOption = None, output: OutputOption = None, config: ConfigOption = None
) -> None:
    """Show the ring of brokers (flood): neighbours, view, round-trip time and backlog of each.

    `members` are the brokers in this broker's view, `view` is the view's version. `round_trip_ms` is the time in which
    an acknowledgement passes all brokers of the view, each of which has the records on disk then. `backlog` counts
    records that the next broker has not confirmed.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    if not state.ring:
        print_error(f"the fabric {state.fabric} has no ring", "`rostra cluster status` shows its partitions")
        raise typer.Exit(ExitCode.FAILURE)
    as_row = ring_row if invocation.output.is_json else ring_table_row
    invocation.output.rows([as_row(one, state) for one in state.ring], columns=RING_COLUMNS)


def add(
    context: typer.Context, node: NodeOption = None, output: OutputOption = None, config: ConfigOption = None
) -> None:
    """Print the command that starts another node of this cluster; the node joins when it starts.

    The new node catches up before it counts in any majority; `rostra cluster members` shows it then.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    command = join_command(state)
    if invocation.output.is_json:
        invocation.output.row({"command": command, "join": [one.peer_address for one in _join_targets(state)]})
        return
    print_note("On the machine of the new node, with an empty data directory, run")
    invocation.output.line(command)
    print_note("It has joined when it logs `listening`; `rostra cluster members` lists it.")


def _join_targets(state: ClusterState) -> list[NodeState]:
    return [one for one in state.nodes if one.alive and not one.leaving]


def join_command(state: ClusterState) -> str:
    """Complete where all members are on this machine; elsewhere the host name is left to fill in."""
    joins = f"--fabric {state.fabric} " + " ".join(f"--join {one.peer_address}" for one in _join_targets(state))
    hosts = {one.address.rpartition(":")[0].strip("[]") for one in state.nodes}
    data = f"./rostra-data-{len(state.nodes) + 1}"
    if not hosts <= set(LOOPBACK):
        listen = "--listen 0.0.0.0:7400 --advertise THIS-HOST:7400 --advertise-peers THIS-HOST:7401"
        return f"rostra serve --data {data} {listen} {joins}"
    ports = [int(one.rpartition(":")[2]) for node in state.nodes for one in (node.address, node.peer_address)]
    port = max(ports) // PORT_STEP * PORT_STEP + PORT_STEP
    listen = f"--listen 127.0.0.1:{port}"
    if port > PORT_MAX:
        listen = "--listen 127.0.0.1:0 --peer-listen 127.0.0.1:0"
    return f"rostra serve --data {data} {listen} {joins}"


def remove(
    context: typer.Context,
    member: MemberArgument,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until the member has been removed.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a member: its replicas move to other members first. The member may be down.

    Other members that are down are waited for, since they may hold replicas: remove those that will not return, too.

    The process of the removed node keeps running: stop it afterwards. To join again it needs an empty data directory.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
        leaver = find_member(state, member)
        client.remove_member(leaver.node)
        invocation.wait.done()
    if no_wait:
        _print_removal(invocation, leaver, gone=False)
        return
    print_note(f"removing {leaver.name}; waiting until its replicas have moved (Ctrl-C stops only the waiting)")
    others = [one.address for one in _join_targets(state) if one.node != leaver.node]
    with invocation.connect(*others) as client:
        invocation.wait.done()
        _await_removal(client, leaver)
    _print_removal(invocation, leaver, gone=True)


def _await_removal(client: Client, leaver: NodeState) -> None:
    """Waits for the removal; prints progress, and which members that are down it waits for."""
    printed: tuple[int, list[str]] | None = None
    while True:
        try:
            nodes = client.describe_cluster().nodes
        except (LinkError, MemberRemoved):
            # The node that was asked may be leaving itself; the next call asks another.
            nodes = (leaver,)
        left = next((one for one in nodes if one.node == leaver.node), None)
        if left is None:
            return
        down = [one.name for one in nodes if not one.alive and one.node != leaver.node]
        if (left.copies, down) != printed:
            printed = left.copies, down
            doing = f"{left.copies} replicas still to move" if left.copies else "leaving"
            print_note(f"{leaver.name}: {doing}" + (f"; down: {', '.join(down)}" if down else ""))
        time.sleep(POLL_S)


def _print_removal(invocation: Invocation, leaver: NodeState, *, gone: bool) -> None:
    if invocation.output.is_json:
        invocation.output.row({"id": text(leaver.node), "address": leaver.address, "removed": True, "gone": gone})
    else:
        invocation.output.line(f"{'removed' if gone else 'removing'} {leaver.name} ({leaver.address})")


def transfer(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[/PARTITION]",
            help="The partition, or the topic for all of its partitions.",
            autocompletion=complete_topic,
        ),
    ],
    member: MemberArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Make another member, which must have a complete replica, the owner of a partition."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
        chosen = find_partitions(state, target)
        successor = find_member(state, member)
        for placed in chosen:
            client.transfer_partition(placed.topic, placed.partition, successor.node)
            owner = _owner_after_transfer(client, placed)
            _print_transfer(invocation, placed, owner, Members(state))


def _owner_after_transfer(client: Client, placed: PlacedPartition) -> NodeId:
    """Waits until the node that is asked knows an owner: news of an election takes a moment to spread."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        state = client.describe_cluster()
        key = (placed.topic, placed.partition)
        owner = next((one.owner for one in state.partitions if (one.topic, one.partition) == key), NodeId(0))
        if owner or time.monotonic() > deadline:
            return owner
        time.sleep(POLL_S)


def _print_transfer(invocation: Invocation, placed: PlacedPartition, owner: NodeId, members: Members) -> None:
    if invocation.output.is_json:
        row: dict[str, Cell] = {
            "topic": placed.topic,
            "partition": placed.partition,
            "owner": text(owner),
            "former_owner": text(placed.owner) if placed.owner else None,
        }
        invocation.output.row(row)
    else:
        former = members.name_of(placed.owner) if placed.owner else "none"
        before = "unchanged" if owner == placed.owner else f"was {former}"
        invocation.output.line(f"{placed.topic}/{placed.partition}: owner {members.name_of(owner)} ({before})")


# --- arguments ---


def find_member(state: ClusterState, written: str) -> NodeState:
    """The member with this name, address, id, or unique prefix of an id."""
    exact = [one for one in state.nodes if written in (one.name, text(one.node), one.address, one.peer_address)]
    found = exact or [one for one in state.nodes if written and text(one.node).startswith(written.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        print_error(f"the cluster has no member {written!r}", "`rostra cluster members` lists them")
        raise typer.Exit(ExitCode.UNKNOWN)
    several = ", ".join(f"{one.name} ({text(one.node)})" for one in found)
    raise typer.BadParameter(f"{written!r} may be any of {several}", param_hint="'NODE'")


def find_partitions(state: ClusterState, written: str) -> list[PlacedPartition]:
    """A topic's name may contain slashes and end in a number: a topic of that name wins over a partition."""
    whole = [one for one in state.partitions if one.topic == written and written]
    if whole:
        return whole
    topic, _, index = written.rpartition("/")
    of_topic = [one for one in state.partitions if one.topic == topic and topic]
    if not of_topic or not index.isdecimal():
        raise UnknownTopic(written)
    found = [one for one in of_topic if one.partition == int(index)]
    if not found:
        raise UnknownPartition(topic, int(index))
    return found
