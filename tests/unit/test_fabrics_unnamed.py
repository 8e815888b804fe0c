"""Brokers, clients and drivers take a fabric as they find it: none of them knows one by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rostra.fabric.registry import FABRICS
from tools.conventions import PACKAGE

PACKAGES = ("broker", "client", "runtime", "wire", "model", "log")
NAMES = re.compile(rf"\b({'|'.join(map(re.escape, FABRICS))}|hashring|scribe|zookeeper)\b", re.IGNORECASE)


def words(module: Path) -> Iterator[str]:
    """Names, texts and imports; not what comments and docstrings tell readers."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    told = {
        statement.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if node not in told:
                yield text
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield name
            case ast.alias(name=name):
                yield name
            case _:
                pass


@pytest.mark.parametrize("package", PACKAGES)
def test_no_fabric_is_named_in(package: str) -> None:
    found = [
        f"{module.relative_to(PACKAGE)}: {word}"
        for module in sorted((PACKAGE / package).rglob("*.py"))
        for word in words(module)
        if NAMES.search(word)
    ]
    assert found == []


def test_a_name_would_be_found() -> None:
    assert NAMES.search("rostra.fabric.flood.machine") and NAMES.search("raft")
