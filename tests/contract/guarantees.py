"""States which guarantees a contract test proves, and so for which fabrics it runs: those that declare them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from rostra.fabric.api import Guarantees
from rostra.fabric.registry import FABRICS, FabricKind

Test = TypeVar("Test", bound=Callable[..., None])

SEVERAL = 3
ALONE = 1

CLUSTER_ONLY = {"acks_all", "delivers", "split", "survives"}
"""Guarantees that mean nothing for a single node."""


class RequiredGuarantees(msgspec.Struct, frozen=True):
    """The guarantees that a test proves, as cells of the table. Without any, it runs for every fabric."""

    cells: tuple[tuple[str, object], ...] = ()
    sizes: tuple[int, ...] = (SEVERAL, ALONE)
    """Numbers of nodes of the clusters to test."""

    def made_by(self, guarantees: Guarantees) -> bool:
        return all(getattr(guarantees, field) == value for field, value in self.cells)

    def fabrics(self) -> list[FabricKind]:
        return [kind for kind in FABRICS.values() if self.made_by(kind.guarantees)]


def proves(*, several: bool = False, alone: bool = False, **cells: object) -> Callable[[Test], Test]:
    """Marks a test with the guarantees it proves, for one node and for clusters unless limited to either.

    >>> @promised(split=SplitBehaviour.REFUSES)  # doctest: +SKIP
    ... def test_a_side_without_a_majority_refuses(cluster): ...
    """
    several = several or not CLUSTER_ONLY.isdisjoint(cells)
    assert not (several and alone), "one node is not several"
    sizes = (SEVERAL,) if several else (ALONE,) if alone else (SEVERAL, ALONE)
    promise = RequiredGuarantees(tuple(sorted(cells.items())), sizes)
    unknown = [field for field in cells if field not in Guarantees.__struct_fields__]
    assert not unknown, f"no fabric promises {unknown}"

    def mark(test: Test) -> Test:
        test.promise = promise  # type: ignore[attr-defined]
        return test

    return mark


def guarantees_of(test: object) -> RequiredGuarantees | None:
    found = getattr(test, "promise", None)
    assert found is None or isinstance(found, RequiredGuarantees)
    return found
