"""`rostra topic`: creates, deletes, lists and describes topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from rostra.cli.invocation import ConfigOption, Invocation, NodeOption, OutputOption, TopicArgument, begin
from rostra.cli.output import Cell, print_note
from rostra.cli.quantities import parse_bytes, parse_duration_ms, show_bytes, show_duration
from rostra.errors import UnknownTopic
from rostra.model.ids import check_topic_name, text

if TYPE_CHECKING:
    from rostra.model.cluster import ClusterState
    from rostra.wire.messages import Ownership, PartitionState, Topic, TopicSettings

EXAMPLES = """
rostra topic create orders --partitions 4 --retention 7d
rostra topic list"""

CREATE_EXAMPLES = """
rostra topic create orders
rostra topic create orders/eu --partitions 4 --retention 7d --retention-bytes 10GiB
rostra topic create position --ownership exclusive --history-depth 100
rostra topic create orders --if-not-exists"""

DELETE_EXAMPLES = """
rostra topic delete orders
rostra topic delete orders --if-exists"""

LIST_EXAMPLES = """
rostra topic list
rostra topic list --all
rostra topic list -o json | jq .name"""

DESCRIBE_EXAMPLES = """
rostra topic describe orders
rostra -n 127.0.0.1:7401 topic describe orders -o json"""

SEGMENT_BYTES = 64 << 20
LIST_COLUMNS = ("name", "partitions", "retention", "retention_size", "id")
DESCRIBE_COLUMNS = ("partition", "state", "first", "commit", "end", "offsets", "bytes", "epoch")
PUBLISHER_COLUMNS = ("partition", "publisher", "strength", "lease", "delivered")


def bytes_of(written: str | None, default: int) -> int:
    try:
        return default if written is None else parse_bytes(written)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def duration_ms_of(written: str | None) -> int:
    try:
        return parse_duration_ms(written) if written else 0
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def create(
    context: typer.Context,
    name: TopicArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", metavar="N", min=1, max=1024, help="Number of partitions.")
    ] = 1,
    replicas: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=15,
            help="Replicas of each partition, at most one per node.",
            show_default="set by the node: 3",
        ),
    ] = 0,
    retention: Annotated[
        str | None, typer.Option(metavar="TIME", help="Delete records older than this, e.g. 7d.", show_default="never")
    ] = None,
    retention_ms: Annotated[
        int | None, typer.Option(metavar="MS", min=0, help="The same in milliseconds; 0: never.", show_default="0")
    ] = None,
    retention_bytes: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Keep about this much per partition.", show_default="no limit"),
    ] = None,
    segment_bytes: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Size of a log file.", show_default="64MiB")
    ] = None,
    compaction: Annotated[bool, typer.Option("--compaction", help="Keep only the latest record of each key.")] = False,
    tombstones: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long compaction keeps tombstones of deleted keys.", show_default="1d"),
    ] = None,
    ownership: Annotated[
        str,
        typer.Option(
            metavar="shared|exclusive",
            help="Whose records are delivered: those of all publishers, or of the strongest.",
        ),
    ] = "shared",
    history_depth: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Most records that `sub --from last:N` gives.",
            show_default="set by the node",
        ),
    ] = 0,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if it exists.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Create a topic."""
    check_topic_name(name)
    if retention is not None and retention_ms is not None:
        raise typer.BadParameter("give --retention or --retention-ms, not both", param_hint="'--retention'")
    age_ms = duration_ms_of(retention) if retention_ms is None else retention_ms
    size, segment = bytes_of(retention_bytes, 0), bytes_of(segment_bytes, SEGMENT_BYTES)
    from rostra.client.core.options import check_topic_settings
    from rostra.wire.messages import TOMBSTONE_MS, TopicSettings

    tombstone_ms = TOMBSTONE_MS if tombstones is None else duration_ms_of(tombstones)
    owned = cast("Ownership", ownership)
    check_topic_settings(
        TopicSettings(
            partitions,
            replicas,
            age_ms,
            size,
            segment,
            compaction=compaction,
            tombstone_ms=tombstone_ms,
            ownership=owned,
            history_depth=history_depth,
        )
    )
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        made = client.create_topic(
            name,
            partitions,
            replicas=replicas,
            retention_ms=age_ms,
            retention_bytes=size,
            segment_bytes=segment,
            compaction=compaction,
            tombstone_ms=tombstone_ms,
            ownership=owned,
            history_depth=history_depth,
            if_not_exists=if_not_exists,
        )
    show_topic(invocation, made)


