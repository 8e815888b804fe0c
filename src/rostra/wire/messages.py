"""The closed set of messages between a client and a node.

To add a message, define a Struct with the next free kind (clients count from 1, nodes from 32) and list it in
`ClientMessage` or `NodeMessage`; ARCHITECTURE.md ("Where to put things") lists the other places. Messages about
consumer groups are in `groups`, the types of fields in `fields`.

Structs are arrays on the wire: a newer side may append fields with defaults, and an older side ignores them.
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
"""Lease of a publisher that names none."""
PATTERNS_PER_WATCH_MAX = 1024
TOMBSTONE_MS = 86_400_000

Acks = Literal["none", "owner", "all"]
StartAt = Literal["earliest", "latest", "offset", "last", "time"]
Ownership = Literal["shared", "exclusive"]
Strength = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LeaseMs = Annotated[int, Meta(ge=PUBLISHER_LEASE_MS_MIN, le=PUBLISHER_LEASE_MS_MAX)]


# --- values inside messages ----------------------------------------------------------------------


class TopicSettings(msgspec.Struct, frozen=True, array_like=True):
    """The settings of a topic. Zero means no limit; for `replicas` and `history_depth`, the default of the node."""

    partitions: Annotated[int, Meta(ge=1, le=1024)] = 1
    replicas: Annotated[int, Meta(ge=0, le=15)] = 0
    retention_ms: Count = 0
    retention_bytes: Count = 0
    segment_bytes: Annotated[int, Meta(ge=1 << 12, le=1 << 31)] = 1 << 26
    compaction: bool = False
    """Whether compaction removes all records of a key but the latest."""
    tombstone_ms: Count = TOMBSTONE_MS
    """How long compaction keeps tombstones; a subscriber that is behind for longer may miss a deletion."""
    ownership: Ownership = "shared"
    """`exclusive`: only records of the strongest live publisher are delivered."""
    history_depth: Count = 0


class PartitionLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a partition is served. An empty address means the node that answers.

    `topic` is the id to use in requests to a partition that has an id of its own; 0 means the topic's.
    `known` is false while no owner is known: the client asks again, or another node. `owner` is set where
    another node than the one that serves it orders it: publishers register there.
    """

    partition: Index
    address: Text
    epoch: Count
    topic: Id = 0
    known: bool = True
    owner: Text = ""


class PublisherState(msgspec.Struct, frozen=True, array_like=True):
    """A registered publisher of a partition, as the replica of the node that answers has it."""

    publisher: Id
    strength: Strength
    lease_ms: Count


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a partition's log at the node that answers.

    `first` is the log start, `commit` the commit offset, `end` the next offset to be written. `publishers` begins with
    the strongest; the weakest beyond the limit are left out. Where nodes have partitions of their own, `partition` is
    the id of the partition.
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
    """Asks for a `Pong`; sent by either side."""

    kind: ClassVar[int] = 2
    request: Request


