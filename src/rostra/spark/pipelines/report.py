"""Renders an audit, and windows if there are any, as one self-contained HTML page. Plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from rostra.spark.pipelines.findings import Audit, Latency, TopicFindings
from rostra.spark.pipelines.plots import Bar, bars, duration, latency_plot, series, short_number, size_of

TOPICS_SHOWN_MAX = 50
GAPS_SHOWN_MAX = 50
LOST_SHOWN_MAX = 50

STYLE = """
:root { --ink: #1c2733; --soft: #5d6b7a; --line: #d9dfe6; --page: #ffffff; --card: #f6f8fa; --main: #2f6fb2;
  --good: #2e7d4f; --bad: #b8432f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #36414c; --page: #14191f;
  --card: #1c232b; --main: #5b9bdc; --good: #5bb483; --bad: #e0755f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  padding: 2rem 1rem 4rem; max-width: 60rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; }
p { margin: .25rem 0 .75rem; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(7.2rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .75rem; }
.tile b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
.tile span { color: var(--soft); font-size: .85rem; }
.good b { color: var(--good); } .bad b { color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .45rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--soft); } td.bad { color: var(--bad); font-weight: 600; }
svg { width: 100%; height: auto; display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .axis { fill: var(--soft); font-size: 11px; }
svg .main { fill: var(--main); } svg .good { fill: var(--good); } svg .bad { fill: var(--bad); }
svg .grid { stroke: var(--line); } svg .axisline { stroke: var(--soft); }
svg .mark { stroke: var(--bad); stroke-dasharray: 3 3; }
svg .line { fill: none; stroke: var(--main); stroke-width: 2; } svg .area { fill: var(--main); opacity: .15; }
"""


def report(audit: Audit, *, title: str = "Rostra audit", windows: Sequence[Mapping[str, object]] = ()) -> str:
    """Returns the page. `windows` are rows of a rollup."""
    total = audit.total
    verdict = "Every record arrived, once and in order."
    if not total.sound:
        verdict = "Not every record arrived once and in order."
    parts = [
        f"<h1>{escape(title)}</h1><p>{verdict}</p>",
        _tiles(total, audit.latencies[0] if audit.latencies else None),
        _delivery(audit.topics, total),
        _latency(audit.latencies),
        _windows(windows),
        _load(audit),
        _hops(audit),
        _gaps(audit),
        _lost(audit),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def windows_in(lake: Path) -> list[dict[str, object]]:
    """Reads the rows of a rollup from a directory; none while no window has ended."""
    import pyarrow.dataset as ds

    # A running rollup writes unfinished files into directories of its own, which are skipped.
    files = [str(file) for file in lake.rglob("*.parquet") if not _is_hidden(file.relative_to(lake))]
    if not files:
        return []
    rows: list[dict[str, object]] = ds.dataset(files, format="parquet").to_table(["start", "per_second"]).to_pylist()
    return rows


def _is_hidden(file: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in file.parts)


def _tiles(total: TopicFindings, latency: Latency | None) -> str:
    tiles = [
        ("sent", f"{total.sent:,}", ""),
        ("expected deliveries", f"{total.expected:,}", ""),
        ("delivered", f"{total.percent:.4g} %", "good" if not total.lost else "bad"),
        ("lost", f"{total.lost:,}", _tone(total.lost)),
        ("duplicated", f"{total.duplicated:,}", _tone(total.duplicated)),
        ("out of order", f"{total.out_of_order:,}", _tone(total.out_of_order)),
    ]
    if latency is not None:
        tiles.append(("median latency", duration(latency.shares_us["p50"]), ""))
    drawn = "".join(f'<div class="tile {tone}"><b>{shown}</b><span>{name}</span></div>' for name, shown, tone in tiles)
    return f'<div class="tiles">{drawn}</div>'


def _tone(wrong: int) -> str:
    return "bad" if wrong else "good"


def _delivery(topics: Sequence[TopicFindings], total: TopicFindings) -> str:
    counted = ("created", "subscribed", "sent", "expected", "delivered", "%", "lost", "duplicated", "out of order")
    shown, further = topics[:TOPICS_SHOWN_MAX], len(topics) - TOPICS_SHOWN_MAX
    drawn = [
        Bar(
            topic.topic,
            topic.delivered,
            f"{topic.delivered:,} ({topic.percent:.4g} %)",
            "bad" if topic.lost else "main",
        )
        for topic in shown
    ]
    more = f"<p>{further:,} more topics are in the total.</p>" if further > 0 else ""
    return _section(
        "Delivery",
        "Records acknowledged to publishers, and how many of them each subscription got.",
        bars(drawn, "Deliveries by topic")
        + _table(("topic", *counted), [_row(topic) for topic in (*shown, total)])
        + more,
    )


def _row(topic: TopicFindings) -> list[str]:
    name = "all topics" if topic.topic == "*" else topic.topic
    counts = [topic.created, topic.subscribed, topic.sent, topic.expected, topic.delivered]
    wrongs = [topic.lost, topic.duplicated, topic.out_of_order]
    return [
        f"<td>{escape(name)}</td>",
        *(f"<td>{count:,}</td>" for count in counts),
        f"<td>{topic.percent:.4g}</td>",
        *(f'<td class="bad">{wrong:,}</td>' if wrong else "<td>0</td>" for wrong in wrongs),
    ]


def _latency(latencies: Sequence[Latency]) -> str:
    if not latencies:
        return ""
    every = latencies[0]
    shown = latencies if len(latencies) > 2 else latencies[:1]
    names = ("topic", "records", "mean", *every.shares_us, "max")
    rows = [
        [
            f"<td>{escape('all topics' if one.topic == '*' else one.topic)}</td>",
            f"<td>{one.records:,}</td><td>{duration(one.mean_us)}</td>",
            *(f"<td>{duration(latency_us)}</td>" for latency_us in one.shares_us.values()),
            f"<td>{duration(one.max_us)}</td>",
        ]
        for one in shown[:TOPICS_SHOWN_MAX]
    ]
    return _section(
        "Latency",
        "From the making of a batch by its publisher to its delivery; records by how long it took them. What was there "
        "before a subscription began took as long as it had waited for it.",
        latency_plot(every.histogram, every.shares_us, "Latency distribution") + _table(names, rows),
    )


def _windows(windows: Sequence[Mapping[str, object]]) -> str:
    """Records per second over time, all groups of a window together."""
    rates: dict[float, float] = {}
    for row in windows:
        moment, rate = row["start"], row["per_second"]
        assert isinstance(rate, float | int) and hasattr(moment, "timestamp")
        at = float(moment.timestamp())
        rates[at] = rates.get(at, 0.0) + float(rate)
    if not rates:
        return ""
    points = sorted(rates.items())
    drawn = series(points, "records/s", "Records per second over time")
    peak = short_number(max(rates.values()))
    return _section("Rate", f"Records per second in windows of their own time; {peak}/s at the most.", drawn)


def _load(audit: Audit) -> str:
    if not audit.nodes:
        return ""
    names = ("node", "stored", "bytes", "owned", "served")
    rows = [
        [
            f"<td>{escape(node.node)}</td><td>{node.stored_records:,}</td><td>{size_of(node.stored_bytes)}</td>",
            f"<td>{node.owned_records:,}</td><td>{size_of(node.served_bytes)}</td>",
        ]
        for node in audit.nodes
    ]
    drawn = [Bar(node.node, node.stored_records, f"{node.stored_records:,}") for node in audit.nodes]
    about = f"Records that each node stored; the busiest has {audit.imbalance:.2f} times the mean."
    return _section("Load", about, bars(drawn, "Records by node") + _table(names, rows))


def _hops(audit: Audit) -> str:
    if not audit.hops:
        return ""
    drawn = [Bar(f"{hops} before", records, f"{records:,}") for hops, records in audit.hops.items()]
    return _section("Hops", "Records stored by a node, by how many nodes had them before.", bars(drawn, "Hops"))


def _gaps(audit: Audit) -> str:
    if not audit.gaps:
        return ""
    longest = sorted(audit.gaps, key=lambda gap: -gap.gap_us)[:GAPS_SHOWN_MAX]
    drawn = [
        Bar(f"{gap.topic}/{gap.partition} @{gap.epoch}", gap.gap_us, duration(gap.gap_us), "bad") for gap in longest
    ]
    about = "Between the last batch of one owner of a partition and the first of the next: the longest come first."
    return _section("Changes of owner", about, bars(drawn, "Gaps at changes of owner"))


def _lost(audit: Audit) -> str:
    if not audit.lost:
        return ""
    names = ("partition", "before offset", "records", "subscriber", "subscription")
    rows = [
        [
            f"<td>{escape(lost.topic)}/{lost.partition}</td><td>{lost.end:,}</td><td>{lost.records:,}</td>",
            f"<td>{escape(lost.who)}</td><td>{lost.subscription}</td>",
        ]
        for lost in audit.lost[:LOST_SHOWN_MAX]
    ]
    return _section("Lost", "Batches that did not arrive, the first of them.", _table(names, rows))


def _section(title: str, about: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(about)}</p>{content}</section>"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
