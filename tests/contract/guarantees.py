"""Predicates on rows of the table of guarantees, and the selection of contract tests by them.

A test names the predicates that it proves and runs for each fabric whose row fulfils all of them, whichever value of
an enum that fabric has. So a fabric with a new value gets the tests of every predicate that lists it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from rostra.fabric.api import AcksAll, Delivers, Guarantees, Order, PublishPath, SplitBehaviour, Survives, TopicScope
from rostra.fabric.registry import FABRICS, FabricKind

Test = TypeVar("Test", bound=Callable[..., None])

SINGLE, THREE, FIVE = 1, 3, 5
"""Numbers of nodes of the clusters to test."""
EVERY_SIZE = (THREE, SINGLE, FIVE)
SEVERAL = (THREE, FIVE)


class Predicate(msgspec.Struct, frozen=True):
    """Holds for a row whose cell `field` has one of the values `accepts`."""

    words: str
    field: str
    accepts: tuple[object, ...]
    sizes: tuple[int, ...] = EVERY_SIZE
    """Where it can be tested; a promise about other nodes means nothing for a single one."""

    def holds(self, row: Guarantees) -> bool:
        return getattr(row, self.field) in self.accepts


ORDERS_PARTITIONS = Predicate("orders per partition", "order", (Order.PARTITION, Order.TOPIC))
"""One node, the owner, orders a partition."""
ORDERS_ORIGINS = Predicate("every node orders what is published to it", "order", (Order.ORIGIN,))

ACKNOWLEDGED_IS_DURABLE = Predicate(
    "acks=all survives a power cut of all", "acks_all", (AcksAll.MAJORITY, AcksAll.CONFIGURATION, AcksAll.VIEW), SEVERAL
)
ACKNOWLEDGED_BY_SEVERAL = Predicate(
    "acks=all is refused by the last of several copies", "acks_all", (AcksAll.MAJORITY, AcksAll.CONFIGURATION), SEVERAL
)
NAMES_THE_VIEW = Predicate("acks=all names the nodes that have the record", "acks_all", (AcksAll.VIEW,), SEVERAL)

DELIVERED_BY_REPLICAS = Predicate("every replica delivers", "delivers", (Delivers.REPLICA,), SEVERAL)
DELIVERED_BY_THE_OWNER = Predicate("the owner alone delivers", "delivers", (Delivers.OWNER,), SEVERAL)
DELIVERED_HERE = Predicate("the subscriber's own node delivers", "delivers", (Delivers.HERE,), SEVERAL)

REFUSES_IN_A_SPLIT = Predicate("refuses without a quorum", "split", (SplitBehaviour.REFUSES,), SEVERAL)
MERGES_AFTER_A_SPLIT = Predicate("merges after a split", "split", (SplitBehaviour.MERGES,), SEVERAL)

SURVIVES_ONE_NODE = Predicate("survives the loss of one node", "survives", tuple(Survives), SEVERAL)
SURVIVES_A_MINORITY = Predicate("survives the loss of a minority at once", "survives", tuple(Survives), (FIVE,))
GOES_ON_ALONE = Predicate("whoever is left goes on", "survives", (Survives.ANY,), SEVERAL)

GROUPS_SPAN_NODES = Predicate("groups span nodes", "groups_span_nodes", (True,))
GROUPS_ARE_LOCAL = Predicate("groups are local to a node", "groups_span_nodes", (False,), SEVERAL)

WRITES_EXACTLY_ONCE = Predicate("sinks write exactly once", "exactly_once_sink", (True,))
WRITES_AT_LEAST_ONCE = Predicate("sinks write at least once", "exactly_once_sink", (False,))

ORDERS_PUBLISHES_HERE = Predicate("the node that gets a publish orders it", "publishes", (PublishPath.HERE,), SEVERAL)
PASSES_PUBLISHES_ON = Predicate(
    "any node passes a publish on to the owner",
    "publishes",
    (PublishPath.PASSED_ONCE, PublishPath.PASSED_ALONG),
    SEVERAL,
)
NAMES_THE_OWNER = Predicate("who passes a publish on names the owner", "publishes", (PublishPath.PASSED_ONCE,), SEVERAL)
REDIRECTS_PUBLISHES = Predicate("the owner alone takes a publish", "publishes", (PublishPath.OWNER,))

ONE_SET_OF_TOPICS = Predicate("one set of topics", "topics", (TopicScope.ONE,))
TOPICS_OF_EACH_NODE = Predicate("each node has its own topics", "topics", (TopicScope.EACH,))

OWNERSHIP_CAN_BE_CHOSEN = Predicate("ownership can be chosen", "exclusive_ownership", (True,))
OWNERSHIP_IS_SHARED = Predicate("ownership is always shared", "exclusive_ownership", (False,))


class Selection(msgspec.Struct, frozen=True):
    """The predicates that a test proves. Without any it runs for every fabric."""

    predicates: tuple[Predicate, ...] = ()
    sizes: tuple[int, ...] = EVERY_SIZE
    also: tuple[FabricKind, ...] = ()
    """Fabrics of the tests that it runs for besides those of the registry."""

    def reason_against(self, row: Guarantees) -> str:
        """Why the test does not run for a fabric with this row; empty if it does."""
        return "; ".join(f"not: {one.words}" for one in self.predicates if not one.holds(row))

    def fabrics(self) -> list[FabricKind]:
        return [kind for kind in (*FABRICS.values(), *self.also) if not self.reason_against(kind.guarantees)]


def proves(
    *predicates: Predicate, sizes: tuple[int, ...] = EVERY_SIZE, also: tuple[FabricKind, ...] = ()
) -> Callable[[Test], Test]:
    """Marks a test with the predicates it proves, and the sizes of clusters if its scenario needs certain ones.

    >>> @proves(REFUSES_IN_A_SPLIT)  # doctest: +SKIP
    ... def test_a_side_without_a_majority_refuses(cluster): ...
    """
    possible = tuple(size for size in sizes if all(size in one.sizes for one in predicates))
    assert possible, "no size is left"
    selection = Selection(predicates, possible, also)

    def mark(test: Test) -> Test:
        test.selection = selection  # type: ignore[attr-defined]
        return test

    return mark


def selection_of(test: object) -> Selection | None:
    found = getattr(test, "selection", None)
    assert found is None or isinstance(found, Selection)
    return found
