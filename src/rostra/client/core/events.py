"""What an application may want to know of the life of its client, besides records and errors."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events."""


class Connected(Event, frozen=True):
    """A connection stands: the first one, or one to a further node."""

    address: str
    cluster: int
    node: int
    fabric: str


class Disconnected(Event, frozen=True):
    """A connection is gone; the client reconnects by itself, or finds another node."""

    address: str
    reason: str


class Reconnected(Event, frozen=True):
    """A connection stands again, after so many attempts, or one to a node that was connected before."""

    address: str
    cluster: int
    node: int
    attempts: int


class Resubscribed(Event, frozen=True):
    """A subscription goes on at `offset`, without gap or repeat."""

    topic: str
    partition: int
    offset: int


class Skipped(Event, frozen=True):
    """Retention removed records before they were read: a subscription goes on at `first` instead of `offset`."""

    topic: str
    partition: int
    offset: int
    first: int


class Resent(Event, frozen=True):
    """What was not acknowledged was sent again under the same sequence numbers: it is stored once."""

    topic: str
    partition: int
    batches: int
    records: int


class MayDuplicate(Event, frozen=True):
    """These records went out again under a new producer epoch: the node cannot tell whether it has them already."""

    topic: str
    partition: int
    records: int
    reason: str


class LeaseExpired(Event, frozen=True):
    """The node heard nothing of a publisher for its lease, and others may have been delivered instead; the client
    registers it again.
    """

    topic: str
    partition: int


class TopicAppeared(Event, frozen=True):
    """A topic was made that a subscription to several topics covers: its records are delivered from the first on."""

    topic: str
    topic_id: int


class TopicGone(Event, frozen=True):
    """A topic of a subscription to several topics was deleted; the subscription goes on without it."""

    topic: str
    topic_id: int


class Redelivered(Event, frozen=True):
    """A record of a named subscription was tried in vain so often, and is to be tried again."""

    topic: str
    partition: int
    offset: int
    tries: int


class DeadLettered(Event, frozen=True):
    """A record was tried in vain so often that it is tried no more. The topic `dead_letter` has it, if there is one."""

    topic: str
    partition: int
    offset: int
    tries: int
    dead_letter: str


class MembershipLost(Event, frozen=True):
    """A member was not heard of for as long as its lease: others may get what it held, and it has joined anew."""

    name: str
    reason: str


ClientEvent = (
    Connected
    | Disconnected
    | Reconnected
    | Resubscribed
    | Resent
    | MayDuplicate
    | LeaseExpired
    | TopicAppeared
    | TopicGone
    | Redelivered
    | DeadLettered
    | Skipped
    | MembershipLost
)
