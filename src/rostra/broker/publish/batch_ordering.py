"""Giving batches their offsets: those of publishers, and what the broker itself has to say in a partition's log.

Whoever changes a book does it in two lines: `order` proposes the entries, which are in the books at every copy as soon
as they are in its log; `reply_when_safe` parks the answer until they are committed. If they are cut instead, the books
forget them and whoever waits hears why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rostra.broker.api import Conn
from rostra.broker.partition.control_batch import Booked, control_batch
from rostra.broker.partition.served_partition import ParkedReply, ServedPartition
from rostra.broker.sessions import Session
from rostra.errors import NodeStopping, RostraError
from rostra.fabric.api import Propose
from rostra.model.batch import CHECKPOINT, LEDGER
from rostra.wire.messages import NodeMessage

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class BatchOrdering:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._proposed = 0
        self._place: tuple[int, int] | RostraError | None = None

    def propose(self, served: ServedPartition, batch: bytearray, flags: int) -> tuple[int, int] | RostraError:
        """The batch's first and last offset."""
        broker = self._broker
        self._place = None
        self._proposed = broker.token = broker.token + 2
        broker.carry_out(broker.fabric.step(broker.now, Propose(self._proposed, served.partition, batch, flags)))
        placed: tuple[int, int] | RostraError | None = self._place
        assert placed is not None, "a fabric answers a proposal in the same step"
        return placed

    def accepted(self, token: int, base: int, last: int) -> None:
        assert token == self._proposed
        self._place = (base, last)

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token is that of the proposal under way."""
        if token != self._proposed:
            return False
        self._place = error
        return True

    def roll(self, served: ServedPartition) -> None:
        """The segment is full: begin a new one. If that is refused, so is the batch behind it."""
        checkpoint = served.books.checkpoint(served.epochs)
        self.propose(served, control_batch([checkpoint], self._broker.now.wall_us), CHECKPOINT)

    # --- what the broker has to say ---

    def refusal(self, served: ServedPartition) -> RostraError | None:
        """Why nothing is ordered in the partition here and now, if so."""
        broker = self._broker
        if broker.broken is not None:
            return broker.broken
        if broker.stopping:
            return NodeStopping()
        if served.blocked is not None:
            return served.blocked
        return None if served.owner else broker.placement.not_owner(served)

    def order(self, served: ServedPartition, entries: Sequence[Booked]) -> int | RostraError:
        """One control batch of these entries; the offset of the last, or why there is none. The books have them now.

        May be called while another proposal is under way, as when its commit is carried out.
        """
        error = self.refusal(served)
        if error is not None:
            return error
        under_way = self._proposed, self._place
        if served.segment_bytes >= served.segment_bytes_max:
            self.roll(served)
        placed = self.propose(served, control_batch(entries, self._broker.now.wall_us), LEDGER)
        self._proposed, self._place = under_way
        return placed if isinstance(placed, RostraError) else placed[1]

    def reply_when_safe(
        self, conn: Conn, session: Session, served: ServedPartition, last: int, message: NodeMessage, request: int = 0
    ) -> None:
        """Sent when all up to `last` is committed. If it never is, `request` is refused; 0: nobody awaits an answer."""
        if last < served.commit:
            self._broker.reply(conn, message)
            return
        session.waiting += 1
        parked = ParkedReply(last, conn, request, 0, message)
        waiting = served.waiting_commit
        if waiting and waiting[-1].last > last:
            served.park_early(parked, waiting)
        else:
            waiting.append(parked)
