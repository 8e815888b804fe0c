"""What the client's core asks its driver to do."""

from __future__ import annotations

import msgspec

from rostra.client.core.events import ClientEvent
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.errors import RostraError
from rostra.model.cluster import ClusterState
from rostra.wire.groups import GroupMember, GroupSummary
from rostra.wire.messages import PartitionState, Topic, TopicSettings

Buffer = bytes | bytearray | memoryview

LinkNumber = int
"""A connection or the attempt at one; never used again."""
CallNumber = int
"""Chosen by the driver; zero means that nobody waits. Those below zero are the core's own and reach no driver."""
ProducerNumber = int
SubscriptionNumber = int


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Where a record was stored. The offset is −1 where only its being stored is known."""

    topic: str
    partition: int
    offset: int


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic with the state of its partitions."""

    topic: int
    name: str
    settings: TopicSettings
    partitions: tuple[PartitionState, ...]


class SubscriptionList(msgspec.Struct, frozen=True):
    """Every named subscription, by name."""

    subscriptions: tuple[GroupSummary, ...]


class SubscriptionPart(msgspec.Struct, frozen=True):
    """Where a named subscription stands in one partition. `member` is who has it, 0 if nobody has."""

    topic: str
    partition: int
    offset: int
    """The first that is not acknowledged."""
    tries: int
    end: int
    """The offset behind the last record that can be seen."""
    lag: int
    member: int


class SubscriptionDescription(msgspec.Struct, frozen=True):
    """A named subscription, who its members are, and how far it has come."""

    name: str
    generation: int
    patterns: tuple[str, ...]
    tries: int
    dead_letter: str
    members: tuple[GroupMember, ...]
    parts: tuple[SubscriptionPart, ...]

    @property
    def lag(self) -> int:
        """How many offsets lie between its positions and the ends."""
        return sum(part.lag for part in self.parts)


Result = (
    None
    | Ack
    | Topic
    | tuple[Topic, ...]
    | TopicDescription
    | ClusterState
    | SubscriptionList
    | SubscriptionDescription
)


class Effect(msgspec.Struct, frozen=True):
    """Base of all effects."""


class Dial(Effect, frozen=True):
    """Open a connection; answered by `opened` or `lost`."""

    link: LinkNumber
    address: str


class HangUp(Effect, frozen=True):
    """Close the connection after what was written; no answer is expected."""

    link: LinkNumber


class Write(Effect, frozen=True):
    link: LinkNumber
    buffers: tuple[Buffer, ...]


class Done(Effect, frozen=True):
    call: CallNumber
    result: Result


class Fail(Effect, frozen=True):
    call: CallNumber
    error: RostraError


class Acknowledged(Effect, frozen=True):
    """A producer's batch is stored as its `acks` ask; with `none`, it was only sent, and the offset is −1."""

    producer: ProducerNumber
    partition: int
    offset: int
    count: int


class BatchRefused(Effect, frozen=True):
    """A producer's batch will not be stored, or nobody knows; its records are given up."""

    producer: ProducerNumber
    error: RostraError
    count: int


class Resume(Effect, frozen=True):
    """A producer that was full has room again."""

    producer: ProducerNumber


class Deliver(Effect, frozen=True):
    subscription: SubscriptionNumber
    batches: tuple[DeliveredBatch, ...]


class Finish(Effect, frozen=True):
    """A subscription is over, for this reason; nothing is delivered behind it."""

    subscription: SubscriptionNumber
    error: RostraError


class RecordsReady(Effect, frozen=True):
    """Somebody waited for records of a named subscription, and now there are some to take."""

    subscription: SubscriptionNumber


class Notify(Effect, frozen=True):
    event: ClientEvent


ClientEffect = (
    Write
    | Acknowledged
    | Resume
    | BatchRefused
    | Deliver
    | RecordsReady
    | Finish
    | Done
    | Fail
    | Dial
    | HangUp
    | Notify
)
