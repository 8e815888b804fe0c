"""One lookup: which node is asked next, and what its answer or its silence means. Iterative, as in the paper.

The asking node holds the path. A node that does not answer is excluded, and the one before it is asked again, which
then names another. A `Lookup` performs nothing: whoever drives it asks `at` and reports the answer.
"""

from __future__ import annotations

from enum import Enum, auto

from rostra.fabric.overlay.members import Member
from rostra.model.keyspace import Key


class Use(Enum):
    JOIN = auto()
    FINGER = auto()
    CALLER = auto()
    """Asked for by the layer above, which is told the result."""


class Lookup:
    __slots__ = ("at", "excluded", "finger", "found", "key", "number", "owners", "path", "timeouts", "use")

    def __init__(self, key: Key, at: Member, use: Use, *, number: int = 0, finger: int = 0) -> None:
        self.key = key
        self.use = use
        self.at: Member = at
        """Who is asked now."""
        self.path: list[Member] = []
        """Who has answered before."""
        self.excluded: tuple[Member, ...] = ()
        self.timeouts = 0
        self.found = False
        self.owners: tuple[Member, ...] = ()
        """The key's owner first, then those that would own it if the ones before were dead."""
        self.number = number
        self.finger = finger

    @property
    def hops(self) -> int:
        return len(self.path)


def advance(lookup: Lookup, closer: Member, mask: int) -> bool:
    """The asked node names a closer one. False if it is none: then the lookup has failed."""
    behind = (lookup.key - lookup.at.key) & mask or mask + 1
    ahead = (closer.key - lookup.at.key) & mask
    if not 0 < ahead < behind or closer in lookup.excluded:
        return False
    lookup.path.append(lookup.at)
    lookup.at = closer
    return True


def finish(lookup: Lookup, successors: tuple[Member, ...], mask: int) -> None:
    """The asked node is the predecessor of the key. In a ring of one it is the owner too."""
    origin = lookup.at.key
    span = (lookup.key - origin) & mask or mask + 1
    beyond = tuple(s for s in successors if ((s.key - origin) & mask or mask + 1) >= span)
    lookup.found = True
    lookup.owners = tuple(s for s in beyond if s not in lookup.excluded) if successors else (lookup.at,)


def retreat(lookup: Lookup, excluded_max: int) -> bool:
    """The asked node did not answer: the one before is asked for another. False if there is none left to ask."""
    lookup.timeouts += 1
    if not lookup.path or len(lookup.excluded) >= excluded_max:
        return False
    lookup.excluded = (*lookup.excluded, lookup.at)
    lookup.at = lookup.path.pop()
    return True
