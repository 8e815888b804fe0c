"""No module of Rostra loads code or objects from bytes that somebody else may have written."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tools.requirements import ROOT

MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "yaml"}
CALLS = {"eval", "exec", "compile", "__import__"}


def unsafe(source: str) -> Iterator[str]:
    """What of a module loads objects or code from bytes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if alias.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield module
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield name


@pytest.mark.requirement("CM-20:no-unsafe-loader")
def test_no_module_uses_pickle_eval_or_another_unsafe_loader() -> None:
    modules = sorted((ROOT / "src").rglob("*.py"))
    assert len(modules) > 100
    found = {str(path.relative_to(ROOT)): list(unsafe(path.read_text(encoding="utf-8"))) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize("source", ["import pickle", "from yaml import load", "eval(x)", "import marshal as m"])
def test_each_kind_of_unsafe_loader_is_found(source: str) -> None:
    assert list(unsafe(source))


def test_methods_of_the_same_name_are_not_meant() -> None:
    assert list(unsafe("import re\nre.compile(x)\nmodel.eval()")) == []
