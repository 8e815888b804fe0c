"""Finds places where the order of a set could be seen.

A set of strings or bytes iterates in an order that changes with PYTHONHASHSEED, so one such loop in a protocol makes a
simulated run impossible to repeat. The search knows types only as far as a module's own text tells them: displays,
comprehensions, `set(...)`, set algebra, and what is annotated or assigned as a set. It errs on the side of silence
where a name is also bound to something else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_SET_TYPES = {"set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet"}
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.BitXor, ast.Sub)
_SHOWS_ORDER = {
    *("list", "tuple", "iter", "enumerate", "zip", "map", "filter", "reduce", "chain", "deque", "array", "bytes"),
    *("str", "repr"),
}
_HIDES_ORDER = {"sorted", "set", "frozenset", "any", "all", "len", "sum", "min", "max", "Counter"}
_SHOWS_ORDER_METHODS = {"join", "extend", "fromkeys", "writelines", "appendleft", "extendleft"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass
class _Scope:
    """What the names bound in one function, class or module are known to be."""

    sets: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    annotated: set[str] = field(default_factory=set)

    def is_set(self, name: str) -> bool | None:
        if name in self.annotated:
            return True
        if name in self.others:
            return False
        return True if name in self.sets else None


def lines_that_show_set_order(tree: ast.Module) -> list[int]:
    """Line numbers at which a set is iterated, unpacked, popped or poured into something ordered."""
    return sorted(set(_Search(tree).search()))


class _Search:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
        self._scopes: dict[ast.AST, _Scope] = {tree: _Scope()}
        self._returns = _Scope()
        for node in ast.walk(tree):
            if isinstance(node, _Function | ast.ClassDef):
                self._scopes[node] = _Scope()
        self._learn_annotations()
        self._learn_assignments()

    def search(self) -> Iterator[int]:
        for node in ast.walk(self._tree):
            for shown in self._shown_by(node):
                if self._is_set(shown):
                    yield shown.lineno

    # -- where order is seen

    def _shown_by(self, node: ast.AST) -> Iterator[ast.expr]:
        match node:
            case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated):
                yield iterated
            case ast.ListComp() | ast.DictComp() | ast.GeneratorExp():
                if not self._order_is_lost(node):
                    yield from (generator.iter for generator in node.generators)
            case ast.Starred(value=value, ctx=ast.Load()) if not isinstance(self._parents[node], ast.Set):
                yield value
            case ast.YieldFrom(value=value) | ast.FormattedValue(value=value):
                yield value
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
                yield value
            case ast.Call(func=ast.Name(id=name)) if name in _SHOWS_ORDER:
                yield from node.args
            case ast.Call(func=ast.Name(id="min" | "max")) if any(k.arg == "key" for k in node.keywords):
                # Of elements with equal keys the first one met wins.
                yield from node.args
            case ast.Call(func=ast.Attribute(attr=name)) if name in _SHOWS_ORDER_METHODS:
                yield from node.args
            case ast.Call(func=ast.Attribute(value=value, attr="pop"), args=[]):
                yield value

    def _order_is_lost(self, node: _Comprehension) -> bool:
        parent = self._parents.get(node)
        return (
            isinstance(parent, ast.Call)
            and isinstance(parent.func, ast.Name)
            and parent.func.id in _HIDES_ORDER
            and not (parent.func.id in {"min", "max"} and any(k.arg == "key" for k in parent.keywords))
        )

    # -- what is a set

    def _is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id="set" | "frozenset")):
                return True
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name)) if (
                self._returns.is_set(name)
            ):
                return True
            case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _SET_METHODS:
                return self._is_set(value)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _SET_OPERATORS):
                return any(self._is_set(side) or _is_dict_view(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_set(body) or self._is_set(orelse)
            case ast.BoolOp(values=values):
                return any(self._is_set(value) for value in values)
            case ast.NamedExpr(value=value):
                return self._is_set(value)
            case ast.Name(id=name):
                return self._name_is_set(node, name)
            case ast.Attribute(value=value, attr=attr):
                return self._attribute_is_set(node, value, attr)
        return False

    def _name_is_set(self, node: ast.AST, name: str) -> bool:
        for place in self._enclosing(node):
            if (known := self._scopes[place].is_set(name)) is not None:
                return known
        return False

    def _attribute_is_set(self, node: ast.AST, value: ast.expr, attr: str) -> bool:
        if isinstance(value, ast.Name) and value.id == "self":
            for place in self._enclosing(node):
                if isinstance(place, ast.ClassDef):
                    return bool(self._scopes[place].is_set(attr))
        known = [scope.is_set(attr) for place, scope in self._scopes.items() if isinstance(place, ast.ClassDef)]
        return True in known and False not in known

    def _enclosing(self, node: ast.AST) -> Iterator[ast.AST]:
        place: ast.AST | None = node
        while place is not None:
            if place in self._scopes:
                yield place
            place = self._parents.get(place)

    # -- what the module says about its names

    def _learn_annotations(self) -> None:
        for node in ast.walk(self._tree):
            match node:
                case ast.arg(arg=name, annotation=annotation) if annotation is not None:
                    self._learn(next(self._enclosing(node)), name, _names_a_set(annotation), annotated=True)
                case ast.AnnAssign(target=target, annotation=annotation):
                    self._learn_target(target, _names_a_set(annotation), annotated=True)
                case ast.FunctionDef(name=name, returns=annotation) if annotation is not None:
                    bound = self._returns.sets if _names_a_set(annotation) else self._returns.others
                    bound.add(name)
                    if any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list):
                        self._learn(self._parents[node], name, _names_a_set(annotation), annotated=False)

    def _learn_assignments(self) -> None:
        # Twice, because a set may be assigned from a name whose own assignment stands further down.
        for _ in range(2):
            for node in ast.walk(self._tree):
                match node:
                    case ast.Assign(targets=targets, value=value):
                        for target in targets:
                            self._learn_target(target, self._is_set(value), annotated=False)
                    case ast.NamedExpr(target=target, value=value):
                        self._learn_target(target, self._is_set(value), annotated=False)
                    case ast.For(target=target) | ast.comprehension(target=target):
                        for name in ast.walk(target):
                            if isinstance(name, ast.Name):
                                self._learn_target(name, False, annotated=False)

    def _learn_target(self, target: ast.expr, is_set: bool, *, annotated: bool) -> None:
        match target:
            case ast.Name(id=name):
                self._learn(next(self._enclosing(target)), name, is_set, annotated=annotated)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                for place in self._enclosing(target):
                    if isinstance(place, ast.ClassDef):
                        self._learn(place, name, is_set, annotated=annotated)
                        return

    def _learn(self, place: ast.AST, name: str, is_set: bool, *, annotated: bool) -> None:
        scope = self._scopes[place]
        if is_set:
            scope.sets.add(name)
            scope.others.discard(name)
            if annotated:
                scope.annotated.add(name)
        elif name not in scope.sets:
            scope.others.add(name)


def _is_dict_view(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"keys", "items"}
        and not node.args
    )


def _names_a_set(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _SET_TYPES
        case ast.Subscript(value=ast.Name(id="Final" | "ClassVar" | "Annotated" | "Optional"), slice=inner):
            return _names_a_set(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        case ast.Subscript(value=value):
            return _names_a_set(value)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _names_a_set(left) or _names_a_set(right)
        case ast.Constant(value=str(text)):
            return _names_a_set(ast.parse(text, mode="eval").body)
    return False
