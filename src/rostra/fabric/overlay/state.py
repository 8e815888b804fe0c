"""The state of one overlay node."""

from __future__ import annotations

from random import Random

from rostra.fabric.overlay.effects import Effect
from rostra.fabric.overlay.lookup_state import Lookup
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.pending_request import OverlayRequest
from rostra.fabric.overlay.settings import OverlaySettings
from rostra.safeguards import ALL_ON, Without

NEVER_US = 1 << 62


class Overlay:
    """What one node knows of its ring. The functions of this package change it; nothing else does."""

    __slots__ = (
        "changed",
        "contacts",
        "contender",
        "detections",
        "due_us",
        "effects",
        "fingers",
        "heartbeat_us",
        "join_attempts",
        "join_lookup",
        "joined",
        "lookups_begun",
        "mask",
        "me",
        "next_finger",
        "now_us",
        "passive",
        "pending",
        "predecessor",
        "probe_us",
        "random",
        "settings",
        "stabilize_us",
        "successors",
        "tokens",
        "without",
    )

    def __init__(self, me: Member, settings: OverlaySettings, random: Random, without: Without = ALL_ON) -> None:
        self.me = me
        self.settings = settings
        self.random = random
        self.without = without
        self.mask = settings.size - 1
        self.now_us = 0
        self.joined = False
        """Whether the node is a member of a ring, be it of one."""
        self.predecessor: Member | None = None
        self.contender: Member | None = None
        """Lies further back than the predecessor, and takes its place when that one turns out to be dead."""
        self.successors: tuple[Member, ...] = ()
        """The nearest first; ends where the node itself would come. Empty in a ring of one."""
        self.fingers: list[Member | None] = [None] * settings.bits
        """`fingers[k]` is the successor of `me.key + 2**k`, as far as known: the finger k+1 of the paper."""
        self.next_finger = 0
        self.passive: dict[int, Member] = {}
        """Members that were lost, by node, the latest last; tried now and then."""
        self.detections: dict[Member, int] = {}
        """Members of other rings to search for, with the fanout of each search."""
        self.contacts: tuple[Member, ...] = ()
        self.join_attempts = 0
        self.join_lookup: Lookup | None = None
        self.pending: dict[int, OverlayRequest] = {}
        self.due_us = NEVER_US
        """No request is due earlier; it may be later, because those that were answered still count."""
        self.tokens = 0
        self.lookups_begun = 0
        self.stabilize_us = NEVER_US
        self.heartbeat_us = NEVER_US
        self.probe_us = NEVER_US
        self.changed = False
        self.effects: list[Effect] = []

    @property
    def lone(self) -> bool:
        """Whether the node is a ring of one."""
        return self.joined and not self.successors and self.predecessor is None

    @property
    def successor(self) -> Member | None:
        return self.successors[0] if self.successors else None

    def distance(self, member: Member) -> int:
        """Steps clockwise from this node to another."""
        return (member.key - self.me.key) & self.mask

    def between(self, member: Member, before: Member) -> bool:
        """Whether a member lies clockwise after this node and before another; before itself is the whole circle."""
        return 0 < self.distance(member) < (self.distance(before) or self.mask + 1)


def former_neighbours(overlay: Overlay) -> tuple[Member, ...]:
    """What a restart needs: those to try, the nearest first, bounded like the passive list."""
    known: dict[int, Member] = {}
    near = (*overlay.successors, *((overlay.predecessor,) if overlay.predecessor else ()))
    for member in (*near, *reversed(overlay.passive.values())):
        if member.node != overlay.me.node:
            known.setdefault(member.node, member)
    return tuple(known.values())[: overlay.settings.passive_max]
