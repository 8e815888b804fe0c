"""The leases of a partition's publishers, in the memory of its owner.

Only their result, a departure, is in the log. A new owner gives every publisher a whole lease, because it does not know
when its predecessor last heard them.
"""

from __future__ import annotations

from collections.abc import Callable

from rostra.broker.api import Conn
from rostra.broker.publish.publisher_table import PublisherTable

LastHeard = Callable[[Conn], int]
"""When a connection was last heard; 0 if it is lost."""

GRACE = 3
"""A client is heard three times per lease. If the check itself is later than a third of it, this node was stalled."""


class PublisherLeases:
    """The leases of one partition. A write renews a lease, and so does any message on the publisher's connection."""

    def __init__(self, table: PublisherTable, now_us: int) -> None:
        self._table = table
        self._asserted_us: dict[int, int] = {}
        self._conns: dict[int, Conn] = {}
        self._explicit: dict[int, Conn] = {}
        """Publishers that registered explicitly, with their connection: they are notified when their registration ends.
        """
        self.due_us: int | None = None
        """When a lease may expire; checked again then, since the publisher may have been heard meanwhile."""
        self.restart(now_us)

    def restart(self, now_us: int) -> None:
        """Gives every publisher a whole lease from now on."""
        self._asserted_us = dict.fromkeys((publisher for publisher, _ in self._table.items()), now_us)
        self.due_us = None
        self.expire(now_us, lambda conn: 0)

    def renew(self, publisher: int, now_us: int, conn: Conn) -> None:
        """It registered or wrote something."""
        self._asserted_us[publisher] = now_us
        self._conns[publisher] = conn
        registered = self._table.get(publisher)
        if registered is not None:
            ends_us = now_us + registered.lease_ms * 1000
            self.due_us = ends_us if self.due_us is None else min(self.due_us, ends_us)

    def is_renewed_by(self, publisher: int, conn: Conn) -> bool:
        """Whether every message on this connection renews the publisher's lease already."""
        return conn >= 0 and self._conns.get(publisher) == conn

    def set_explicit(self, publisher: int, conn: Conn) -> None:
        """It registered explicitly on this connection."""
        self._explicit[publisher] = conn

    def explicit(self) -> list[tuple[int, Conn]]:
        return list(self._explicit.items())

    def explicit_conn(self, publisher: int) -> Conn | None:
        return self._explicit.get(publisher)

    def forget(self, publisher: int) -> None:
        """Its lease expired."""
        self._asserted_us.pop(publisher, None)
        self._conns.pop(publisher, None)

    def resigned(self, publisher: int) -> None:
        """It ended its registration."""
        self.forget(publisher)
        self._explicit.pop(publisher, None)

    def connection_lost(self, conn: Conn, heard_us: int) -> None:
        """The connection is gone; its publishers may reconnect before their leases expire."""
        for publisher in [publisher for publisher, on in self._conns.items() if on == conn]:
            del self._conns[publisher]
            self._asserted_us[publisher] = max(self._asserted_us.get(publisher, 0), heard_us)
        for publisher in [publisher for publisher, on in self._explicit.items() if on == conn]:
            del self._explicit[publisher]

    def expire(self, now_us: int, heard: LastHeard) -> list[int]:
        """The publishers whose leases have expired, in order of registration; sets the next deadline."""
        late_us = 0 if self.due_us is None else now_us - self.due_us
        expired: list[int] = []
        self.due_us = None
        for publisher, registered in self._table.items():
            lease_us = registered.lease_ms * 1000
            ends_us = self._alive_us(publisher, heard, now_us) + lease_us
            if ends_us <= now_us and late_us > lease_us // GRACE:
                # This node was stalled: messages of its publishers may still be unread.
                ends_us = now_us + lease_us // GRACE
                self._asserted_us[publisher] = ends_us - lease_us
            if ends_us <= now_us:
                expired.append(publisher)
            elif self.due_us is None or ends_us < self.due_us:
                self.due_us = ends_us
        return expired

    def _alive_us(self, publisher: int, heard: LastHeard, now_us: int) -> int:
        # A publisher that was never heard is in the table again because the log was truncated.
        asserted_us = self._asserted_us.setdefault(publisher, now_us)
        conn = self._conns.get(publisher)
        return asserted_us if conn is None else max(asserted_us, heard(conn))
