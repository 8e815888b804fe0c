"""`rostra sub`: prints the records of topics as they arrive."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rostra.cli.completion import complete_topic
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import (
    CALL_TIMEOUT_MS,
    ConfigOption,
    Invocation,
    NodeOption,
    OutputOption,
    TraceOption,
    begin,
)
from rostra.cli.output import Cell, bytes_cell, print_note
from rostra.cli.quantities import parse_duration_ms, parse_moment_us
from rostra.errors import UnknownTopic
from rostra.model.ids import check_topic_name
from rostra.model.patterns import Pattern, is_wild

if TYPE_CHECKING:
    from rostra.blocking import Client, NamedSubscription
    from rostra.client.core.options import Start
    from rostra.model.decode import Record

EXAMPLES = """
rostra sub greetings
rostra sub orders --from earliest --count 10
rostra sub orders --from last:5 --timeout 2s -o json
rostra sub orders --from 2026-11-16T10:00:00Z
rostra sub 'sensors/+/temp' alarms --from -10m
rostra sub '#' --from earliest
rostra sub orders --name billing --dead-letter orders/failed --tries 5
rostra sub lines --from earliest --raw > lines.txt"""


def subscribe(
    context: typer.Context,
    topics: Annotated[
        list[str],
        typer.Argument(
            metavar="TOPIC...", help="Names, or patterns as sensors/+/temp or a/#.", autocompletion=complete_topic
        ),
    ],
    start: Annotated[
        str,
        typer.Option("--from", "-f", metavar="earliest|latest|OFFSET|last:N|TIME|-AGO", help="Where to begin."),
    ] = "latest",
    count: Annotated[
        int | None, typer.Option("--count", "-c", metavar="N", min=1, help="End after this many records.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="This partition only.", show_default="all")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End when no record arrived for this long, e.g. 5s.", show_default="never"),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Values only, one per line, unchanged.")] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            "--group",
            metavar="NAME",
            help="Name whose position to continue at and share.",
        ),
    ] = None,
    tries: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --name: how often a record is tried.", show_default="no end")
    ] = 0,
    dead_letter: Annotated[
        str, typer.Option(metavar="TOPIC", help="With --name: where records go after --tries.", show_default="nowhere")
    ] = "",
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="With --name: acknowledge nothing; the records are redelivered.")
    ] = False,
    no_create: Annotated[
        bool, typer.Option("--no-create", help="Fail if a topic does not exist, instead of creating it.")
    ] = False,
    trace: TraceOption = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Subscribe to topics and print their records as they arrive.

    In a pattern, + matches one level and # at the end all further levels; topics that are created later and match are
    read from their first record. --from takes a time such as 2026-11-16T10:00:00Z or a duration before now such as
    -10m, and begins with the first record that is not earlier.

    On a terminal each record is a line with time, topic/partition@offset, key and value; on a pipe, or with -o json, a
    JSON object in which bytes that are not UTF-8 are value_base64 or key_base64. The command ends with Ctrl-C, after
    --count records, or when none arrived for --timeout. If the connection is lost, it reconnects and continues without
    a gap.

    With --name the cluster stores the position: the next subscriber with that name continues after the last record that
    was printed, and --from applies to the first one only. Several at the same time share the partitions. A record
    counts as tried when the subscriber that had it died; after --tries it goes to --dead-letter.
    """
    for topic in topics:
        if is_wild(topic):
            Pattern.parse(topic)
        else:
            check_topic_name(topic)
    begin_at = parse_start(start, time.time_ns() // 1000)
    timeout_s = parse_timeout_s(timeout)
    invocation = begin(context, node=node, output=output, config=config)
    call_timeout_ms = CALL_TIMEOUT_MS if timeout_s is None else min(max(int(timeout_s * 1000), 1), CALL_TIMEOUT_MS)
    encode = encoder(raw=raw, is_json=invocation.output.is_json)
    if name is not None:
        if partition is not None:
            raise typer.BadParameter("with --name all partitions are shared by the members", param_hint="'--partition'")
        with (
            invocation.connect(call_timeout_ms=call_timeout_ms) as client,
            client.subscribe(*topics, start=begin_at, name=name, tries=tries, dead_letter=dead_letter) as named,
        ):
            invocation.wait.done()
            shown = _show_named(invocation, named, encode, count, timeout_s, ack=not no_ack)
        _check_count(shown, count)
        return
    if tries or dead_letter or no_ack:
        raise typer.BadParameter("--tries, --dead-letter and --no-ack need --name", param_hint="'--name'")
    shown = 0
    with contextlib.ExitStack() as opened:
        client = opened.enter_context(invocation.connect(trace=trace, call_timeout_ms=call_timeout_ms))
        missing = _missing_topics(client, topics)
        if missing and no_create:
            raise UnknownTopic(missing[0])
        subscription = opened.enter_context(client.subscribe(*topics, start=begin_at, partition=partition))
        invocation.wait.done()
        for topic in missing:
            print_note(f"note: topic {topic} did not exist and was created; --no-create refuses that")
        if not invocation.output.is_json and start == "latest":
            what = ", ".join(topics)
            print_note(f"waiting for new records of {what}; Ctrl-C ends, `--from earliest` shows stored ones")
        for batch in subscription.batches(timeout_s):
            records = batch.records()[: None if count is None else count - shown]
            invocation.output.write(b"".join(map(encode, records)))
            shown += len(records)
            if shown == count:
                break
    _check_count(shown, count)


def _missing_topics(client: Client, topics: list[str]) -> list[str]:
    """Topics, without patterns, that subscribing would create."""
    missing = []
    for topic in topics:
        if not is_wild(topic):
            try:
                client.describe_topic(topic)
            except UnknownTopic:
                missing.append(topic)
    return missing


def _show_named(
    invocation: Invocation,
    subscription: NamedSubscription,
    encode: Callable[[Record], bytes],
    count: int | None,
    timeout_s: float | None,
    *,
    ack: bool,
) -> int:
    shown = 0
    while shown != count and (record := subscription.receive(timeout_s)) is not None:
        # Print, then acknowledge: a record that could not be printed is redelivered.
        invocation.output.write(encode(record))
        if ack:
            record.ack()
        shown += 1
    return shown


def _check_count(shown: int, count: int | None) -> None:
    if count is not None and shown < count:
        print_note(f"note: {shown} of {count} records arrived before the timeout")
        raise typer.Exit(ExitCode.FAILURE)


def parse_start(written: str, now_us: int, option: str = "'--from'") -> Start:
    from rostra.client.core.options import Last, Offset, Time

    kind, colon, number = written.partition(":")
    if written in ("earliest", "latest"):
        return written
    if written.isdecimal():
        return Offset(int(written))
    if kind == "last" and colon and number.isdecimal():
        return Last(int(number))
    try:
        return Time(parse_moment_us(written, now_us))
    except ValueError:
        wrong = f"{written!r} is none of earliest, latest, an offset, last:N, a time as 2026-11-16T10:00:00Z, -10m"
        raise typer.BadParameter(wrong, param_hint=option) from None


def parse_timeout_s(timeout: str | None) -> float | None:
    try:
        return None if timeout is None else parse_duration_ms(timeout) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--timeout'") from None


def encoder(*, raw: bool, is_json: bool) -> Callable[[Record], bytes]:
    """The function that formats a record."""
    return _raw if raw else _json if is_json else _line


def _raw(record: Record) -> bytes:
    return (record.value or b"") + b"\n"


def _json(record: Record) -> bytes:
    row: dict[str, Cell] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_us": record.timestamp_us,
        **bytes_cell("key", record.key),
        **bytes_cell("value", record.value),
    }
    if record.headers:
        row["headers"] = [{"name": name, **bytes_cell("value", content)} for name, content in record.headers]
    return msgspec.json.encode(row) + b"\n"


def _line(record: Record) -> bytes:
    at = datetime.fromtimestamp(record.timestamp_us / 1e6, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    position = f"{record.topic}/{record.partition}@{record.offset}"
    key = "" if record.key is None else f"{_printable(record.key)} → "
    return f"{at}  {position}  {key}{'∅' if record.value is None else _printable(record.value)}\n".encode()


def _printable(content: bytes) -> str:
    """Text without control characters that the terminal would interpret."""
    text = content.decode(errors="replace")
    return "".join(character if character.isprintable() or character == "\t" else "�" for character in text)
