"""Where members of named subscriptions are heard, and when each is looked at next.

One timer serves all: whoever is idle costs a glance per lease, and a name without members costs nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from rostra.broker.api import Conn

GRAIN_US = 50_000
"""Leases that end within this are looked at together."""

Seated = tuple[str, int]
"""A named subscription and a member of it."""


class MemberConnection:
    """A member is heard on a connection, or was last on one that is gone."""

    __slots__ = ("behind", "conn", "heard_us")

    def __init__(self, conn: Conn | None, heard_us: int) -> None:
        self.conn = conn
        self.behind = False
        """It was not told what it holds, because its connection had no room for it."""
        self.heard_us = heard_us
        """Of the member itself: its connection may live on with others when it has given up, and nobody heard that."""


class MemberConnections:
    def __init__(self) -> None:
        self.by_member: dict[Seated, MemberConnection] = {}
        self._by_conn: dict[Conn, dict[Seated, None]] = {}

    def take(self, seated: Seated, conn: Conn, now_us: int) -> Conn | None:
        """The member is heard here from now on; returns where it was heard before, if that was elsewhere."""
        before = self.leave(seated)
        self.by_member[seated] = MemberConnection(conn, now_us)
        self._by_conn.setdefault(conn, {})[seated] = None
        return before if before != conn else None

    def hear(self, seated: Seated, now_us: int) -> None:
        """It says something of its own."""
        self.by_member[seated].heard_us = now_us

    def expect(self, seated: Seated, now_us: int) -> None:
        """The member was not heard here yet, but may be soon."""
        self.by_member.setdefault(seated, MemberConnection(None, now_us))

    def leave(self, seated: Seated) -> Conn | None:
        """Returns where the member was heard."""
        seat = self.by_member.pop(seated, None)
        if seat is None or seat.conn is None:
            return None
        there = self._by_conn[seat.conn]
        del there[seated]
        if not there:
            del self._by_conn[seat.conn]
        return seat.conn

    def lose(self, conn: Conn) -> None:
        """The connection is gone: its members may come back over another one."""
        for seated in self._by_conn.pop(conn, ()):
            self.by_member[seated].conn = None

    def behind_at(self, conn: Conn) -> list[Seated]:
        """Members on this connection that are to be told what they hold; they are not named again."""
        behind = [seated for seated in self._by_conn.get(conn, ()) if self.by_member[seated].behind]
        for seated in behind:
            self.by_member[seated].behind = False
        return behind

    def conn_of(self, seated: Seated) -> Conn | None:
        seat = self.by_member.get(seated)
        return seat.conn if seat is not None else None

    def heard_us(self, seated: Seated) -> int:
        seat = self.by_member.get(seated)
        return 0 if seat is None else seat.heard_us


class LeaseQueue:
    """A heap of times, each with a member. Whoever was heard meanwhile is entered anew when its time has come."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, Seated]] = []
        self._at: dict[Seated, int] = {}

    def look_at(self, seated: Seated, at_us: int) -> None:
        """Not later than then, or a grain after it."""
        at_us += -at_us % GRAIN_US
        if self._at.get(seated, at_us + 1) <= at_us:
            return
        self._at[seated] = at_us
        heappush(self._heap, (at_us, seated))

    @property
    def next_us(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_us: int, limit: int) -> list[Seated]:
        """Those whose time has come, so many at most; they are not looked at again unless they are entered anew."""
        due: list[Seated] = []
        while self._heap and self._heap[0][0] <= now_us and len(due) < limit:
            at_us, seated = heappop(self._heap)
            if self._at.get(seated) == at_us:
                del self._at[seated]
                due.append(seated)
        return due
