"""`rostra cluster`: how its members and partitions are, and how they change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from rostra.cli.commands.cluster_rows import (
    MEMBER_COLUMNS,
    RING_COLUMNS,
    STATUS_COLUMNS,
    member_row,
    nodes_there,
    partition_row,
    ring_row,
    shown_member,
    shown_ring,
    shown_rows,
    summary,
    topic_of,
)
from rostra.cli.completion import complete_topic
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import ConfigOption, Invocation, NodeOption, OutputOption, begin
from rostra.cli.output import Cell, complain, note
from rostra.errors import LinkError, MemberRemoved, UnknownPartition, UnknownTopic
from rostra.model.ids import text

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
rostra cluster members -o json | jq -r 'select(.there | not) | .address'"""

RING_EXAMPLES = """
rostra cluster ring
rostra cluster ring -o json | jq -r 'select(.lacks > 0) | .next'"""

ADD_EXAMPLES = """
rostra cluster add
rostra -n mars:7400 cluster add -o json | jq -r .command"""

REMOVE_EXAMPLES = """
rostra cluster remove 3f8f7e3f57b9d38f
rostra cluster remove 3f8f
rostra cluster remove 127.0.0.1:7420 --no-wait"""

TRANSFER_EXAMPLES = """
rostra cluster transfer orders/0 3f8f
rostra cluster transfer orders 127.0.0.1:7410"""

POLL_S = 0.1
SETTLE_S = 10.0
"""How long the new owner may take to be known after a transfer that was said to have happened."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORT_STEP = 10
PORT_MAX = 65_000

MemberArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="Id of the member, a beginning of it that no other has, or its address.")
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
    """Show every partition: owner, term, commit and end, and how far each copy is.

    The first line of a partition is its owner, the others are its copies; `match` is the offset below which a copy has
    on disk what its owner has, `lag` what it still lacks. `_catalogue` is what the cluster keeps about itself.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    placed = [one for one in state.partitions if topic is None or topic_of(one) == topic]
    if topic is not None and not placed:
        raise UnknownTopic(topic)
    there = nodes_there(state)
    if invocation.output.is_json:
        invocation.output.rows([partition_row(one, there) for one in placed], columns=())
        note("; ".join(summary(state)))
        return
    invocation.output.rows([row for one in placed for row in shown_rows(one, there)], columns=STATUS_COLUMNS, blank="")
    invocation.output.line("")
    for line in summary(state):
        invocation.output.line(line)


def members(
    context: typer.Context, node: NodeOption = None, output: OutputOption = None, config: ConfigOption = None
) -> None:
    """List the members: who is there, who votes, who leaves, and how many partitions each owns and holds copies of."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    as_row = member_row if invocation.output.is_json else shown_member
    invocation.output.rows([as_row(one) for one in state.nodes], columns=MEMBER_COLUMNS)


def ring(
    context: typer.Context, node: NodeOption = None, output: OutputOption = None, config: ConfigOption = None
) -> None:
    """Show the ring of brokers: each with its neighbours, its view, how long a circle takes, and what the next lacks.

    `members` are those that a broker hears and that hear it; `view` counts how often they changed. A circle is the way
    of a record's mark back to its origin, which ends when every broker of the view has it on its disk. `lacks` are
    records that the next broker has not confirmed.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    if not state.ring:
        complain(f"the nodes of {state.fabric} form no ring", "`rostra cluster status` shows how they are")
        raise typer.Exit(ExitCode.FAILURE)
    as_row = ring_row if invocation.output.is_json else shown_ring
    invocation.output.rows([as_row(one, state) for one in state.ring], columns=RING_COLUMNS)


