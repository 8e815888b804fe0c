"""The numbered statements of docs/requirements, the parts a proof of them needs, and what a test run proved.

A statement of several clauses is proved part by part: docs/requirements/proofs.toml lists the parts of a number, and
for each part the fabrics that need a proof of their own. A number is proved when every part of it is.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STATEMENTS = ROOT / "docs" / "requirements"
RESULTS = ROOT / ".rostra" / "requirements.json"

HOME = {"RF": "raft", "FL": "flood", "HR": "hashring", "ZK": "zookeeper", "SC": "scribe"}
"""The fabric that the statements under these letters are about."""
FABRIC_NEUTRAL = ""
"""In place of a fabric: the same code serves every fabric, so that one proof is enough for all."""

_STATEMENT = re.compile(r"^- ([A-Z]{2}-\d+) (.*)$")


def order_of(number: str) -> tuple[str, int]:
    """Sort key under which CM-9 comes before CM-10."""
    letters, _, digits = number.partition("-")
    return letters, int(digits)


def read_statements(folder: Path = STATEMENTS) -> dict[str, str]:
    """Every number with the first line of its statement, in order."""
    found: dict[str, str] = {}
    for page in sorted(folder.glob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            if match := _STATEMENT.match(line):
                number, text = match.groups()
                if number in found:
                    raise ValueError(f"{number} is stated twice, the second time in {page.name}")
                found[number] = text
    return dict(sorted(found.items(), key=lambda pair: order_of(pair[0])))


def in_scope(number: str, scope: Iterable[str]) -> bool:
    """Whether a number is meant by a scope such as ["CM", "RF-3"]; an empty scope means every number."""
    wanted = list(scope)
    return not wanted or any(number == part or number.partition("-")[0] == part for part in wanted)


def number_of(claim: str) -> str:
    """The number that a mark claims: of "CM-13:torn-tail" it is CM-13."""
    return claim.partition(":")[0]


@dataclass(frozen=True)
class Clause:
    """One clause of a statement, and the fabrics on which it must be proved."""

    number: str
    name: str
    text: str
    fabrics: tuple[str, ...]

    def claimed_by(self, claim: str) -> bool:
        """A mark without a part's name claims the whole statement."""
        return claim in (self.number, f"{self.number}:{self.name}")


