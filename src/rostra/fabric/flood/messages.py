"""The closed set of messages between the brokers of a ring.

Kinds begin at 160: no client's message and no other fabric's can be taken for one of these.
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


# --- who is there ----------------------------------------------------------------------------------


class RingMember(msgspec.Struct, frozen=True, array_like=True):
    """`boot` rises with every start: of two words about a member the later one counts."""

    node: Node
    address: Text
    peer_address: Text
    boot: Count


class RingHeartbeat(FloodMessageBase, frozen=True, array_like=True):
    """The sender lives, and hears these. `known` is a digest of its members; `out`: it takes no part in the ring.

    `peer_address` is where it is answered: whoever was away may not have heard of it.
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
    """How much have you of what the sender has published?"""

    kind: ClassVar[int] = 162
    boot: Count


class RecoveryReply(FloodMessageBase, frozen=True, array_like=True):
    """The answer, and whoever else is known. The last part of it says that there is no `more`."""

    kind: ClassVar[int] = 163
    boot: Count
    entries: Entries
    more: bool = False


# --- a link: from a broker to the next -------------------------------------------------------------


class LinkOpening(FloodMessageBase, frozen=True, array_like=True):
    """The sender passes records on to the receiver from now on: what has it?"""

    kind: ClassVar[int] = 164
    link: Count


class Vector(FloodMessageBase, frozen=True, array_like=True):
    """A part of the receiver's vector, one of `count`."""

    kind: ClassVar[int] = 165
    link: Count
    index: Count
    count: Count
    entries: Entries


class Offer(FloodMessageBase, frozen=True, array_like=True):
    """Parts that the receiver's vector lacks; it answers `HaveUpTo` as soon as it can take their records."""

    kind: ClassVar[int] = 166
    link: Count
    partitions: Annotated[tuple[OriginPartition, ...], Meta(max_length=ENTRIES_MAX)]


class Records(FloodMessageBase, frozen=True, array_like=True):
    """Batches of a part, beginning at `base`. `first` is where the sender's log begins; `hops` counts links so far."""

    kind: ClassVar[int] = 167
    payload: ClassVar[bool] = True
    link: Count
    partition: Partition
    base: Count
    first: Count
    hops: Count


class HaveUpTo(FloodMessageBase, frozen=True, array_like=True):
    """How far the receiver has come. `gap`: what was sent does not fit, the next must begin there."""

    kind: ClassVar[int] = 168
    link: Count
    entries: Entries
    gap: bool = False


# --- the circle ------------------------------------------------------------------------------------


class AckMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Every broker in `visited` has all of the part below `offset` on stable storage."""

    partition: Partition
    offset: Count
    visited: Visited


class AckMarks(FloodMessageBase, frozen=True, array_like=True):
    kind: ClassVar[int] = 169
    marks: Annotated[tuple[AckMark, ...], Meta(max_length=ENTRIES_MAX)]


class Barrier(FloodMessageBase, frozen=True, array_like=True):
    """A producer has come to `origin`: how much of the topic is anywhere? Whoever it left takes nothing of it now."""

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


# --- what operators ask ----------------------------------------------------------------------------


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


# --- going -----------------------------------------------------------------------------------------


class LeaveRing(FloodMessageBase, frozen=True, array_like=True):
    """The receiver is to be removed: it takes nothing more, and says when the others have all that it has."""

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
"""For the codec: which Struct a frame's kind stands for."""