def add(
    context: typer.Context, node: NodeOption = None, output: OutputOption = None, config: ConfigOption = None
) -> None:
    """Show how a node is added: it adds itself, when it is started with the command that this prints.

    The new node copies what it must know before it counts in any majority; `rostra cluster members` shows it then.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
    command = joining_command(state)
    if invocation.output.is_json:
        invocation.output.row({"command": command, "join": [one.peer_address for one in _to_join(state)]})
        return
    note("A node adds itself: start it with an empty data directory, on its own machine, with")
    invocation.output.line(command)
    note("It is a member when it logs `listening`; `rostra cluster members` lists it.")


def _to_join(state: ClusterState) -> list[NodeState]:
    return [one for one in state.nodes if one.there and not one.leaving]


def joining_command(state: ClusterState) -> str:
    """Ready to be run where all members are on this machine; elsewhere the host's name is left to be filled in."""
    joins = " ".join(f"--join {one.peer_address}" for one in _to_join(state))
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
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is gone.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Remove a member for good: its copies move to others, then it goes; it may be away.

    Others that are away are waited for, as copies may be theirs: remove those that will not come back, too.

    Its process is not stopped: do that afterwards. To come back it needs an empty data directory.
    """
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
        leaver = find_member(state, member)
        client.remove_member(leaver.node)
    if no_wait:
        _removed(invocation, leaver, gone=False)
        return
    note(f"{text(leaver.node)} is certain to go; waiting until it is gone (Ctrl-C ends the waiting only)")
    others = [one.address for one in _to_join(state) if one.node != leaver.node]
    with invocation.connect(*others) as client:
        _await_gone(client, leaver)
    _removed(invocation, leaver, gone=True)


def _await_gone(client: Client, leaver: NodeState) -> None:
    """Progress is told when there is some, and for whom it waits."""
    told: tuple[int, list[str]] | None = None
    while True:
        try:
            nodes = client.describe_cluster().nodes
        except (LinkError, MemberRemoved):
            # Whoever was asked may be leaving itself; the next call asks another.
            nodes = (leaver,)
        left = next((one for one in nodes if one.node == leaver.node), None)
        if left is None:
            return
        away = [text(one.node) for one in nodes if not one.there and one.node != leaver.node]
        if (left.copies, away) != told:
            told = left.copies, away
            doing = f"{left.copies} copies still to move" if left.copies else "leaving now"
            note(f"{text(leaver.node)}: {doing}" + (f"; away: {', '.join(away)}" if away else ""))
        time.sleep(POLL_S)


def _removed(invocation: Invocation, leaver: NodeState, *, gone: bool) -> None:
    if invocation.output.is_json:
        invocation.output.row({"id": text(leaver.node), "address": leaver.address, "removed": True, "gone": gone})
    else:
        invocation.output.line(f"{'removed' if gone else 'removing'} {text(leaver.node)} ({leaver.address})")


def transfer(
    context: typer.Context,
    place: Annotated[
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
    """Make another member, one with a complete copy, the owner of a partition."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        state = client.describe_cluster()
        chosen = find_partitions(state, place)
        heir = find_member(state, member)
        for placed in chosen:
            client.transfer_partition(placed.topic, placed.partition, heir.node)
            owner = _owner_after(client, placed)
            _transferred(invocation, placed, owner)


def _owner_after(client: Client, placed: PlacedPartition) -> int:
    """The owner as soon as one is known: a leader that has just been elected is not known at once everywhere."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        state = client.describe_cluster()
        here = (placed.topic, placed.partition)
        owner = next((one.owner for one in state.partitions if (one.topic, one.partition) == here), 0)
        if owner or time.monotonic() > deadline:
            return owner
        time.sleep(POLL_S)


def _transferred(invocation: Invocation, placed: PlacedPartition, owner: int) -> None:
    former = text(placed.owner) if placed.owner else None
    if invocation.output.is_json:
        row: dict[str, Cell] = {
            "topic": placed.topic,
            "partition": placed.partition,
            "owner": text(owner),
            "former_owner": former,
        }
        invocation.output.row(row)
    else:
        before = "as before" if owner == placed.owner else f"before it was {former or 'nobody'}"
        invocation.output.line(f"{placed.topic}/{placed.partition} is owned by {text(owner)}; {before}")


# --- what was meant ---


def find_member(state: ClusterState, written: str) -> NodeState:
    """By its id, by a beginning of it that no other id has, or by one of its addresses."""
    exact = [one for one in state.nodes if written in (text(one.node), one.address, one.peer_address)]
    found = exact or [one for one in state.nodes if written and text(one.node).startswith(written.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        complain(f"the cluster has no member {written!r}", "`rostra cluster members` lists them")
        raise typer.Exit(ExitCode.UNKNOWN)
    several = ", ".join(text(one.node) for one in found)
    raise typer.BadParameter(f"{written!r} may be any of {several}", param_hint="'NODE'")


def find_partitions(state: ClusterState, written: str) -> list[PlacedPartition]:
    """A topic's name may hold slashes and end in a number: a topic of that name is meant before a partition is."""
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
