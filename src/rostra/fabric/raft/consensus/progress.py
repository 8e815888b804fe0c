"""What a leader knows of one follower."""

from __future__ import annotations

from collections import deque
from enum import StrEnum


class ProgressStage(StrEnum):
    PROBE = "probe"
    """Where the two logs agree is not known: one message at a time."""
    REPLICATE = "replicate"
    """Batches go out as they come, up to the window."""
    REFILL = "refill"
    """The follower begins anew at the leader's log start."""


class Progress:
    __slots__ = (
        "asked_round",
        "commit",
        "fills",
        "heard_us",
        "in_flight",
        "in_flight_bytes",
        "match",
        "next",
        "quiet",
        "readers",
        "reading",
        "round",
        "sent_round",
        "stage",
        "told",
        "whole",
    )

    def __init__(self, following: int, heard_us: int) -> None:
        self.stage = ProgressStage.PROBE
        self.next = following
        """The first offset that was not sent."""
        self.whole = True
        """`next` is known to lie between two batches."""
        self.match = 0
        """Below this the follower has on stable storage what the leader has."""
        self.commit = 0
        """The commit offset that the follower is known to know."""
        self.told = 0
        """The one that it was last told with entries, if those arrived."""
        self.fills = 0
        """Which filling of its copy `match` speaks of."""
        self.heard_us = heard_us
        self.round = 0
        """The last heartbeat round it answered."""
        self.sent_round = 0
        """The round in which something was last sent to it."""
        self.asked_round = -1
        """The round of the last probe: one a round is enough."""
        self.in_flight: deque[tuple[int, int]] = deque()
        """(end, bytes) of what was sent and not yet acknowledged."""
        self.in_flight_bytes = 0
        self.reading = 0
        """The token of the read under way for it."""
        self.readers = True
        """Whether it may have any, who wait to hear what is committed."""
        self.quiet = False

    def sent(self, end: int, size: int) -> None:
        self.in_flight.append((end, size))
        self.in_flight_bytes += size
        self.next = end
        self.whole = True

    def is_stale(self, fills: int) -> bool:
        """Whether a word is about a copy that was dropped since; a newer filling begins with nothing known."""
        if fills > self.fills:
            self.fills = fills
            self.match = 0
        return fills < self.fills

    def acknowledged(self, held: int, match: int) -> None:
        self.match = max(self.match, match)
        while self.in_flight and self.in_flight[0][0] <= held:
            self.in_flight_bytes -= self.in_flight.popleft()[1]

    def rewind(self, following: int, stage: ProgressStage, *, whole: bool) -> None:
        self.stage = stage
        self.next = following
        self.whole = whole
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.reading = 0
        self.asked_round = -1
