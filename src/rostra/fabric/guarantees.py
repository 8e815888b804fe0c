"""What a fabric promises, as data: the table of promises is made of it, and the contract suite proves every cell."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Order(StrEnum):
    PARTITION = "total per partition"
    TOPIC = "total per topic"
    ORIGIN = "per origin broker"


class AcksAll(StrEnum):
    MAJORITY = "a majority fsynced"
    COMPLETE = "every complete copy fsynced, at least min_copies"
    VIEW = "every broker of the view named in the reply fsynced"


class SplitBehaviour(StrEnum):
    """What a side of a network split does that cannot know it is the rightful one."""

    REFUSES = "the side without a quorum refuses"
    MERGES = "each side goes on and they merge"


class Delivers(StrEnum):
    """At which nodes a subscription is served; anywhere else the client is told where."""

    OWNER = "the owner"
    REPLICA = "the owner or a replica"
    HERE = "the subscriber's own node"


class Survives(StrEnum):
    """Which crashes take nothing that was acknowledged by all, and how it goes on."""

    MINORITY = "any minority at once; all, by restarting"
    ANY = "any at once: whoever is left goes on; all, by restarting"


class TopicScope(StrEnum):
    """Whose topics they are: what becomes of one that is made or deleted at a node."""

    ONE = "the same at all nodes"
    EACH = "each node's own; a record makes its topic wherever it comes"


class Guarantees(msgspec.Struct, frozen=True):
    """One row of the table of promises; the contract suite proves every cell."""

    fabric: str
    order: Order
    acks_all: AcksAll
    delivers: Delivers
    split: SplitBehaviour
    survives: Survives
    groups_span_nodes: bool
    exactly_once_sink: bool
    forwards_publishes: bool = False
    """Whether a publish may be sent to any node, which takes it to the owner; else the client is told where to go."""
    topics: TopicScope = TopicScope.ONE
    exclusive_ownership: bool = True
    """Whether a topic can be such that only its strongest publisher is delivered: somebody must know all of them."""
