"""The table of guarantees and the selection of contract tests by it: pinned, and printed in the manual."""

from __future__ import annotations

from enum import Enum

import msgspec
import pytest

from rostra.fabric.api import Guarantees
from rostra.fabric.registry import FABRICS
from tests.contract import contract_tests, guarantees
from tests.contract.guarantees import EVERY_SIZE, Predicate
from tests.contract.stub_fabrics import HASHRING, SCRIBE, ZOOKEEPER
from tools import guarantees_docs

PREDICATES = [found for found in vars(guarantees).values() if isinstance(found, Predicate)]
TESTS = {name: selection for _, name, selection in contract_tests.contract_tests()}


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
            "publishes": "the owner; another node names it",
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
            "publishes": "any node, which orders it",
            "topics": "each node's own; a record makes its topic wherever it comes",
            "exclusive_ownership": False,
        },
    }


def test_each_cell_of_the_table_is_proved_by_a_test() -> None:
    proved = {
        (kind.name, predicate.field)
        for selection in TESTS.values()
        for kind in selection.fabrics()
        if kind.name in FABRICS
        for predicate in selection.predicates
    }
    fields = set(Guarantees.__struct_fields__) - {"fabric"}
    assert {(name, field) for name in FABRICS for field in fields} == proved


def test_every_value_of_a_cell_fulfils_a_predicate() -> None:
    """Otherwise a fabric with a new value would be given no test of that cell, without a word."""
    values = {
        (field.name, value)
        for field in msgspec.structs.fields(Guarantees)
        if field.name != "fabric"
        for value in (field.type if isinstance(field.type, type) and issubclass(field.type, Enum) else (True, False))
    }
    assert values == {(one.field, value) for one in PREDICATES for value in one.accepts}


def test_each_test_runs_for_some_fabric_and_each_size_is_tested() -> None:
    assert len(TESTS) > 80
    assert [name for name, selection in TESTS.items() if not selection.fabrics()] == []
    assert {size for selection in TESTS.values() for size in selection.sizes} == set(EVERY_SIZE)


def not_run(row: Guarantees) -> dict[str, list[str]]:
    """The tests that a fabric with this row is not given, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, selection in TESTS.items():
        if reason := selection.reason_against(row):
            reasons.setdefault(reason, []).append(name)
    return reasons


ONLY_OF_ORIGINS = {
    "not: every node orders what is published to it",
    "not: acks=all names the nodes that have the record",
    "not: merges after a split",
    "not: whoever is left goes on",
    "not: groups are local to a node",
    "not: each node has its own topics",
    "not: ownership is always shared",
    "not: the node that gets a publish orders it",
}
"""What holds only where every node orders its own records: no row with owners may ask for it."""


@pytest.mark.parametrize(
    ("row", "also"),
    [
        (
            HASHRING,
            {
                "not: every replica delivers",
                "not: the subscriber's own node delivers",
                "not: the owner alone takes a publish",
            },
        ),
        (
            ZOOKEEPER,
            {
                "not: every replica delivers",
                "not: the subscriber's own node delivers",
                "not: any node passes a publish on to the owner",
                "not: who passes a publish on names the owner",
            },
        ),
        (
            SCRIBE,
            {
                "not: every replica delivers",
                "not: the owner alone takes a publish",
                "not: who passes a publish on names the owner",
            },
        ),
    ],
    ids=lambda value: value.fabric if isinstance(value, Guarantees) else "",
)
def test_a_fabric_gets_every_test_that_its_row_asks_for(row: Guarantees, also: set[str]) -> None:
    """Whatever is not run is for a reason that the row gives; all other tests are selected."""
    assert not_run(row).keys() == ONLY_OF_ORIGINS | also


def test_a_row_of_a_hash_ring_is_tested_like_a_majority_where_both_promise_the_same() -> None:
    raft = FABRICS["raft"].guarantees
    only_raft = {name for name, one in TESTS.items() if not one.reason_against(raft) and one.reason_against(HASHRING)}
    assert only_raft == {
        "test_every_replica_serves_subscriptions",
        "test_only_the_owner_takes_records_and_the_others_name_it",
    }


def test_the_manual_shows_which_tests_run() -> None:
    written = contract_tests.PAGE.read_text(encoding="utf-8")
    assert written == contract_tests.page(), "run `python -m tests.contract.contract_tests`"


@pytest.mark.requirement("CM-25:rendered")
def test_the_manual_shows_the_current_table() -> None:
    written = guarantees_docs.PAGE.read_text(encoding="utf-8")
    assert written == guarantees_docs.page(), "run `python -m tools.guarantees_docs`"
