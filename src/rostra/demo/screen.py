"""The output of the demo: a live view on a terminal, plain lines elsewhere."""

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
COALESCE_S = 0.3
"""The same event at several clients within this time is printed as one line."""
LEVEL_STYLES = {"warning": "yellow", "error": "red", "critical": "red"}


class SubscriptionLine(msgspec.Struct, frozen=True):
    """One client in the live view."""

    who: str
    kind: str
    at: str
    topic: str
    doing: str
    count: int


class PartitionLine(msgspec.Struct, frozen=True):
    """One partition in the live view. `lags` are those of the nodes, in their order; `-` where there is no replica."""

    partition: str
    owner: str
    term: int
    commit: int
    lags: tuple[str, ...]


def clock() -> str:
    """The time, formatted as in the logs of the nodes."""
    return datetime.now(UTC).strftime("%H:%M:%S.%f")[:12]


class Screen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = Lock()
        self._live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._plain_due = 0.0
        self._client_events: dict[str, dict[str, None]] = {}
        self._print_at = 0.0
        self.names: dict[str, str] = {}
        """Names of the nodes, by address."""

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
        """Prints a line above the live view; from any thread."""
        self._print(Text(f"{clock()}  {line}", style=style))

    def log(self, lines: Iterable[NodeLine]) -> None:
        for line in lines:
            self._print(Text(str(line), style=LEVEL_STYLES.get(line.level, "cyan")))

    def _print(self, line: Text) -> None:
        with self._lock:
            self._console.print(line, soft_wrap=True)

    # --- events of clients ---

    def client_event(self, who: str, event: rostra.ClientEvent) -> None:
        """Records an event of a client; from any thread."""
        match event:
            case rostra.Disconnected():
                self._add_event(f"lost the connection to {self.names.get(event.address, event.address)}", who)
            case rostra.Reconnected():
                self._add_event(f"reconnected to {self.names.get(event.address, event.address)}", who)
            case rostra.Resubscribed():
                where = f"{who} at offset {event.offset:,}"
                self._add_event(f"continue receiving {event.topic}/{event.partition} from its new owner", where)
            case rostra.Skipped():
                where = f"{who} {event.first - event.offset:,} offsets"
                self._add_event(f"missed what retention removed from {event.topic}/{event.partition}", where)
            case rostra.Resent():
                self._add_event(
                    "resent unacknowledged records, which are stored once", f"{who} {event.records} records"
                )
            case rostra.MayDuplicate():
                self._add_event(f"may have stored records twice ({event.reason})", f"{who} {event.records} records")
            case rostra.Retrying():
                self._add_event(f"send again to {event.topic}/{event.partition} ({event.reason})", who)
            case rostra.LeaseExpired():
                self._add_event(f"lost its lease as a publisher of {event.topic}", who)
            case rostra.Connected() | rostra.TopicAppeared() | rostra.TopicGone():
                pass
            case rostra.Redelivered() | rostra.DeadLettered() | rostra.DeliveryPaused() | rostra.MembershipLost():
                # The demo has no named subscriptions.
                pass

    def _add_event(self, what: str, who: str) -> None:
        with self._lock:
            if not self._client_events:
                self._print_at = time.monotonic() + COALESCE_S
            self._client_events.setdefault(what, {})[who] = None

    def print_client_events(self) -> None:
        """One line for each kind of event, with all clients that had it."""
        with self._lock:
            if time.monotonic() < self._print_at:
                return
            events, self._client_events = self._client_events, {}
        for what, whom in events.items():
            self.say(
                f"clients: {what}: {', '.join(whom)}",
                "green" if what.startswith(("reconnected", "continue", "resent")) else "yellow",
            )

    # --- progress ---

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
        failures = (Text(line, style="red") for line in verdict.failures)
        self._console.print(Group(Text(), verdict_table(verdict), *failures, Text()))


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
        ("percent", f"{format_percent(verdict.delivered, verdict.expected)}", "right"),
        ("duplicates", f"{verdict.duplicates:,}", "right"),
    ]
    for name, footer, justify in total:
        table.add_column(name, footer=footer, justify="right" if justify == "right" else "left", no_wrap=True)
    for line in verdict.lines:
        table.add_row(
            line.subscription.subscriber,
            line.subscription.topic,
            f"{line.sent:,}",
            f"{line.acknowledged:,}",
            f"{line.expected:,}",
            f"{line.delivered:,}",
            format_percent(line.delivered, line.expected),
            f"{line.duplicates:,}",
        )
    return table


def format_percent(delivered: int, expected: int) -> str:
    """Shows 100 % only if every record was delivered."""
    if delivered == expected:
        return "100 %"
    return f"{min(100 * delivered / expected, 99.999):.3f} %" if expected else "-"
