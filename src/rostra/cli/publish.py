"""`rostra pub`: records from arguments, or from the lines of stdin or a file."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rostra.cli.configuration import Configuration
from rostra.cli.invocation import ConfigOption, Invocation, NodeOption, OutputOption, TopicArgument, TraceOption, begin
from rostra.cli.output import note
from rostra.model.ids import check_topic_name
from rostra.wire.messages import Acks

if TYPE_CHECKING:
    from rostra.blocking import Client
    from rostra.model.encode import Headers

EXAMPLES = """
rostra pub greetings hello
rostra pub orders '{"sku": 7}' --key customer-1 --header source=shop
cat lines.txt | rostra pub lines
rostra pub lines --file lines.txt --acks owner
rostra pub load x --repeat 1000"""

CHUNK_BYTES = 1 << 16


def publish(
    context: typer.Context,
    topic: TopicArgument,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE]...", help="One record each; none, or `-`: one per line of stdin."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="Key of every record; it chooses the partition.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Header of every record. Repeatable."),
    ] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", min=0, help="Publish to this partition.")] = None,
    acks: Annotated[
        str | None,
        typer.Option(
            metavar="none|owner|all",
            help="What to wait for: nothing, the owner's disk, every copy.",
            show_default="all",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", exists=True, dir_okay=False, help="One record per line of this file.")
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="Publish the values this many times.")] = 1,
    trace: TraceOption = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Publish records.

    Values given as arguments are answered with the offset of each record; lines of stdin or of a file with their
    number, once all are acknowledged. The topic is created with one partition if there is none of that name.
    """
    check_topic_name(topic)
    headers = _headers(header or [])
    if file is not None and values:
        raise typer.BadParameter("values come from arguments or from a file, not from both", param_hint="'--file'")
    invocation = begin(context, {"acks": acks}, node=node, output=output, config=config)
    records = _Records(topic, None if key is None else key.encode(), headers, partition, invocation.configuration)
    with invocation.connect(trace=trace) as client:
        if values and values != ["-"] and repeat == 1:
            _publish_each(invocation, client, records, values)
        elif values and values != ["-"]:
            _publish_repeatedly(invocation, client, records, [value.encode() for value in values], repeat)
        elif file is not None:
            with file.open("rb") as lines:
                _publish_lines(invocation, client, records, lines.fileno())
        else:
            if sys.stdin.isatty():
                note("reading records from the terminal, one per line; Ctrl-D ends")
            _publish_lines(invocation, client, records, sys.stdin.fileno())


class _Records:
    """What all records of one command have in common."""

    def __init__(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        configuration: Configuration,
    ) -> None:
        self.topic = topic
        self.key = key
        self.headers = headers
        self.partition = partition
        self.acks: Acks = msgspec.convert(configuration["acks"], Acks)


def _publish_each(invocation: Invocation, client: Client, records: _Records, values: list[str]) -> None:
    for value in values:
        ack = client.publish(
            records.topic,
            value.encode(),
            key=records.key,
            headers=records.headers,
            partition=records.partition,
            acks=records.acks,
        )
        if invocation.output.is_json:
            invocation.output.row({"topic": ack.topic, "partition": ack.partition, "offset": ack.offset})
        else:
            stored = f"offset {ack.offset}" if ack.offset >= 0 else "sent, without waiting"
            invocation.output.line(f"{ack.topic}/{ack.partition}  {stored}")


def _publish_repeatedly(
    invocation: Invocation, client: Client, records: _Records, values: list[bytes], repeat: int
) -> None:
    with client.producer(records.topic, acks=records.acks, partition=records.partition) as producer:
        for _ in range(repeat):
            for value in values:
                producer.send(value, records.key, records.headers)
    _tell(invocation, records, len(values) * repeat)


def _publish_lines(invocation: Invocation, client: Client, records: _Records, descriptor: int) -> None:
    sent = 0
    with client.producer(records.topic, acks=records.acks, partition=records.partition) as producer:
        for lines in chunks_of_lines(descriptor):
            for line in lines:
                producer.send(line, records.key, records.headers)
            sent += len(lines)
            # A line that was typed must not wait for the next one; a stream must not wait for every chunk.
            if not select.select([descriptor], [], [], 0)[0]:
                producer.flush()
    _tell(invocation, records, sent)


def chunks_of_lines(descriptor: int) -> Iterator[list[bytes]]:
    """Whole lines as they become readable, without their ends; a last one without an end counts too."""
    rest = b""
    while chunk := os.read(descriptor, CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _tell(invocation: Invocation, records: _Records, sent: int) -> None:
    if invocation.output.is_json:
        invocation.output.row({"topic": records.topic, "records": sent, "acks": records.acks})
    else:
        invocation.output.line(f"{sent} records published to {records.topic} (acks={records.acks})")


def _headers(given: list[str]) -> Headers | None:
    headers: list[tuple[str, bytes]] = []
    for written in given:
        name, equals, value = written.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{written!r} is not NAME=VALUE", param_hint="'--header'")
        headers.append((name, value.encode()))
    return headers or None
