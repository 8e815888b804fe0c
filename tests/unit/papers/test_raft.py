"""The Raft papers at a small scale, with the product's own Raft group."""

from __future__ import annotations

import pytest

from rostra.fabric.consensus.election import Election as RaftElection
from rostra.simulator.papers import raft_availability, raft_split_votes
from rostra.simulator.papers.raft_election import Electorate, elections


def test_the_formula_gives_the_printed_figures() -> None:
    printed = [round(raft_split_votes.published(latency), 2) for latency in raft_split_votes.PRINTED]
    assert printed == [0.06, 5.23, 18.08]


@pytest.mark.parametrize("latency", raft_split_votes.PRINTED)
def test_votes_are_split_about_as_often_as_the_formula_says(latency: float) -> None:
    measured = raft_split_votes.measure(latency, 1_500)
    # Three standard deviations of so few elections are wider than the point that the full scale is held to.
    assert measured.split == pytest.approx(raft_split_votes.published(latency), abs=3)


def test_a_leader_is_elected_in_the_published_time_and_pre_vote_costs_a_round_trip() -> None:
    off, on = (
        raft_availability.measure(raft_availability.AvailabilityCase(1, pre_vote, 600)) for pre_vote in (False, True)
    )
    assert off.mean_ms == pytest.approx(475, rel=0.1)
    assert 40 < on.mean_ms - off.mean_ms < 120
    assert off.p999_ms < 2_000


def test_the_papers_run_the_product_and_notice_when_it_elects_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftElection, "_grants", lambda *_: False)
    with pytest.raises(AssertionError, match="no leader"):
        elections(Electorate(5, 4, 300, 600, 30, 40, pre_vote=False), 1)


@pytest.mark.soak
@pytest.mark.parametrize("paper", [raft_split_votes, raft_availability])
def test_a_raft_paper_passes_at_full_scale(paper: object) -> None:
    result = paper.PAPER.run(1, lambda _share, _what: None)  # type: ignore[attr-defined]
    assert [row for row in result.rows if not row.passed] == []
