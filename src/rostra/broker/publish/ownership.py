"""Exclusive ownership: which publisher's records of a partition are delivered.

In an exclusive topic only the records of the strongest publisher alive are delivered; those of the others are stored
with the flag `SUPPRESSED`. The partition's owner decides this for each batch when it orders it, and never again:

1. A publisher registers with a strength and a lease (`Register`), or is registered with strength 0 by its first batch.
   The owner appends `PublisherJoined` to the log; `PublisherTable`, derived from the log, knows the strongest.
2. `owner_flags` gives each batch its flags: 0 for the strongest publisher, `SUPPRESSED` for any other.
3. A lease is renewed by everything that arrives on the publisher's connection (`PublisherLeases`, in the owner's memory
   only). When it expires, or the publisher resigns, the owner appends `PublisherLeft`. Expired leases are checked
   before a batch gets its flags, so that a dead publisher suppresses nothing.

Every decision is in the log before the first batch that it affects. So all copies agree on it, and a new owner
continues with the same publishers; it gives each a whole lease, because it does not know when they were last heard.
Publishers that registered explicitly are notified (`Unregistered`) when their lease expires or the owner changes, and
register again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from rostra.broker.api import Conn, Reply
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.publish.publisher_leases import PublisherLeases
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.broker.sessions import Session
from rostra.broker.topics.internal_topics import RESERVED_NAME
from rostra.errors import BatchRejected, InvalidTopicName, LimitExceeded, NotRegistered, RostraError
from rostra.fabric.api import LogLine, SetTimer
from rostra.model.batch import SUPPRESSED, Reason
from rostra.model.ids import Partition, text
from rostra.safeguards import Safeguard
from rostra.wire.messages import (
    PUBLISHER_LEASE_MS,
    Agreed,
    NodeMessage,
    PublisherRegistered,
    Register,
    Unregister,
    Unregistered,
)

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

LEASES = "broker/leases"
LEFT = "left"
SILENT = "silent for its lease"
RETRY_MS = 200
"""Delay before a departure that could not be logged is retried."""


class Ownership:
    """One per broker. Holds leases for the partitions that this node owns and that have publishers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases: dict[Partition, PublisherLeases] = {}
        self._by_conn: dict[Conn, dict[Partition, None]] = {}
        """Partitions with publishers on a connection."""
        self._deadlines: list[tuple[int, Partition]] = []
        """A heap of times at which to check a partition's leases; a partition may occur more than once."""
        self._logs = Safeguard.OWNERSHIP_LOGGED not in broker.without

    # --- registering ---

    def register(self, conn: Conn, session: Session, message: Register) -> None:
        served = self._find(conn, session, message)
        if served is None:
            return
        publisher = message.publisher
        registered = served.publishers.get(publisher)
        if registered is None or (registered.strength, registered.lease_ms) != (message.strength, message.lease_ms):
            error = self._register(served, PublisherJoined(publisher, message.strength, message.lease_ms))
            if error is not None:
                self._broker.refuse(conn, message.request, error)
                return
        self._renew(served, publisher, conn).set_explicit(publisher, conn)
        self._reply_when_committed(
            conn, session, served, message, PublisherRegistered(message.request, served.publishers.strongest)
        )

    def resign(self, conn: Conn, session: Session, message: Unregister) -> None:
        served = self._find(conn, session, message)
        if served is None:
            return
        if message.publisher in served.publishers:
            error = self._log(served, [PublisherLeft(message.publisher, LEFT)])
            if error is not None:
                self._broker.refuse(conn, message.request, error)
                return
        leases = self._leases.get(served.partition)
        if leases is not None:
            leases.resigned(message.publisher)
        self._reply_when_committed(conn, session, served, message, Agreed(message.request))

    def _find(self, conn: Conn, session: Session, message: Register | Unregister) -> ServedPartition | None:
        """The partition, if this node owns it; otherwise refuses the request."""
        broker = self._broker
        served = broker.topic_table.find(message.topic, message.partition)
        if isinstance(served, RostraError):
            broker.client_requests.not_found(conn, session, message, served)
            return None
        own = InvalidTopicName(served.topic, RESERVED_NAME) if served.internal else None
        error = own or broker.proposer.write_error(served) or broker.over_limit(session)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return None
        return served

    def _reply_when_committed(
        self, conn: Conn, session: Session, served: ServedPartition, message: Register | Unregister, answer: NodeMessage
    ) -> None:
        """Replies when everything now in the log is committed: an earlier request may have logged the same change,
        uncommitted yet."""
        self._broker.proposer.reply_when_committed(conn, session, served, served.end - 1, answer, message.request)

    # --- batches ---

    def owner_flags(self, conn: Conn, served: ServedPartition, publisher: int) -> int | RostraError:
        """The owner flags of a new batch for a partition of exclusive ownership."""
        if not publisher:
            return BatchRejected(Reason.PRODUCER, "batches for an exclusive topic need a producer id")
        leases = self._leases.get(served.partition)
        if leases is not None and leases.due_us is not None and leases.due_us <= self._broker.now.mono_us:
            self._expire(served, leases)
        if publisher not in served.publishers:
            if leases is not None and leases.explicit_conn(publisher) == conn:
                # It relies on its registered strength: it must register again before it publishes.
                return NotRegistered(served.topic, served.partition.index, publisher)
            error = self._register(served, PublisherJoined(publisher, 0, PUBLISHER_LEASE_MS))
            if error is not None:
                return error
        if leases is None or not leases.is_renewed_by(publisher, conn):
            self._renew(served, publisher, conn)
        return 0 if served.publishers.strongest == publisher else SUPPRESSED

    # --- the log ---

    def _register(self, served: ServedPartition, wanted: PublisherJoined) -> RostraError | None:
        bound = self._broker.settings.publishers_per_partition_max
        if wanted.publisher not in served.publishers and len(served.publishers) >= bound:
            return LimitExceeded("publishers_per_partition_max", bound)
        return self._log(served, [wanted])

    def _log(self, served: ServedPartition, entries: list[PublisherJoined | PublisherLeft]) -> RostraError | None:
        if not self._logs:
            for entry in entries:
                served.publishers.apply(served.end, entry)
            return None
        last = self._broker.proposer.append_control(served, entries)
        return last if isinstance(last, RostraError) else None

    # --- leases ---

    def _renew(self, served: ServedPartition, publisher: int, conn: Conn) -> PublisherLeases:
        partition, now_us = served.partition, self._broker.now.mono_us
        leases = self._leases.get(partition)
        before_us = None if leases is None else leases.due_us
        if leases is None:
            leases = self._leases[partition] = PublisherLeases(served.publishers, now_us)
        leases.renew(publisher, now_us, conn)
        if leases.due_us != before_us:
            self._schedule(partition, leases)
        self._by_conn.setdefault(conn, {})[partition] = None
        return leases

    def _schedule(self, partition: Partition, leases: PublisherLeases) -> None:
        if leases.due_us is None:
            return
        first_us = self._deadlines[0][0] if self._deadlines else None
        heappush(self._deadlines, (leases.due_us, partition))
        if first_us is None or leases.due_us < first_us:
            self._broker.out.append(SetTimer(LEASES, leases.due_us))

    def timer(self) -> None:
        """Checks the partitions whose leases may have expired."""
        now_us = self._broker.now.mono_us
        while self._deadlines and self._deadlines[0][0] <= now_us:
            _, partition = heappop(self._deadlines)
            leases, served = self._leases.get(partition), self._broker.topic_table.served.get(partition)
            if leases is None or served is None or leases.due_us is None or leases.due_us > now_us:
                # Not owned any more, deleted, or checked since: then another deadline exists.
                continue
            self._expire(served, leases)
        if self._deadlines:
            self._broker.out.append(SetTimer(LEASES, self._deadlines[0][0]))

    def _expire(self, served: ServedPartition, leases: PublisherLeases) -> None:
        """Removes all publishers with expired leases, in one batch and before anything else is ordered."""
        now_us = self._broker.now.mono_us
        expired = leases.expire(now_us, self._heard_us)
        if expired:
            error = self._log(served, [PublisherLeft(publisher, SILENT) for publisher in expired])
            if error is not None:
                leases.due_us = now_us + RETRY_MS * 1000
            else:
                for publisher in expired:
                    self._expired(served, leases, publisher)
        self._schedule(served.partition, leases)

    def _expired(self, served: ServedPartition, leases: PublisherLeases, publisher: int) -> None:
        leases.forget(publisher)
        about: dict[str, int | str] = {"topic": served.topic, "publisher": text(publisher), "reason": SILENT}
        self._broker.out.append(LogLine("info", "publisher departed", about))
        conn = leases.explicit_conn(publisher)
        if conn is not None:
            self._notify(served.partition, publisher, conn, expired=True)

    def _notify(self, partition: Partition, publisher: int, conn: Conn, *, expired: bool) -> None:
        self._broker.out.append(Reply(conn, Unregistered(partition.topic, partition.index, publisher, expired)))

    def _heard_us(self, conn: Conn) -> int:
        session = self._broker.sessions.get(conn)
        return 0 if session is None else session.heard_us

    # --- partitions and connections ---

    def gained(self, served: ServedPartition) -> None:
        """This node owns the partition from now on: every registered publisher gets a whole lease."""
        now_us = self._broker.now.mono_us
        leases = self._leases.get(served.partition)
        if leases is not None:
            leases.restart(now_us)
        elif len(served.publishers):
            leases = self._leases[served.partition] = PublisherLeases(served.publishers, now_us)
        if leases is not None:
            self._schedule(served.partition, leases)

    def lost(self, partition: Partition) -> None:
        """Another node owns the partition now, or it was deleted. Notifies publishers: an idle one would not notice and
        lose its lease at the new owner."""
        leases = self._leases.pop(partition, None)
        if leases is not None:
            for publisher, conn in leases.explicit():
                self._notify(partition, publisher, conn, expired=False)

    def connection_lost(self, conn: Conn, heard_us: int) -> None:
        for partition in self._by_conn.pop(conn, ()):
            leases = self._leases.get(partition)
            if leases is not None:
                leases.connection_lost(conn, heard_us)
