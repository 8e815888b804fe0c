"""Whatever a broker is asked for, in whatever order, and however often it crashes: it does what the reference says."""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rostra.safeguards import ALL_ON, Safeguard, Without
from tests.unit.broker.play_members import MembersPlay

MOVES: dict[str, dict[str, int]] = {
    name: getattr(MembersPlay, name).bounds
    for name in sorted(dir(MembersPlay))
    if hasattr(getattr(MembersPlay, name), "bounds")
}
BEGINNING = (
    {"name": 0, "partitions": 1, "exclusive": 1, "compaction": 1, "retention": 0},
    {"name": 1, "partitions": 0, "exclusive": 0, "compaction": 0, "retention": 2},
)
STEPS = 10_000
SHORT = 150
SEEDS = 30
NOTICED = (
    Safeguard.SYNC_BEFORE_ACK,
    Safeguard.DEDUP,
    Safeguard.SEQUENCE,
    Safeguard.OWNERSHIP_LOGGED,
    Safeguard.CHECKPOINT_BATCH,
    Safeguard.GENERATION_FENCING,
    Safeguard.UNACKED_REDELIVERY,
)


def begun(seed: int, without: Without = ALL_ON) -> MembersPlay:
    play = MembersPlay(seed, without)
    for topic in BEGINNING:
        play.make_or_delete(**topic)
    return play


class Plays(RuleBasedStateMachine):
    """Its rules are the moves of the play."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.play = begun(seed)
        self.agrees = True

    def teardown(self) -> None:
        # A play that has gone wrong says enough.
        if getattr(self, "agrees", False):
            self.play.finish()


def _rule(name: str, bounds: dict[str, int]) -> object:
    def act(self: Plays, **drawn: int) -> None:
        self.agrees = False
        getattr(self.play, name)(**drawn)
        self.agrees = True

    act.__name__ = name
    made: Callable[..., Any] = rule
    return made(**{argument: st.integers(0, bound) for argument, bound in bounds.items()})(act)


for _name, _bounds in MOVES.items():
    setattr(Plays, _name, _rule(_name, _bounds))

Plays.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, phases=set(Phase) - {Phase.explain}
)
# The machine that runs it may be busy with other things.
TestPlays = pytest.mark.timeout(600)(pytest.mark.requirement("CM-5:stored-once", "CM-14:kill")(Plays.TestCase))


def play_at_random(seed: int, steps: int, without: Without = ALL_ON) -> None:
    source = Random(seed)
    play = begun(seed, without)
    # Half of the moves write something: the others need something to look at.
    for _ in range(steps):
        name = "publish" if source.random() < 0.3 else source.choice(list(MOVES))
        getattr(play, name)(**{argument: source.randint(0, bound) for argument, bound in MOVES[name].items()})
    play.finish()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("STATE_MACHINE_SEEDS", "8"))))
def test_ten_thousand_moves_in_a_row(seed: int) -> None:
    play_at_random(seed, STEPS)


@pytest.mark.parametrize("safeguard", NOTICED)
def test_without_a_safeguard_the_broker_and_the_reference_come_to_disagree(safeguard: Safeguard) -> None:
    """A reference that agrees with anything proves nothing."""
    disagreed = False
    for seed in range(SEEDS):
        try:
            play_at_random(seed, SHORT, frozenset({safeguard}))
        except AssertionError:
            disagreed = True
            break
    assert disagreed
