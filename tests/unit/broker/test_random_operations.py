"""Random operations and crashes: the broker does what the reference says."""

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
from tests.unit.broker.random_group_operations import RandomGroupOperations

OPERATIONS: dict[str, dict[str, int]] = {
    name: getattr(RandomGroupOperations, name).bounds
    for name in sorted(dir(RandomGroupOperations))
    if hasattr(getattr(RandomGroupOperations, name), "bounds")
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


def begun(seed: int, without: Without = ALL_ON) -> RandomGroupOperations:
    run = RandomGroupOperations(seed, without)
    for topic in BEGINNING:
        run.make_or_delete(**topic)
    return run


class RandomOperationsMachine(RuleBasedStateMachine):
    """Its rules are the random operations."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.run = begun(seed)
        self.agrees = True

    def teardown(self) -> None:
        # A failed run needs no further checks.
        if getattr(self, "agrees", False):
            self.run.finish()


def _rule(name: str, bounds: dict[str, int]) -> object:
    def act(self: RandomOperationsMachine, **drawn: int) -> None:
        self.agrees = False
        getattr(self.run, name)(**drawn)
        self.agrees = True

    act.__name__ = name
    made: Callable[..., Any] = rule
    return made(**{argument: st.integers(0, bound) for argument, bound in bounds.items()})(act)


for _name, _bounds in OPERATIONS.items():
    setattr(RandomOperationsMachine, _name, _rule(_name, _bounds))

RandomOperationsMachine.TestCase.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, phases=set(Phase) - {Phase.explain}
)
# The host may be busy.
TestRandomOperations = pytest.mark.timeout(600)(
    pytest.mark.requirement("CM-5:stored-once", "CM-14:kill")(RandomOperationsMachine.TestCase)
)


def run_random_operations(seed: int, steps: int, without: Without = ALL_ON) -> None:
    source = Random(seed)
    run = begun(seed, without)
    # Many operations write something, so that the others have something to read.
    for _ in range(steps):
        name = "publish" if source.random() < 0.3 else source.choice(list(OPERATIONS))
        getattr(run, name)(**{argument: source.randint(0, bound) for argument, bound in OPERATIONS[name].items()})
    run.finish()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("STATE_MACHINE_SEEDS", "8"))))
def test_ten_thousand_random_operations(seed: int) -> None:
    run_random_operations(seed, STEPS)


@pytest.mark.parametrize("safeguard", NOTICED)
def test_without_a_safeguard_the_broker_and_the_reference_come_to_disagree(safeguard: Safeguard) -> None:
    """A reference that agrees with anything proves nothing."""
    disagreed = False
    for seed in range(SEEDS):
        try:
            run_random_operations(seed, SHORT, frozenset({safeguard}))
        except AssertionError:
            disagreed = True
            break
    assert disagreed
