"""Events that tell an application about connections, delivery and group membership."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events."""


class Connected(Event, frozen=True):
    """A connection was opened: the first one, or one to a further node."""

    address: str
    cluster: int
    node: int
    fabric: str


class Disconnected(Event, frozen=True):
    """A connection was lost; the client reconnects, or finds another node."""

    address: str
    reason: str


class Reconnected(Event, frozen=True):
    """A connection was opened again, after so many attempts, or one to a node that was connected before."""

    address: str
    cluster: int
    node: int
    attempts: int


class Resubscribed(Event, frozen=True):
    """A subscription continues at `offset`, without gap or repeat."""

    topic: str
    partition: int
    offset: int


class Skipped(Event, frozen=True):
    """Retention removed records before they were read; the subscription continues at `first` instead of `offset`."""

    topic: str
    partition: int
    offset: int
    first: int


class Resent(Event, frozen=True):
    """Unacknowledged batches were sent again under the same sequence numbers; each is stored once."""

    topic: str
    partition: int
    batches: int
    records: int


class MayDuplicate(Event, frozen=True):
    """These records were sent again under a new producer epoch; some may be stored twice."""

    topic: str
    partition: int
    records: int
    reason: str


class Retrying(Event, frozen=True):
    """A node refused records for the moment; the client sends them again until the delivery timeout."""

    topic: str
    partition: int
    reason: str


class LeaseExpired(Event, frozen=True):
    """The node received nothing from a publisher for its lease, so that others may have been delivered instead. The
    client registers it again.
    """

    topic: str
    partition: int


class TopicAppeared(Event, frozen=True):
    """A topic that matches a subscription's patterns was created; its records are delivered from the first on."""

    topic: str
    topic_id: int


class TopicGone(Event, frozen=True):
    """A topic of a subscription to several topics was deleted; the subscription continues without it."""

    topic: str
    topic_id: int


class Redelivered(Event, frozen=True):
    """A record of a named subscription failed for this many times and will be delivered again."""

    topic: str
    partition: int
    offset: int
    tries: int


class DeadLettered(Event, frozen=True):
    """A record failed for the last allowed time. It is stored in the topic `dead_letter`, if one is set."""

    topic: str
    partition: int
    offset: int
    tries: int
    dead_letter: str


class DeliveryPaused(Event, frozen=True):
    """A member of a named subscription has so many unacknowledged records that it gets no more before it settles some.

    It is also logged as a warning, because a handler that never acknowledges stops there.
    """

    name: str
    unacknowledged: int


class MembershipLost(Event, frozen=True):
    """A group member's lease expired; its partitions may have gone to others, and it has joined again."""

    name: str
    reason: str


ClientEvent = (
    Connected
    | Disconnected
    | Reconnected
    | Resubscribed
    | Resent
    | MayDuplicate
    | Retrying
    | LeaseExpired
    | TopicAppeared
    | TopicGone
    | Redelivered
    | DeadLettered
    | Skipped
    | DeliveryPaused
    | MembershipLost
)
