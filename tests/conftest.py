"""The requirement marker: checked when tests are collected, counted as they run, written down at the end.

Where CI is set nothing may be skipped, and hypothesis draws the same examples in every run.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from tools.requirements import Evidence, order_of, read_statements

NUMBERS_PER_TEST_MAX = 2
TOGETHER = (
    "tests/spark/test_commands.py",
    "tests/spark/test_example.py",
    "tests/spark/",
    "tests/simulation/test_seeds.py",
    "tests/processes/test_one_command.py",
)
"""What shares something dear: the tests of one of these run in one process, one after the other. Of Spark there are two
sessions, since the tests of one would take longer than all others together."""

_evidence = pytest.StashKey[Evidence]()


# A slow machine is not a bug, so no example has a deadline.
settings.register_profile("rostra", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", settings.get_profile("rostra"), derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("ci" if _automatic() else "rostra")
    config.stash[_evidence] = Evidence()
    config.pluginmanager.register(_Recorder(config.stash[_evidence]), "requirement-recorder")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Every test by itself to whoever is free, but for those that belong together. Marks of groups do not reach the
    scheduler in this version of pytest."""

    def _split_scope(self, nodeid: str) -> str:
        return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    statements = read_statements()
    complaints: list[str] = []
    for item in items:
        numbers = sorted({str(n) for mark in item.iter_markers("requirement") for n in mark.args})
        complaints += [f"{item.nodeid}: no requirement is numbered {n}" for n in numbers if n not in statements]
        if len(numbers) > NUMBERS_PER_TEST_MAX:
            complaints.append(f"{item.nodeid}: carries {', '.join(numbers)}; at most {NUMBERS_PER_TEST_MAX} per test")
        # User properties travel inside the reports, so the count is right wherever the test runs.
        item.user_properties += [("requirement", number) for number in numbers]
    if complaints:
        raise pytest.UsageError(*complaints)


class _Recorder:
    """Collects the outcome of each phase of each marked test."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Setup and teardown speak only when something went wrong there; the call says whether the test passed.
        if report.when != "call" and report.passed:
            return
        for name, number in report.user_properties:
            if name == "requirement":
                self._evidence.record(str(number), report.nodeid, _outcome(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput") and not session.config.option.collectonly:
            self._evidence.write()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        numbers = sorted(self._evidence.tests, key=order_of)
        proved = [number for number in numbers if self._evidence.proved(number)]
        if numbers:
            terminalreporter.section("requirements")
            terminalreporter.line(f"proved: {' '.join(proved) or 'none'}")
        if unproved := [number for number in numbers if number not in proved]:
            terminalreporter.line(f"carried by a test, but not proved: {' '.join(unproved)}", red=True)


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xpassed" if report.passed else "xfailed"
    return report.outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and _automatic():
        report.outcome = "failed"
        report.longrepr = f"nothing may be skipped where CI is set: {_reason(report)}"
        if hasattr(report, "wasxfail"):
            del report.wasxfail
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and _automatic():
        report.longrepr = f"nothing may be skipped where CI is set: {_reason(report)}"
        report.outcome = "failed"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    return str(getattr(report, "wasxfail", "") or report.longrepr)


def _automatic() -> bool:
    return os.environ.get("CI", "").lower() in {"true", "1"}
