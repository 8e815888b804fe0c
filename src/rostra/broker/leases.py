"""When members are looked at next. One timer serves all: who is idle costs a glance per lease."""

from __future__ import annotations

from heapq import heappop, heappush

from rostra.broker.api import Conn

GRAIN_US = 50_000
"""Leases that end within this are looked at together."""

Seated = tuple[str, int]
"""A named subscription and a member of it."""


class Seat:
    """Where a member is heard: on a connection, or last on one that is gone."""

    __slots__ = ("conn", "heard_us")

    def __init__(self, conn: Conn | None, heard_us: int) -> None:
        self.conn = conn
        self.heard_us = heard_us
        """Of use once the connection is gone; while it stands its session knows better."""


class Leases:
    """A heap of times, each with a member. Whoever was heard meanwhile is entered anew when its time has come."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Seated]] = []
        self._at: dict[Seated, int] = {}

    def look_at(self, seated: Seated, at_us: int) -> None:
        """Not later than then."""
        at_us += -at_us % GRAIN_US
        if self._at.get(seated, at_us + 1) <= at_us:
            return
        self._at[seated] = at_us
        heappush(self._heap, (at_us, seated))

    @property
    def next_us(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_us: int) -> list[Seated]:
        """Those whose time has come; they are not looked at again unless they are entered anew."""
        due: list[Seated] = []
        while self._heap and self._heap[0][0] <= now_us:
            at_us, seated = heappop(self._heap)
            if self._at.get(seated) == at_us:
                del self._at[seated]
                due.append(seated)
        return due
