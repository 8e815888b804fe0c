"""What overlay nodes tell each other: requests with their answers, and notices without."""

from __future__ import annotations

import msgspec

from rostra.fabric.overlay.members import Member
from rostra.model.keyspace import Key


class GetNeighbours(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Asks for predecessor and successor list."""


class Neighbours(msgspec.Struct, frozen=True, tag=True, gc=False):
    predecessor: Member | None
    successors: tuple[Member, ...]


class OverlayPing(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A heartbeat."""


class OverlayPong(msgspec.Struct, frozen=True, tag=True, gc=False):
    pass


class OverlayHello(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Asks a contact under which key it is a member now. Every life of the node answers, with a `OverlayPong`."""


class FindPredecessor(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Asks for the next step of a lookup; `excluded` did not answer the asking node."""

    key: Key
    excluded: tuple[Member, ...] = ()


class CloserNode(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The closest node before the key that the asked node knows."""

    member: Member


class PredecessorFound(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The asked node is the predecessor of the key; its successor list holds the owner and those after it."""

    successors: tuple[Member, ...]


class OverlayNotify(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The sender may be the predecessor of the receiver. With a token it is a request and has an answer."""


class Notified(msgspec.Struct, frozen=True, tag=True, gc=False):
    predecessor: Member | None
    has_successors: bool


class SuccessorHint(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The sender has joined behind the receiver, which may be its predecessor."""


class Probe(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Asks a member lost earlier whether it is there again. It may have restarted meanwhile."""

    lone: bool


class ProbeAnswer(msgspec.Struct, frozen=True, tag=True, gc=False):
    lone: bool


class MergeLookup(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Ring unification: searches, in the receiver's ring, the place where a member of another ring belongs."""

    member: Member
    fanout: int


class TryMerge(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Ring unification: the receiver belongs between these two."""

    predecessor: Member
    successor: Member


class Detected(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Ring unification: enlists the receiver in the search for a member of another ring."""

    member: Member
    fanout: int


class KeyTaken(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The sender has the key of the receiver, which must take another."""


Body = (
    GetNeighbours
    | Neighbours
    | OverlayPing
    | OverlayHello
    | OverlayPong
    | FindPredecessor
    | CloserNode
    | PredecessorFound
    | OverlayNotify
    | Notified
    | SuccessorHint
    | Probe
    | ProbeAnswer
    | MergeLookup
    | TryMerge
    | Detected
    | KeyTaken
)


Answer = Neighbours | OverlayPong | CloserNode | PredecessorFound | Notified | ProbeAnswer
"""The bodies that answer a request."""


class Packet(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message to one life of a node. The effect that sends it, and the input when it arrives."""

    to: Member
    sender: Member
    token: int
    """Of the request; an answer repeats it, a notice has 0."""
    body: Body
