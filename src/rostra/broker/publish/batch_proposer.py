"""Proposes batches to the fabric, which assigns their offsets: batches of publishers and control batches of the broker.

To change log-derived state, call `append_control` with the entries, which every copy applies as soon as they are in its
log, and `reply_when_committed` to park the reply until they are committed. If the entries are truncated instead, the
change is undone and the request fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rostra.broker.api import Conn
from rostra.broker.partition.control_batch import DerivedEntry, control_batch
from rostra.broker.partition.served_partition import ParkedReply, ServedPartition
from rostra.broker.sessions import Session
from rostra.errors import NodeStopping, RostraError
from rostra.fabric.api import Propose
from rostra.model.batch import BROKER_STATE, CHECKPOINT
from rostra.wire.messages import NodeMessage

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class BatchProposer:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._proposed = 0
        self._result: tuple[int, int] | RostraError | None = None

    def propose(self, served: ServedPartition, batch: bytearray, flags: int) -> tuple[int, int] | RostraError:
        """The batch's first and last offset, or why the fabric refused it."""
        broker = self._broker
        self._result = None
        self._proposed = broker.token = broker.token + 2
        broker.carry_out(broker.fabric.step(broker.now, Propose(self._proposed, served.partition, batch, flags)))
        result: tuple[int, int] | RostraError | None = self._result
        assert result is not None, "a fabric answers a proposal in the same step"
        return result

    def accepted(self, token: int, base: int, last: int) -> None:
        assert token == self._proposed
        self._result = (base, last)

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token is that of the current proposal."""
        if token != self._proposed:
            return False
        self._result = error
        return True

    def roll(self, served: ServedPartition) -> None:
        """The segment is full: begins a new one with a checkpoint. If that is refused, so is the batch after it."""
        checkpoint = served.derived.checkpoint(served.epochs)
        self.propose(served, control_batch([checkpoint], self._broker.now.wall_us), CHECKPOINT)

    # --- control batches ---

    def write_error(self, served: ServedPartition) -> RostraError | None:
        """Why this node cannot order records in the partition now, if so."""
        broker = self._broker
        if broker.broken is not None:
            return broker.broken
        if broker.stopping:
            return NodeStopping()
        if served.blocked is not None:
            return served.blocked
        return None if served.owner else broker.placement.not_owner(served)

    def append_control(self, served: ServedPartition, entries: Sequence[DerivedEntry]) -> int | RostraError:
        """Proposes one control batch of these entries, which are applied at once; returns its last offset or an error.

        May be called while another proposal is in progress, as when its commit is carried out.
        """
        error = self.write_error(served)
        if error is not None:
            return error
        pending = self._proposed, self._result
        if served.segment_bytes >= served.segment_bytes_max:
            self.roll(served)
        result = self.propose(served, control_batch(entries, self._broker.now.wall_us), BROKER_STATE)
        self._proposed, self._result = pending
        return result if isinstance(result, RostraError) else result[1]

    def reply_when_committed(
        self, conn: Conn, session: Session, served: ServedPartition, last: int, message: NodeMessage, request: int = 0
    ) -> None:
        """Sends the message when all up to `last` is committed. If it never is, `request` is refused; 0: no request
        waits."""
        if last < served.commit:
            self._broker.reply(conn, message)
            return
        session.waiting += 1
        parked = ParkedReply(last, conn, request, 0, message)
        waiting = served.waiting_commit
        if waiting and waiting[-1].last > last:
            served.park_in_order(parked, waiting)
        else:
            waiting.append(parked)
