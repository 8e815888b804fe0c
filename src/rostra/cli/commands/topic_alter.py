"""`rostra topic alter`: changes settings of a topic."""

from __future__ import annotations

from typing import Annotated

import typer

from rostra.cli.commands.topic import bytes_of, duration_ms_of, show_topic
from rostra.cli.invocation import ConfigOption, NodeOption, OutputOption, TopicArgument, begin
from rostra.model.ids import check_topic_name

EXAMPLES = """
rostra topic alter orders --retention 7d
rostra topic alter prices --compaction --tombstones 1d
rostra topic alter orders --retention never --retention-bytes 10GiB"""


def alter(
    context: typer.Context,
    name: TopicArgument,
    retention: Annotated[
        str | None, typer.Option(metavar="TIME", help="Delete records older than this, e.g. 7d; or 'never'.")
    ] = None,
    retention_bytes: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Keep about this much per partition; 0: no limit.")
    ] = None,
    segment_bytes: Annotated[str | None, typer.Option(metavar="BYTES", help="Size of a log file.")] = None,
    compaction: Annotated[
        bool | None, typer.Option("--compaction/--no-compaction", help="Keep only the latest record of each key.")
    ] = None,
    tombstones: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long compaction keeps tombstones of deleted keys, e.g. 1d.")
    ] = None,
    history_depth: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Most records that `last:N` gives; 0: set by the node."),
    ] = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Change settings of a topic; the others stay as they are."""
    check_topic_name(name)
    age_ms = None if retention is None else 0 if retention == "never" else duration_ms_of(retention)
    size = None if retention_bytes is None else bytes_of(retention_bytes, 0)
    segment = None if segment_bytes is None else bytes_of(segment_bytes, 0)
    tombstone_ms = None if tombstones is None else duration_ms_of(tombstones)
    if all(given is None for given in (age_ms, size, segment, compaction, tombstone_ms, history_depth)):
        raise typer.BadParameter("give at least one setting to change; --help lists them")
    invocation = begin(context, node=node, output=output, config=config)
    with invocation.connect() as client:
        altered = client.alter_topic(
            name,
            retention_ms=age_ms,
            retention_bytes=size,
            segment_bytes=segment,
            compaction=compaction,
            tombstone_ms=tombstone_ms,
            history_depth=history_depth,
        )
    show_topic(invocation, altered)
