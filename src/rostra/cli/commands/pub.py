"""`rostra pub`: publishes records from arguments, or from the lines of stdin or a file."""

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
from rostra.cli.output import print_note
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
            help="What to wait for: nothing, the owner's disk, or the commit.",
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

    For values given as arguments the offset of each record is printed; for lines of stdin or a file the number of
    records, once all are acknowledged. The topic is created with one partition if it does not exist.
    """
    check_topic_name(topic)
    headers = _headers(header or [])
    if file is not None and values:
        raise typer.BadParameter("give values as arguments or in a file, not both", param_hint="'--file'")
    invocation = begin(context, {"acks": acks}, node=node, output=output, config=config)
    keyed = None if key is None else key.encode()
    records = _RecordSettings(topic, keyed, headers, partition, strength, _RateLimit(rate), invocation.configuration)
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
                print_note("reading records from the terminal, one per line; Ctrl-D ends")
            _publish_lines(invocation, client, records, sys.stdin.fileno())


class _RecordSettings:
    """Settings that all records of one command share."""

    def __init__(
        self,
        topic: str,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        strength: int | None,
        rate_limit: _RateLimit,
        configuration: Configuration,
    ) -> None:
        self.topic = topic
        self.key = key
        self.headers = headers
        self.partition = partition
        self.strength = strength
        self.rate_limit = rate_limit
        self.acks: Acks = msgspec.convert(configuration["acks"], Acks)

    def producer(self, client: Client, on_ack: Callable[[Acknowledged], None] | None = None) -> Producer:
        return client.producer(
            self.topic, acks=self.acks, partition=self.partition, strength=self.strength, on_ack=on_ack
        )


class _RateLimit:
    """Spaces records evenly, at most `rate` per second."""

    def __init__(self, rate: float | None) -> None:
        self._pause_s = 1 / rate if rate else 0.0
        self._next_s = 0.0

    def wait(self, before: Callable[[], None] = lambda: None) -> None:
        """Waits until the next record may be sent; calls `before` first if it has to wait."""
        if not self._pause_s:
            return
        if self._next_s > time.monotonic():
            before()
            time.sleep(max(self._next_s - time.monotonic(), 0))
        # Catch up a little after a slow record, or a high rate would never be reached.
        self._next_s = max(self._next_s, time.monotonic() - CATCH_UP_S) + self._pause_s


def _publish_each(invocation: Invocation, client: Client, records: _RecordSettings, values: list[str]) -> None:
    acked: list[Acknowledged] = []
    with records.producer(client, acked.append) as producer:
        for value in values:
            records.rate_limit.wait()
            invocation.wait.begin()
            producer.send(value.encode(), records.key, records.headers)
            producer.flush()
            invocation.wait.done()
            ack = acked[-1]
            if invocation.output.is_json:
                invocation.output.row({"topic": records.topic, "partition": ack.partition, "offset": ack.offset})
            else:
                stored = f"offset {ack.offset}" if ack.offset >= 0 else "sent, not acknowledged"
                invocation.output.line(f"{records.topic}/{ack.partition}  {stored}")


def _publish_repeatedly(
    invocation: Invocation, client: Client, records: _RecordSettings, values: list[bytes], repeat: int
) -> None:
    with records.producer(client) as producer:
        for _ in range(repeat):
            for value in values:
                records.rate_limit.wait(producer.flush)
                producer.send(value, records.key, records.headers)
            invocation.wait.begin()
    _print_count(invocation, records, len(values) * repeat)


def _publish_lines(invocation: Invocation, client: Client, records: _RecordSettings, descriptor: int) -> None:
    sent = 0
    with records.producer(client) as producer:
        invocation.wait.done()
        for lines in chunks_of_lines(descriptor):
            invocation.wait.begin()
            for line in lines:
                records.rate_limit.wait(producer.flush)
                producer.send(line, records.key, records.headers)
            sent += len(lines)
            # Flush when no more input waits: a typed line is sent at once, a stream is batched.
            if not select.select([descriptor], [], [], 0)[0]:
                producer.flush()
                invocation.wait.done()
        invocation.wait.begin()
    _print_count(invocation, records, sent)


def chunks_of_lines(descriptor: int) -> Iterator[list[bytes]]:
    """Lines without their terminators, as they become readable; a last line without a terminator counts, too."""
    # Joined once at its end: a long line would otherwise be copied with every chunk.
    rest: list[bytes] = []
    while chunk := os.read(descriptor, CHUNK_BYTES):
        first, *lines = chunk.split(b"\n")
        rest.append(first)
        if lines:
            lines.insert(0, b"".join(rest))
            rest = [lines.pop()]
            yield [line.removesuffix(b"\r") for line in lines]
    if last := b"".join(rest):
        yield [last]


def _print_count(invocation: Invocation, records: _RecordSettings, sent: int) -> None:
    invocation.wait.done()
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
