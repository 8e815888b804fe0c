"""The numbered statements of docs/requirements, and what a test run proved of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATEMENTS = ROOT / "docs" / "requirements"
RESULTS = ROOT / ".rostra" / "requirements.json"

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


@dataclass
class Evidence:
    """Outcome of each test that carries a number: passed, failed, skipped, xfailed or xpassed."""

    tests: dict[str, dict[str, str]] = field(default_factory=dict)

    def record(self, number: str, test: str, outcome: str) -> None:
        self.tests.setdefault(number, {})[test] = outcome

    def proved(self, number: str) -> bool:
        """One test passed and none failed. A test that was skipped or expected to fail proves nothing."""
        outcomes = self.tests.get(number, {}).values()
        return "passed" in outcomes and "failed" not in outcomes

    def write(self, path: Path = RESULTS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        ordered = {number: self.tests[number] for number in sorted(self.tests, key=order_of)}
        path.write_text(json.dumps({"requirements": ordered}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path = RESULTS) -> Evidence:
        return cls(json.loads(path.read_text(encoding="utf-8"))["requirements"])


def report(statements: Mapping[str, str], evidence: Evidence, scope: Iterable[str]) -> tuple[list[str], list[str]]:
    """The lines to print, number by number, and the numbers in scope that nothing proves."""
    wanted = list(scope)
    lines: list[str] = []
    missing: list[str] = []
    for number, text in statements.items():
        if not in_scope(number, wanted):
            continue
        proved = evidence.proved(number)
        if not proved:
            missing.append(number)
        lines.append(f"{number:6} {'proved ' if proved else 'MISSING'} {text}")
        for test, outcome in sorted(evidence.tests.get(number, {}).items()):
            lines.append(f"         {outcome:7} {test}")
    return lines, missing
