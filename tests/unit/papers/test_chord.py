"""The Chord papers at a small scale: they pass with the real overlay, and fail with a broken one."""

from __future__ import annotations

from math import log2
from random import Random

import pytest

from rostra.fabric.overlay import join
from rostra.fabric.overlay import lookup as lookup_module
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.routing import preceding_hop
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.fabric.overlay.state import Overlay
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key
from rostra.simulator.overlay.ideal import in_order, wrong_fingers, wrong_neighbours
from rostra.simulator.overlay.loop import Loop
from rostra.simulator.papers import chord_churn, chord_failures, chord_load, chord_merge, chord_path
from rostra.simulator.papers.frame import Row
from rostra.simulator.papers.layout import draw_keys, lay_out, walk

SPACED = chord_path.PathCase(256, spaced=True, lookups=2_000)
DRAWN = chord_path.PathCase(1_024, lookups=2_000)


def missed(rows: tuple[Row, ...]) -> list[str]:
    return [f"{row.case}, {row.quantity}: {row.ours}, not {row.published}" for row in rows if not row.passed]


@pytest.mark.requirement("SC-7")
@pytest.mark.parametrize("part", [SPACED, DRAWN], ids=str)
def test_a_lookup_takes_half_of_log2_n_hops_on_average_and_never_many_more(part: chord_path.PathCase) -> None:
    measured = chord_path.measure(part)
    assert missed(chord_path.judge([measured])) == []
    assert measured.mean == pytest.approx(log2(part.nodes) / 2, rel=chord_path.TOLERANCE)
    # Each hop is a question and an answer; the longest of thousands of lookups is still of the order of log2 N.
    assert len(measured.shares) - 1 <= 2 * log2(part.nodes)


def first_successor(overlay: Overlay, key: Key, excluded: tuple[Member, ...] = ()) -> Member | None:
    """A broken next hop: round the ring one by one."""
    successor = overlay.successors[0]
    span = (key - overlay.me.key) & overlay.mask or overlay.mask + 1
    return None if span <= overlay.distance(successor) else successor


def test_a_broken_next_hop_makes_the_tables_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    small = chord_path.PathCase(64, lookups=300)
    assert missed(chord_path.judge([chord_path.measure(chord_path.PathCase(64, lookups=4_000))])) == []
    monkeypatch.setattr(lookup_module, "preceding_hop", first_successor)
    assert missed(chord_path.judge([chord_path.measure(small)]))
    assert missed(chord_failures.judge([chord_failures.measure(0.0, nodes=200, lookups=100)]))


def test_a_next_hop_that_ignores_the_dead_makes_lookups_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    real = preceding_hop
    monkeypatch.setattr(lookup_module, "preceding_hop", lambda overlay, key, excluded=(): real(overlay, key))
    rows = chord_failures.judge([chord_failures.measure(0.3, nodes=200, lookups=200)])
    assert any("failed lookups" in text for text in missed(rows))


def grow(keys: list[Key], settings: OverlaySettings, random: Random) -> list[Overlay]:
    """A ring grown by joins: in every wave as many join, each through a random member, as there are already."""
    loop = Loop(lambda _packet: 5_000)
    for at, key in enumerate(random.sample(keys, len(keys))):
        overlay = Overlay(Member(key, NodeId(at + 1)), settings, random)
        if at == 0:
            join.create(overlay, loop.now_us)
        else:
            if at & (at - 1) == 0:
                loop.run_until(loop.now_us + 8_000_000)
            members = [one.me for one in loop.nodes.values() if one.joined]
            join.join(overlay, loop.now_us, (random.choice(members),))
        loop.start(overlay)
    while wrong := wrong_neighbours(loop.nodes.values()) or wrong_fingers(loop.nodes.values()):
        assert loop.now_us < 600_000_000, wrong[:3]
        loop.run_until(loop.now_us + 5_000_000)
    return in_order(loop.nodes.values())


@pytest.mark.parametrize("nodes", [5, 64, 1_024])
def test_a_ring_grown_by_joins_is_the_ring_that_is_laid_out(nodes: int) -> None:
    random = Random(f"grown/{nodes}")
    settings = OverlaySettings(successors_max=3, heartbeat_ms=0, probe_ms=1_000_000)
    keys = draw_keys(random, nodes, settings.bits)
    grown, laid = grow(keys, settings, random), lay_out(keys, settings, random)

    def tables(overlay: Overlay) -> list[Key]:
        known = (overlay.me, overlay.predecessor, *overlay.successors, *overlay.fingers)
        return [member.key for member in known if member is not None]

    assert [tables(one) for one in grown] == [tables(one) for one in laid]
    for ring in (grown, laid):
        by_node = {one.me.node: one for one in ring}
        origins = random.choices(ring, k=20)
        assert all(walk(origin, Key(random.getrandbits(64)), by_node).found for origin in origins)


def test_load_passes_at_a_small_scale() -> None:
    one = chord_load.measure(1, nodes=2_000, keys=100_000, rings=2)
    many = chord_load.measure(20, nodes=500, keys=100_000, rings=2)
    assert one.p1 < 0.1 < many.p1 < many.p99 < one.p99


def test_two_rings_merge_and_a_fanout_costs_packets() -> None:
    simple, gossip = (chord_merge.measure(chord_merge.MergeCase(40, fanout)) for fanout in (1, 3))
    assert missed(chord_merge.judge([simple, gossip])) == []
    assert gossip.packets_per_node > simple.packets_per_node > 0


@pytest.mark.requirement("SC-35:path")
@pytest.mark.parametrize("nodes", chord_path.SIZES)
def test_path_lengths_hold_at_every_published_size(nodes: int) -> None:
    measured = [chord_path.measure(chord_path.PathCase(nodes, spaced)) for spaced in (False, True)]
    assert missed(chord_path.judge(measured)) == []


@pytest.mark.requirement("SC-35:failures")
@pytest.mark.parametrize("failed_share", chord_failures.PUBLISHED)
def test_lookups_after_simultaneous_failures_hold_as_published(failed_share: float) -> None:
    assert missed(chord_failures.judge([chord_failures.measure(failed_share)])) == []


@pytest.mark.requirement("SC-35:churn")
@pytest.mark.parametrize("rate", [0.05, 0.20, 0.40])
def test_lookups_under_churn_hold_in_a_ring_of_the_published_size(rate: float) -> None:
    assert missed(chord_churn.judge([chord_churn.measure(rate, lookups=1_000)])) == []


@pytest.mark.requirement("SC-35:load")
@pytest.mark.parametrize("points", chord_load.PUBLISHED)
def test_load_with_virtual_nodes_holds_as_published(points: int) -> None:
    assert missed(chord_load.judge([chord_load.measure(points, rings=2)])) == []


@pytest.mark.soak
@pytest.mark.parametrize("paper", [chord_path, chord_failures, chord_churn, chord_load, chord_merge])
def test_a_chord_paper_passes_at_full_scale(paper: object) -> None:
    result = paper.PAPER.run(1, lambda _share, _what: None)  # type: ignore[attr-defined]
    assert missed(result.rows) == []
