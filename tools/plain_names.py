"""Finds names of modules, classes and public functions that are private words of earlier revisions.

A reader who knows Kafka, Raft or Chord should recognise every part from its name; docs/glossary.md has the words.
The list below holds those that were given up, so that none comes back.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEARCHED = ("src", "tests", "tools", "benchmarks")

_WORDS = """
acquaintance admission asks assignment awakening batch_ordering book books card catalog catalogue circle copy desk draft
enrolment entries errand expulsion gatherer gathering group handing hands hard herald holding hosting house
keeping lane leaving ledger lookout meet mesh mischief moves part passport people person place placing post
refill restless roaming roams room rooms seat shortway short_way standing steward stewardship switchboard
topic_matching undertaker vote_ask word
"""
GIVEN_UP = frozenset(_WORDS.split())
"""Whole names, in the spelling of a module."""

NAMED_TWICE = frozenset({"Client", "NamedSubscription", "Producer", "Subscription", "User"})
"""Classes that the asyncio client and the blocking client both have, under one name on purpose."""


def spelled(name: str) -> str:
    """`VoteAsk` as `vote_ask`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def given_up_names(root: Path = ROOT) -> list[str]:
    """Every module, class and public function or method that has one of the names."""
    return [where for where, name in _named_parts(root) if spelled(name).removeprefix("test_") in GIVEN_UP]


def _named_parts(root: Path) -> Iterator[tuple[str, str]]:
    for folder in SEARCHED:
        for path in sorted((root / folder).rglob("*.py")):
            module = path.relative_to(root)
            yield str(module), path.parent.name if path.name == "__init__.py" else path.stem
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{module}:{node.lineno} {node.name}", node.name


def repeated_class_names(package: Path = ROOT / "src" / "rostra") -> dict[str, list[str]]:
    """Class names that more than one module of the package defines, but for those that may."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(package)))
    return {name: places for name, places in found.items() if len(places) > 1 and name not in NAMED_TWICE}


def crowded_packages(package: Path = ROOT / "src" / "rostra", modules_max: int = 15) -> dict[str, int]:
    """Packages with more modules side by side than a reader takes in; the checkers are a list of alike files."""
    counts = {
        str(folder.relative_to(package.parent)): sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        for folder in sorted({path.parent for path in package.rglob("*.py")})
    }
    return {name: count for name, count in counts.items() if count > modules_max and not name.endswith("checkers")}
