"""The guarantees of a fabric, as data: docs/guarantees.md is generated from it, the contract suite proves each cell."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Order(StrEnum):
    PARTITION = "total per partition"
    TOPIC = "total per topic"
    ORIGIN = "per origin broker"


class AcksAll(StrEnum):
    MAJORITY = "a majority fsynced"
    CONFIGURATION = "every member of the configuration fsynced, at least min(min_copies, width)"
    VIEW = "every broker of the view named in the reply fsynced"


class SplitBehaviour(StrEnum):
    """What a side of a network split does that cannot tell whether it has the quorum."""

    REFUSES = "the side without a quorum refuses"
    MERGES = "each side goes on and they merge"


class Delivers(StrEnum):
    """Which nodes serve a subscription; the others redirect the client."""

    OWNER = "the owner"
    REPLICA = "the owner or a replica"
    HERE = "the subscriber's own node"


class Survives(StrEnum):
    """Which crashes lose nothing acknowledged by `all`, and how service continues."""

    MINORITY = "any minority at once; all, by restarting"
    MEMBERS = "all members of a configuration but one, while the cluster state keeps its quorum; all, by restarting"
    COORDINATED = (
        "all members of a configuration but one, and an outage of the coordination service; all, by restarting"
    )
    GROUP = "any minority of a topic's group, while the ring holds; all, by restarting"
    ANY = "any at once: whoever is left goes on; all, by restarting"


class PublishPath(StrEnum):
    """Where a client may send a publish, and how it gets from there to the node that orders it."""

    OWNER = "the owner; another node names it"
    PASSED_ONCE = "any node, which passes it on to the owner and names it"
    PASSED_ALONG = "any node, which passes it on to the owner"
    HERE = "any node, which orders it"


class TopicScope(StrEnum):
    """Whether creating or deleting a topic affects all nodes or one."""

    ONE = "the same at all nodes"
    EACH = "each node's own; a record makes its topic wherever it comes"


class Guarantees(msgspec.Struct, frozen=True):
    """One row of the table of guarantees."""

    fabric: str
    order: Order
    acks_all: AcksAll
    delivers: Delivers
    split: SplitBehaviour
    survives: Survives
    groups_span_nodes: bool
    exactly_once_sink: bool
    publishes: PublishPath = PublishPath.OWNER
    topics: TopicScope = TopicScope.ONE
    exclusive_ownership: bool = True
    """Whether a topic can deliver its strongest publisher only, which needs one node that knows all publishers."""