@dataclass(frozen=True)
class Proofs:
    """What a proof of each number consists of."""

    parts: Mapping[str, tuple[Clause, ...]]
    not_promised: Mapping[tuple[str, str], str]
    """By number and fabric: why that fabric does not promise the number, or a part of it."""
    fabrics: tuple[str, ...]
    """Those that are built, in the order of their columns."""

    @classmethod
    def read(cls, statements: Iterable[str], fabrics: Sequence[str], folder: Path = STATEMENTS) -> Proofs:
        path = folder / "proofs.toml"
        table: dict[str, dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        numbers = list(statements)
        if strangers := [number for number in table if number not in numbers]:
            raise ValueError(f"{path.name} lists parts of {', '.join(strangers)}, which nothing states")
        excepted = {
            (number, part, fabric): reason
            for number, rules in table.items()
            for fabric, reasons in rules.get("except", {}).items()
            for part, reason in reasons.items()
        }
        parts = {number: tuple(_parts(number, table.get(number, {}), fabrics, excepted)) for number in numbers}
        known = {(part.number, part.name) for found in parts.values() for part in found}
        if loose := [f"{number}:{part}" for number, part, _ in excepted if (number, part) not in known]:
            raise ValueError(f"{path.name} excepts {', '.join(loose)}, which is no part")
        reasons = {(number, fabric): reason for (number, _, fabric), reason in excepted.items()}
        return cls(parts, reasons, tuple(fabrics))

    def knows(self, claim: str) -> bool:
        return any(part.claimed_by(claim) for part in self.parts.get(number_of(claim), ()))

    def demanded(self, number: str) -> tuple[str, ...]:
        """The fabrics on which the number must be proved, built or not."""
        found = {fabric for part in self.parts[number] for fabric in part.fabrics if fabric != FABRIC_NEUTRAL}
        if not found:
            return self.fabrics
        return *(fabric for fabric in self.fabrics if fabric in found), *sorted(found - {*self.fabrics})


def _parts(
    number: str, rules: Mapping[str, Any], fabrics: Sequence[str], excepted: Mapping[tuple[str, str, str], str]
) -> Iterator[Clause]:
    if unknown := rules.keys() - {"any", "each", "only", "except"}:
        raise ValueError(f"{number} has parts under {', '.join(sorted(unknown))}; known are any, each, only, except")
    for name, text in rules.get("any", {}).items():
        yield Clause(number, name, text, (FABRIC_NEUTRAL,))
    for name, text in rules.get("each", {}).items():
        yield Clause(number, name, text, tuple(one for one in fabrics if (number, name, one) not in excepted))
    for fabric, own in rules.get("only", {}).items():
        yield from (Clause(number, name, text, (fabric,)) for name, text in own.items())
    if not rules.keys() & {"any", "each", "only"}:
        yield Clause(number, "", "", (HOME.get(number.partition("-")[0], FABRIC_NEUTRAL),))


@dataclass(frozen=True)
class Ran:
    """How one test ended (passed, failed, skipped, xfailed or xpassed), and the fabrics it ran on."""

    outcome: str
    fabrics: tuple[str, ...] = ()


@dataclass
class Evidence:
    """The tests that carry each claim. A claim is a number, or a number and one of its parts: "CM-13:torn-tail"."""

    tests: dict[str, dict[str, Ran]] = field(default_factory=dict)

    def record(self, claim: str, test: str, outcome: str, fabrics: Iterable[str] = ()) -> None:
        # A test that passed and failed at its end has failed.
        self.tests.setdefault(claim, {})[test] = Ran(outcome, tuple(sorted(fabrics)))

    def of(self, number: str) -> dict[str, dict[str, Ran]]:
        """The claims of one number."""
        return {claim: tests for claim, tests in self.tests.items() if number_of(claim) == number}

    def outcomes(self, part: Clause, fabric: str) -> list[str]:
        return [
            ran.outcome
            for claim, tests in self.tests.items()
            if part.claimed_by(claim)
            for ran in tests.values()
            if fabric == FABRIC_NEUTRAL or fabric in ran.fabrics
        ]

    def proved(self, part: Clause, fabric: str) -> bool:
        """One test passed and none failed. A test that was skipped or expected to fail proves nothing."""
        outcomes = self.outcomes(part, fabric)
        return "passed" in outcomes and "failed" not in outcomes

    def write(self, path: Path = RESULTS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        ordered = {
            claim: {test: {"outcome": ran.outcome, "fabrics": list(ran.fabrics)} for test, ran in tests.items()}
            for claim, tests in sorted(self.tests.items(), key=lambda pair: (order_of(number_of(pair[0])), pair[0]))
        }
        path.write_text(json.dumps({"requirements": ordered}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path = RESULTS) -> Evidence:
        found = cls()
        for claim, tests in json.loads(path.read_text(encoding="utf-8"))["requirements"].items():
            for test, ran in tests.items():
                found.record(claim, test, ran["outcome"], ran["fabrics"])
        return found


@dataclass(frozen=True)
class Verdict:
    """What is proved of one number, fabric by fabric."""

    number: str
    lacking: Mapping[str, tuple[str, ...]]
    """By fabric on which the number is demanded: the parts that are not proved there."""
    counts: Mapping[str, int]
    """By the same fabrics: how many parts are demanded there."""
    failed: frozenset[str]
    """Fabrics on which a test of the number failed."""

    @property
    def done(self) -> bool:
        return not any(self.lacking.values())

    @property
    def begun(self) -> bool:
        """Whether something of it is proved somewhere."""
        return any(len(parts) < self.counts[fabric] for fabric, parts in self.lacking.items())


def judge(number: str, proofs: Proofs, evidence: Evidence) -> Verdict:
    lacking: dict[str, tuple[str, ...]] = {}
    counts: dict[str, int] = {}
    failed: set[str] = set()
    for fabric in proofs.demanded(number):
        wanted = [
            (part, FABRIC_NEUTRAL if FABRIC_NEUTRAL in part.fabrics else fabric)
            for part in proofs.parts[number]
            if FABRIC_NEUTRAL in part.fabrics or fabric in part.fabrics
        ]
        counts[fabric] = len(wanted)
        lacking[fabric] = tuple(part.name for part, where in wanted if not evidence.proved(part, where))
        if any("failed" in evidence.outcomes(part, where) for part, where in wanted):
            failed.add(fabric)
    return Verdict(number, lacking, counts, frozenset(failed))
