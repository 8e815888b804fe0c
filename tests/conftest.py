"""Settings of every test run: requirement marks, hypothesis profiles, the distribution of tests over processes.

Where CI is set nothing may be skipped, and hypothesis draws the same examples in every run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from tools.requirement_plugin import RequirementPlugin

pytest_plugins = ["tests.loop_errors"]

TOGETHER = (
    "tests/spark/test_commands.py",
    "tests/spark/test_example.py",
    "tests/spark/",
    "tests/simulation/test_seeds.py",
    "tests/processes/test_one_command.py",
)
"""Tests that share something expensive: those of one entry run in one process, one after the other. Spark has two
sessions, since the tests of one would take longer than all others together."""


# A slow machine is not a bug, so no example has a deadline.
settings.register_profile("rostra", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", settings.get_profile("rostra"), derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts the run in the background makes it ignore Ctrl-C, which its child processes would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("ci" if _automatic() else "rostra")
    config.pluginmanager.register(RequirementPlugin(), "requirements")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each test to the next free process, except those of `TOGETHER`. Marks of groups do not reach the scheduler
    in this version of pytest."""

    def _split_scope(self, nodeid: str) -> str:
        return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


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
