"""The contracts between packages catch violations: each is broken once here, in a tree of empty packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.conventions import PACKAGE, ROOT

PACKAGES = (
    "cli",
    "runtime",
    "simulator",
    "broker",
    "client",
    "client/core",
    "fabric",
    "log",
    "wire",
    "model",
    "spark",
    "fabric/raft",
    "fabric/flood",
    "fabric/overlay",
    "fabric/links",
    "fabric/replication",
    "fabric/consensus",
    "fabric/primary_backup",
    "fabric/cluster",
)
DOWNWARD = "Packages depend downward only"
CLIENT = "A client sees model, wire and errors only"
FABRICS = "The fabrics do not know each other"
PURE = "Pure packages know no clock"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    package = tmp_path / "rostra"
    for name in (".", *PACKAGES):
        (package / name).mkdir(exist_ok=True)
        (package / name / "__init__.py").touch()
    for module in ("errors.py", "safeguards.py"):
        (package / module).touch()
    return package


def broken_contracts(tree: Path) -> list[str]:
    lint = [str(Path(sys.executable).parent / "lint-imports"), "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    result = subprocess.run(
        lint, cwd=tree.parent, env={"PYTHONPATH": str(tree.parent)}, capture_output=True, text=True, check=False
    )
    assert "Contracts:" in result.stdout, result.stdout + result.stderr
    return [line for line in result.stdout.splitlines() if line.endswith("BROKEN")]


def test_a_tree_of_empty_packages_keeps_every_contract(tree: Path) -> None:
    assert broken_contracts(tree) == []


@pytest.mark.parametrize(
    ("name", "imported", "contract"),
    [
        ("model", "rostra.wire", DOWNWARD),
        ("fabric", "rostra.log", DOWNWARD),
        ("log", "rostra.wire", DOWNWARD),
        ("broker", "rostra.runtime", DOWNWARD),
        ("runtime", "rostra.simulator", DOWNWARD),
        ("client", "rostra.broker", DOWNWARD),
        ("client", "rostra.log", CLIENT),
        ("spark", "rostra.cli", DOWNWARD),
        ("fabric/raft", "rostra.fabric.flood", FABRICS),
        ("fabric/overlay", "rostra.fabric.raft", FABRICS),
        ("fabric/cluster", "rostra.fabric.raft", FABRICS),
        ("fabric/consensus", "rostra.fabric.cluster", FABRICS),
        ("fabric/consensus", "rostra.fabric.primary_backup", FABRICS),
        ("fabric/replication", "rostra.fabric.consensus", FABRICS),
        ("fabric/links", "rostra.fabric.replication", FABRICS),
        ("broker", "time", PURE),
        ("client/core", "asyncio", PURE),
        ("model", "concurrent.futures", PURE),
    ],
)
def test_an_import_across_the_rules_breaks_its_contract(tree: Path, name: str, imported: str, contract: str) -> None:
    (tree / name / "trespass.py").write_text(f"import {imported}\n")
    assert [line for line in broken_contracts(tree) if line.startswith(contract)] != []


def test_a_package_without_a_layer_breaks_the_first_contract(tree: Path) -> None:
    (tree / "unlisted.py").touch()
    assert [line for line in broken_contracts(tree) if line.startswith(DOWNWARD)] != []


def test_the_empty_tree_has_the_packages_of_the_real_one() -> None:
    real = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert real >= {name for name in PACKAGES if "/" not in name} - {"spark"}
