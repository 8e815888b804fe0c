"""The closed set of messages between a client and a node.

ARCHITECTURE.md ("Where to put things") lists what a new one touches. It begins here, with a Struct of the next free
kind (clients count from 1, nodes from 32) that is listed in `ClientMessage` or `NodeMessage`. What concerns named
subscriptions is in `groups`, what fields are made of in `fields`.

Structs are arrays on the wire: a newer side may append fields with defaults, an older one ignores them.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from rostra.model.cluster import ClusterState
from rostra.wire.fields import Carried, Count, Id, Index, Message, Request, Text, Texts
from rostra.wire.groups import (
    CommitPositions,
    CoordinatorLocation,
    DeleteGroup,
    DescribeGroup,
    FindCoordinator,
    GroupDescribed,
    GroupEnded,
    GroupJoined,
    GroupPage,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    MemberAssignment,
    MemberHeartbeat,
    Released,
    ResetGroup,
)
from rostra.wire.sinks import AbortSink, CommitSink, SinkCommitted, StageBatch

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

TOPICS_PER_PAGE_MAX = 1000
PARTITIONS_PER_PAGE_MAX = 1000
NEIGHBOURS_MAX = 32
PUBLISHERS_SHOWN_MAX = 16
PUBLISHER_LEASE_MS_MIN = 50
PUBLISHER_LEASE_MS_MAX = 86_400_000
PUBLISHER_LEASE_MS = 15_000
"""Of a publisher that does not say how long it may be silent."""
PATTERNS_PER_WATCH_MAX = 1024
TOMBSTONE_MS = 86_400_000

Acks = Literal["none", "owner", "all"]
StartAt = Literal["earliest", "latest", "offset", "last", "time"]
Ownership = Literal["shared", "exclusive"]
Strength = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LeaseMs = Annotated[int, Meta(ge=PUBLISHER_LEASE_MS_MIN, le=PUBLISHER_LEASE_MS_MAX)]


# --- values inside messages ----------------------------------------------------------------------


class TopicSettings(msgspec.Struct, frozen=True, array_like=True):
    """What a topic is created with. Zero means: no bound; for `replicas`: as many as the node is set to make; for
    `history_depth`: as many of the last records as the node is set to give.
    """

    partitions: Annotated[int, Meta(ge=1, le=1024)] = 1
    replicas: Annotated[int, Meta(ge=0, le=15)] = 0
    retention_ms: Count = 0
    retention_bytes: Count = 0
    segment_bytes: Annotated[int, Meta(ge=1 << 12, le=1 << 31)] = 1 << 26
    compaction: bool = False
    """Of the records of a key, only the latest is kept for good."""
    tombstone_ms: Count = TOMBSTONE_MS
    """How long a compacted topic remembers that a key was deleted: who reads it must come by so often."""
    ownership: Ownership = "shared"
    """`exclusive`: only the records of the strongest publisher alive are delivered."""
    history_depth: Count = 0


class PartitionLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a partition is served. An empty address means: at the node that answers.

    `topic` is to be named in requests to a partition that has an id of its own; 0 means the topic's.
    `known` is false while nobody is known to serve it: ask again, or elsewhere.
    """

    partition: Index
    address: Text
    epoch: Count
    topic: Id = 0
    known: bool = True


class PublisherState(msgspec.Struct, frozen=True, array_like=True):
    """One that is registered in a partition, as the copy of the node that answers has it."""

    publisher: Id
    strength: Strength
    lease_ms: Count


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """`first` is the log start, `commit` the offset below which records are shown, `end` the next to be written.

    `publishers` begins with the strongest; the weakest of very many are left out.

    A partition that joined its topic has the id that it was given for its number.
    """

    partition: Count
    first: Count
    commit: Count
    end: Count
    bytes: Count
    epoch: Count
    state: Text
    publishers: Annotated[tuple[PublisherState, ...], Meta(max_length=PUBLISHERS_SHOWN_MAX)] = ()


class Topic(msgspec.Struct, frozen=True, array_like=True):
    topic: Id
    name: Text
    settings: TopicSettings


# --- from clients --------------------------------------------------------------------------------


