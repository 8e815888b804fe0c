"""Whose records of a partition are delivered: registrations, leases, and the verdict on each batch.

The owner of a partition decides, once, and what it decides stands in the log before the first batch that it concerns.
So every copy knows it, and a new owner goes on with the same publishers.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from rostra.broker.api import Conn, Reply
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.publish.publisher_leases import PublisherLeases
from rostra.broker.publish.publisher_table import PublisherJoined, PublisherLeft
from rostra.broker.sessions import Session
from rostra.broker.topics.topic_requests import FOR_ROSTRA
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
    Resign,
    Unregistered,
)

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

LEASES = "broker/leases"
LEFT = "left"
SILENT = "silent for its lease"
AGAIN_MS = 200
"""How long after a departure that could not be logged it is tried again."""


class Ownership:
    """One per broker. Leases are kept for the partitions that this node owns and that have publishers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._leases: dict[Partition, PublisherLeases] = {}
        self._by_conn: dict[Conn, dict[Partition, None]] = {}
        """Where the publishers of a connection are."""
        self._alarms: list[tuple[int, Partition]] = []
        """When to look at which partition's leases; a heap. More than one may be about the same."""
        self._logs = Safeguard.OWNERSHIP_LOGGED not in broker.without

    # --- registering ---

    def register(self, conn: Conn, session: Session, message: Register) -> None:
        served = self._found(conn, session, message)
        if served is None:
            return
        publisher = message.publisher
        enrolled = served.publishers.get(publisher)
        if enrolled is None or (enrolled.strength, enrolled.lease_ms) != (message.strength, message.lease_ms):
            error = self._enrol(served, PublisherJoined(publisher, message.strength, message.lease_ms))
            if error is not None:
                self._broker.refuse(conn, message.request, error)
                return
        self._renew(served, publisher, conn).asked(publisher, conn)
        self._answer(conn, session, served, message, PublisherRegistered(message.request, served.publishers.strongest))

    def resign(self, conn: Conn, session: Session, message: Resign) -> None:
        served = self._found(conn, session, message)
        if served is None:
            return
        if message.publisher in served.publishers:
            error = self._order(served, [PublisherLeft(message.publisher, LEFT)])
            if error is not None:
                self._broker.refuse(conn, message.request, error)
                return
        leases = self._leases.get(served.partition)
        if leases is not None:
            leases.forget_asked(message.publisher)
        self._answer(conn, session, served, message, Agreed(message.request))

    def _found(self, conn: Conn, session: Session, message: Register | Resign) -> ServedPartition | None:
        """The partition, if this node may change who publishes to it; otherwise the client is told why not."""
        broker = self._broker
        served = broker.catalogue.find(message.topic, message.partition)
        if isinstance(served, RostraError):
            broker.requests.not_found(conn, session, message, served)
            return None
        own = InvalidTopicName(served.topic, FOR_ROSTRA) if served.internal else None
        error = own or broker.ordering.refusal(served) or broker.too_many(session)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return None
        return served

    def _answer(
        self, conn: Conn, session: Session, served: ServedPartition, message: Register | Resign, answer: NodeMessage
    ) -> None:
        """When all that is in the log by now is committed: what was asked for may have been done before, but not yet
        be safe."""
        self._broker.ordering.reply_when_safe(conn, session, served, served.end - 1, answer, message.request)

    # --- batches ---

    def judge(self, conn: Conn, served: ServedPartition, publisher: int) -> int | RostraError:
        """The owner flags of a new batch for a partition of exclusive ownership."""
        if not publisher:
            return BatchRejected(Reason.PRODUCER, "an exclusive topic must know who publishes")
        leases = self._leases.get(served.partition)
        if leases is not None and leases.due_us is not None and leases.due_us <= self._broker.now.mono_us:
            self._look(served, leases)
        if publisher not in served.publishers:
            if leases is not None and leases.asked_on(publisher) == conn:
                # It believes to have a strength: it must have that before anything is judged by it.
                return NotRegistered(served.topic, served.partition.index, publisher)
            error = self._enrol(served, PublisherJoined(publisher, 0, PUBLISHER_LEASE_MS))
            if error is not None:
                return error
        if leases is None or not leases.hears(publisher, conn):
            self._renew(served, publisher, conn)
        return 0 if served.publishers.strongest == publisher else SUPPRESSED

    # --- the log ---

    def _enrol(self, served: ServedPartition, wanted: PublisherJoined) -> RostraError | None:
        bound = self._broker.settings.publishers_per_partition_max
        if wanted.publisher not in served.publishers and len(served.publishers) >= bound:
            return LimitExceeded("publishers_per_partition_max", bound)
        return self._order(served, [wanted])

    def _order(self, served: ServedPartition, entries: list[PublisherJoined | PublisherLeft]) -> RostraError | None:
        if not self._logs:
            for entry in entries:
                served.publishers.apply(served.end, entry)
            return None
        last = self._broker.ordering.order(served, entries)
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
            self._arm(partition, leases)
        self._by_conn.setdefault(conn, {})[partition] = None
        return leases

    def _arm(self, partition: Partition, leases: PublisherLeases) -> None:
        if leases.due_us is None:
            return
        first_us = self._alarms[0][0] if self._alarms else None
        heappush(self._alarms, (leases.due_us, partition))
        if first_us is None or leases.due_us < first_us:
            self._broker.out.append(SetTimer(LEASES, leases.due_us))

    def fired(self) -> None:
        """Some lease may have run out."""
        now_us = self._broker.now.mono_us
        while self._alarms and self._alarms[0][0] <= now_us:
            _, partition = heappop(self._alarms)
            leases, served = self._leases.get(partition), self._broker.catalogue.served.get(partition)
            if leases is None or served is None or leases.due_us is None or leases.due_us > now_us:
                # Given away, dropped, or looked at before: then another alarm is about it.
                continue
            self._look(served, leases)
        if self._alarms:
            self._broker.out.append(SetTimer(LEASES, self._alarms[0][0]))

    def _look(self, served: ServedPartition, leases: PublisherLeases) -> None:
        """Those that were not heard for their lease depart, all at once and before anything else is ordered."""
        now_us = self._broker.now.mono_us
        over = leases.look(now_us, self._heard_us)
        if over:
            error = self._order(served, [PublisherLeft(publisher, SILENT) for publisher in over])
            if error is not None:
                leases.due_us = now_us + AGAIN_MS * 1000
            else:
                for publisher in over:
                    self._lapsed(served, leases, publisher)
        self._arm(served.partition, leases)

    def _lapsed(self, served: ServedPartition, leases: PublisherLeases, publisher: int) -> None:
        leases.forget(publisher)
        about: dict[str, int | str] = {"topic": served.topic, "publisher": text(publisher), "reason": SILENT}
        self._broker.out.append(LogLine("info", "publisher departed", about))
        conn = leases.asked_on(publisher)
        if conn is not None:
            self._tell(served.partition, publisher, conn, lapsed=True)

    def _tell(self, partition: Partition, publisher: int, conn: Conn, *, lapsed: bool) -> None:
        self._broker.out.append(Reply(conn, Unregistered(partition.topic, partition.index, publisher, lapsed)))

    def _heard_us(self, conn: Conn) -> int:
        session = self._broker.sessions.get(conn)
        return 0 if session is None else session.heard_us

    # --- what happens to partitions and connections ---

    def owned(self, served: ServedPartition) -> None:
        """This node orders the partition from now on: whoever is registered has a whole lease to be heard in."""
        now_us = self._broker.now.mono_us
        leases = self._leases.get(served.partition)
        if leases is not None:
            leases.begin(now_us)
        elif len(served.publishers):
            leases = self._leases[served.partition] = PublisherLeases(served.publishers, now_us)
        if leases is not None:
            self._arm(served.partition, leases)

    def disowned(self, partition: Partition) -> None:
        """Another judges leases now, or the partition is gone. Publishers that are silent but alive would not notice,
        and be taken for dead elsewhere: they are told."""
        leases = self._leases.pop(partition, None)
        if leases is not None:
            for publisher, conn in leases.all_asked():
                self._tell(partition, publisher, conn, lapsed=False)

    def lost(self, conn: Conn, heard_us: int) -> None:
        for partition in self._by_conn.pop(conn, ()):
            leases = self._leases.get(partition)
            if leases is not None:
                leases.lost(conn, heard_us)
