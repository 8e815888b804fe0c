"""Line plots as SVG in plain Python, readable on a white or a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

import msgspec

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 16, 48
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")
TICKS = 6
LEGEND_LINE = 18
CHARACTER_WIDTH = 7
MARKED_POINTS_MAX = 30
"""A line of more points is drawn without marks, which would hide it."""


class Line(msgspec.Struct, frozen=True):
    name: str
    at: Sequence[tuple[float, float]]
    points: bool = False
    """Marks every point, for what was measured; a line alone is a formula or the published figures."""


def line_plot(lines: Sequence[Line], across: str, up: str, *, log_across: bool = False) -> str:
    """Quantities over one axis each, from zero upwards."""
    xs = [_placed(x, log_across) for line in lines for x, _ in line.at]
    ys = [y for line in lines for _, y in line.at]
    x_ticks = _ticks(min(xs), max(xs))
    y_ticks = _ticks(min(0.0, *ys), max(ys))
    drawn = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']

    def x_of(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def y_of(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    for tick in x_ticks:
        x = x_of(tick)
        drawn.append(_grid(x, x, TOP, HEIGHT - BOTTOM))
        drawn.append(_text(x, HEIGHT - BOTTOM + 18, _number(10**tick if log_across else tick), "middle"))
    for tick in y_ticks:
        y = y_of(tick)
        drawn.append(_grid(LEFT, WIDTH - RIGHT, y, y))
        drawn.append(_text(LEFT - 8, y + 4, _number(tick), "end"))
    for line, colour in zip(lines, COLOURS, strict=False):
        placed = [(x_of(_placed(x, log_across)), y_of(y)) for x, y in line.at]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        dashes = "" if line.points else ' stroke-dasharray="6 4"'
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        if line.points and len(placed) <= MARKED_POINTS_MAX:
            drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in placed]
    drawn += _legend(lines, [(x_of(_placed(x, log_across)), y_of(y)) for line in lines for x, y in line.at])
    drawn.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, "middle"))
    drawn.append(
        f'<text x="16" y="{(TOP + HEIGHT - BOTTOM) / 2:.0f}" text-anchor="middle" fill="#333333" '
        f'transform="rotate(-90 16 {(TOP + HEIGHT - BOTTOM) / 2:.0f})">{escape(up)}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="13">{"".join(drawn)}</svg>\n'
    )


def _legend(lines: Sequence[Line], placed: Sequence[tuple[float, float]]) -> list[str]:
    """Where it covers the fewest points: in a corner if possible, else at half height."""
    width = 40 + CHARACTER_WIDTH * max(len(line.name) for line in lines)
    height = LEGEND_LINE * len(lines) + 8

    def covered(place: tuple[float, float]) -> int:
        left, top = place
        return sum(left - 8 <= x <= left + width + 8 and top - 8 <= y <= top + height + 8 for x, y in placed)

    sides = (LEFT + 8.0, WIDTH - RIGHT - width - 8.0)
    tops = (TOP + 6.0, HEIGHT - BOTTOM - height - 8.0, (TOP + HEIGHT - BOTTOM - height) / 2)
    left, top = min(((side, top) for top in tops for side in sides), key=covered)
    frame = f'width="{width}" height="{height}" fill="#ffffff" fill-opacity="0.85" stroke="#cccccc"'
    drawn = [f'<rect x="{left:.0f}" y="{top:.0f}" {frame}/>']
    for at, (line, colour) in enumerate(zip(lines, COLOURS, strict=False)):
        y = top + 14 + LEGEND_LINE * at
        dashes = "" if line.points else ' stroke-dasharray="6 4"'
        drawn.append(
            f'<line x1="{left + 8:.0f}" x2="{left + 30:.0f}" y1="{y - 4:.0f}" y2="{y - 4:.0f}" stroke="{colour}" '
            f'stroke-width="2"{dashes}/>'
        )
        drawn.append(_text(left + 36, y, line.name, "start"))
    return drawn


def _placed(x: float, logarithmic: bool) -> float:
    return log10(x) if logarithmic else x


def _ticks(least: float, most: float) -> list[float]:
    """Round numbers that enclose a range."""
    span = (most - least) or 1.0
    rough = span / TICKS
    size = 10 ** floor(log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.999)
    first = floor(least / step + 1e-9)
    last = ceil(most / step - 1e-9)
    return [tick * step for tick in range(first, max(last, first + 1) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _grid(x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333333">{escape(text)}</text>'
