"""What an overlay node wants done: packets sent, neighbours persisted, and the layer above told."""

from __future__ import annotations

import msgspec

from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import Packet
from rostra.model.keyspace import Key


class Joined(msgspec.Struct, frozen=True, gc=False):
    """The node is a member of a ring, under this key."""

    me: Member


class NeighboursChanged(msgspec.Struct, frozen=True, gc=False):
    """Successors, predecessor or passive list changed; `former` is to be persisted for `join.restart`."""

    predecessor: Member | None
    successors: tuple[Member, ...]
    former: tuple[Member, ...]


class LookupDone(msgspec.Struct, frozen=True, gc=False):
    """A lookup asked for by `lookup.find` ended; without a predecessor it failed."""

    number: int
    key: Key
    predecessor: Member | None
    owner: Member | None
    hops: int
    """Nodes passed on the way from the asking node to the predecessor of the key."""
    timeouts: int


Effect = Packet | Joined | NeighboursChanged | LookupDone
