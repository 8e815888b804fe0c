"""The owner's progress record of one follower, as in etcd."""

from __future__ import annotations

from collections import deque
from enum import StrEnum


class ProgressState(StrEnum):
    PROBE = "probe"
    """Where the two logs agree is unknown: one probe at a time."""
    REPLICATE = "replicate"
    """Entries are sent as they are proposed, up to the window."""
    SNAPSHOT = "snapshot"
    """The follower must restart at the owner's log start (InstallSnapshot)."""


class Progress:
    __slots__ = (
        "at_boundary",
        "commit",
        "has_readers",
        "heard_us",
        "in_flight",
        "in_flight_bytes",
        "match",
        "next",
        "probe_round",
        "quiescent",
        "read_token",
        "round",
        "sent_commit",
        "sent_round",
        "snapshots",
        "state",
    )

    def __init__(self, next_offset: int, heard_us: int) -> None:
        self.state = ProgressState.PROBE
        self.next = next_offset
        """nextIndex: the first offset that was not sent."""
        self.at_boundary = True
        """`next` is known to lie between two batches."""
        self.match = 0
        """matchIndex: below this the follower has the owner's entries on stable storage."""
        self.commit = 0
        """The commit offset that the follower has reported."""
        self.sent_commit = 0
        """The commit offset last sent to it, which may have been lost."""
        self.snapshots = 0
        """How many snapshots the follower had installed when `match` was reported."""
        self.heard_us = heard_us
        self.round = 0
        """The last heartbeat round it answered."""
        self.sent_round = 0
        """The round in which something was last sent to it."""
        self.probe_round = -1
        """The round of the last probe; one probe per round."""
        self.in_flight: deque[tuple[int, int]] = deque()
        """(end, bytes) of entries sent and not yet acknowledged."""
        self.in_flight_bytes = 0
        self.read_token = 0
        """The token of the pending log read for this follower, 0 if none."""
        self.has_readers = True
        """Whether its replica may have readers that wait for commit offsets."""
        self.quiescent = False

    def record_sent(self, end: int, size: int) -> None:
        self.in_flight.append((end, size))
        self.in_flight_bytes += size
        self.next = end
        self.at_boundary = True

    def is_stale(self, snapshots: int) -> bool:
        """Whether a reply precedes the follower's last snapshot; a newer snapshot resets `match`."""
        if snapshots > self.snapshots:
            self.snapshots = snapshots
            self.match = 0
        return snapshots < self.snapshots

    def acknowledged(self, agreed: int, match: int) -> None:
        if match > self.match:
            self.match = match
        in_flight = self.in_flight
        while in_flight and in_flight[0][0] <= agreed:
            self.in_flight_bytes -= in_flight.popleft()[1]

    def rewind(self, next_offset: int, state: ProgressState, *, at_boundary: bool) -> None:
        self.state = state
        self.next = next_offset
        self.at_boundary = at_boundary
        self.in_flight.clear()
        self.in_flight_bytes = 0
        self.read_token = 0
        self.probe_round = -1
