"""The closed set of messages between the brokers of a ring.

Kinds start at 160: no message of a client or of another fabric can be mistaken for one of these.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

import msgspec
from msgspec import Meta

from rostra.fabric.flood.origin_partition import NAME_MAX, Count, Node, OriginPartition, VectorEntry
from rostra.model.cluster import PlacedPartition, RingState
from rostra.model.ids import Partition

TEXT_MAX = 1024
MEMBERS_MAX = 1024
ENTRIES_MAX = 1 << 16
ENTRIES_PER_MESSAGE = 1000

Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Visited = Annotated[tuple[Node, ...], Meta(max_length=MEMBERS_MAX)]


class FloodMessageBase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One frame's typed part. `payload` says whether raw batches may follow it."""

    kind: ClassVar[int] = 0
    payload: ClassVar[bool] = False


Entries = Annotated[tuple[VectorEntry, ...], Meta(max_length=ENTRIES_MAX)]


# --- members and recovery ----------------------------------------------------------------------------------


class RingMember(msgspec.Struct, frozen=True, array_like=True):
    """`boot` increases with every start: of two records of a member the one with the higher boot counts."""

    node: Node
    address: Text
    peer_address: Text
    boot: Count
    name: Text = ""
    """Empty unless the operator chose one."""


class RingHeartbeat(FloodMessageBase, frozen=True, array_like=True):
    """The sender is alive and hears these brokers. `leaving`: it takes no part in the ring.

    `peer_address` is the sender's, which a broker that was down may not know.
    """

    kind: ClassVar[int] = 160
    boot: Count
    members_digest: Count
    peer_address: Text
    hears: Visited
    leaving: bool = False


class RingMembers(FloodMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 161
    members: Annotated[tuple[RingMember, ...], Meta(max_length=MEMBERS_MAX)]
    removed: Visited


class RecoveryRequest(FloodMessageBase, frozen=True, array_like=True):
    """Asks how much the receiver has of the sender's own origin partitions."""

    kind: ClassVar[int] = 162
    boot: Count


class RecoveryReply(FloodMessageBase, frozen=True, array_like=True):
    """One chunk of the answer; `more` is false in the last one."""

    kind: ClassVar[int] = 163
    boot: Count
    entries: Entries
    more: bool = False


# --- a link: from a broker to the next -------------------------------------------------------------


class LinkOpening(FloodMessageBase, frozen=True, array_like=True):
    """Opens a link: the sender forwards records to the receiver from now on, and asks for its vector."""

    kind: ClassVar[int] = 164
    link: Count


class Vector(FloodMessageBase, frozen=True, array_like=True):
    """One chunk of the receiver's vector, of `count`."""

    kind: ClassVar[int] = 165
    link: Count
    index: Count
    count: Count
    entries: Entries


class Offer(FloodMessageBase, frozen=True, array_like=True):
    """Origin partitions that the receiver's vector lacks; it answers `HaveUpTo` once it can store their records."""

    kind: ClassVar[int] = 166
    link: Count
    partitions: Annotated[tuple[OriginPartition, ...], Meta(max_length=ENTRIES_MAX)]


class Records(FloodMessageBase, frozen=True, array_like=True):
    """Batches of an origin partition from `base`. `first` is the sender's log start; `hops` counts links so far."""

    kind: ClassVar[int] = 167
    payload: ClassVar[bool] = True
    link: Count
    partition: Partition
    base: Count
    first: Count
    hops: Count


class HaveUpTo(FloodMessageBase, frozen=True, array_like=True):
    """Acknowledges records up to these ends. `gap`: the records did not fit; send again from there."""

    kind: ClassVar[int] = 168
    link: Count
    entries: Entries
    gap: bool = False


# --- marks and barriers ------------------------------------------------------------------------------------


class AckMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Every broker in `visited` has the origin partition below `offset` on stable storage."""

    partition: Partition
    offset: Count
    visited: Visited


class AckMarks(FloodMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 169
    marks: Annotated[tuple[AckMark, ...], Meta(max_length=ENTRIES_MAX)]


class Barrier(FloodMessageBase, frozen=True, array_like=True):
    """A producer migrated to `origin`: collects how much of the topic exists, and fences the producer elsewhere."""

    kind: ClassVar[int] = 170
    origin: Node
    boot: Count
    number: Count
    name: Annotated[str, Meta(max_length=NAME_MAX)]
    producer: Count
    moves: Count
    entries: Entries
    visited: Visited
    hops: Count


# --- requests of operators ----------------------------------------------------------------------------


class RingStateRequest(FloodMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 171
    boot: Count
    token: Count


class RingStateReply(FloodMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 172
    boot: Count
    token: Count
    ring: RingState
    partitions: Annotated[tuple[PlacedPartition, ...], Meta(max_length=ENTRIES_MAX)]
    more: bool = False


# --- departure -----------------------------------------------------------------------------------------


class LeaveRing(FloodMessageBase, frozen=True, array_like=True):
    """The receiver is to be removed: it accepts nothing new, and answers when the others have all its records."""

    kind: ClassVar[int] = 173


class LeftRing(FloodMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 174


FloodMessage = (
    RingHeartbeat
    | RingMembers
    | RecoveryRequest
    | RecoveryReply
    | LinkOpening
    | Vector
    | Offer
    | Records
    | HaveUpTo
    | AckMarks
    | Barrier
    | RingStateRequest
    | RingStateReply
    | LeaveRing
    | LeftRing
)

PEER_KINDS: dict[int, type[FloodMessage]] = {kind.kind: kind for kind in get_args(FloodMessage)}
"""Message types by frame kind, for the codec."""
