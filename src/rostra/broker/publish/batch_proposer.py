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
from rostra.fabric.api import BatchOffsets
from rostra.model.batch import BROKER_STATE, CHECKPOINT
from rostra.wire.messages import NodeMessage

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class BatchProposer:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def propose(self, served: ServedPartition, batch: bytearray, flags: int) -> BatchOffsets | RostraError:
        """The batch's first and last offset, or why the fabric refused it."""
        broker = self._broker
        result, effects = broker.fabric.propose(broker.now, served.partition, batch, flags)
        broker.carry_out(effects)
        return result

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
        """Proposes one control batch of these entries, applied at once; returns its last offset or an error."""
        error = self.write_error(served)
        if error is not None:
            return error
        if served.segment_bytes >= served.segment_bytes_max:
            self.roll(served)
        result = self.propose(served, control_batch(entries, self._broker.now.wall_us), BROKER_STATE)
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
