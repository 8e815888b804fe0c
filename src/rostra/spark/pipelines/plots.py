"""Small plots as SVG, for a page that opens without a network. Plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log10

import msgspec

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 16, 40
BAR_HEIGHT, BAR_GAP = 18, 8
LABEL_WIDTH = 170
NUMBER_WIDTH = 150


class Bar(msgspec.Struct, frozen=True):
    label: str
    size: float
    shown: str
    """Formats a size with a unit."""
    tone: str = "main"


def bars(rows: Sequence[Bar], what: str) -> str:
    """Horizontal bars from zero, each with its number at the end."""
    most = max((row.size for row in rows), default=0) or 1
    span = WIDTH - LABEL_WIDTH - NUMBER_WIDTH
    height = len(rows) * (BAR_HEIGHT + BAR_GAP) + BAR_GAP
    drawn = []
    for at, row in enumerate(rows):
        y = BAR_GAP + at * (BAR_HEIGHT + BAR_GAP)
        width = max(span * row.size / most, 1 if row.size else 0)
        middle = y + BAR_HEIGHT * 0.72
        drawn.append(
            f'<text class="label" x="{LABEL_WIDTH - 8}" y="{middle:.1f}" text-anchor="end">{_short(row.label)}</text>'
            f'<rect class="{row.tone}" x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" rx="2">'
            f"<title>{escape(row.label)}: {escape(row.shown)}</title></rect>"
            f'<text class="number" x="{LABEL_WIDTH + width + 6:.1f}" y="{middle:.1f}">{escape(row.shown)}</text>'
        )
    return _svg("".join(drawn), height, what)


def _short(label: str) -> str:
    return escape(label if len(label) <= 24 else f"{label[:11]}…{label[-11:]}")


def latency_plot(histogram: dict[int, int], marks: dict[str, int], what: str) -> str:
    """How many records took how long, over a logarithmic axis, with lines at the percentiles."""
    height = 240
    if not histogram:
        return ""
    decades = 8
    merged: dict[int, int] = {}
    for lower, records in histogram.items():
        place = int(log10(max(lower, 1)) * decades)
        merged[place] = merged.get(place, 0) + records
    first, last = min(merged) // decades * decades, (max(merged) // decades + 1) * decades
    most = max(merged.values())
    step = (WIDTH - LEFT - RIGHT) / (last - first)
    floor = height - BOTTOM
    total = sum(merged.values())

    def across(latency_us: float) -> float:
        return LEFT + (log10(max(latency_us, 1)) * decades - first) * step

    drawn = []
    for place, records in sorted(merged.items()):
        tall = (floor - TOP - 14) * records / most
        low, high = 10 ** (place / decades), 10 ** ((place + 1) / decades)
        drawn.append(
            f'<rect class="main" x="{LEFT + (place - first) * step + 1:.1f}" y="{floor - tall:.1f}" '
            f'width="{max(step - 2, 1):.1f}" height="{tall:.1f}"><title>{duration(low)} to {duration(high)}: '
            f"{records:,} records ({100 * records / total:.2f} %)</title></rect>"
        )
    for decade in range(first, last + 1, decades):
        x, shown = LEFT + (decade - first) * step, duration(10 ** (decade // decades))
        drawn.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}"/>'
            f'<text class="axis" x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{shown}</text>'
        )
    free = [0.0, 0.0]
    for name, latency_us in marks.items():
        x = across(latency_us)
        # Percentiles that lie close together are named on two lines, or else only drawn.
        line = next((at for at, taken in enumerate(free) if x >= taken), None)
        drawn.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP + 10}" y2="{floor}"/>')
        if line is not None:
            free[line] = x + 7 * len(name) + 6
            drawn.append(f'<text class="axis" x="{x + 3:.1f}" y="{TOP - 3 + 11 * line}">{escape(name)}</text>')
    drawn.append(f'<line class="axisline" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>')
    drawn.append(f'<text class="axis" x="{LEFT - 6}" y="{TOP + 20}" text-anchor="end">{most:,}</text>')
    drawn.append(f'<text class="axis" x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>')
    return _svg("".join(drawn), height, what)


def series(points: Sequence[tuple[float, float]], unit: str, what: str) -> str:
    """A quantity over time, in seconds from the first point on."""
    height = 200
    if not points:
        return ""
    if len(points) == 1:
        # Of one window it is only known that it was so all the time.
        points = [points[0], (points[0][0] + 1, points[0][1])]
    begin, end = points[0][0], points[-1][0]
    most = max(value for _, value in points) or 1
    floor = height - BOTTOM

    def position(moment: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (moment - begin) / (end - begin)
        return f"{x:.1f},{floor - (floor - TOP) * value / most:.1f}"

    line = " ".join(position(moment, value) for moment, value in points)
    area = f"{position(begin, 0)} {line} {position(end, 0)}"
    drawn = (
        f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>'
        f'<line class="axisline" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>'
        f'<text class="axis" x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{short_number(most)}</text>'
        f'<text class="axis" x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>'
        f'<text class="axis" x="{LEFT}" y="{floor + 16}">0 s</text>'
        f'<text class="axis" x="{WIDTH - RIGHT}" y="{floor + 16}" text-anchor="end">{end - begin:,.0f} s</text>'
        f'<text class="axis" x="{LEFT}" y="{TOP - 5}">{escape(unit)}</text>'
    )
    return _svg(drawn, height, what)


def _svg(drawn: str, height: int, what: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(what)}">'
        f"<title>{escape(what)}</title>{drawn}</svg>"
    )


def duration(span_us: float) -> str:
    for unit, size in (("s", 1_000_000), ("ms", 1_000)):
        if span_us >= size:
            return f"{span_us / size:.3g} {unit}"
    return f"{span_us:.3g} µs"


def short_number(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def size_of(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
