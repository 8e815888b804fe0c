"""Which publishers of a partition are alive: known to its owner alone, in memory.

Only what follows from it, a departure, stands in the log. A new owner gives everybody a whole lease, for it does not
know what the one before it heard.
"""

from __future__ import annotations

from collections.abc import Callable

from rostra.broker.api import Conn
from rostra.broker.publish.publisher_table import PublisherTable

Heard = Callable[[Conn], int]
"""When a connection was last heard; 0 of one that is lost."""

GRACE = 3
"""A client is heard three times in a lease: who looks later than by such a third was asleep itself."""


class PublisherLeases:
    """Of one partition. A write renews a lease, and so does whatever is heard on the publisher's connection."""

    def __init__(self, book: PublisherTable, now_us: int) -> None:
        self._book = book
        self._asserted_us: dict[int, int] = {}
        self._conns: dict[int, Conn] = {}
        self._asked: dict[int, Conn] = {}
        """Who registered by itself, and where: it must hear of it when that is over."""
        self.due_us: int | None = None
        """When a lease may run out; looked at anew then, for much may have been heard meanwhile."""
        self.begin(now_us)

    def begin(self, now_us: int) -> None:
        """Everybody in the book has a whole lease from now on."""
        self._asserted_us = dict.fromkeys((publisher for publisher, _ in self._book.items()), now_us)
        self.due_us = None
        self.look(now_us, lambda conn: 0)

    def renew(self, publisher: int, now_us: int, conn: Conn) -> None:
        """It registered, or wrote something."""
        self._asserted_us[publisher] = now_us
        self._conns[publisher] = conn
        enrolled = self._book.get(publisher)
        if enrolled is not None:
            ends_us = now_us + enrolled.lease_ms * 1000
            self.due_us = ends_us if self.due_us is None else min(self.due_us, ends_us)

    def hears(self, publisher: int, conn: Conn) -> bool:
        """Whether all that comes on this connection renews its lease without another word."""
        return conn >= 0 and self._conns.get(publisher) == conn

    def asked(self, publisher: int, conn: Conn) -> None:
        """It registered by itself, on this connection."""
        self._asked[publisher] = conn

    def all_asked(self) -> list[tuple[int, Conn]]:
        return list(self._asked.items())

    def asked_on(self, publisher: int) -> Conn | None:
        return self._asked.get(publisher)

    def forget(self, publisher: int) -> None:
        """It departed."""
        self._asserted_us.pop(publisher, None)
        self._conns.pop(publisher, None)

    def forget_asked(self, publisher: int) -> None:
        """It departed because it wished to."""
        self.forget(publisher)
        self._asked.pop(publisher, None)

    def lost(self, conn: Conn, heard_us: int) -> None:
        """The connection is gone; its publishers may come back on another before their leases run out."""
        for publisher in [publisher for publisher, on in self._conns.items() if on == conn]:
            del self._conns[publisher]
            self._asserted_us[publisher] = max(self._asserted_us.get(publisher, 0), heard_us)
        for publisher in [publisher for publisher, on in self._asked.items() if on == conn]:
            del self._asked[publisher]

    def look(self, now_us: int, heard: Heard) -> list[int]:
        """The publishers whose leases have run out, in the order in which they came."""
        late_us = 0 if self.due_us is None else now_us - self.due_us
        over: list[int] = []
        self.due_us = None
        for publisher, enrolled in self._book.items():
            lease_us = enrolled.lease_ms * 1000
            ends_us = self._alive_us(publisher, heard, now_us) + lease_us
            if ends_us <= now_us and late_us > lease_us // GRACE:
                # This node itself slept: what its publishers sent meanwhile may lie unread.
                ends_us = now_us + lease_us // GRACE
                self._asserted_us[publisher] = ends_us - lease_us
            if ends_us <= now_us:
                over.append(publisher)
            elif self.due_us is None or ends_us < self.due_us:
                self.due_us = ends_us
        return over

    def _alive_us(self, publisher: int, heard: Heard, now_us: int) -> int:
        # One that is in the book and was never heard came back when the log was cut.
        asserted_us = self._asserted_us.setdefault(publisher, now_us)
        conn = self._conns.get(publisher)
        return asserted_us if conn is None else max(asserted_us, heard(conn))
