"""The marker of a requirement is a checked claim: bad numbers stop the run, and skipped tests prove nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.requirements import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]

BORROWED = (
    "tests/conftest.py",
    "tests/loop_errors.py",
    "tools/__init__.py",
    "tools/requirements.py",
    "tools/requirement_plugin.py",
    "docs/requirements/common.md",
)
PARTS = """
[CM-8.any]
one = "a part"
two = "another"
[CM-9.each]
whole = "on every fabric"
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs pytest on a small project of its own that borrows our conftest and statements."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "docs" / "requirements").mkdir(parents=True)
    for name in BORROWED:
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "docs" / "requirements" / "proofs.toml").write_text(PARTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n    requirement: a number\n")

    def run_pytest(source: str, *, ci: bool = False) -> subprocess.CompletedProcess[str]:
        (tmp_path / "tests" / "test_it.py").write_text(f"import pytest\nproves = pytest.mark.requirement\n{source}\n")
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={"CI": "true" if ci else ""},
            capture_output=True,
            text=True,
            check=False,
        )

    return run_pytest


def results(tmp_path: Path) -> dict[str, dict[str, dict[str, object]]]:
    written: dict[str, dict[str, dict[str, object]]] = json.loads(
        (tmp_path / ".rostra" / "requirements.json").read_text()
    )["requirements"]
    return written


def evidence(tmp_path: Path) -> dict[str, list[str]]:
    return {claim: sorted(str(ran["outcome"]) for ran in tests.values()) for claim, tests in results(tmp_path).items()}


def test_a_number_nobody_stated_stops_the_run(run: Run) -> None:
    result = run("@proves('CM-999')\ndef test_it(): ...")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no requirement is numbered CM-999" in result.stderr


def test_three_numbers_on_one_test_stop_the_run(run: Run) -> None:
    result = run("@proves('CM-1')\nclass TestIt:\n    @proves('CM-2', 'CM-3')\n    def test_it(self): ...")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "at most 2 per test" in result.stderr


def test_each_outcome_is_written_down_under_its_number(run: Run, tmp_path: Path) -> None:
    run(
        "@proves('CM-1', 'CM-2')\ndef test_good(): ...\n"
        "@proves('CM-2')\ndef test_bad(): assert False\n"
        "@proves('CM-3')\ndef test_skipped(): pytest.skip('no')\n"
        "@proves('CM-4')\n@pytest.mark.xfail\ndef test_expected(): assert False\n"
        "@proves('CM-5')\n@pytest.mark.xfail\ndef test_unexpected(): ...\n"
        "@pytest.fixture\ndef broken(): raise OSError\n"
        "@proves('CM-6')\ndef test_broken_before(broken): ...\n"
        "@pytest.fixture\ndef breaks():\n    yield\n    raise OSError\n"
        "@proves('CM-7')\ndef test_broken_after(breaks): ..."
    )
    assert evidence(tmp_path) == {
        "CM-1": ["passed"],
        "CM-2": ["failed", "passed"],
        "CM-3": ["skipped"],
        "CM-4": ["xfailed"],
        "CM-5": ["xpassed"],
        "CM-6": ["failed"],
        "CM-7": ["failed"],
    }


def test_a_part_that_is_not_listed_stops_the_run(run: Run) -> None:
    result = run("@proves('CM-8:three')\ndef test_it(): ...")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "proofs.toml lists no part CM-8:three" in result.stderr


def test_the_fabric_of_a_test_is_written_down(run: Run, tmp_path: Path) -> None:
    run("@pytest.mark.parametrize('fabric', ['flood'])\n@proves('CM-9')\ndef test_it(fabric): ...")
    (ran,) = results(tmp_path)["CM-9"].values()
    assert ran == {"outcome": "passed", "fabrics": ["flood"]}


def test_a_run_ends_with_the_numbers_it_proved(run: Run) -> None:
    result = run(
        "@proves('CM-10')\ndef test_a(): ...\n"
        "@proves('CM-7')\ndef test_b(): ...\n"
        "@proves('CM-3')\ndef test_c(): 1/0\n"
        "@proves('CM-8:one')\ndef test_d(): ...\n"
        "@proves('CM-6')\ndef test_e(): pytest.skip('no')"
    )
    assert "proved on every fabric that promises it: CM-7 10\n" in result.stdout
    assert "proved in part: CM-8\n" in result.stdout
    assert "carried by a test, but not proved: CM-6\n" in result.stdout
    assert "a test failed: CM-3\n" in result.stdout
    assert "1 failed, 3 passed" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(): pytest.skip('no root here')",
        "@pytest.mark.skip(reason='no root here')\ndef test_it(): ...",
        "@pytest.mark.xfail(reason='no root here')\ndef test_it(): assert False",
        "pytest.skip('no root here', allow_module_level=True)",
    ],
    ids=["call", "marker", "expected failure", "module"],
)
def test_a_skip_is_a_failure_in_the_automatic_run_only(run: Run, source: str) -> None:
    strict = run(source, ci=True)
    assert strict.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    assert "nothing may be skipped" in strict.stdout
    assert "no root here" in strict.stdout
    assert run(source).returncode in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
