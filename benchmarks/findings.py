"""The results of a run: figures, verdicts on the targets, and what could not be measured."""

from enum import Enum

import msgspec

from benchmarks.contender import Contender
from benchmarks.estimates import Estimate


class Figure(msgspec.Struct, frozen=True):
    """One measured quantity."""

    scenario: str
    contender: str
    durability: str
    quantity: str
    estimate: Estimate
    disturbed_trials: int = 0


class Comparison(msgspec.Struct, frozen=True):
    """The ratio of Rostra's figure to a peer's, each with its durability."""

    scenario: str
    ours: str
    peer: str
    ratio: Estimate
    remark: str


class Bound(Enum):
    AT_LEAST = "≥"
    AT_MOST = "≤"
    BELOW = "<"


class Target(msgspec.Struct, frozen=True):
    """A figure that Rostra promises to reach."""

    claim: str
    bound: Bound
    value: float
    unit: str

    def is_met_by(self, measured: float) -> bool:
        match self.bound:
            case Bound.AT_LEAST:
                return measured >= self.value
            case Bound.AT_MOST:
                return measured <= self.value
            case Bound.BELOW:
                return measured < self.value


class Verdict(msgspec.Struct, frozen=True):
    """A target and the measured value; a target that was not measured is missed."""

    target: Target
    measured: Estimate | None
    remark: str = ""

    @property
    def is_met(self) -> bool:
        return self.measured is not None and self.target.is_met_by(self.measured.median)


class Findings:
    """Filled by the scenarios in order, read by the report."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.comparisons: list[Comparison] = []
        self.verdicts: list[Verdict] = []
        self.absences: dict[str, str] = {}
        self.settings: dict[str, tuple[str, ...]] = {}

    def note_settings(self, contender: Contender) -> None:
        self.settings[contender.name] = contender.settings

    def note_absence(self, name: str, reason: str) -> None:
        self.absences[name] = reason

    def missed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.is_met]
