"""Lookups right after a share of all nodes has failed, before anything is repaired."""

from __future__ import annotations

from random import Random

import msgspec

from rostra.fabric.overlay.settings import OverlaySettings
from rostra.model.keyspace import Key
from rostra.simulator.overlay.ideal import owner_of
from rostra.simulator.papers.frame import Paper, Plot, Progress, Result, Row, mean, near
from rostra.simulator.papers.layout import draw_keys, lay_out, walk
from rostra.simulator.papers.plots import Line, line_plot
from rostra.simulator.papers.processes import measure_parts

NODES = 1_000
SUCCESSORS = 20
RINGS = 10
LOOKUPS = 10_000
PUBLISHED = {
    0.0: (3.84, 0.0),
    0.1: (4.03, 0.60),
    0.2: (4.22, 1.17),
    0.3: (4.44, 2.02),
    0.4: (4.69, 3.23),
    0.5: (5.09, 5.10),
}
"""Failed share: mean path length, mean number of timeouts."""
PATH_TOLERANCE = 0.04
TIMEOUT_TOLERANCE = 0.25


class FailureFigures(msgspec.Struct, frozen=True):
    failed_share: float
    path: float
    timeouts: float
    failed: int


def measure(failed_share: float, nodes: int = NODES, lookups: int = LOOKUPS, seed: int = 1) -> FailureFigures:
    random = Random(f"{seed}/chord-failures/{failed_share}")
    settings = OverlaySettings(successors_max=SUCCESSORS)
    paths: list[int] = []
    timeouts: list[int] = []
    failed = 0
    for _ in range(RINGS):
        ring = lay_out(draw_keys(random, nodes, settings.bits), settings, random)
        live = [overlay for overlay in ring if random.random() >= failed_share]
        running = {overlay.me.node: overlay for overlay in live}
        members = [overlay.me for overlay in live]
        keys = [member.key for member in members]
        for _ in range(lookups // RINGS):
            key = Key(random.getrandbits(settings.bits))
            lookup = walk(random.choice(live), key, running)
            owner = next((one for one in lookup.owners if one.node in running), None)
            if owner != owner_of(members, keys, key):
                failed += 1
                continue
            paths.append(lookup.hops)
            timeouts.append(lookup.timeouts)
    return FailureFigures(failed_share, mean(paths), mean(timeouts), failed)


def judge(measured: list[FailureFigures]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for one in measured:
        case = f"{one.failed_share:.0%} failed"
        path, timeouts = PUBLISHED[one.failed_share]
        rows.append(near(case, "mean path length", path, one.path, PATH_TOLERANCE))
        rows.append(near(case, "mean timeouts", timeouts, one.timeouts, TIMEOUT_TOLERANCE))
        rows.append(near(case, "failed lookups", 0, one.failed, 0.0))
    return tuple(rows)


def run(workers: int, progress: Progress) -> Result:
    measured = measure_parts(measure, tuple(PUBLISHED), workers, progress)
    lines = [
        Line("path, published", [(share, path) for share, (path, _) in PUBLISHED.items()]),
        Line("path, ours", [(one.failed_share, one.path) for one in measured], points=True),
        Line("timeouts, published", [(share, timeouts) for share, (_, timeouts) in PUBLISHED.items()]),
        Line("timeouts, ours", [(one.failed_share, one.timeouts) for one in measured], points=True),
    ]
    plot = Plot("chord-failures", "Path length and timeouts", line_plot(lines, "share of failed nodes", "per lookup"))
    return Result(judge(measured), (plot,))


PAPER = Paper(
    name="chord-failures",
    title="Chord lookups after simultaneous failures",
    source="Stoica et al., Chord (ToN 2003, Table II)",
    published=(
        "1,000 nodes with successor lists of 20; a share of them fails at once, and 10,000 lookups follow before any "
        "repair. Mean path lengths 3.84 to 5.09, mean timeouts 0 to 5.10, and no lookup fails."
    ),
    differences=(
        "Ten rings with 1,000 lookups each instead of one. A lookup remembers the nodes that did not answer it; what "
        "the authors' lookup remembers is not printed, and timeouts depend on it."
    ),
    run=run,
)
