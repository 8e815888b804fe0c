"""Lookups while nodes join and fail all the time."""

from __future__ import annotations

from bisect import bisect_left
from random import Random

import msgspec

from rostra.fabric.overlay import join
from rostra.fabric.overlay.effects import Effect, Joined, LookupDone
from rostra.fabric.overlay.lookup import find
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.fabric.overlay.state import Overlay
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key
from rostra.simulator.overlay.ideal import owner_of
from rostra.simulator.overlay.loop import Loop
from rostra.simulator.papers.frame import Paper, Plot, Progress, Result, Row, at_most, mean, near, shown
from rostra.simulator.papers.layout import draw_keys, lay_out
from rostra.simulator.papers.plots import Line, line_plot
from rostra.simulator.papers.processes import measure_parts

NODES = 1_000
LOOKUPS = 10_000
WARM_UP_S = 900
SECOND_US = 1_000_000
DELAY_MEAN_US = 50_000
SETTINGS = OverlaySettings(
    successors_max=20,
    stabilize_ms_min=15_000,
    stabilize_ms_max=45_000,
    heartbeat_ms=0,
    answer_ms=1_000,
    misses_max=1,
    probe_ms=1_000_000_000,
)
"""A round every 15 to 45 s and nothing between. No packet is lost, so one miss is enough."""
PUBLISHED = {
    0.05: (3.90, 0.05, 0),
    0.10: (3.83, 0.11, 0),
    0.15: (3.84, 0.16, 2),
    0.20: (3.81, 0.23, 5),
    0.25: (3.83, 0.30, 6),
    0.30: (3.91, 0.34, 8),
    0.35: (3.94, 0.42, 16),
    0.40: (4.06, 0.46, 15),
}
"""Joins and failures per second: mean path length, mean timeouts, failures among 10,000 lookups."""
PATH_TOLERANCE = 0.04
FAILURES_MAX = 20


class ChurnFigures(msgspec.Struct, frozen=True):
    rate: float
    path: float
    timeouts: float
    failures: float
    """Among 10,000 lookups."""


class Churn:
    """A ring under joins and failures, and one lookup a second."""

    def __init__(self, rate: float, nodes: int, random: Random) -> None:
        self._rate = rate
        self._random = random
        self._loop = Loop(self._delay_us)
        self._loop.told = self._told
        self._next_node = nodes + 1
        self._asked: dict[tuple[NodeId, int], Key] = {}
        self.paths: list[int] = []
        self.timeouts: list[int] = []
        self.failures = 0
        self._members: list[Member] = []
        """Those that run and are in the ring, by key, with their keys beside them."""
        self._keys: list[Key] = []
        for overlay in lay_out(draw_keys(random, nodes, SETTINGS.bits), SETTINGS, random):
            overlay.stabilize_us = int(random.uniform(0, SETTINGS.stabilize_ms_max) * 1000)
            self._loop.start(overlay)
            self._members.append(overlay.me)
            self._keys.append(overlay.me.key)

    def run(self, lookups: int) -> None:
        """The churn begins some time before the first lookup, so that the tables are no longer those laid out."""
        loop, random = self._loop, self._random
        self._join_later()
        self._fail_later()
        loop.run_until(WARM_UP_S * SECOND_US)
        for _ in range(lookups):
            loop.run_until(loop.now_us + int(random.expovariate(1) * SECOND_US))
            overlay = self._any_member()
            key = Key(random.getrandbits(SETTINGS.bits))
            number = find(overlay, loop.now_us, key)
            self._asked[overlay.me.node, number] = key
            loop.settle(overlay)
        loop.run_until(loop.now_us + 60 * SECOND_US)

    def _delay_us(self, _packet: object) -> int:
        # A tail beyond the time that an answer is waited for would be a loss, which the paper does not have.
        return min(int(self._random.expovariate(1) * DELAY_MEAN_US), SETTINGS.answer_ms * 500 - 1)

    def _any_member(self) -> Overlay:
        return self._loop.nodes[self._random.choice(self._members).node]

    def _join_later(self) -> None:
        self._loop.at(self._loop.now_us + int(self._random.expovariate(self._rate) * SECOND_US), self._join)

    def _fail_later(self) -> None:
        self._loop.at(self._loop.now_us + int(self._random.expovariate(self._rate) * SECOND_US), self._fail)

    def _join(self) -> None:
        me = Member(Key(self._random.getrandbits(SETTINGS.bits)), NodeId(self._next_node))
        self._next_node += 1
        overlay = Overlay(me, SETTINGS, self._random)
        contacts = tuple(self._any_member().me for _ in range(3))
        join.join(overlay, self._loop.now_us, contacts)
        self._loop.start(overlay)
        self._join_later()

    def _fail(self) -> None:
        member = self._any_member().me
        victim = member.node
        self._loop.crash(victim)
        place = self._members.index(member)
        del self._members[place], self._keys[place]
        # A lookup that its asking node did not live to finish says nothing about the ring.
        for asked in [asked for asked in self._asked if asked[0] == victim]:
            del self._asked[asked]
        self._fail_later()

    def _told(self, overlay: Overlay, effect: Effect) -> None:
        if isinstance(effect, Joined):
            place = bisect_left(self._keys, effect.me.key)
            self._members.insert(place, effect.me)
            self._keys.insert(place, effect.me.key)
        if not isinstance(effect, LookupDone) or self._asked.pop((overlay.me.node, effect.number), None) is None:
            return
        if effect.owner == owner_of(self._members, self._keys, effect.key):
            self.paths.append(effect.hops)
            self.timeouts.append(effect.timeouts)
        else:
            self.failures += 1


