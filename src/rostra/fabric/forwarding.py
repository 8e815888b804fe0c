"""Inputs and effects of publishes that reach the node that orders them by way of another node."""

from __future__ import annotations

from rostra.errors import RostraError
from rostra.fabric.values import Acks, Value
from rostra.model.ids import Partition


class Forward(Value, frozen=True):
    """Forwards this publish to the partition's owner. Answered later by `Forwarded` or `Refused`.

    Batches of a producer keep their order: what cannot be forwarded any more is refused, never sent by another path
    while an earlier batch may still arrive. `again` says that the batch may have been stored before.

    Where every node is an owner, the batch is of a producer that migrated here from another node, its `moves`th move,
    and the answer is `ProducerAdmitted`.
    """

    token: int
    partition: Partition
    batch: bytearray
    acks: Acks
    moves: int = 0
    again: bool = False


class AwaitCoverage(Value, frozen=True):
    """Waits until every node has the partition up to `offset`, whichever node ordered it. Answered by `Covered`."""

    partition: Partition
    offset: int


class ForwardDone(Value, frozen=True):
    """The answer to `ForwardReceived`: stored at `base` with the requested acks, or refused."""

    token: int
    base: int
    error: RostraError | None = None


class Forwarded(Value, frozen=True):
    token: int
    base: int


class ForwardReceived(Value, frozen=True):
    """A peer forwarded a publish to this owner. The broker orders it like its own and answers `ForwardDone`."""

    token: int
    partition: Partition
    batch: bytearray
    acks: Acks
    again: bool = False


class ProducerAdmitted(Value, frozen=True):
    """The answer to `Forward` where every node is an owner: this node's logs hold all that any node had of the topic.

    So every batch the producer has stored anywhere is known. Batches of it that appear later were sent here again.
    """

    token: int
    partition: Partition
    batch: bytearray


class ProducerMigrated(Value, frozen=True):
    """The producer migrated to another node, its `moves`th move: batches it sent here before that are fenced."""

    partition: Partition
    producer: int
    moves: int
