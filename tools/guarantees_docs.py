"""Writes docs/guarantees.md from the fabrics' own rows: `python -m tools.guarantees_docs`.

A test checks that it is up to date.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rostra.fabric.api import Guarantees
from rostra.fabric.registry import DEFAULT, FABRICS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guarantees.md"

HEAD = """# What each fabric promises

This page is written by `python -m tools.guarantees_docs` from the `Guarantees` that each fabric declares. The contract
suite (`tests/contract`) runs every test over every fabric whose row fulfils the predicates that the test proves,
simulated under many seeds and on real sockets ([which test runs where](contract-tests.md));
`tests/contract/test_matrix.py` pins the table and demands a test for each cell.

"""

MEANINGS = {
    "order": "order of records",
    "acks_all": "`acks=all` means",
    "delivers": "a subscription is served by",
    "split": "in a split",
    "survives": "acknowledged records survive",
    "groups_span_nodes": "named subscriptions span nodes",
    "exactly_once_sink": "exactly-once sinks",
    "publishes": "a publish may be sent to",
    "topics": "topics are",
    "exclusive_ownership": "exclusive ownership of a topic by its strongest publisher",
}

FOOT = """
Nothing is shown to anybody before it is committed, whatever `acks` says, and a fabric that cannot keep a promise
refuses with an error that says so. Where a publish is not passed on, the node names the owner and the client goes there
by itself.
"""


def page() -> str:
    rows = {name: msgspec.structs.asdict(kind.guarantees) for name, kind in FABRICS.items()}
    names = [f"{name} (default)" if name == DEFAULT else name for name in rows]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for field in Guarantees.__struct_fields__:
        if field != "fabric":
            lines.append(f"| {MEANINGS[field]} | " + " | ".join(_cell(row[field]) for row in rows.values()) + " |")
    return HEAD + "\n".join(lines) + "\n" + FOOT


def _cell(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
