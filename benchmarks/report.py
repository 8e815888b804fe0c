"""The findings as tables: on the terminal, and as the page that is kept."""

import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.estimates import Estimate
from benchmarks.findings import Figure, Findings, Verdict

Rows = list[tuple[str, ...]]

FIGURE_COLUMNS = ("scenario", "contender", "durability", "median", "95 % interval", "trials")
RATIO_COLUMNS = ("scenario", "ours", "peer", "ratio", "95 % interval", "beside it")
TARGET_COLUMNS = ("target", "promised", "measured", "95 % interval", "", "remark")

INTRODUCTION = """\
# Results

Written by `make bench`, but for the section on the soak. A rate is records received, divided by the time from
the first publish to the last receive; records are distinct, and every subscriber's are compared
with what was published, in content and order. Publisher, subscribers and servers are separate
processes on one machine, connected by loopback. Trials of ours and of the peer alternate, and a
trial in which other programs used more than 15 % of the processors is repeated.
*Hand-batched* is the peer with 640 records packed into each message by the application.
*Three nodes* are three servers of the contender on this machine, each with a copy of every record; the durability
says how many of them have it, and how safely, before it is acknowledged.
"""


def print_report(console: Console, findings: Findings) -> None:
    for title, columns, rows in sections(findings):
        table = Table(*columns, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for name, reason in findings.absences.items():
        console.print(f"{name}: not measured: {reason}", highlight=False)


def markdown(findings: Findings) -> str:
    parts = [INTRODUCTION, "\n".join(f"- {line}" for line in machine_lines())]
    for title, columns, rows in sections(findings):
        parts.append(f"## {title}\n\n{markdown_table(columns, rows)}")
    settings = [f"- **{name}**: {'; '.join(lines)}" for name, lines in findings.settings.items()]
    parts.append("## Settings\n\n" + "\n".join(settings))
    if findings.absences:
        absent = [f"- {name}: {without_places(why)}" for name, why in findings.absences.items()]
        parts.append("## Not measured\n\n" + "\n".join(absent))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def sections(findings: Findings) -> list[tuple[str, tuple[str, ...], Rows]]:
    ratios: Rows = [
        (
            each.scenario,
            each.ours,
            each.peer,
            f"{each.ratio.median:.2f}x",
            interval(each.ratio),
            each.remark,
        )
        for each in findings.comparisons
    ]
    tables: list[tuple[str, tuple[str, ...], Rows]] = [
        ("Targets", TARGET_COLUMNS, [verdict_row(verdict) for verdict in findings.verdicts]),
        ("Ratios", RATIO_COLUMNS, ratios),
        ("Figures", FIGURE_COLUMNS, [figure_row(figure) for figure in findings.figures]),
    ]
    return [(title, columns, rows) for title, columns, rows in tables if rows]


def verdict_row(verdict: Verdict) -> tuple[str, ...]:
    target, measured = verdict.target, verdict.measured
    return (
        target.claim,
        f"{target.bound.value} {target.value:g}{target.unit}",
        "none" if measured is None else f"{measured.median:.2f}{target.unit}",
        "" if measured is None else interval(measured),
        "met" if verdict.is_met else "missed",
        without_places(verdict.remark),
    )


def figure_row(figure: Figure) -> tuple[str, ...]:
    estimate = figure.estimate
    disturbed = f", {figure.disturbed_trials} disturbed" if figure.disturbed_trials else ""
    return (
        figure.scenario,
        figure.contender,
        figure.durability,
        f"{number(estimate.median)} {figure.quantity}",
        interval(estimate),
        f"{estimate.count}{disturbed}",
    )


def interval(estimate: Estimate) -> str:
    return "" if estimate.count < 2 else f"{number(estimate.low)} to {number(estimate.high)}"


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def markdown_table(columns: tuple[str, ...], rows: Rows) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine_lines() -> list[str]:
    """What a reader needs to judge the figures, and nothing that names the machine."""
    cpu_info = Path("/proc/cpuinfo").read_text()
    models = [line.split(":", 1)[1].strip() for line in cpu_info.splitlines() if "model name" in line]
    return [
        f"CPU: {models[0] if models else platform.machine()}, {len(models)} cores",
        f"kernel: {platform.system()} {platform.release()}",
        f"Python: {platform.python_version()}",
        f"date: {datetime.now(UTC):%Y-%m-%d}",
        f"revision: {revision()}",
    ]


def without_places(reason: str) -> str:
    """Error texts quote addresses and paths of this machine; the page that is kept must not."""
    return re.sub(r"\w+://\S+|(?<!\w)/\S+", "(...)", reason)


def revision() -> str:
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() or "unknown"
