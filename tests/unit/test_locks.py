"""The lock files install the same bytes everywhere, and say nothing of where they came from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.conventions import ROOT

LOCKS = (ROOT / "requirements.lock", ROOT / "benchmarks" / "requirements.lock")


def pins(lock: Path) -> dict[str, str]:
    """Each pinned distribution with its exact version."""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE))


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize("lock", LOCKS, ids=["main", "bench"])
def test_a_lock_names_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert re.findall(r"://|--index|--extra-index|--find-links|@ ", text) == []


@pytest.mark.parametrize("lock", LOCKS, ids=["main", "bench"])
def test_every_entry_of_a_lock_is_an_exact_pin_with_hashes(lock: Path) -> None:
    entries = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    assert entries
    assert [entry for entry in entries if not re.match(r"\S+==\S+ .*--hash=sha256:[0-9a-f]{64}", entry)] == []


def test_both_locks_fit_into_one_environment() -> None:
    main, bench = (pins(lock) for lock in LOCKS)
    assert {name: bench[name] for name in bench if name in main and main[name] != bench[name]} == {}


def test_the_locks_cover_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    main, bench = (pins(lock).keys() for lock in LOCKS)
    installed = [*project["dependencies"], *extras["dev"], *extras["arrow"], *extras["lz4"], *extras["zstd"]]
    assert names(installed) - {"rostra"} - main == set()
    assert names(extras["bench"]) - bench == set()
