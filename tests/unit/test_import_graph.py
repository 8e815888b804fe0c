"""The import graph counts hidden imports, finds every cycle, and none is larger than it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import import_graph as tool
from tools.import_graph import CYCLE_MODULES_MAX, cycles, import_graph, package_of, package_rows, too_large


@pytest.fixture
def source(tmp_path: Path) -> Path:
    package = tmp_path / "rostra"
    for folder in (package, package / "log", package / "wire"):
        folder.mkdir()
        (folder / "__init__.py").touch()
    (package / "log" / "a.py").write_text("from rostra.log import b\n")
    (package / "log" / "b.py").write_text("def late() -> None:\n    from rostra.log.c import thing\n")
    (package / "log" / "c.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rostra.log.a\n\nthing = 1\n"
    )
    (package / "wire" / "d.py").write_text("from rostra.log.a import b\nimport os\n")
    return tmp_path


def test_imports_in_functions_and_under_type_checking_make_a_cycle(source: Path) -> None:
    assert cycles(import_graph(source)) == [["rostra.log.a", "rostra.log.b", "rostra.log.c"]]


def test_packages_are_listed_with_what_they_import(source: Path) -> None:
    assert dict(package_rows(import_graph(source)))["rostra.wire"] == {"rostra.log": 1}


def test_two_cycles_that_share_a_module_are_one(tmp_path: Path) -> None:
    graph = {"r.a": {"r.b", "r.c"}, "r.b": {"r.a"}, "r.c": {"r.a"}, "r.d": {"r.a"}}
    assert cycles(graph) == [["r.a", "r.b", "r.c"]]
    assert package_of(["r.a.x", "r.a.y"]) == "r.a"


def test_a_cycle_beyond_its_bound_is_an_error(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cycles(import_graph(source))
    assert too_large(found) == ["3 modules of rostra.log import each other, 1 allowed"]
    monkeypatch.setitem(CYCLE_MODULES_MAX, "rostra.log", 3)
    assert too_large(found) == []


def test_under_fabric_three_modules_may_import_each_other_and_not_four() -> None:
    three = ["rostra.fabric.a.x", "rostra.fabric.a.y", "rostra.fabric.b.z"]
    assert too_large([three]) == []
    assert too_large([[*three, "rostra.fabric.b.w"]]) == ["4 modules of rostra.fabric import each other, 3 allowed"]


def test_no_cycle_of_the_package_has_grown() -> None:
    found = cycles(import_graph())
    assert too_large(found) == []
    largest: dict[str, int] = {}
    for members in reversed(found):
        if not package_of(members).startswith("rostra.fabric"):
            largest[package_of(members)] = len(members)
    assert largest == tool.CYCLE_MODULES_MAX, "a cycle that became smaller keeps its new size as the bound"
