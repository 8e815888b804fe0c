"""What the demo shows while it runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from threading import Lock
from types import TracebackType
from typing import Self

import msgspec
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import rostra
from rostra.demo.node_logs import NodeLine
from rostra.demo.verdict import Verdict

PLAIN_INTERVAL_S = 2.0
GATHER_S = 0.3
"""What happens to several clients within this time is told in one line."""
LEVEL_STYLES = {"warning": "yellow", "error": "red", "critical": "red"}


class SubscriptionLine(msgspec.Struct, frozen=True):
    """One line of the live view."""

    who: str
    kind: str
    at: str
    topic: str
    doing: str
    count: int


class PartitionLine(msgspec.Struct, frozen=True):
    """One partition in the live view. `lags` are of the nodes in their order; None where there is no copy."""

    partition: str
    owner: str
    term: int
    commit: int
    lags: tuple[str, ...]


def clock() -> str:
    """As the nodes write it in their logs."""
    return datetime.now(UTC).strftime("%H:%M:%S.%f")[:12]


class Screen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = Lock()
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._plain_due = 0.0
        self._happened: dict[str, dict[str, None]] = {}
        self._tell_at = 0.0
        self.names: dict[str, str] = {}
        """Of the nodes, by address."""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str, style: str = "bold") -> None:
        """From any thread. It stays on the screen above the live view."""
        self._print(Text(f"{clock()}  {line}", style=style))

    def log(self, lines: Iterable[NodeLine]) -> None:
        for line in lines:
            self._print(Text(str(line), style=LEVEL_STYLES.get(line.level, "cyan")))

    def _print(self, line: Text) -> None:
        with self._lock:
            self._console.print(line, soft_wrap=True)

    # --- what happens to clients ---

    def happened(self, who: str, event: rostra.ClientEvent) -> None:
        """From any thread."""
        match event:
            case rostra.Disconnected():
                self._gather(f"lost the connection to {self.names.get(event.address, event.address)}", who)
            case rostra.Reconnected():
                self._gather(f"connected to {self.names.get(event.address, event.address)} again", who)
            case rostra.Resubscribed():
                where = f"{who} at offset {event.offset:,}"
                self._gather(f"go on receiving {event.topic}/{event.partition} from its new owner", where)
            case rostra.Skipped():
                where = f"{who} {event.first - event.offset:,} offsets"
                self._gather(f"missed what retention removed from {event.topic}/{event.partition}", where)
            case rostra.Resent():
                self._gather(
                    "sent again what was not acknowledged, to be stored once", f"{who} {event.records} records"
                )
            case rostra.MayDuplicate():
                self._gather(f"may have stored records twice ({event.reason})", f"{who} {event.records} records")
            case rostra.LeaseExpired():
                self._gather(f"was silent for its lease as a publisher of {event.topic}", who)
            case rostra.Connected() | rostra.TopicAppeared() | rostra.TopicGone():
                pass
            case rostra.Redelivered() | rostra.DeadLettered() | rostra.MembershipLost():
                # Nobody has a named subscription here.
                pass

    def _gather(self, what: str, who: str) -> None:
        with self._lock:
            if not self._happened:
                self._tell_at = time.monotonic() + GATHER_S
            self._happened.setdefault(what, {})[who] = None

    def tell(self) -> None:
        """What happened to clients, those together that it happened to at the same time."""
        with self._lock:
            if time.monotonic() < self._tell_at:
                return
            happened, self._happened = self._happened, {}
        for what, whom in happened.items():
            self.say(f"clients: {what}: {', '.join(whom)}", "green" if "again" in what or "go on" in what else "yellow")

    # --- how far it is ---

    def progress(
        self, counted: Sequence[SubscriptionLine], placed: Sequence[PartitionLine], nodes: Sequence[str]
    ) -> None:
        if self._live is not None:
            self._live.update(Group(Text(), _counted_table(counted), Text(), _placed_table(placed, nodes)))
        elif time.monotonic() >= self._plain_due:
            self._plain_due = time.monotonic() + PLAIN_INTERVAL_S
            sums: dict[str, int] = {}
            for line in counted:
                sums[line.doing] = sums.get(line.doing, 0) + line.count
            self.say(", ".join(f"{doing} {count:,}" for doing, count in sums.items()), "")

    def conclude(self, verdict: Verdict) -> None:
        complaints = (Text(line, style="red") for line in verdict.complaints)
        self._console.print(Group(Text(), verdict_table(verdict), *complaints, Text()))


def _counted_table(counted: Sequence[SubscriptionLine]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in ("who", "client", "first connected to", "topic", ""):
        table.add_column(column)
    table.add_column("records", justify="right")
    for line in counted:
        table.add_row(line.who, line.kind, line.at, line.topic, line.doing, f"{line.count:,}")
    return table


def _placed_table(placed: Sequence[PartitionLine], nodes: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in ("partition", "owner"):
        table.add_column(column)
    for column in ("term", "commit", *(f"lag of {node}" for node in nodes)):
        table.add_column(column, justify="right")
    for line in placed:
        table.add_row(line.partition, line.owner, str(line.term), f"{line.commit:,}", *line.lags)
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
