"""Effects: what the client's core asks its driver to do, and the values that calls return."""

from __future__ import annotations

import msgspec

from rostra.client.core.events import ClientEvent
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.errors import RostraError
from rostra.model.cluster import ClusterState
from rostra.wire.groups import GroupMember, GroupSummary
from rostra.wire.messages import PartitionState, Topic, TopicSettings
from rostra.wire.sinks import StagedPart

Buffer = bytes | bytearray | memoryview

LinkNumber = int
"""A connection, or the attempt to open one; never reused."""
CallNumber = int
"""Chosen by the driver; 0 means that no caller waits. Negative numbers are the core's own and reach no driver."""
ProducerNumber = int
SubscriptionNumber = int


class Ack(msgspec.Struct, frozen=True, gc=False):
    """Where a record was stored. The offset is −1 if it is not known."""

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
    """All named subscriptions, sorted by name."""

    subscriptions: tuple[GroupSummary, ...]


class SubscriptionPartition(msgspec.Struct, frozen=True):
    """The position of a named subscription in one partition. `member` holds the partition; 0 if none does."""

    topic: str
    partition: int
    offset: int
    """The first offset that is not acknowledged."""
    tries: int
    end: int
    """The offset behind the last readable record."""
    lag: int
    member: int


class SubscriptionDescription(msgspec.Struct, frozen=True):
    """A named subscription with its members and positions."""

    name: str
    generation: int
    patterns: tuple[str, ...]
    tries: int
    dead_letter: str
    members: tuple[GroupMember, ...]
    partitions: tuple[SubscriptionPartition, ...]

    @property
    def lag(self) -> int:
        """The number of offsets between the positions and the ends."""
        return sum(part.lag for part in self.partitions)


class SinkDecision(msgspec.Struct, frozen=True):
    """The outcome of a sink's commit: the last batch that was decided. `repeated`: an earlier commit decided it."""

    batch: int
    repeated: bool


Result = (
    None
    | Ack
    | Topic
    | tuple[Topic, ...]
    | TopicDescription
    | ClusterState
    | SubscriptionList
    | SubscriptionDescription
    | StagedPart
    | SinkDecision
)


class Effect(msgspec.Struct, frozen=True):
    """Base of all effects."""


class Dial(Effect, frozen=True):
    """Open a connection; answered by `opened` or `lost`."""

    link: LinkNumber
    address: str


class HangUp(Effect, frozen=True):
    """Close the connection after flushing what was written; no answer is expected."""

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
    """A producer's batch is stored as `acks` requires; with `none` it was only sent, and the offset is −1."""

    producer: ProducerNumber
    partition: int
    offset: int
    count: int


class BatchRefused(Effect, frozen=True):
    """A producer's batch was refused, or its fate is unknown; its records failed."""

    producer: ProducerNumber
    error: RostraError
    count: int


class Resume(Effect, frozen=True):
    """A producer whose window was full may send again."""

    producer: ProducerNumber


class Deliver(Effect, frozen=True):
    subscription: SubscriptionNumber
    batches: tuple[DeliveredBatch, ...]


class Finish(Effect, frozen=True):
    """A subscription ended for this reason; nothing more is delivered."""

    subscription: SubscriptionNumber
    error: RostraError


class RecordsReady(Effect, frozen=True):
    """Records of a named subscription are ready for a caller that waits for them."""

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
