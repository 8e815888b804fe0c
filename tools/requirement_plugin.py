"""The requirement mark as a pytest plugin: checked at collection, counted as tests run, written down at the end."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from rostra.fabric.registry import DEFAULT, FABRICS
from tools.requirements import Evidence, Proofs, Verdict, judge, number_of, order_of, read_statements

NUMBERS_PER_TEST_MAX = 2

AREAS: dict[str, tuple[str, ...]] = {
    "tests/": (DEFAULT,),
    "tests/unit/": (),
    "tests/unit/broker/": (DEFAULT,),
    "tests/unit/overlay/": ("scribe",),
    "tests/unit/papers/": ("scribe",),
    "tests/unit/spark/": (DEFAULT,),
    "tests/processes/test_cli_ring.py": ("flood",),
    "tests/simulation/test_overlay.py": ("scribe",),
}
"""The fabrics of tests that name none in their parameters or path, by the longest path that fits. Nodes are of the
default fabric unless a test says otherwise; the unit tests of model, wire, log and client have no fabric."""


def fabrics_of(nodeid: str, parameters: Iterable[object]) -> frozenset[str]:
    """The fabrics a test runs on: among its parameters, else named in its path, else those of its area."""
    named = {getattr(value, "fabric", value) for value in parameters if _names_a_fabric(value)}
    if named:
        return frozenset(str(name) for name in named)
    path = nodeid.partition("::")[0]
    if in_path := FABRICS.keys() & set(re.split(r"[/_.]", path)):
        return frozenset(in_path)
    fitting = [area for area in AREAS if path.startswith(area)]
    return frozenset(AREAS[max(fitting, key=len)] if fitting else ())


def _names_a_fabric(value: object) -> bool:
    name = getattr(value, "fabric", value)
    return isinstance(name, str) and name in FABRICS


class RequirementPlugin:
    """Collects the outcome of each phase of each marked test."""

    def __init__(self) -> None:
        self._evidence = Evidence()
        self._proofs = Proofs.read(read_statements(), list(FABRICS))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        complaints: list[str] = []
        for item in items:
            claims = sorted({str(claim) for mark in item.iter_markers("requirement") for claim in mark.args})
            if not claims:
                continue
            complaints += [f"{item.nodeid}: {self._complaint(claim)}" for claim in claims if self._complaint(claim)]
            numbers = sorted({number_of(claim) for claim in claims})
            if len(numbers) > NUMBERS_PER_TEST_MAX:
                complaints.append(
                    f"{item.nodeid}: carries {', '.join(numbers)}; at most {NUMBERS_PER_TEST_MAX} per test"
                )
            # User properties travel inside the reports, so the count is right wherever the test runs.
            callspec = getattr(item, "callspec", None)
            fabrics = sorted(fabrics_of(item.nodeid, callspec.params.values() if callspec else ()))
            item.user_properties += [("requirement", claim) for claim in claims]
            item.user_properties += [("fabric", fabric) for fabric in fabrics]
        if complaints:
            raise pytest.UsageError(*complaints)

    def _complaint(self, claim: str) -> str:
        if number_of(claim) not in self._proofs.parts:
            return f"no requirement is numbered {number_of(claim)}"
        if not self._proofs.knows(claim):
            return f"docs/requirements/proofs.toml lists no part {claim}"
        return ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Setup and teardown count only when something went wrong there; the call says whether the test passed.
        if report.when != "call" and report.passed:
            return
        fabrics = [str(value) for name, value in report.user_properties if name == "fabric"]
        for name, claim in report.user_properties:
            if name == "requirement":
                self._evidence.record(str(claim), report.nodeid, _outcome(report), fabrics)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput") and not session.config.option.collectonly:
            self._evidence.write()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        numbers = sorted({number_of(claim) for claim in self._evidence.tests}, key=order_of)
        if not numbers:
            return
        verdicts = [judge(number, self._proofs, self._evidence) for number in numbers]
        built = set(self._proofs.fabrics)
        groups = {
            "proved on every fabric that promises it": [one for one in verdicts if one.done],
            "proved in part": [one for one in verdicts if one.begun and not one.done and not one.failed],
            "of a fabric that is not built yet": [one for one in verdicts if not built & one.lacking.keys()],
            "carried by a test, but not proved": [
                one for one in verdicts if not (one.begun or one.failed) and built & one.lacking.keys()
            ],
        }
        terminalreporter.section("requirements")
        for heading, found in groups.items():
            if found:
                terminalreporter.line(f"{heading}: {_listed(found)}")
        if failed := [one for one in verdicts if one.failed]:
            terminalreporter.line(f"a test failed: {_listed(failed)}", red=True)


def _listed(verdicts: list[Verdict]) -> str:
    """By letters, each said once: CM-1 2 5, RF-3."""
    by_letters: dict[str, list[str]] = {}
    for verdict in verdicts:
        letters, _, digits = verdict.number.partition("-")
        by_letters.setdefault(letters, []).append(digits)
    return ", ".join(f"{letters}-{' '.join(digits)}" for letters, digits in by_letters.items())


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.passed else "xfailed"
    return report.outcome
