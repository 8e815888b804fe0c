"""The table of contract tests, written to docs/contract-tests.md: `python -m tests.contract.contract_tests`.

It lists for each fabric which tests run with how many nodes, and why others do not. A test checks that it is current.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from rostra.fabric.registry import FABRICS
from tests.contract.guarantees import Selection, selection_of

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "contract-tests.md"

HEAD = """# Contract tests per fabric

This page is written by `python -m tests.contract.contract_tests`. A contract test names predicates on a fabric's row of
[the table of guarantees](guarantees.md) and runs for each fabric whose row fulfils them, simulated under several seeds
and on real sockets. A cell gives the numbers of nodes of the clusters that the test runs on, or why it does not run.

"""


def contract_tests() -> Iterator[tuple[str, str, Selection]]:
    """Module, name and selection of each test that runs over fabrics."""
    for path in sorted(HERE.glob("test_*.py")):
        module = importlib.import_module(f"tests.contract.{path.stem}")
        for name, found in vars(module).items():
            selection = selection_of(found)
            if name.startswith("test_") and selection is not None:
                yield path.stem, name, selection


def page() -> str:
    lines: list[str] = []
    last = ""
    for module, name, selection in contract_tests():
        if module != last:
            head = "| test | " + " | ".join(FABRICS) + " |"
            lines += ["", f"## {module}", "", head, "|---" * (len(FABRICS) + 1) + "|"]
            last = module
        sizes = ", ".join(map(str, sorted(selection.sizes)))
        cells = [selection.reason_against(kind.guarantees) or sizes for kind in FABRICS.values()]
        lines.append(f"| {name.removeprefix('test_').replace('_', ' ')} | " + " | ".join(cells) + " |")
    return HEAD + "\n".join(lines).lstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