def measure(rate: float, nodes: int = NODES, lookups: int = LOOKUPS, seed: int = 1) -> ChurnFigures:
    churn = Churn(rate, nodes, Random(f"{seed}/chord-churn/{rate}"))
    churn.run(lookups)
    count = len(churn.paths) + churn.failures
    return ChurnFigures(rate, mean(churn.paths), mean(churn.timeouts), 10_000 * churn.failures / max(count, 1))


def judge(measured: list[ChurnFigures]) -> tuple[Row, ...]:
    rows: list[Row] = []
    for one in measured:
        case = f"{one.rate:.2f} joins and failures per s"
        path, timeouts, failures = PUBLISHED[one.rate]
        rows.append(near(case, "mean path length", path, one.path, PATH_TOLERANCE))
        rows.append(shown(case, "mean timeouts", one.timeouts, timeouts))
        rows.append(at_most(case, "failed of 10,000 lookups", FAILURES_MAX, one.failures, failures))
    return tuple(rows)


def run(workers: int, progress: Progress) -> Result:
    measured = measure_parts(measure, tuple(PUBLISHED), workers, progress)
    failures = [
        Line("published", [(rate, row[2]) for rate, row in PUBLISHED.items()]),
        Line("ours", [(one.rate, one.failures) for one in measured], points=True),
    ]
    paths = [
        Line("path, published", [(rate, row[0]) for rate, row in PUBLISHED.items()]),
        Line("path, ours", [(one.rate, one.path) for one in measured], points=True),
        Line("timeouts, published", [(rate, row[1]) for rate, row in PUBLISHED.items()]),
        Line("timeouts, ours", [(one.rate, one.timeouts) for one in measured], points=True),
    ]
    across = "joins and failures per second"
    return Result(
        judge(measured),
        (
            Plot("chord-churn-path", "Path length and timeouts", line_plot(paths, across, "per lookup")),
            Plot("chord-churn-failures", "Failed lookups", line_plot(failures, across, "failed of 10,000")),
        ),
    )


PAPER = Paper(
    name="chord-churn",
    title="Chord lookups under churn",
    source="Stoica et al., Chord (ToN 2003, Table III)",
    published=(
        "1,000 nodes; stabilization every 15 to 45 s; packets take 50 ms on average, exponentially distributed; one "
        "lookup a second while 0.05 to 0.40 nodes a second join and as many fail. Mean path lengths 3.81 to 4.06; at "
        "most 16 of 10,000 lookups fail."
    ),
    differences=(
        "The published rows were entered from memory; no copy of the paper was at hand to compare them with. A node "
        "that joins tells its predecessor as soon as its successor has accepted it, so that lookups find it within a "
        "few packets instead of a round. A node that finds another dead removes it from all its tables at once, which "
        "may be why timeouts are fewer than published. A delay never exceeds half of the time that an answer is waited "
        "for, so no live node is taken for dead. A lookup counts as failed unless it names the first node at or after "
        "the key among the members that run when it ends."
    ),
    run=run,
)
