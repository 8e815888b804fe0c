"""Which promises a test proves, and so for which fabrics it runs: decided by their rows in the table, never by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from rostra.fabric.api import Guarantees, Split
from rostra.fabric.catalog import FABRICS, FabricKind

Test = TypeVar("Test", bound=Callable[..., None])

NODES = 3
"""Of a fabric that spreads over several."""


class Promise(msgspec.Struct, frozen=True):
    """The cells of the table that a test proves. Without any, every fabric keeps it."""

    cells: tuple[tuple[str, object], ...] = ()
    several: bool = False
    """Whether it is about several nodes."""

    def made_by(self, guarantees: Guarantees) -> bool:
        if self.several and guarantees.split is Split.ALONE:
            return False
        return all(getattr(guarantees, field) == value for field, value in self.cells)

    def fabrics(self) -> list[FabricKind]:
        return [kind for kind in FABRICS.values() if self.made_by(kind.guarantees)]


def promised(*, several: bool = False, **cells: object) -> Callable[[Test], Test]:
    """
    >>> @promised(split=Split.REFUSES)  # doctest: +SKIP
    ... def test_a_side_without_a_majority_refuses(cluster): ...
    """
    promise = Promise(tuple(sorted(cells.items())), several)
    unknown = [field for field in cells if field not in Guarantees.__struct_fields__]
    assert not unknown, f"no fabric promises {unknown}"

    def mark(test: Test) -> Test:
        test.promise = promise  # type: ignore[attr-defined]
        return test

    return mark


def promise_of(test: object) -> Promise | None:
    found = getattr(test, "promise", None)
    assert found is None or isinstance(found, Promise)
    return found


def nodes_of(guarantees: Guarantees) -> int:
    return 1 if guarantees.split is Split.ALONE else NODES
