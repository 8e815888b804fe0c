"""Two rings that learn of each other through a single contact become one."""

from __future__ import annotations

from math import log2
from random import Random

import msgspec

from rostra.fabric.overlay.ring import remember
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.simulator.overlay.ideal import wrong_neighbours
from rostra.simulator.overlay.loop import Loop
from rostra.simulator.papers.frame import Paper, Plot, Progress, Result, Row, at_most, shown
from rostra.simulator.papers.layout import draw_keys, lay_out
from rostra.simulator.papers.plots import Line, line_plot
from rostra.simulator.papers.processes import measure_parts

NODES = 1_000
"""Of each ring."""
SIZES = (125, 250, 500, NODES)
FANOUTS = (1, 2, 3)
ROUND_MS = 1_000
DELAY_US_MIN, DELAY_US_MAX = 5_000, 50_000
MERGE_KINDS = ("MergeLookup", "TryMerge", "Detected")


class MergeCase(msgspec.Struct, frozen=True):
    nodes: int
    fanout: int

    def __str__(self) -> str:
        return f"two rings of {self.nodes:,}, fanout {self.fanout}"


class MergeFigures(msgspec.Struct, frozen=True):
    nodes: int
    fanout: int
    rounds: float
    packets_per_node: float
    """Of ring unification alone; stabilization goes on as always."""


def measure(part: MergeCase, seed: int = 1) -> MergeFigures:
    random = Random(f"{seed}/chord-merge/{part.nodes}/{part.fanout}")
    settings = OverlaySettings(
        stabilize_ms_min=ROUND_MS, stabilize_ms_max=ROUND_MS, probe_ms=ROUND_MS, merge_fanout=part.fanout
    )
    keys = draw_keys(random, 2 * part.nodes, settings.bits)
    random.shuffle(keys)
    one = lay_out(sorted(keys[: part.nodes]), settings, random)
    other = lay_out(sorted(keys[part.nodes :]), settings, random, first_node=part.nodes + 1)
    packets = 0

    def delay_us(packet: object) -> int:
        nonlocal packets
        packets += type(getattr(packet, "body", None)).__name__ in MERGE_KINDS
        return random.randint(DELAY_US_MIN, DELAY_US_MAX)

    loop = Loop(delay_us)
    for overlay in (*one, *other):
        overlay.stabilize_us = int(random.uniform(0, ROUND_MS) * 1000)
        overlay.heartbeat_us = int(random.uniform(0, settings.heartbeat_ms) * 1000)
        overlay.probe_us = overlay.stabilize_us
        loop.start(overlay)
    remember(one[0], other[0].me)
    rounds_max = 4 * part.nodes
    while wrong_neighbours(loop.nodes.values()) and loop.now_us < rounds_max * ROUND_MS * 1000:
        loop.run_until(loop.now_us + ROUND_MS * 1000 // 4)
    return MergeFigures(part.nodes, part.fanout, loop.now_us / (ROUND_MS * 1000), packets / (2 * part.nodes))


def judge(measured: list[MergeFigures]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for one in measured:
        case = f"two rings of {one.nodes:,}, fanout {one.fanout}"
        bound = one.nodes if one.fanout == 1 else 3 * log2(2 * one.nodes) + OverlaySettings().successors_max
        rows.append(at_most(case, "rounds until one ring", round(bound, 1), one.rounds))
        rows.append(shown(case, "packets per node", one.packets_per_node))
    return tuple(rows)


def run(workers: int, progress: Progress) -> Result:
    parts = [MergeCase(nodes, fanout) for nodes in reversed(SIZES) for fanout in FANOUTS]
    measured = measure_parts(measure, parts, workers, progress)[::-1]

    def line(fanout: int, what: str) -> Line:
        at = [(float(one.nodes), float(getattr(one, what))) for one in measured if one.fanout == fanout]
        return Line(f"fanout {fanout}", at, points=True)

    rounds = line_plot([line(fanout, "rounds") for fanout in FANOUTS], "nodes of each ring", "rounds")
    packets = line_plot([line(fanout, "packets_per_node") for fanout in FANOUTS], "nodes of each ring", "per node")
    return Result(
        judge(measured),
        (
            Plot("chord-merge-rounds", "Rounds until one ring", rounds),
            Plot("chord-merge-packets", "Packets of ring unification", packets),
        ),
    )


PAPER = Paper(
    name="chord-merge",
    title="Ring unification",
    source="Shafaat, Ghodsi and Haridi, Handling Network Partitions and Mergers (P2P 2007)",
    published=(
        "The simple algorithm (fanout 1) takes time linear in the number of nodes; with a higher fanout it is "
        "logarithmic, for more messages. The figures are curves without printed values, so ours are held against these "
        "orders: at most N rounds, and at most 3·log2 of all nodes + r."
    ),
    differences=(
        "A search only names candidates: a nearer successor is adopted after it has answered with its list, as Zave's "
        "correction demands, which costs one more round trip for each. A ring counts as one when every successor list "
        "and predecessor is right, not only every successor. Stabilization runs as well, which helps the simple "
        "algorithm."
    ),
    run=run,
)