def delete(
    context: typer.Context,
    name: TopicArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if it does not exist.")] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Delete a topic with all its records; its subscriptions end."""
    check_topic_name(name)
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        try:
            client.delete_topic(name)
        except UnknownTopic:
            if not if_exists:
                raise
            print_note(f"topic {name} does not exist")
            return
    if invocation.output.is_json:
        invocation.output.row({"name": name, "deleted": True})
    else:
        invocation.output.line(f"deleted {name}")


def list_topics(
    context: typer.Context,
    all_nodes: Annotated[
        bool, typer.Option("--all", help="Ask every node; with flood, nodes have topics of their own.")
    ] = False,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """List the topics of the cluster; with flood, those of the node that answers."""
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        if all_nodes:
            rows = _rows_of_all_nodes(invocation, client.describe_cluster())
        else:
            rows = [_row(topic.topic, topic.name, topic.settings) for topic in client.list_topics()]
    if not rows and not invocation.output.is_json:
        print_note("there are no topics; `rostra topic create NAME` creates one")
        return
    _show_topics(invocation, rows, ("node", *LIST_COLUMNS) if all_nodes else LIST_COLUMNS)


def _rows_of_all_nodes(invocation: Invocation, state: ClusterState) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for member in state.nodes:
        if not member.alive:
            print_note(f"{member.name} is down: its topics are not listed")
            continue
        with invocation.connect(member.address) as client:
            topics = client.list_topics()
        rows += [{"node": member.address, **_row(topic.topic, topic.name, topic.settings)} for topic in topics]
    return rows


def describe(
    context: typer.Context,
    name: TopicArgument,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the settings of a topic and the state of its partitions."""
    check_topic_name(name)
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        found = client.describe_topic(name)
    row = _row(found.topic, found.name, found.settings)
    partitions: list[Cell] = [dict(_partition_row(state)) for state in found.partitions]
    if invocation.output.is_json:
        invocation.output.row({**row, "partitions": partitions})
        return
    _show_topics(invocation, [row])
    invocation.output.line("")
    shown = [{**_partition_row(state), "bytes": show_bytes(state.bytes)} for state in found.partitions]
    invocation.output.rows(shown, columns=DESCRIBE_COLUMNS)
    publishers = [row for state in found.partitions for row in _publisher_rows(state, found.settings)]
    if publishers:
        invocation.output.line("")
        invocation.output.rows(publishers, columns=PUBLISHER_COLUMNS)


def show_topic(invocation: Invocation, topic: Topic) -> None:
    _show_topics(invocation, [_row(topic.topic, topic.name, topic.settings)])


def _show_topics(invocation: Invocation, rows: list[dict[str, Cell]], columns: tuple[str, ...] = LIST_COLUMNS) -> None:
    if not invocation.output.is_json:
        for row in rows:
            row["retention"] = show_duration(int(str(row["retention_ms"]))) if row["retention_ms"] else "unlimited"
            row["retention_size"] = (
                show_bytes(int(str(row["retention_bytes"]))) if row["retention_bytes"] else "unlimited"
            )
    invocation.output.rows(rows, columns=columns)


def _row(topic: int, name: str, settings: TopicSettings) -> dict[str, Cell]:
    return {
        "name": name,
        "id": text(topic),
        "partitions": settings.partitions,
        "replicas": settings.replicas,
        "retention_ms": settings.retention_ms,
        "retention_bytes": settings.retention_bytes,
        "segment_bytes": settings.segment_bytes,
        "compaction": settings.compaction,
        "tombstone_ms": settings.tombstone_ms,
        "ownership": settings.ownership,
        "history_depth": settings.history_depth,
    }


def _partition_row(state: PartitionState) -> dict[str, Cell]:
    return {
        "partition": state.partition,
        "state": state.state,
        "first": state.first,
        "commit": state.commit,
        "end": state.end,
        "offsets": state.commit - state.first,
        "bytes": state.bytes,
        "epoch": state.epoch,
        "publishers": [
            {"publisher": text(one.publisher), "strength": one.strength, "lease_ms": one.lease_ms}
            for one in state.publishers
        ],
    }


def _publisher_rows(state: PartitionState, settings: TopicSettings) -> list[dict[str, Cell]]:
    """The strongest first: in an exclusive topic only its records are delivered."""
    return [
        {
            "partition": state.partition,
            "publisher": text(one.publisher),
            "strength": one.strength,
            "lease": show_duration(one.lease_ms),
            "delivered": settings.ownership == "shared" or rank == 0,
        }
        for rank, one in enumerate(state.publishers)
    ]
