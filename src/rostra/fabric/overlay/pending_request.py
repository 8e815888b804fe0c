"""A request that waits for its answer, and what it is for."""

from __future__ import annotations

from enum import Enum, auto

from rostra.fabric.overlay.lookup_state import Lookup
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.messages import Body


class Purpose(Enum):
    STABILIZE = auto()
    """The successor's neighbours."""
    ADOPT = auto()
    """The neighbours of a node that may be a nearer successor."""
    HEARTBEAT = auto()
    INTRODUCE = auto()
    """The first notify after a join."""
    CONTACT = auto()
    """The first word to a contact: it may have restarted since it was named."""
    LOOKUP = auto()
    PROBE = auto()


class OverlayRequest:
    __slots__ = ("body", "due_us", "lookup", "misses", "purpose", "to")

    def __init__(self, to: Member, body: Body, purpose: Purpose, due_us: int, lookup: Lookup | None) -> None:
        self.to = to
        self.body = body
        self.purpose = purpose
        self.due_us = due_us
        self.misses = 0
        self.lookup = lookup
