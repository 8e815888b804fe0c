"""Prints which package of Rostra imports which, and every cycle of modules: `python -m tools.import_graph`.

All imports count: those at the top of a module, inside functions, and under `TYPE_CHECKING`. A cycle is a strongly
connected set of modules; the larger it is, the more a reader must hold in mind at once. Exit code 1 if one is larger
than `CYCLE_MODULES_MAX` allows.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

CYCLE_MODULES_MAX = {
    "rostra.broker": 17,
    "rostra.client": 5,
    "rostra.client.aio": 2,
    "rostra.client.blocking": 4,
    "rostra.client.core": 13,
}
"""The largest cycle that was left, by the package that holds all of its modules."""
FABRIC_MAX = 3
"""Modules of a cycle anywhere under `fabric/`."""
ELSEWHERE_MAX = 1

Graph = dict[str, set[str]]


def import_graph(source: Path = SOURCE, root: str = "rostra") -> Graph:
    """Each module with the modules of the same root package that it imports."""
    modules = {_name(path, source): path for path in sorted((source / root).rglob("*.py"))}
    return {
        module: _imported(ast.parse(path.read_text(encoding="utf-8")), modules.keys()) - {module}
        for module, path in modules.items()
    }


def _name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(tree: ast.Module, modules: Iterable[str]) -> set[str]:
    known = set(modules)
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names} & known
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                for alias in names:
                    member = f"{origin}.{alias.name}"
                    found |= {member} if member in known else {origin} & known
            case _:
                pass
    return found


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Every strongly connected set of two modules or more, largest first (Tarjan, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for start in sorted(graph):
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            module, following = work[-1]
            for imported in following:
                if imported not in index:
                    index[imported] = low[imported] = len(index)
                    stack.append(imported)
                    on_stack.add(imported)
                    work.append((imported, iter(sorted(graph[imported]))))
                    break
                if imported in on_stack:
                    low[module] = min(low[module], index[imported])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[module])
                if low[module] == index[module]:
                    members = stack[stack.index(module) :]
                    del stack[stack.index(module) :]
                    on_stack -= set(members)
                    if len(members) > 1:
                        found.append(sorted(members))
    return sorted(found, key=lambda members: (-len(members), members))


def package_of(members: Iterable[str]) -> str:
    """The innermost package that holds all of the modules."""
    split = [member.split(".")[:-1] for member in members]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def modules_max(package: str) -> int:
    """How many modules of this package may import each other in a circle."""
    if f"{package}.".startswith("rostra.fabric."):
        return FABRIC_MAX
    return CYCLE_MODULES_MAX.get(package, ELSEWHERE_MAX)


def too_large(found: Iterable[list[str]]) -> list[str]:
    """Each cycle that is larger than its package may have."""
    return [
        f"{len(members)} modules of {package_of(members)} import each other, {allowed} allowed"
        for members in found
        if len(members) > (allowed := modules_max(package_of(members)))
    ]


def package_rows(graph: Mapping[str, set[str]], depth: int = 3) -> list[tuple[str, dict[str, int]]]:
    """Each package, cut to `depth` names, with the packages it imports and how many imports lead there."""
    rows: dict[str, Counter[str]] = {}
    packages = {module.rpartition(".")[0] for module in graph} | {"rostra"}

    def cut(module: str) -> str:
        package = module if module in packages else module.rpartition(".")[0]
        return ".".join(package.split(".")[:depth])

    for module, imported in graph.items():
        row = rows.setdefault(cut(module), Counter())
        for other in imported:
            if cut(other) != cut(module):
                row[cut(other)] += 1
    return [(package, dict(sorted(row.items()))) for package, row in sorted(rows.items())]


def main() -> int:
    graph = import_graph()
    for package, imported in package_rows(graph):
        print(f"{package}: {', '.join(f'{other} {count}' for other, count in imported.items()) or 'imports nothing'}")
    found = cycles(graph)
    print(f"\n{len(found)} cycles of modules")
    for members in found:
        print(f"  {len(members)} in {package_of(members)}: {', '.join(members)}")
    flaws = too_large(found)
    for flaw in flaws:
        print(f"error: {flaw}", file=sys.stderr)
    return 1 if flaws else 0


if __name__ == "__main__":
    raise SystemExit(main())