class Locate(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 3
    request: Request
    name: Text
    create: bool = False
    topic: Count = 0
    """The id that the client knows. A node answers with another id only after the fabric has confirmed it."""


class CreateTopic(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 4
    request: Request
    name: Text
    settings: TopicSettings


class AlterTopic(Message, frozen=True, array_like=True):
    """Changes settings of a topic; the numbers of partitions and replicas cannot be changed."""

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
    """Publishes one batch to one partition. With acks `none` only a refusal is answered.

    `again`: the batch was sent before, with the same producer, epoch and sequence, and may be stored.
    `moves` counts how often the producer has changed nodes, on fabrics where each node has a partition of its own.
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
    """Begins delivery of a partition. `subscription` is chosen by the client, unique on its connection.

    `value` is the offset, the N of `last`, or for `time` the microseconds since 1970: delivery begins at the first
    record that is not earlier.
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
    """Lets the node push `credit` more bytes."""

    kind: ClassVar[int] = 10
    subscription: Index
    credit: Count


class Unsubscribe(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 11
    request: Request
    subscription: Index


class Goodbye(Message, frozen=True, array_like=True):
    """Announces that the sender closes this connection on purpose."""

    kind: ClassVar[int] = 12
    reason: Text


class Pong(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 13
    request: Request


class DescribeCluster(Message, frozen=True, array_like=True):
    """Asks any node for all members and a page of partitions: those after `after` and `after_partition`."""

    kind: ClassVar[int] = 14
    request: Request
    after: Text = ""
    after_partition: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    limit: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_PAGE_MAX)] = PARTITIONS_PER_PAGE_MAX


class RemoveMember(Message, frozen=True, array_like=True):
    """Removes a member; any node forwards it. `Agreed` when the removal is committed; the replicas move after that."""

    kind: ClassVar[int] = 15
    request: Request
    node: Id


class TransferPartition(Message, frozen=True, array_like=True):
    """Transfers ownership of a partition; any node forwards it to the owner. `Agreed` when `node` is the owner."""

    kind: ClassVar[int] = 16
    request: Request
    name: Text
    partition: Index
    node: Id


class Register(Message, frozen=True, array_like=True):
    """Registers a producer as publisher of the partition, or changes its strength; answered after the commit.

    Every message on this connection renews the lease.
    """

    kind: ClassVar[int] = 17
    request: Request
    topic: Id
    partition: Index
    publisher: Id
    strength: Strength
    lease_ms: LeaseMs = PUBLISHER_LEASE_MS


class Unregister(Message, frozen=True, array_like=True):
    """Removes the publisher from the partition. `Agreed` after the commit."""

    kind: ClassVar[int] = 18
    request: Request
    topic: Id
    partition: Index
    publisher: Id


class Watch(Message, frozen=True, array_like=True):
    """Asks for the topics that match any of the patterns, and for notifications of created and deleted ones.

    `watch` is chosen by the client, unique on its connection. If the answer has `after`, the same message with that
    value asks for the next page. Notifications are sent from the first answer on.
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
    locations: Annotated[tuple[PartitionLocation, ...], Meta(max_length=1024)]
    neighbours: Annotated[tuple[Text, ...], Meta(max_length=NEIGHBOURS_MAX)] = ()
    """Addresses of other nodes, for a client that knows only the node that answers."""
    per_node: bool = False
    """Whether each node has a partition of its own, with its own topic id: a client that changes nodes publishes to the
    partition of the new node. Partitions may be added, which `PartitionAdded` reports."""


class PartitionAdded(Message, frozen=True, array_like=True):
    """Reports a new partition of a topic, without a request, to clients that asked for its location."""

    kind: ClassVar[int] = 60
    name: Text
    location: PartitionLocation


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
    """A page of topics by name; `more`: a request with `after` = the last name returns further ones."""

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
    """Acknowledges a batch. `offset` is its first record's; -1 for a repeated batch whose offset is not known any more.

    `view` names the nodes that have it, on fabrics where acks `all` waits for the nodes of the current view.
    `owner` is set if the node passed the batch on: who owns the partition, under which epoch. The client sends all
    further batches there, and resends what is not acknowledged.
    """

    kind: ClassVar[int] = 38
    request: Request
    offset: Annotated[int, Meta(ge=-1)]
    view: Annotated[tuple[Id, ...], Meta(max_length=1024)] = ()
    owner: Text = ""
    epoch: Count = 0


class Subscribed(Message, frozen=True, array_like=True):
    """Confirms a subscription. Delivery begins at offset `next`; `commit` is the commit offset at that time."""

    kind: ClassVar[int] = 39
    request: Request
    subscription: Index
    next: Count
    commit: Count


class Push(Message, frozen=True, array_like=True):
    """Delivers whole batches in order; the first may begin before the requested offset. `commit` shows the lag."""

    kind: ClassVar[int] = 40
    payload: ClassVar[bool] = True
    subscription: Index
    commit: Count


class Unsubscribed(Message, frozen=True, array_like=True):
    kind: ClassVar[int] = 41
    request: Request
    subscription: Index


class Ended(Message, frozen=True, array_like=True):
    """Ends the subscription or watch with that number; the error is the reason."""

    kind: ClassVar[int] = 42
    subscription: Index
    code: Text
    carried: Carried


class Failed(Message, frozen=True, array_like=True):
    """Refuses a request; the error is the reason."""

    kind: ClassVar[int] = 43
    request: Request
    code: Text
    carried: Carried


class ClusterDescribed(Message, frozen=True, array_like=True):
    """All members, and a page of partitions by name; `more`: there are further ones."""

    kind: ClassVar[int] = 44
    request: Request
    state: ClusterState
    more: bool


class Agreed(Message, frozen=True, array_like=True):
    """Confirms a request that needs no other answer: it is done, or committed to be done."""

    kind: ClassVar[int] = 45
    request: Request


class PublisherRegistered(Message, frozen=True, array_like=True):
    """Confirms a registration. `strongest` is the publisher that owned the partition at that offset."""

    kind: ClassVar[int] = 46
    request: Request
    strongest: Id


class Unregistered(Message, frozen=True, array_like=True):
    """Ends a registration that was made on this connection.

    `lapsed`: its lease ended. Otherwise another node owns the partition now and has the same publishers; the publisher
    renews its lease there.
    """

    kind: ClassVar[int] = 47
    topic: Id
    partition: Index
    publisher: Id
    lapsed: bool


class Watched(Message, frozen=True, array_like=True):
    """A page of matching topics by name. There may be more after the name `after`; if it is empty, these are all."""

    kind: ClassVar[int] = 53
    request: Request
    watch: Index
    topics: Annotated[tuple[Topic, ...], Meta(max_length=TOPICS_PER_PAGE_MAX)]
    after: Text = ""
    neighbours: Annotated[tuple[Text, ...], Meta(max_length=NEIGHBOURS_MAX)] = ()
    """Addresses of other nodes, which can take over the watch if this one fails."""


class TopicsAppeared(Message, frozen=True, array_like=True):
    """Reports matching topics that were created."""

    kind: ClassVar[int] = 54
    watch: Index
    topics: Annotated[tuple[Topic, ...], Meta(max_length=TOPICS_PER_PAGE_MAX)]


class TopicsGone(Message, frozen=True, array_like=True):
    """Reports matching topics that were deleted."""

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
