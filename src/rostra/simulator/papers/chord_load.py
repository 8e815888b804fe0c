"""How evenly keys spread over nodes, with several points of the ring for each node."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from random import Random

import msgspec

from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.routing import owns
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.fabric.overlay.state import Overlay
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key
from rostra.simulator.papers.frame import Paper, Plot, Progress, Result, Row, near, percentile
from rostra.simulator.papers.layout import draw_keys
from rostra.simulator.papers.plots import Line, line_plot
from rostra.simulator.papers.processes import measure_parts

NODES = 10_000
KEYS = 1_000_000
RINGS = 20
BITS = 64
PUBLISHED = {1: (0.0, 4.6), 2: (0.07, 3.3), 5: (0.24, 2.35), 10: (0.39, 1.9), 20: (0.51, 1.65)}
"""Points of the ring per node: 1st and 99th percentile of the keys per node over their mean."""
TOLERANCE = 0.05
LEAST = 0.02
"""Below this a share of the mean is less than the percentile of one ring varies."""


class LoadFigures(msgspec.Struct, frozen=True):
    points: int
    p1: float
    p99: float


def measure(points: int, nodes: int = NODES, keys: int = KEYS, rings: int = RINGS, seed: int = 1) -> LoadFigures:
    """Every point owns the keys up to it from the point before: a key belongs to the first point at or after it."""
    random = Random(f"{seed}/chord-load/{points}")
    lows, highs = 0.0, 0.0
    for _ in range(rings):
        ring = draw_keys(random, nodes * points, BITS)
        holders = list(range(nodes)) * points
        random.shuffle(holders)
        load = [0] * nodes
        count = len(ring)
        for _ in range(keys):
            place = bisect_left(ring, random.getrandbits(BITS))
            load[holders[place if place < count else 0]] += 1
        _check_owner(ring, Key(random.getrandbits(BITS)))
        load.sort()
        average = keys / nodes
        lows += percentile(load, 0.01) / average
        highs += percentile(load, 0.99) / average
    return LoadFigures(points, lows / rings, highs / rings)


def _check_owner(ring: Sequence[Key], key: Key) -> None:
    """The point found by bisection owns the key as the overlay sees it."""
    place = bisect_left(ring, key) % len(ring)
    settings = OverlaySettings(bits=BITS)
    point = Overlay(Member(ring[place], NodeId(1)), settings, Random(1))
    point.joined, point.predecessor = True, Member(ring[place - 1], NodeId(2))
    assert owns(point, key), f"{ring[place]:x} does not own {key:x}"


def judge(measured: list[LoadFigures]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for one in measured:
        case = f"{one.points} points per node" if one.points > 1 else "1 point per node"
        low, high = PUBLISHED[one.points]
        rows.append(near(case, "1st percentile / mean", low, one.p1, TOLERANCE, LEAST))
        rows.append(near(case, "99th percentile / mean", high, one.p99, TOLERANCE))
    return tuple(rows)


def run(workers: int, progress: Progress) -> Result:
    measured = measure_parts(measure, tuple(reversed(PUBLISHED)), workers, progress)[::-1]
    lines = [
        Line("99th percentile, published", [(points, row[1]) for points, row in PUBLISHED.items()]),
        Line("99th percentile, ours", [(one.points, one.p99) for one in measured], points=True),
        Line("1st percentile, published", [(points, row[0]) for points, row in PUBLISHED.items()]),
        Line("1st percentile, ours", [(one.points, one.p1) for one in measured], points=True),
    ]
    plot = Plot("chord-load", "Keys per node", line_plot(lines, "points per node", "keys per node / mean"))
    return Result(judge(measured), (plot,))


PAPER = Paper(
    name="chord-load",
    title="Load balance of consistent hashing",
    source="Stoica et al., Chord (SIGCOMM 2001, Figures 8 and 9; ToN 2003)",
    published=(
        "10,000 nodes and 1,000,000 keys; from 1 to 20 points per node the 99th percentile falls from 4.8 to 1.6 times "
        "the mean, and the 1st rises from 0 to 0.5. The figures between are those of the curves, and 4.6, which is "
        "printed for one point and 500,000 keys. Experiments were repeated 20 times."
    ),
    differences="The mean of twenty rings, each with keys of its own.",
    run=run,
)
