"""What the demo shows while it runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import rostra
from rostra.demo.verdict import Verdict

PLAIN_INTERVAL_S = 2.0


class Counted:
    """One line of the live view."""

    def __init__(self, who: str, kind: str, topic: str, doing: str, count: int) -> None:
        self.who = who
        self.kind = kind
        self.topic = topic
        self.doing = doing
        self.count = count


class Screen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = time.monotonic()
        self._lock = Lock()
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._plain_due = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str, style: str = "") -> None:
        """From any thread. It stays on the screen above the live view."""
        stamped = Text(f"{time.monotonic() - self._begun:6.2f} s  {line}", style=style)
        with self._lock:
            self._console.print(stamped, soft_wrap=True)

    def happened(self, who: str, event: rostra.ClientEvent) -> None:
        match event:
            case rostra.Disconnected():
                self.say(f"{who}: connection lost ({event.reason})", "yellow")
            case rostra.Reconnected():
                self.say(f"{who}: reconnected by itself after {event.attempts} attempts", "green")
            case rostra.Resubscribed():
                self.say(f"{who}: goes on at offset {event.offset} of {event.topic}/{event.partition}", "green")
            case rostra.Resent():
                self.say(f"{who}: sent {event.records} unacknowledged records again; they are stored once", "green")
            case rostra.MayDuplicate():
                self.say(f"{who}: {event.records} records may be stored twice ({event.reason})", "red")
            case rostra.Connected():
                self.say(f"{who}: connected", "dim")

    def progress(self, counted: Sequence[Counted]) -> None:
        if self._live is not None:
            self._live.update(_table(counted))
        elif time.monotonic() >= self._plain_due:
            self._plain_due = time.monotonic() + PLAIN_INTERVAL_S
            self.say(", ".join(f"{line.who} {line.doing} {line.count}" for line in counted))

    def conclude(self, verdict: Verdict) -> None:
        self._console.print(Group(verdict_table(verdict), *(Text(line, style="red") for line in verdict.complaints)))


def _table(counted: Sequence[Counted]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("who", "client", "topic", ""):
        table.add_column(column)
    table.add_column("records", justify="right")
    for line in counted:
        table.add_row(line.who, line.kind, line.topic, line.doing, f"{line.count:,}")
    return table


def verdict_table(verdict: Verdict) -> Table:
    # Eight columns must fit eighty characters.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False, show_footer=True)
    total = [
        ("subscriber", "total", "left"),
        ("topic", "", "left"),
        ("sent", f"{verdict.sent:,}", "right"),
        ("acknowledged", f"{verdict.acknowledged:,}", "right"),
        ("expected", f"{verdict.expected:,}", "right"),
        ("delivered", f"{verdict.delivered:,}", "right"),
        ("percent", f"{shown_percent(verdict.delivered, verdict.expected)}", "right"),
        ("duplicates", f"{verdict.duplicates:,}", "right"),
    ]
    for name, footer, justify in total:
        table.add_column(name, footer=footer, justify="right" if justify == "right" else "left", no_wrap=True)
    for line in verdict.lines:
        table.add_row(
            line.interest.subscriber,
            line.interest.topic,
            f"{line.sent:,}",
            f"{line.acknowledged:,}",
            f"{line.expected:,}",
            f"{line.delivered:,}",
            shown_percent(line.delivered, line.expected),
            f"{line.duplicates:,}",
        )
    return table


def shown_percent(delivered: int, expected: int) -> str:
    """100 % only when it is all of it."""
    if delivered == expected:
        return "100 %"
    return f"{min(100 * delivered / expected, 99.999):.3f} %" if expected else "-"
