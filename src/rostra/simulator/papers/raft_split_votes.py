"""How often a vote is split, over the latency of messages."""

from __future__ import annotations

from functools import partial
from math import comb

import msgspec

from rostra.simulator.papers.frame import Paper, Plot, Progress, Result, Row
from rostra.simulator.papers.plots import Line, line_plot
from rostra.simulator.papers.processes import measure_parts
from rostra.simulator.papers.raft_election import Electorate, elections

SERVERS, ALIVE = 5, 4
LATENCIES = (0.01, 0.05, 0.1, 0.15, 0.2)
"""As shares of the range that timeouts are drawn from."""
PRINTED = (0.01, 0.1, 0.2)
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 1_000, 2_000
ELECTIONS = 10_000
TOLERANCE_POINTS = 1.0


class SplitVoteFigures(msgspec.Struct, frozen=True):
    latency: float
    split: float
    """Percent of the elections whose first term had no leader."""


def published(latency: float, servers: int = SERVERS, alive: int = ALIVE) -> float:
    """Percent of split votes when every message takes the same time: so many others must time out within it."""
    others = alive - servers // 2
    chances = (comb(alive, k) * latency**k * (1 - latency) ** (alive - k) for k in range(others, alive + 1))
    return 100 * sum(chances)


def measure(latency: float, count: int = ELECTIONS, *, pre_vote: bool = False) -> SplitVoteFigures:
    delay_ms = latency * (TIMEOUT_MS_MAX - TIMEOUT_MS_MIN)
    electorate = Electorate(SERVERS, ALIVE, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, delay_ms, delay_ms, pre_vote)
    _, split = elections(electorate, count)
    return SplitVoteFigures(latency, 100 * split)


def judge(measured: list[SplitVoteFigures]) -> tuple[Row, ...]:
    rows = []
    for one in measured:
        expected = round(published(one.latency), 2)
        low, high = max(expected - TOLERANCE_POINTS, 0), expected + TOLERANCE_POINTS
        rows.append(Row(f"latency {one.latency:.0%} of the range", "split votes, %", expected, one.split, low, high))
    return tuple(rows)


def run(workers: int, progress: Progress) -> Result:
    measured = measure_parts(partial(measure, count=ELECTIONS), LATENCIES, workers, progress)
    curve = [(at / 100, published(at / 100)) for at in range(21)]
    lines = [Line("formula", curve), Line("ours", [(one.latency, one.split) for one in measured], points=True)]
    plot = Plot("raft-split-votes", "Split votes", line_plot(lines, "latency / range of timeouts", "split votes, %"))
    return Result(judge(measured), (plot,))


PAPER = Paper(
    name="raft-split-votes",
    title="Split votes in Raft",
    source="Ongaro, Consensus: Bridging Theory and Practice (2014), section 9",
    published=(
        "With a fixed latency l, as a share of the range of election timeouts, n servers and s of them alive, a vote "
        "is split with probability Σ C(s,k)·l^k·(1−l)^(s−k) for k from s−⌊n/2⌋ to s. For 5 servers with 4 alive that "
        "is 0.06, 5.2 and 18.1 % at l = 0.01, 0.1 and 0.2."
    ),
    differences=(
        "PreVote is switched off, as in the thesis' model. 10,000 elections for each latency, so that chance alone "
        "moves ours by up to half a point."
    ),
    run=run,
)
