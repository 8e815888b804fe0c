"""Finds breaches of conventions that neither the linter nor import-linter can see.

Everywhere in the package: no unsafe loader, no module beyond a readable length, no vague name. In pure packages also:
no file opened, no set order shown, no identity or hash of an object, no random generator made. Each rule exists because
a simulated run must repeat exactly from its seed.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tools.set_order import lines_that_show_set_order

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "rostra"
PURE_PACKAGES = ("model", "wire", "log", "fabric", "broker")
LINES_MAX = 600
LINES_MAX_OF = {"errors.py": 800}
"""A closed set of types may be longer in one file."""

_VAGUE_PARTS = ("manager", "helper", "utils")
_VAGUE_BEGINNING = "handle_"
_UNSAFE_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
_UNSAFE_CALLS = {"eval", "exec", "__import__"}
_IMPURE_CALLS = {"open", "print", "input", "breakpoint", "hash", "id"}
_SET_ORDER = "the order of a set can be seen; sort it first"


class Flaw(NamedTuple):
    line: int
    what: str


def is_pure(module: Path) -> bool:
    """Whether a module, given relative to the package, may use no clock, file, socket or random source."""
    parts = module.parts
    return parts[0] in PURE_PACKAGES or (parts[0] == "client" and len(parts) > 1 and parts[1].startswith("core"))


def flaws_in_package(package: Path = PACKAGE) -> list[str]:
    found: list[str] = []
    for path in sorted(package.rglob("*.py")):
        module = path.relative_to(package)
        for flaw in flaws_in(path.read_text(encoding="utf-8"), module):
            found.append(f"{module}:{flaw.line}: {flaw.what}")
    return found


def flaws_in(source: str, module: Path) -> list[Flaw]:
    """Every breach of the rules in one module, by line."""
    tree = ast.parse(source)
    found = [*_length(source, module), *_vague_names(tree, module), *_unsafe_loaders(tree)]
    if is_pure(module):
        found += [*_impure_imports(tree), *_impure_calls(tree), *_chance(tree)]
        found += [
            Flaw(line, "the order of a set can be seen; sort it first") for line in lines_that_show_set_order(tree)
        ]
    return sorted(found)


def _length(source: str, module: Path) -> Iterator[Flaw]:
    lines, lines_max = len(source.splitlines()), LINES_MAX_OF.get(module.as_posix(), LINES_MAX)
    if lines > lines_max:
        yield Flaw(lines_max, f"{lines} lines; a module has one noun and at most {lines_max}")


def _vague_names(tree: ast.Module, module: Path) -> Iterator[Flaw]:
    for part in module.with_suffix("").parts:
        if _is_vague(part):
            yield Flaw(1, f"the name {part} is vague; name the thing")
    for line, name in _bound_names(tree):
        if _is_vague(name):
            yield Flaw(line, f"the name {name} is vague; name the thing")


def _is_vague(name: str) -> bool:
    lowered = name.lower().lstrip("_")
    return lowered.startswith(_VAGUE_BEGINNING) or any(part in lowered for part in _VAGUE_PARTS)


def _bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names this module gives, as opposed to names it uses (contextlib.contextmanager is not ours)."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)):
                yield node.lineno, name


def _unsafe_loaders(tree: ast.Module) -> Iterator[Flaw]:
    for line, name in _imported_roots(tree):
        if name in _UNSAFE_MODULES:
            yield Flaw(line, f"{name} runs or trusts what it loads; it is not used here")
    for line, name in _called_builtins(tree):
        if name in _UNSAFE_CALLS:
            yield Flaw(line, f"{name}() runs what it is given; it is not used here")


def _impure_imports(tree: ast.Module) -> Iterator[Flaw]:
    # import-linter holds the same list for whole packages; a pure module inside another package is seen only here.
    for line, name in _imported_roots(tree):
        if name in _impure_modules():
            yield Flaw(line, f"a pure package does not import {name}; take what you need as an input")


def _impure_calls(tree: ast.Module) -> Iterator[Flaw]:
    for line, name in _called_builtins(tree):
        if name in _IMPURE_CALLS:
            yield Flaw(line, f"a pure package does not call {name}()")


def _chance(tree: ast.Module) -> Iterator[Flaw]:
    """Random may be named as the type of a seeded generator that is handed in, and nothing else."""
    types: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and any(a.name.partition(".")[0] == "random" for a in node.names):
            yield Flaw(
                node.lineno, "a pure package is given its generator: only `from random import Random`, as a type"
            )
        if isinstance(node, ast.ImportFrom) and node.module == "random":
            if any(alias.name != "Random" for alias in node.names):
                yield Flaw(node.lineno, "a pure package is given its generator: only `from random import Random`")
            types |= {alias.asname or alias.name for alias in node.names}
    within_annotations = {inner for annotation in _annotations(tree) for inner in ast.walk(annotation)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in types and node not in within_annotations:
            yield Flaw(node.lineno, f"{node.id} is a type here; a generator is handed in, not made")


def _annotations(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
                yield annotation
            case ast.FunctionDef(returns=annotation) | ast.AsyncFunctionDef(returns=annotation) if annotation:
                yield annotation


def _imported_roots(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name.partition(".")[0]
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module.partition(".")[0]


def _called_builtins(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.Call(func=ast.Name(id=name))
                | ast.Call(func=ast.Attribute(value=ast.Name(id="builtins"), attr=name))
            ):
                yield node.lineno, name


@cache
def _impure_modules() -> frozenset[str]:
    """The list in pyproject.toml, so that there is one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["name"].startswith("Pure packages"):
            return frozenset(contract["forbidden_modules"])
    raise LookupError("pyproject.toml has no contract for the pure packages")