class Hello(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 1
    request: Request
    version_min: Index
    version_max: Index
    features: Texts = ()
    client: Text = ""


class Ping(Message, frozen=True, array_like=True):
    """Either side may ask; the other answers `Pong`."""

    kind: ClassVar[int] = 2
    request: Request


class Locate(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 3
    request: Request
    name: Text
    create: bool = False
    topic: Count = 0
    """The one of this name that the asker knows: that the name is another's is answered only when it is certain."""


class CreateTopic(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 4
    request: Request
    name: Text
    settings: TopicSettings


class AlterTopic(Message, frozen=True, array_like=True):
    """Gives some of the topic's settings other values; partitions and replicas stay as they are."""

    kind: ClassVar[int] = 31
    request: Request
    name: Text
    changes: Annotated[dict[Text, int | Text], Meta(max_length=32)]


class DeleteTopic(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 5
    request: Request
    name: Text


class ListTopics(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 6
    request: Request
    after: Text = ""
    limit: Annotated[int, Meta(ge=1, le=TOPICS_PER_PAGE_MAX)] = TOPICS_PER_PAGE_MAX


class DescribeTopic(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 7
    request: Request
    name: Text


class Publish(Message, frozen=True, array_like=True):
    """One batch for one partition. With acks `none` there is no answer unless it is refused.

    `again`: it was sent before, under the same producer, epoch and sequence, and may have been stored.
    `moves` counts how often the producer has gone on to another node's partition, where each node has one of its own.
    """

    kind: ClassVar[int] = 8
    payload: ClassVar[bool] = True
    request: Request
    topic: Id
    partition: Index
    acks: Acks
    again: bool = False
    moves: Count = 0


class Subscribe(Message, frozen=True, array_like=True):
    """`subscription` is chosen by the client, unique on its connection.

    `value` is the offset, the N of `last`, or the microseconds since 1970 of `time`, from which on the first record is
    sought that is not earlier.
    """

    kind: ClassVar[int] = 9
    request: Request
    subscription: Index
    topic: Id
    partition: Index
    start: StartAt
    value: Count
    credit: Count


class Credit(Message, frozen=True, array_like=True):
    """The subscriber has room for `credit` more bytes."""

    kind: ClassVar[int] = 10
    subscription: Index
    credit: Count


class Unsubscribe(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 11
    request: Request
    subscription: Index


class Goodbye(Message, frozen=True, array_like=True):
    """The sender closes this connection next, on purpose."""

    kind: ClassVar[int] = 12
    reason: Text


class Pong(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 13
    request: Request


class DescribeCluster(Message, frozen=True, array_like=True):
    """Answered by any node, with the partitions behind `after` and `after_partition`, or from the first on."""

    kind: ClassVar[int] = 14
    request: Request
    after: Text = ""
    after_partition: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    limit: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_PAGE_MAX)] = PARTITIONS_PER_PAGE_MAX


class RemoveMember(Message, frozen=True, array_like=True):
    """Any node passes it on. `Agreed` when it is certain that the member will go; it goes when its copies are moved."""

    kind: ClassVar[int] = 15
    request: Request
    node: Id


class TransferPartition(Message, frozen=True, array_like=True):
    """Any node passes it on to the owner. `Agreed` when the other node owns the partition."""

    kind: ClassVar[int] = 16
    request: Request
    name: Text
    partition: Index
    node: Id


class Register(Message, frozen=True, array_like=True):
    """Makes a producer a publisher of the partition, or changes the strength it has; answered when that is committed.

    It lives as long as its lease is renewed, by whatever is heard on this connection.
    """

    kind: ClassVar[int] = 17
    request: Request
    topic: Id
    partition: Index
    publisher: Id
    strength: Strength
    lease_ms: LeaseMs = PUBLISHER_LEASE_MS


class Unregister(Message, frozen=True, array_like=True):
    """The publisher leaves the partition, at once. `Agreed` when that is committed."""

    kind: ClassVar[int] = 18
    request: Request
    topic: Id
    partition: Index
    publisher: Id


class Watch(Message, frozen=True, array_like=True):
    """Which topics are there that match any of the patterns, and from now on: which come and go?

    `watch` is chosen by the client, unique on its connection. The answer may say that there are more: the same message
    again, `after` what it says, gets the next page. What comes and goes is told from the first answer on.
    """

    kind: ClassVar[int] = 29
    request: Request
    watch: Index
    patterns: Annotated[tuple[Text, ...], Meta(max_length=PATTERNS_PER_WATCH_MAX)]
    after: Text = ""
    limit: Annotated[int, Meta(ge=1, le=TOPICS_PER_PAGE_MAX)] = TOPICS_PER_PAGE_MAX


class Unwatch(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 30
    request: Request
    watch: Index


# --- from nodes ----------------------------------------------------------------------------------


class Welcome(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 32
    request: Request
    version: Index
    features: Texts
    cluster: Id
    node: Id
    fabric: Text
    frame_bytes_max: Count
    batch_bytes_max: Count
    heartbeat_ms: Count


class Located(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 33
    request: Request
    topic: Topic
    places: Annotated[tuple[PartitionLocation, ...], Meta(max_length=1024)]
    neighbours: Annotated[tuple[Text, ...], Meta(max_length=NEIGHBOURS_MAX)] = ()
    """Where other nodes are: who knows only the one that answers could find nobody after it."""
    roams: bool = False
    """Whether each node has a partition of its own to publish to, under its own id of the topic: whoever goes on to
    another node publishes to that one's. Partitions may join; whoever has asked here is told by `PartitionAdded`."""


class PartitionAdded(Message, frozen=True, array_like=True):
    """Unasked, to whoever has asked where the topic is: it has one partition more."""

    kind: ClassVar[int] = 60
    name: Text
    place: PartitionLocation


class TopicCreated(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 34
    request: Request
    topic: Topic


class TopicDropped(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 35
    request: Request
    topic: Id


class TopicAltered(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 56
    request: Request
    topic: Topic


class TopicPage(Message, frozen=True, array_like=True):
    """Topics by name; `more` says that asking with `after` = the last name gives further ones."""

    kind: ClassVar[int] = 36
    request: Request
    topics: Annotated[tuple[Topic, ...], Meta(max_length=TOPICS_PER_PAGE_MAX)]
    more: bool


class TopicDescribed(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 37
    request: Request
    topic: Topic
    partitions: Annotated[tuple[PartitionState, ...], Meta(max_length=1024)]


class Published(Message, frozen=True, array_like=True):
    """`offset` is the first record's; -1 when a repeated batch is so old that only its being stored is known.

    `view` names the nodes that have it, where acks `all` promises just these.
    """

    kind: ClassVar[int] = 38
    request: Request
    offset: Annotated[int, Meta(ge=-1)]
    view: Annotated[tuple[Id, ...], Meta(max_length=1024)] = ()


class Subscribed(Message, frozen=True, array_like=True):
    """Delivery begins at `next`; `commit` is where the partition's visible end was."""

    kind: ClassVar[int] = 39
    request: Request
    subscription: Index
    next: Count
    commit: Count


class Push(Message, frozen=True, array_like=True):
    """Whole batches in order; the first may begin before the offset asked for. `commit` shows the lag."""

    kind: ClassVar[int] = 40
    payload: ClassVar[bool] = True
    subscription: Index
    commit: Count


class Unsubscribed(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 41
    request: Request
    subscription: Index


class Ended(Message, frozen=True, array_like=True):
    """The node ends a subscription, or a watch of that number, with the reason as an error."""

    kind: ClassVar[int] = 42
    subscription: Index
    code: Text
    carried: Carried


class Failed(Message, frozen=True, array_like=True):
    """The request was refused, with the reason as an error."""

    kind: ClassVar[int] = 43
    request: Request
    code: Text
    carried: Carried


class ClusterDescribed(Message, frozen=True, array_like=True):
    """All nodes, and a page of partitions by name; `more` says that there are further ones."""

    kind: ClassVar[int] = 44
    request: Request
    state: ClusterState
    more: bool


class Agreed(Message, frozen=True, array_like=True):
    """What was asked for is done, or will be done without further asking."""

    kind: ClassVar[int] = 45
    request: Request


class PublisherRegistered(Message, frozen=True, array_like=True):
    """`strongest` is the publisher whose records were delivered when this was ordered."""

    kind: ClassVar[int] = 46
    request: Request
    strongest: Id


class Unregistered(Message, frozen=True, array_like=True):
    """What a publisher of this connection registered holds here no longer. It `lapsed` if the node heard nothing of it
    for its lease; otherwise another node orders the partition, with the same publishers, and must hear of it there.
    """

    kind: ClassVar[int] = 47
    topic: Id
    partition: Index
    publisher: Id
    lapsed: bool


class Watched(Message, frozen=True, array_like=True):
    """Topics that match, by name; `after` says from where on there may be more, nothing that these were all."""

    kind: ClassVar[int] = 53
    request: Request
    watch: Index
    topics: Annotated[tuple[Topic, ...], Meta(max_length=TOPICS_PER_PAGE_MAX)]
    after: Text = ""
    neighbours: Annotated[tuple[Text, ...], Meta(max_length=NEIGHBOURS_MAX)] = ()
    """Where other nodes are, which could keep the watch when this one is gone."""


class TopicsAppeared(Message, frozen=True, array_like=True):
    """Topics that match were made."""

    kind: ClassVar[int] = 54
    watch: Index
    topics: Annotated[tuple[Topic, ...], Meta(max_length=TOPICS_PER_PAGE_MAX)]


class TopicsGone(Message, frozen=True, array_like=True):
    """Topics that matched were deleted."""

    kind: ClassVar[int] = 55
    watch: Index
    topics: Annotated[tuple[Id, ...], Meta(max_length=TOPICS_PER_PAGE_MAX)]


ClientMessage = (
    Hello
    | Ping
    | Pong
    | Locate
    | CreateTopic
    | AlterTopic
    | DeleteTopic
    | ListTopics
    | DescribeTopic
    | Publish
    | Subscribe
    | Credit
    | Unsubscribe
    | DescribeCluster
    | RemoveMember
    | TransferPartition
    | Register
    | Unregister
    | Watch
    | Unwatch
    | FindCoordinator
    | JoinGroup
    | Released
    | CommitPositions
    | MemberHeartbeat
    | LeaveGroup
    | ListGroups
    | DescribeGroup
    | ResetGroup
    | DeleteGroup
    | StageBatch
    | CommitSink
    | AbortSink
    | Goodbye
)
NodeMessage = (
    Welcome
    | Ping
    | Pong
    | Located
    | PartitionAdded
    | TopicCreated
    | TopicAltered
    | TopicDropped
    | TopicPage
    | TopicDescribed
    | Published
    | Subscribed
    | Push
    | Unsubscribed
    | Ended
    | Failed
    | ClusterDescribed
    | Agreed
    | PublisherRegistered
    | Unregistered
    | Watched
    | TopicsAppeared
    | TopicsGone
    | CoordinatorLocation
    | GroupJoined
    | MemberAssignment
    | GroupPage
    | GroupDescribed
    | GroupEnded
    | SinkCommitted
    | Goodbye
)
