"""The bounds and periods of an overlay node."""

from __future__ import annotations

import msgspec

from rostra.model.keyspace import Keyspace


class OverlaySettings(msgspec.Struct, frozen=True):
    bits: int = 64
    """The m of Chord: keys and ids have so many bits."""
    successors_max: int = 8
    """The r of Chord: any r-1 consecutive nodes may fail at once."""
    stabilize_ms_min: int = 750
    stabilize_ms_max: int = 1250
    """Each round begins after a time drawn between the two, so that nodes do not act in step."""
    heartbeat_ms: int = 500
    """How often successor and predecessor are asked whether they live; 0 leaves it to the rounds."""
    answer_ms: int = 150
    """After so long without an answer a request counts as missed and is sent again."""
    misses_max: int = 3
    """A node that misses so many requests in a row is taken for dead."""
    probe_ms: int = 1000
    """How often a lost member is tried again."""
    passive_max: int = 16
    """Lost members remembered; beyond it the oldest is forgotten."""
    merge_fanout: int = 3
    """Nodes that each search of a ring unification enlists; 1 keeps it to one search at a time."""
    detections_max: int = 32
    """Members of other rings waiting to be searched for; beyond it further ones are dropped and detected again."""
    requests_max: int = 64
    """Requests without an answer; beyond it nothing more is asked until the next period."""
    finger_lookups_max: int = 4
    """Lookups for fingers under way at a time; beyond it a round leaves its finger to the next."""
    excluded_max: int = 64
    """Nodes one lookup may find dead; beyond it the lookup fails."""

    def __post_init__(self) -> None:
        Keyspace(self.bits)
        if self.successors_max < 1 or self.misses_max < 1 or self.stabilize_ms_min > self.stabilize_ms_max:
            raise ValueError("an overlay needs a successor, a limit of misses, and a period from less to more")

    @property
    def size(self) -> int:
        return 1 << self.bits
