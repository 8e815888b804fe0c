"""`rostra pipeline`: archive, aggregate and audit topics with Spark."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from rostra.cli.completion import complete_topic
from rostra.cli.exit_codes import ExitCode
from rostra.cli.invocation import ConfigOption, Invocation, NodeOption, OutputOption, begin
from rostra.cli.output import Cell, print_note
from rostra.cli.quantities import parse_duration_ms
from rostra.errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rostra.spark.pipelines.findings import TopicFindings

EXAMPLES = """
rostra pipeline archive orders --lake lake --once
rostra pipeline rollup orders --lake figures --window '10 seconds'
rostra pipeline audit traces --save audit.json
rostra pipeline report audit.json"""
ARCHIVE_EXAMPLES = """
rostra pipeline archive orders clicks --lake lake
rostra pipeline archive --pattern 'plant/#' --lake table --format delta --once
rostra pipeline archive orders --lake s3a://bucket/lake --master spark://host:7077"""
AUDIT_EXAMPLES = """
rostra pipeline audit traces
rostra pipeline audit traces --save audit.json --conf spark.driver.memory=8g"""
REPORT_EXAMPLES = """
rostra pipeline report audit.json --to report.html
rostra pipeline report audit.json --windows figures"""
COMPACT_EXAMPLES = """
rostra pipeline compact table
rostra pipeline compact lake --to lake-2"""
ROLLUP_EXAMPLES = """
rostra pipeline rollup orders --lake figures --window '1 minute' --by topic,key --once"""

TopicsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TOPIC]...", help="Names of topics.", autocompletion=complete_topic, show_default=False),
]
PatternOption = Annotated[
    str | None, typer.Option(metavar="PATTERN", help="All topics that match, also those created later.")
]
LakeOption = Annotated[
    str, typer.Option(metavar="DIR", help="Where the files go: a directory, or any URL Spark knows.")
]
FromOption = Annotated[
    str,
    typer.Option("--from", "-f", metavar="earliest|latest", help="Where the first run begins."),
]
OnceOption = Annotated[bool, typer.Option("--once", help="End when all records stored at the start are processed.")]
EveryOption = Annotated[str, typer.Option("--every", metavar="TIME", help="Interval between batches.")]
LimitOption = Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Most records in a batch.")]
CheckpointOption = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where Spark stores its progress.", show_default="beside the lake")
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        metavar="parquet|delta", help="Plain files, or a Delta table.", show_default="as it is; parquet for a new lake"
    ),
]
MasterOption = Annotated[str | None, typer.Option(metavar="URL", help="Where Spark runs.", show_default="local[*]")]
ConfOption = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; repeat it for several.")
]


