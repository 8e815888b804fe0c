"""Writes docs/api.md from the public names: `python -m tools.api_docs`. A test checks that it is up to date.

The examples are functions in `examples/api`; the docstring of each names what it is an example of.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import rostra
import rostra.blocking
import rostra.spark
import rostra.testing
from rostra import errors
from rostra.errors import RostraError
from rostra.testing.clusters import Cluster
from rostra.testing.embedded import EmbeddedNode
from rostra.testing.metrics import Metrics
from rostra.testing.process import ProcessNode

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
EXAMPLES = ROOT / "examples" / "api"

HEAD = """# Python API

This page is generated from the code and from `examples/api` by `python -m tools.api_docs`; the tests run and type-check
every example. `address` is that of any node, such as `"127.0.0.1:7400"`.

The asyncio client (`rostra`) and the blocking client (`rostra.blocking`) have the same names and arguments. Times are
in milliseconds if the name ends in `_ms`, in seconds for `timeout`, and in microseconds since 1970 for `timestamp`.
"""

TESTING_CLASSES = {"EmbeddedNode": EmbeddedNode, "ProcessNode": ProcessNode, "Cluster": Cluster, "Metrics": Metrics}


class Example(NamedTuple):
    function: str
    names: tuple[str, ...]
    source: str
    """With the imports that it needs, as a module of its own."""


def examples(module: str) -> list[Example]:
    """The examples of one file in `examples/api`, in order."""
    written = (EXAMPLES / f"{module}.py").read_text(encoding="utf-8")
    tree = ast.parse(written)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    shared = {function.name: function for function in functions if ast.get_docstring(function) is None}
    found = []
    for function in functions:
        named = ast.get_docstring(function)
        if named is None:
            continue
        body = _without_docstring(written, function)
        parts = [_segment(written, one) for name, one in shared.items() if re.search(rf"\b{name}\(", body)]
        code = "\n\n\n".join([*parts, body])
        needed = [line for node in imports if (line := _import(node, code))]
        names = tuple(name.strip() for name in named.split(","))
        found.append(Example(function.name, names, "\n".join(needed) + "\n\n\n" + code + "\n"))
    return found


def _segment(written: str, node: ast.stmt) -> str:
    source = ast.get_source_segment(written, node)
    assert source is not None
    return source


def _without_docstring(written: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    lines = written.splitlines()
    docstring = function.body[0]
    assert docstring.end_lineno is not None and function.end_lineno is not None
    body = lines[docstring.end_lineno : function.end_lineno]
    return "\n".join([*lines[function.lineno - 1 : docstring.lineno - 1], *body]).replace(":\n\n", ":\n", 1)


def _import(node: ast.Import | ast.ImportFrom, code: str) -> str:
    """The import with the names that the code uses; empty if there is none."""
    if isinstance(node, ast.Import):
        return f"import {node.names[0].name}" if _uses(code, node.names[0].name) else ""
    used = [name.name for name in node.names if _uses(code, name.name)]
    return f"from {node.module} import {', '.join(used)}" if used else ""


def _uses(code: str, name: str) -> bool:
    # `import rostra` is not needed next to `import rostra.blocking` unless a name of its own is used.
    own = r"(?!\.(?:blocking|testing|spark))" if name == "rostra" else ""
    return re.search(rf"\b{re.escape(name)}\b{own}", code) is not None


# --- the page ---


def page() -> str:
    parts = [HEAD, "## rostra\n", *_module(rostra, examples("asyncio_client"))]
    parts += ["## rostra.blocking\n", *_module(rostra.blocking, examples("blocking_client"))]
    parts += ["## rostra.testing\n", *_testing(examples("testing_nodes")), *_spark(), *_errors()]
    return "\n".join(parts).rstrip() + "\n"


def _module(module: ModuleType, told: list[Example]) -> Iterator[str]:
    yield f"{_summary(module)}\n"
    public = [name for name in module.__all__ if name != "blocking"]
    for example in told:
        described = [name for name in example.names if name in public]
        for name in described:
            yield from _described(f"{module.__name__}.{name}", getattr(module, name))
        yield f"```python\n{example.source}```\n"


def _testing(told: list[Example]) -> Iterator[str]:
    yield f"{_summary(rostra.testing)}\n"
    for example in told:
        for name in example.names:
            found = TESTING_CLASSES.get(name) or getattr(rostra.testing, name)
            home = "rostra.testing" if name in rostra.testing.__all__ else found.__module__
            yield from _described(f"{home}.{name}", found)
        yield f"```python\n{example.source}```\n"


def _spark() -> Iterator[str]:
    yield "## rostra.spark\n"
    yield "Topics as a data source of Spark; [Spark](spark.md) has the options and further examples.\n"
    for example in examples("spark_topics"):
        for name in example.names:
            yield from _described(f"rostra.spark.{name}", getattr(rostra.spark, name))
        yield f"```python\n{example.source}```\n"


def _errors() -> Iterator[str]:
    yield "## rostra.errors\n"
    yield "`str(error)` is the fact and the next step; `error.retryable` tells whether a retry can help.\n"
    yield "| error | fact | next step |\n|---|---|---|"
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RostraError)]
    for kind in kinds:
        if "fact" in kind.__dict__ and kind is not RostraError:
            fact, remedy = (re.sub(r"\{(\w+)[^}]*\}", r"*\1*", text) for text in (kind.fact, kind.remedy))
            yield f"| `{kind.__name__}` | {_cell(fact)} | {_cell(remedy)} |"
    yield ""


def _described(title: str, named: Any) -> Iterator[str]:
    yield f"### {title}\n"
    if not inspect.isclass(named):
        if callable(named):
            yield f"`{title.rpartition('.')[2]}{_signature(named)}`\n"
        yield f"{_summary(named)}\n"
        return
    yield f"{_summary(named)}\n"
    rows = [*_fields(named), *_methods(named)]
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows]) + "\n"


def _fields(named: type) -> Iterator[str]:
    shown = {name: kind for name, kind in getattr(named, "__annotations__", {}).items() if not name.startswith("_")}
    for name in getattr(named, "__struct_fields__", ()):
        if name in shown:
            yield f"| `{name}` | {_cell(f'`{_type(shown[name])}`')} |"


def _methods(named: type) -> Iterator[str]:
    for name, member in vars(named).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"| `{name}` | {_cell(_first(member.fget))} |"
        elif inspect.isfunction(member):
            prefix = "await " if inspect.iscoroutinefunction(member) else ""
            yield f"| `{prefix}{name}{_cell(_signature(member, bound=True))}` | {_cell(_first(member))} |"


def _type(kind: object) -> str:
    return str(kind) if isinstance(kind, str) else getattr(kind, "__name__", str(kind))


def _signature(function: Any, *, bound: bool = False) -> str:
    """The parameters without their types, which the code and every editor have."""
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    shown: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown and not any(p.startswith("*") for p in shown):
            shown.append("*")
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{star}{parameter.name}{default}")
    return f"({', '.join(shown)})"


def _summary(named: Any) -> str:
    """The docstring without its examples."""
    text = inspect.getdoc(named) or ""
    if text and named.__class__.__module__ == "types":
        text = "Any of the events below."
    paragraphs = [part for part in text.split("\n\n") if not part.lstrip().startswith((">>>", "..."))]
    return "\n\n".join(paragraphs)


def _first(function: Any) -> str:
    """The first paragraph."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
