"""The last part of the demo: Spark audits the traces of all nodes and clients, and counts records in windows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from rostra.spark.pipelines.findings import Audit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOWS_SHOWN = 8


def show(spark: SparkSession, console: Console, nodes: list[str], topics: list[str], traces: Path, page: Path) -> Audit:
    """Prints the tables and writes the report. The traces must be closed and the nodes still running."""
    from rostra.spark.pipelines.audit import audit, read_traces
    from rostra.spark.pipelines.report import report
    from rostra.spark.pipelines.rollup import rollup

    found = audit(read_traces(spark, str(traces)))
    console.print(audit_table(found))
    chosen = {"nodes": ",".join(nodes), "subscribe": ",".join(topics)}
    records = spark.read.format("rostra").options(**chosen).load()
    windows = [row.asDict() for row in rollup(records, window="2 seconds").orderBy("start", "topic").collect()]
    console.print(windows_table(windows))
    page.write_text(report(found, title="Rostra demo", windows=windows), encoding="utf-8")
    console.print(f"report: {page}", soft_wrap=True)
    return found


def audit_table(found: Audit) -> Table:
    title = "audit of the traces, by Spark"
    # It must fit eighty columns.
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=0, pad_edge=False, show_edge=False)
    counted = ("created", "subscribed", "sent", "expected", "delivered", "lost", "duplicated", "out_of_order")
    table.add_column("topic")
    for name in (*counted, "share"):
        table.add_column("out of\norder" if name == "out_of_order" else name, justify="right", no_wrap=True)
    for topic in (*found.topics, found.total):
        numbers = (f"{getattr(topic, name):,}" for name in counted)
        table.add_row("all" if topic is found.total else topic.topic, *numbers, f"{topic.percent:g} %")
    return table


def windows_table(windows: list[dict[str, Any]]) -> Table:
    title = f"rollup of the topics in windows of 2 s, the first {min(len(windows), WINDOWS_SHOWN)} of {len(windows)}"
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", show_edge=False)
    for name in ("start", "topic", "records", "per second", "bytes", "p50", "p99"):
        table.add_column(name, justify="left" if name in ("start", "topic") else "right")
    for row in windows[:WINDOWS_SHOWN]:
        table.add_row(
            f"{row['start']:%H:%M:%S}",
            row["topic"],
            f"{row['records']:,}",
            f"{row['per_second']:,.0f}",
            f"{row['bytes']:,}",
            f"{row['p50']:g}",
            f"{row['p99']:g}",
        )
    return table