def archive(
    context: typer.Context,
    topics: TopicsArgument = None,
    pattern: PatternOption = None,
    lake: LakeOption = "lake",
    format: FormatOption = None,
    start: FromOption = "earliest",
    once: OnceOption = False,
    every: EveryOption = "10s",
    limit: LimitOption = 1_000_000,
    master: MasterOption = None,
    conf: ConfOption = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Write topics to a lake of Parquet files by topic and date, every record once.

    A new run continues where the lake ends: after Ctrl-C, or a crash of Spark, of this command or of a node. A lake has
    one writer at a time. Small files of a Delta table are merged every 20 batches; `rostra pipeline compact` merges
    plain files into a new lake.
    """
    invocation = begin(context, node=node, output=output, config=config)
    every_ms = _every_ms(every)
    options = _options(invocation, topics, pattern, start, limit)
    with _spark(master, conf) as spark:
        from rostra.spark.pipelines.archive import archive_topics

        query = archive_topics(spark, options, lake, format=format, once=once, trigger_ms=every_ms)
        _follow(query, invocation)


def rollup(
    context: typer.Context,
    topics: TopicsArgument = None,
    pattern: PatternOption = None,
    lake: LakeOption = "rollup",
    window: Annotated[str, typer.Option(metavar="TIME", help="Length of a window.")] = "1 minute",
    slide: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Interval between window starts.", show_default="their length"),
    ] = None,
    watermark: Annotated[str, typer.Option(metavar="TIME", help="How late a record may arrive.")] = "1 minute",
    by: Annotated[str, typer.Option(metavar="topic|topic,key", help="Columns to group by.")] = "topic",
    measure: Annotated[
        str, typer.Option(metavar="SQL", help="Expression whose percentiles are computed.")
    ] = "length(value)",
    exact: Annotated[bool, typer.Option("--exact", help="Exact percentiles and distinct keys.")] = False,
    start: FromOption = "earliest",
    once: OnceOption = False,
    every: EveryOption = "10s",
    limit: LimitOption = None,
    checkpoint: CheckpointOption = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    node: NodeOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Count records in windows of event time, with rates, percentiles and distinct keys, as Parquet files.

    A window is written once, when the watermark has passed it; windows that are still open, and the number of later
    records, are reported.
    """
    invocation = begin(context, node=node, output=output, config=config)
    every_ms = _every_ms(every)
    groups = tuple(part.strip() for part in by.split(","))
    options = _options(invocation, topics, pattern, start, limit)
    with _spark(master, conf) as spark:
        from rostra.spark.pipelines.rollup import rollup as rolled_up
        from rostra.spark.pipelines.rollup import rollup_to_lake

        _check_topics(options)
        frame = spark.readStream.format("rostra").options(**options).load()
        rolled = rolled_up(
            frame, window=window, slide=slide, watermark=watermark, by=groups, measure=measure, exact=exact
        )
        _follow(rollup_to_lake(rolled, lake, checkpoint=checkpoint, once=once, trigger_ms=every_ms), invocation)


def compact(
    context: typer.Context,
    lake: Annotated[str, typer.Argument(metavar="LAKE", help="The lake: a directory, or any URL Spark knows.")],
    to: Annotated[
        str | None, typer.Option(metavar="DIR", help="The new lake, for plain Parquet files.", show_default="in place")
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Merge small files of a lake: those of a Delta table in place, plain Parquet files into a new lake.

    The new lake continues the old one: archive into it from then on, and delete the old one when nobody reads it.
    """
    invocation = begin(context, output=output, config=config)
    with _spark(master, conf) as spark:
        from rostra.spark.lake.compaction import compact as compacted

        done = compacted(spark, lake, to)
    if invocation.output.is_json:
        invocation.output.row(msgspec.structs.asdict(done))
    else:
        print_note(f"{done.files_before:,} files before, {done.files_after:,} files after")


def audit(
    context: typer.Context,
    traces: Annotated[list[str], typer.Argument(metavar="DIR...", help="Directories of traces.")],
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the findings as JSON, for `rostra pipeline report`.")
    ] = None,
    master: MasterOption = None,
    conf: ConfOption = None,
    output: OutputOption = None,
    config: ConfigOption = None,
) -> None:
    """Count from traces what was sent, expected and delivered, and what was lost, duplicated or out of order.

    Traces are written by `rostra serve`, `pub` and `sub` with --trace, and by clients with `trace=`. The exit code is 1
    unless every record arrived once and in order.
    """
    invocation = begin(context, output=output, config=config)
    with _spark(master, conf) as spark:
        from rostra.spark.pipelines.audit import audit as audited
        from rostra.spark.pipelines.audit import read_traces

        found = audited(read_traces(spark, *traces))
    if save is not None:
        save.write_bytes(msgspec.json.encode(found))
    rows = [_findings(topic) for topic in (*found.topics, found.total)]
    columns = ["topic", "created", "subscribed", "sent", "expected", "delivered", "percent"]
    invocation.output.rows(rows, columns=[*columns, "lost", "duplicated", "out_of_order"])
    if not invocation.output.is_json and found.latencies:
        shares = ", ".join(f"{name} {value / 1000:,.1f} ms" for name, value in found.latencies[0].shares_us.items())
        print_note(
            f"latency: {shares}; busiest node {found.imbalance:.2f} times the mean; {len(found.gaps)} changes of owner"
        )
    if not found.total.sound:
        raise typer.Exit(ExitCode.FAILURE)


def _findings(topic: TopicFindings) -> dict[str, Cell]:
    return {**msgspec.structs.asdict(topic), "percent": topic.percent}


def report(
    findings: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="What `rostra pipeline audit` saved.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The page to write.")] = Path("report.html"),
    windows: Annotated[
        Path | None, typer.Option(metavar="DIR", exists=True, help="Output of `rostra pipeline rollup`.")
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Title of the page.")] = "Rostra audit",
) -> None:
    """Write a page of HTML with plots of an audit and, with --windows, of a rollup; it needs no network."""
    from rostra.spark.pipelines.findings import Audit
    from rostra.spark.pipelines.report import report as page
    from rostra.spark.pipelines.report import windows_in

    found = msgspec.json.decode(findings.read_bytes(), type=Audit)
    to.write_text(page(found, title=title, windows=windows_in(windows) if windows is not None else ()))
    print_note(f"wrote {to}")


# --- common parts ---------------------------------------------------------------------------------------------------


def _every_ms(written: str) -> int:
    try:
        return parse_duration_ms(written)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--every'") from None


@contextmanager
def _spark(master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    asked = dict(_setting(written) for written in conf or [])
    from rostra.spark.environment.session import SMALL, check_master, running, session

    check_master(master)

    if running() is not None:
        # Called from a program that has a session: use it and leave it open.
        yield session(conf=asked)
        return
    # Errors are printed in one line; `--conf spark.log.level=INFO` shows Spark's log.
    settings = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
    if master is None or master.startswith("local"):
        settings |= SMALL
    print_note("starting Spark")
    spark = session("rostra-pipeline", master=master, conf=settings | asked)
    # PySpark cancels all jobs on Ctrl-C, which fails the query; stop the query instead.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    finally:
        spark.stop()


def _setting(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{written!r} is not KEY=VALUE", param_hint="'--conf'")
    return name, value


def _options(
    invocation: Invocation, topics: list[str] | None, pattern: str | None, start: str, limit: int | None
) -> dict[str, str]:
    """The options of the data source."""
    if bool(topics) == (pattern is not None):
        raise typer.BadParameter("name topics, or give --pattern", param_hint="'TOPIC'")
    options = {"nodes": ",".join(invocation.configuration.texts("node")), "startingOffsets": start}
    options |= {"subscribe": ",".join(topics)} if topics else {"subscribePattern": pattern or ""}
    if limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
    from rostra.spark.source.options import parse_options

    # Report errors before Spark wraps them.
    parse_options(options, streaming=True)
    return options


def _check_topics(options: dict[str, str]) -> None:
    """Report a missing topic before Spark wraps the error."""
    from rostra.spark.source.cluster_connection import ClusterConnection
    from rostra.spark.source.options import parse_options

    cluster = ClusterConnection(parse_options(options, streaming=True))
    try:
        cluster.available()
    finally:
        cluster.close()


def _follow(query: StreamingQuery, invocation: Invocation) -> None:
    from pyspark.errors import StreamingQueryException

    from rostra.spark.pipelines.progress import BatchProgress, cause_of, follow

    windows, last = 0, None

    def print_progress(progress: BatchProgress) -> None:
        nonlocal windows, last
        last = progress
        windows += progress.windows or 0
        print_note(progress.line())

    try:
        records = follow(query, print_progress)
    except StreamingQueryException as error:
        raise PipelineFailed(cause_of(str(error))) from None
    counted: dict[str, Cell] = {"records": records}
    if last is not None and last.windows is not None:
        counted |= {"windows": windows, "open": last.windows_open}
    if invocation.output.is_json:
        invocation.output.row(counted)
    else:
        print_note(", ".join(f"{count:,} {name}" for name, count in counted.items()))
    if counted.get("open"):
        print_note("open windows are written when later records move the watermark past them")
