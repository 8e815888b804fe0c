"""`rostra pub`: records from arguments, or from the lines of stdin or a file."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
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
    from rostra.blocking import Client, Producer
    from rostra.client.core.effects import Acknowledged
    from rostra.model.encode import Headers

EXAMPLES = """
rostra pub greetings hello
rostra pub orders '{"sku": 7}' --key customer-1 --header source=shop
cat lines.txt | rostra pub lines
rostra pub lines --file lines.txt --acks owner
rostra pub load x --repeat 1000 --rate 50
rostra pub position "52.5 13.4" --strength 10"""

CHUNK_BYTES = 1 << 16
CATCH_UP_S = 0.01


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
    strength: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=2**31 - 1,
            help="Publish with this strength: of an exclusive topic only the strongest publisher is delivered.",
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", min=0.001, help="At most this many records in a second.")
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
    keyed = None if key is None else key.encode()
    records = _Records(topic, keyed, headers, partition, strength, _Pace(rate), invocation.configuration)
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
        strength: int | None,
        pace: _Pace,
        configuration: Configuration,
    ) -> None:
        self.topic = topic
        self.key = key
        self.headers = headers
        self.partition = partition
        self.strength = strength
        self.pace = pace
        self.acks: Acks = msgspec.convert(configuration["acks"], Acks)

    def producer(self, client: Client, on_ack: Callable[[Acknowledged], None] | None = None) -> Producer:
        return client.producer(
            self.topic, acks=self.acks, partition=self.partition, strength=self.strength, on_ack=on_ack
        )


class _Pace:
    """Lets records leave evenly, no faster than asked for."""

    def __init__(self, rate: float | None) -> None:
        self._pause_s = 1 / rate if rate else 0.0
        self._next_s = 0.0

    def hold(self, before: Callable[[], None] = lambda: None) -> None:
        """Waits until the next record may leave; calls `before` first if that is not yet so."""
        if not self._pause_s:
            return
        if self._next_s > time.monotonic():
            before()
            time.sleep(max(self._next_s - time.monotonic(), 0))
        # A little of what a slow one cost is made up for, else a high rate would never be reached.
        self._next_s = max(self._next_s, time.monotonic() - CATCH_UP_S) + self._pause_s


def _publish_each(invocation: Invocation, client: Client, records: _Records, values: list[str]) -> None:
    acked: list[Acknowledged] = []
    with records.producer(client, acked.append) as producer:
        for value in values:
            records.pace.hold()
            producer.send(value.encode(), records.key, records.headers)
            producer.flush()
            ack = acked[-1]
            if invocation.output.is_json:
                invocation.output.row({"topic": records.topic, "partition": ack.partition, "offset": ack.offset})
            else:
                stored = f"offset {ack.offset}" if ack.offset >= 0 else "sent, without waiting"
                invocation.output.line(f"{records.topic}/{ack.partition}  {stored}")


def _publish_repeatedly(
    invocation: Invocation, client: Client, records: _Records, values: list[bytes], repeat: int
) -> None:
    with records.producer(client) as producer:
        for _ in range(repeat):
            for value in values:
                records.pace.hold(producer.flush)
                producer.send(value, records.key, records.headers)
    _tell(invocation, records, len(values) * repeat)


def _publish_lines(invocation: Invocation, client: Client, records: _Records, descriptor: int) -> None:
    sent = 0
    with records.producer(client) as producer:
        for lines in chunks_of_lines(descriptor):
            for line in lines:
                records.pace.hold(producer.flush)
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
