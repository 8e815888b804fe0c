"""Connections and leases of group members, in the memory of the coordinator.

One timer serves all: an idle member costs one check per lease, a group without members nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from rostra.broker.api import Conn

GRAIN_US = 50_000
"""Leases that end within this time are checked together."""

MemberKey = tuple[str, int]
"""The name of a group and a member of it."""


class MemberConnection:
    """The connection on which a member was last heard; `conn` is None once that is lost."""

    __slots__ = ("behind", "conn", "heard_us")

    def __init__(self, conn: Conn | None, heard_us: int) -> None:
        self.conn = conn
        self.behind = False
        """An assignment was not sent because the connection was congested."""
        self.heard_us = heard_us
        """Of the member itself: other traffic on its connection does not count, since the member may have stopped."""


class MemberConnections:
    def __init__(self) -> None:
        self.by_member: dict[MemberKey, MemberConnection] = {}
        self._by_conn: dict[Conn, dict[MemberKey, None]] = {}

    def bind(self, member_key: MemberKey, conn: Conn, now_us: int) -> Conn | None:
        """Binds the member to this connection; returns its earlier one, if that is another."""
        before = self.remove(member_key)
        self.by_member[member_key] = MemberConnection(conn, now_us)
        self._by_conn.setdefault(conn, {})[member_key] = None
        return before if before != conn else None

    def heard(self, member_key: MemberKey, now_us: int) -> None:
        """The member itself sent something."""
        self.by_member[member_key].heard_us = now_us

    def expect(self, member_key: MemberKey, now_us: int) -> None:
        """The member has not connected to this coordinator yet."""
        self.by_member.setdefault(member_key, MemberConnection(None, now_us))

    def remove(self, member_key: MemberKey) -> Conn | None:
        """Returns the member's connection, if it has one."""
        connection = self.by_member.pop(member_key, None)
        if connection is None or connection.conn is None:
            return None
        there = self._by_conn[connection.conn]
        del there[member_key]
        if not there:
            del self._by_conn[connection.conn]
        return connection.conn

    def connection_lost(self, conn: Conn) -> None:
        """Its members may come back over another connection."""
        for member_key in self._by_conn.pop(conn, ()):
            self.by_member[member_key].conn = None

    def take_behind(self, conn: Conn) -> list[MemberKey]:
        """Members on this connection that missed an assignment; clears their flags."""
        behind = [member_key for member_key in self._by_conn.get(conn, ()) if self.by_member[member_key].behind]
        for member_key in behind:
            self.by_member[member_key].behind = False
        return behind

    def conn_of(self, member_key: MemberKey) -> Conn | None:
        connection = self.by_member.get(member_key)
        return connection.conn if connection is not None else None

    def heard_us(self, member_key: MemberKey) -> int:
        connection = self.by_member.get(member_key)
        return 0 if connection is None else connection.heard_us


class LeaseQueue:
    """A heap of check times, one per member. A member that was heard meanwhile is scheduled again when checked."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, MemberKey]] = []
        self._at: dict[MemberKey, int] = {}

    def schedule(self, member_key: MemberKey, at_us: int) -> None:
        """Checks the member at this time, rounded up to the grain, unless an earlier check is scheduled."""
        at_us += -at_us % GRAIN_US
        if self._at.get(member_key, at_us + 1) <= at_us:
            return
        self._at[member_key] = at_us
        heappush(self._heap, (at_us, member_key))

    @property
    def next_us(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    def due(self, now_us: int, limit: int) -> list[MemberKey]:
        """At most `limit` members that are due; removes them from the queue."""
        due: list[MemberKey] = []
        while self._heap and self._heap[0][0] <= now_us and len(due) < limit:
            at_us, member_key = heappop(self._heap)
            if self._at.get(member_key) == at_us:
                del self._at[member_key]
                due.append(member_key)
        return due
