"""The contracts between the rooms bite: each is broken once here, in a house of empty rooms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.conventions import PACKAGE, ROOT

ROOMS = (
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
)
DOWNWARD = "Rooms depend downward only"
CLIENT = "A client sees model, wire and errors only"
FABRICS = "The fabrics do not know each other"
PURE = "Pure rooms know no clock"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    package = tmp_path / "rostra"
    for room in (".", *ROOMS):
        (package / room).mkdir(exist_ok=True)
        (package / room / "__init__.py").touch()
    for module in ("errors.py", "safeguards.py"):
        (package / module).touch()
    return package


def broken_contracts(house: Path) -> list[str]:
    lint = [str(Path(sys.executable).parent / "lint-imports"), "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    result = subprocess.run(
        lint, cwd=house.parent, env={"PYTHONPATH": str(house.parent)}, capture_output=True, text=True, check=False
    )
    assert "Contracts:" in result.stdout, result.stdout + result.stderr
    return [line for line in result.stdout.splitlines() if line.endswith("BROKEN")]


def test_a_house_with_empty_rooms_keeps_every_contract(house: Path) -> None:
    assert broken_contracts(house) == []


@pytest.mark.parametrize(
    ("room", "imported", "contract"),
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
        ("broker", "time", PURE),
        ("client/core", "asyncio", PURE),
        ("model", "concurrent.futures", PURE),
    ],
)
def test_an_import_across_the_rules_breaks_its_contract(house: Path, room: str, imported: str, contract: str) -> None:
    (house / room / "trespass.py").write_text(f"import {imported}\n")
    assert [line for line in broken_contracts(house) if line.startswith(contract)] != []


def test_a_room_without_a_floor_breaks_the_first_contract(house: Path) -> None:
    (house / "attic.py").touch()
    assert [line for line in broken_contracts(house) if line.startswith(DOWNWARD)] != []


def test_the_empty_house_has_the_rooms_of_the_real_one() -> None:
    real = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert real >= {room for room in ROOMS if "/" not in room} - {"spark"}
