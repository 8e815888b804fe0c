"""`rostra sub`: the records of topics, as they come."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rostra.cli.completion import complete_topic
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import ConfigOption, Invocation, NodeOption, OutputOption, TraceOption, begin
from rostra.cli.output import Cell, bytes_cell, note
from rostra.cli.quantities import parse_duration_ms, parse_moment_us
from rostra.model.ids import check_topic_name
from rostra.model.patterns import Pattern, is_wild

if TYPE_CHECKING:
    from rostra.blocking import NamedSubscription
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
        typer.Option(metavar="TIME", help="End when no record came for so long, e.g. 5s.", show_default="never"),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Values only, one per line, as they are.")] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", "--group", metavar="NAME", help="Go on where this name stands, and share with others."),
    ] = None,
    tries: Annotated[
        int, typer.Option(metavar="N", min=0, help="With --name: how often a record is tried.", show_default="no end")
    ] = 0,
    dead_letter: Annotated[
        str, typer.Option(metavar="TOPIC", help="With --name: where records go after --tries.", show_default="nowhere")
    ] = "",
    no_ack: Annotated[
        bool, typer.Option("--no-ack", help="With --name: acknowledge nothing, so that it all comes again.")
    ] = False,
    trace: TraceOption = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Subscribe to topics and show their records as they come.

    In a pattern, + stands for one level and # at the end for all further ones; topics that are made later and match are
    picked up from their first record on. --from takes a time, as 2026-11-16T10:00:00Z, or how long ago, as -10m: it
    begins with the first record that is not earlier.

    On a terminal each record is a line with its time, place, key and value; on a pipe, or with -o json, it is a JSON
    object; bytes that are not UTF-8 stand there as value_base64 or key_base64. It ends with Ctrl-C, after --count
    records, or when none came for --timeout. If the node goes away, the command reconnects and goes on without a gap.

    With --name the cluster keeps the position: the next who uses the name goes on behind the last record that was
    shown, and --from counts for the first only. Several at once share the partitions. A record counts as tried when
    whoever had it died; after --tries it goes to --dead-letter.
    """
    for topic in topics:
        if is_wild(topic):
            Pattern.parse(topic)
        else:
            check_topic_name(topic)
    begin_at = parse_start(start, time.time_ns() // 1000)
    patience_s = parse_patience_s(timeout)
    invocation = begin(context, node=node, output=output, config=config)
    encode = encoder(raw=raw, is_json=invocation.output.is_json)
    if name is not None:
        if partition is not None:
            raise typer.BadParameter("the members of a name share all partitions", param_hint="'--partition'")
        with (
            invocation.connect() as client,
            client.subscribe(*topics, start=begin_at, name=name, tries=tries, dead_letter=dead_letter) as named,
        ):
            shown = _show_named(invocation, named, encode, count, patience_s, ack=not no_ack)
        _check_count(shown, count)
        return
    if tries or dead_letter or no_ack:
        raise typer.BadParameter("--tries, --dead-letter and --no-ack are for --name", param_hint="'--name'")
    shown = 0
    with (
        invocation.connect(trace=trace) as client,
        client.subscribe(*topics, start=begin_at, partition=partition) as subscription,
    ):
        if not invocation.output.is_json and start == "latest":
            what = ", ".join(topics)
            note(f"waiting for new records of {what}; Ctrl-C ends, `--from earliest` shows those that are there")
        for batch in subscription.batches(patience_s):
            records = batch.records()[: None if count is None else count - shown]
            invocation.output.write(b"".join(map(encode, records)))
            shown += len(records)
            if shown == count:
                break
    _check_count(shown, count)


def _show_named(
    invocation: Invocation,
    subscription: NamedSubscription,
    encode: Callable[[Record], bytes],
    count: int | None,
    patience_s: float | None,
    *,
    ack: bool,
) -> int:
    shown = 0
    while shown != count and (record := subscription.receive(patience_s)) is not None:
        # First shown, then acknowledged: what could not be shown comes again.
        invocation.output.write(encode(record))
        if ack:
            record.ack()
        shown += 1
    return shown


def _check_count(shown: int, count: int | None) -> None:
    if count is not None and shown < count:
        note(f"note: {shown} of {count} records came before the timeout")
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


def parse_patience_s(timeout: str | None) -> float | None:
    try:
        return None if timeout is None else parse_duration_ms(timeout) / 1000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--timeout'") from None


def encoder(*, raw: bool, is_json: bool) -> Callable[[Record], bytes]:
    """How records are shown."""
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
    place = f"{record.topic}/{record.partition}@{record.offset}"
    key = "" if record.key is None else f"{_shown(record.key)} → "
    return f"{at}  {place}  {key}{'∅' if record.value is None else _shown(record.value)}\n".encode()


def _shown(content: bytes) -> str:
    """Text as it is, without what would drive the terminal."""
    text = content.decode(errors="replace")
    return "".join(character if character.isprintable() or character == "\t" else "�" for character in text)
