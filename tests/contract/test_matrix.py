"""The table of guarantees: pinned, each cell proved by a test, and printed in the manual."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rostra.fabric.api import Guarantees
from rostra.fabric.registry import FABRICS
from tests.contract.guarantees import guarantees_of
from tools import guarantees_docs

HERE = Path(__file__).parent


def contract() -> Iterator[tuple[str, object]]:
    for path in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.contract.{path.stem}")
        yield from ((name, found) for name, found in vars(module).items() if name.startswith("test_"))


@pytest.mark.requirement("CM-25:table")
def test_the_table_of_guarantees() -> None:
    rows = {kind.name: msgspec.to_builtins(kind.guarantees) for kind in FABRICS.values()}
    assert rows == {
        "raft": {
            "fabric": "raft",
            "order": "total per partition",
            "acks_all": "a majority fsynced",
            "delivers": "the owner or a replica",
            "split": "the side without a quorum refuses",
            "survives": "any minority at once; all, by restarting",
            "groups_span_nodes": True,
            "exactly_once_sink": True,
            "forwards_publishes": False,
            "topics": "the same at all nodes",
            "exclusive_ownership": True,
        },
        "flood": {
            "fabric": "flood",
            "order": "per origin broker",
            "acks_all": "every broker of the view named in the reply fsynced",
            "delivers": "the subscriber's own node",
            "split": "each side goes on and they merge",
            "survives": "any at once: whoever is left goes on; all, by restarting",
            "groups_span_nodes": False,
            "exactly_once_sink": False,
            "forwards_publishes": True,
            "topics": "each node's own; a record makes its topic wherever it comes",
            "exclusive_ownership": False,
        },
    }


def test_each_cell_of_the_table_is_proved_by_a_test() -> None:
    proved = {
        (kind.name, field)
        for _, test in contract()
        if (promise := guarantees_of(test)) is not None
        for kind in promise.fabrics()
        for field, _ in promise.cells
    }
    fields = set(Guarantees.__struct_fields__) - {"fabric"}
    assert {(name, field) for name in FABRICS for field in fields} == proved


def test_each_proven_guarantee_is_declared_by_some_fabric() -> None:
    promises = {name: promise for name, test in contract() if (promise := guarantees_of(test)) is not None}
    assert len(promises) > 20
    assert [name for name, promise in promises.items() if not promise.fabrics()] == []


@pytest.mark.requirement("CM-25:rendered")
def test_the_manual_shows_the_current_table() -> None:
    written = guarantees_docs.PAGE.read_text(encoding="utf-8")
    assert written == guarantees_docs.page(), "run `python -m tools.guarantees_docs`"
