"""Connected clients: whether each has sent Hello, when it was last heard, how many replies it waits for."""

from __future__ import annotations

from rostra.broker.api import Conn


class Session:
    __slots__ = ("greeted", "heard_us", "waiting")

    def __init__(self, heard_us: int) -> None:
        self.greeted = False
        self.heard_us = heard_us
        self.waiting = 0


class Sessions:
    def __init__(self) -> None:
        self.by_conn: dict[Conn, Session] = {}

    def __len__(self) -> int:
        return len(self.by_conn)

    def open(self, conn: Conn, now_us: int) -> None:
        self.by_conn[conn] = Session(now_us)

    def close(self, conn: Conn) -> None:
        self.by_conn.pop(conn, None)

    def get(self, conn: Conn) -> Session | None:
        return self.by_conn.get(conn)

    def request_done(self, conn: Conn) -> bool:
        """Counts one pending request less; False if the client has disconnected."""
        session = self.by_conn.get(conn)
        if session is None:
            return False
        session.waiting -= 1
        return True

    def silent_since(self, before_us: int) -> list[Conn]:
        return [conn for conn, session in self.by_conn.items() if session.heard_us < before_us]

    def all(self) -> list[Conn]:
        return list(self.by_conn)
