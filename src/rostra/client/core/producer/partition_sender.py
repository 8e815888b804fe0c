"""Sends one producer's batches to the owner of one partition, in order and stored exactly once.

Sequence numbers. Every record of a producer in a partition has a sequence number, counted modulo 2**32; a batch carries
that of its first record, with the producer id and the producer epoch. The owner stores a batch only if its number
continues the last one, answers a repeated batch with its first offset, and refuses a gap (`SequenceGap`). Batches are
pipelined: many are in flight, and a refusal makes the owner refuse those behind it, too.

Resending. Batches stay in `queue` until they are acknowledged or fail. While `active`, all of them have been written on
the current link. When the link is lost, the partition moves, or an error is retryable, the sender stops; it later
resumes with the oldest unacknowledged batch under the *same* numbers. So a batch is stored once, however often it is
sent and to whichever node, and the order is kept. A batch that is not acknowledged within the delivery timeout fails.

A batch that is refused for good fails alone: the batches behind it, refused for the gap, take over its numbers and are
sent again. If an earlier attempt may have been stored, the numbers stay; should there be a gap, the owner reports it.

Epochs. If the owner does not know the producer any more (`UnknownProducer`) or reports a gap, the old numbers are
useless. The sender raises the producer epoch and renumbers the queue from zero. Batches that were sent before may then
be stored twice, which a `MayDuplicate` event says. With acks `none` nothing is acknowledged, so every lost connection
raises the epoch.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from rostra.client.core.effects import Ack, Acknowledged, BatchRefused, Buffer, CallNumber, Done, Fail, Notify, Write
from rostra.client.core.events import LeaseExpired, MayDuplicate, Resent, Retrying
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.options import EAGER_BATCHES
from rostra.client.core.producer.batch_builder import BatchBuilder
from rostra.client.core.producer.publisher_registration import PendingRegistration
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.errors import (
    BatchRejected,
    DiskUntrusted,
    InvalidSetting,
    LimitExceeded,
    MemberRemoved,
    Moved,
    NodeStopping,
    NotAcknowledged,
    NotRegistered,
    ProducerFenced,
    RecordTooLarge,
    RostraError,
    SequenceGap,
    TopicDeleted,
    TopicRecreated,
    Unavailable,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
)
from rostra.model.batch import BODY_CRC_AT, CHECKED_FROM, Reason
from rostra.model.encode import ALONE_BYTES_MORE_MAX, encode_alone
from rostra.model.encode import encode as encode_batch
from rostra.wire.frames import encode
from rostra.wire.messages import Publish, Published

if TYPE_CHECKING:
    from rostra.client.core.producer.producer_state import ProducerState

SEQUENCES = 2**32
"""Sequence numbers count records modulo this."""

PUBLISHERS_MAX = "publishers_per_partition_max"
"""The one limit of a node for which a short wait does not help."""

_STAMP = Struct("<II")
_STAMP_AT = 48
_UINT32 = Struct("<I")


class SentBatch(msgspec.Struct, eq=False):
    """A closed batch with its state."""

    sender: PartitionSender
    batch: Buffer
    bytes: int
    count: int
    calls: list[CallNumber] | None
    closed_us: int
    ordinal: int = 0
    """Its index among all batches of the producer."""
    attempts: int = 0
    sent: bool = False
    """Whether it was sent under its current numbers."""
    request: int = 0
    settled: bool = False

    def restamp(self, epoch: int, sequence: int) -> None:
        self.sent = False
        # A copy, because the old bytes may still be in a send buffer.
        batch = bytearray(self.batch)
        _STAMP.pack_into(batch, _STAMP_AT, epoch, sequence)
        with memoryview(batch) as whole, whole[CHECKED_FROM:] as covered:
            crc = crc32c(covered)
        _UINT32.pack_into(batch, BODY_CRC_AT, crc)
        self.batch = batch


class PartitionSender:
    """The open batch and the unacknowledged batches of one producer for one partition; see the module's docstring."""

    def __init__(self, producer: ProducerState, route: PartitionRoute) -> None:
        self.producer = producer
        self.route = route
        self.link = route.link
        """The link that batches are sent on, or were last; it may be closed."""
        self.out = producer.out
        self._acks = producer.settings.acks
        self._answered = producer.answered
        self.builder = BatchBuilder()
        self.queue: deque[SentBatch] = deque()
        self.active = False
        self.epoch = 0
        self.sequence = 0
        self.refusals = 0
        self.refusal: RostraError | None = None
        """Why the owner refused the last attempt, if a retry may help."""
        self.paused_until_us: int | None = None
        self.registered_version = 0
        """The version of the registration that the partition's owner has confirmed."""
        self._pending_registration: PendingRegistration | None = None

    @property
    def partition(self) -> int:
        return self.route.partition

    @property
    def needs_owner(self) -> bool:
        """A registered publisher sends its batches by the connection on which it is registered."""
        return self.producer.registration is not None

    # --- closing batches -----------------------------------------------------------------------------

    def close(self, now_us: int) -> None:
        """Close the open batch and send it."""
        if self.builder.values:
            builder = self.builder.moved()
            if self.producer.ended is None:
                self._close(now_us, builder)
            else:
                builder.fill_up(0)
                self._give_up(len(builder.values), builder.calls, self.producer.ended)

    def send_values(self, now_us: int, values: list[bytes | None]) -> None:
        """Send plain values as a batch of their own; raises if one of them can not be encoded."""
        builder = BatchBuilder()
        builder.values = values
        self._finish(now_us, builder, self._encode(now_us, builder))

    def _close(self, now_us: int, builder: BatchBuilder) -> None:
        try:
            batch = self._encode(now_us, builder)
        except (TypeError, ValueError, RostraError) as error:
            # Arguments are checked before, but whatever it is, the callers must learn of it.
            known = error if isinstance(error, RostraError) else InvalidSetting("record", str(error))
            self._give_up(len(builder.values), builder.calls, known)
        else:
            self._finish(now_us, builder, batch)

    def _encode(self, now_us: int, builder: BatchBuilder) -> bytearray:
        producer = self.producer
        wall_us = now_us + producer.wall_offset_us
        builder.fill_up(wall_us)
        return encode_batch(
            builder.values,
            keys=builder.keys,
            headers=builder.headers,
            timestamp_us=wall_us,
            timestamps_us=builder.timestamps,  # type: ignore[arg-type]
            producer=producer.producer_id,
            producer_epoch=self.epoch,
            sequence=self.sequence,
            codec=producer.settings.codec,
        )

    def _finish(self, now_us: int, builder: BatchBuilder, batch: bytearray) -> None:
        producer = self.producer
        size, count = len(batch), len(builder.values)
        bytes_max = self.link.batch_bytes_max
        if count > 1 and (size > bytes_max or size > 2 * producer.settings.batch_bytes):
            for half in builder.half():
                self._close(now_us, half)
        elif size > bytes_max and self.link.up:
            self._give_up(1, builder.calls, RecordTooLarge(size, bytes_max))
        else:
            producer.record_bytes = size / count
            self._enqueue(SentBatch(self, batch, size, count, builder.calls, now_us))

    def send_single(self, now_us: int, value: bytes, call: CallNumber) -> bool:
        """Send the value at once as a batch of its own, if possible; return whether it was."""
        if (
            self.builder.values
            or not self.active
            or len(self.queue) >= EAGER_BATCHES
            or len(value) > self.link.batch_bytes_max - ALONE_BYTES_MORE_MAX
        ):
            return False
        producer = self.producer
        wall_us = now_us + producer.wall_offset_us
        batch = encode_alone(value, wall_us, producer.producer_id, self.epoch, self.sequence)
        self._enqueue(SentBatch(self, batch, len(batch), 1, [call] if call else None, now_us))
        return True

    def _enqueue(self, outgoing: SentBatch) -> None:
        producer = self.producer
        producer.closed(outgoing)
        self.sequence = (self.sequence + outgoing.count) % SEQUENCES
        self.queue.append(outgoing)
        now_us = outgoing.closed_us
        expires_us = now_us + producer.delivery_timeout_us
        if expires_us < producer.wakeup_us:
            producer.wake_at(expires_us)
        if self.active:
            self._send(outgoing)
            if self.link.check_at_us <= now_us:
                self.link.arm_check(now_us)
            if not self._answered:
                self._forget_unacknowledged()

    # --- sending -------------------------------------------------------------------------------------

    def _send(self, outgoing: SentBatch) -> None:
        link = self.link
        request = outgoing.request = link.last_request = link.last_request + 1
        outgoing.attempts += 1
        route = self.route
        message = Publish(request, route.topic, route.index, self._acks, outgoing.sent, route.migrations)
        outgoing.sent = True
        link.out.append(Write(link.number, (encode(message, outgoing.bytes), outgoing.batch)))
        if self._answered:
            link.awaiting[request] = outgoing
        else:
            link.unanswered.append((request, self, self.epoch))

    def _send_all(self) -> None:
        if self.active:
            for outgoing in self.queue:
                if not outgoing.settled:
                    self._send(outgoing)
            self._forget_unacknowledged()

    def _forget_unacknowledged(self) -> None:
        """With acks `none`, a batch that was written is done."""
        if not self._answered:
            while self.queue:
                self._settle(self.queue.popleft(), -1)

    def resume(self, now_us: int) -> None:
        """Send all unacknowledged batches, oldest first."""
        if self.active or not self.link.up:
            return
        if self.paused_until_us is not None:
            # The link is the one on which batches were refused: request numbers are its own.
            self._abandon()
        self._fail_oversized()
        self.active = True
        self.paused_until_us = None
        self.register(now_us)
        again = [outgoing for outgoing in self.queue if outgoing.attempts and not outgoing.settled]
        if again:
            records = sum(outgoing.count for outgoing in again)
            self._notify(Resent(self.producer.name, self.partition, len(again), records))
        self._send_all()
        self.link.arm_check(now_us)
        self._close_waiting(now_us)

    def _fail_oversized(self) -> None:
        """Fail the records that were enqueued before the owner's limit was known and are over it."""
        bytes_max = self.link.batch_bytes_max
        oversized = [one for one in self.queue if one.bytes > bytes_max and one.count == 1 and not one.attempts]
        for outgoing in oversized:
            _, sequence = _STAMP.unpack_from(outgoing.batch, _STAMP_AT)
            self._settle(outgoing, RecordTooLarge(outgoing.bytes, bytes_max))
            # Nothing from here on was sent, so the numbers are free.
            self._renumber_after(outgoing, sequence)
        self._drop_settled()

    def register(self, now_us: int) -> None:
        """Register the producer's strength on this link, if it has one, before the batches that follow."""
        registration = self.producer.registration
        if registration is not None:
            self._pending_registration = registration.send(self)
            self.link.arm_check(now_us)

    def move(self, link: NodeLink) -> None:
        """The partition has another owner: unacknowledged batches go there, under the same numbers."""
        self._abandon()
        self.suspend()
        self.link = link

    def suspend(self) -> None:
        """The link is closed."""
        self.active = False
        self.paused_until_us = None
        if not self._answered and self.sequence:
            # It is not known which batches arrived, so the numbers cannot continue without a gap.
            self._renumber(self.epoch + 1, 0)

    def _pause(self, now_us: int, *, refused_from: int = 0) -> None:
        self._stop(refused_from)
        self.paused_until_us = now_us + self.producer.backoff.pause_us(self.refusals)
        self.producer.wake_at(self.paused_until_us)

    def _stop(self, refused_from: int = 0) -> None:
        self._abandon(refused_from)
        self.active = False
        self.paused_until_us = None
        self.refusals += 1

    def _abandon(self, ordinal: int = 0) -> None:
        """Ignore answers to what was sent so far, from the batch with this ordinal on."""
        awaiting = self.link.awaiting
        for outgoing in self.queue:
            if outgoing.ordinal >= ordinal:
                awaiting.pop(outgoing.request, None)
        if not ordinal and self._pending_registration is not None:
            awaiting.pop(self._pending_registration.request, None)

    def _renumber(self, epoch: int, sequence: int) -> None:
        self.epoch, self.sequence = epoch, sequence
        for outgoing in self.queue:
            if not outgoing.settled:
                outgoing.restamp(epoch, self.sequence)
                self.sequence = (self.sequence + outgoing.count) % SEQUENCES

    def _new_epoch(self, reason: RostraError, *, refused_from: int) -> None:
        """The numbers of the old epoch are useless: start again from zero with what is left."""
        self._abandon()
        uncertain = [o.count for o in self.queue if not o.settled and o.attempts > (o.ordinal >= refused_from)]
        if uncertain:
            self._notify(MayDuplicate(self.producer.name, self.partition, sum(uncertain), str(reason)))
        self._renumber(self.epoch + 1, 0)
        self._send_all()

    # --- answers -------------------------------------------------------------------------------------

    def published(self, now_us: int, outgoing: SentBatch, message: Published) -> None:
        if self.route.failures or self.refusals:
            self.refusals = 0
            self.refusal = None
            self.route.confirm()
        self._settle(outgoing, message.offset)
        self._drop_settled()
        if message.owner:
            # The node passed the batch on. The rest goes to the owner; answers that still come by this path are void.
            self._stop()
            self.route.refused(now_us, Moved(message.owner, message.epoch))
        self._close_waiting(now_us)

    def _close_waiting(self, now_us: int) -> None:
        """Send an open batch that waited for others to be settled."""
        if self.builder.values and not self.producer.settings.linger_ms and len(self.queue) < EAGER_BATCHES:
            self.close(now_us)

    def refused(self, now_us: int, outgoing: SentBatch, error: RostraError) -> None:
        match error:
            case UnknownProducer() | SequenceGap():
                # The node refused this attempt of all batches from here on; only an earlier attempt may be stored.
                self._new_epoch(error, refused_from=outgoing.ordinal)
            case Moved() | Unavailable() | NodeStopping() | MemberRemoved() | DiskUntrusted():
                if not isinstance(error, Moved):
                    self._retrying(error)
                self._stop()
                self.route.refused(now_us, error)
            case BatchRejected(reason=Reason.BODY_CRC):
                self._pause(now_us)
            case UnknownTopic() if self.route.per_node:
                self._stop()
                self.route.refused(now_us, error)
            case TopicRecreated() | TopicDeleted() | UnknownTopic() | UnknownPartition() | ProducerFenced():
                self.producer.end(error)
            case LimitExceeded():
                # The connection has too many publishes in flight; there will be fewer after a pause. The answers to
                # earlier batches still count: one of them may say that the topic is gone.
                self._pause(now_us, refused_from=outgoing.ordinal)
            case _ if error.retryable:
                self._retrying(error)
                self._pause(now_us)
            case _:
                self._drop(outgoing, error)
                self._close_waiting(now_us)

    def refused_unanswered(self, now_us: int, epoch: int, error: RostraError) -> None:
        """A batch sent with acks `none` was refused. Those behind it in the same epoch are refused for the gap."""
        if epoch != self.epoch:
            return
        self._renumber(self.epoch + 1, 0)
        self._give_up(1, None, error)
        if isinstance(error, Moved | Unavailable | NodeStopping | MemberRemoved | DiskUntrusted):
            self._stop()
            self.route.refused(now_us, error)
        elif isinstance(error, NotRegistered):
            self._pause(now_us)
        elif not error.retryable and not isinstance(error, UnknownProducer | SequenceGap | BatchRejected):
            self.producer.end(error)

    def registration_refused(self, now_us: int, error: RostraError) -> None:
        """The owner refused the registration; batches sent behind it are refused for the same reason."""
        match error:
            case Moved() | Unavailable() | NodeStopping() | MemberRemoved() | DiskUntrusted():
                self._stop()
                self.route.refused(now_us, error)
            case TopicRecreated() | TopicDeleted() | UnknownTopic() | UnknownPartition():
                self.producer.end(error)
            case _ if error.retryable:
                self._pause(now_us)
            case LimitExceeded(limit) if limit != PUBLISHERS_MAX:
                self._pause(now_us)
            case _:
                if self.producer.registration is not None:
                    self.producer.registration.fail(error)
                if isinstance(error, LimitExceeded):
                    self._pause(now_us)

    def unregistered(self, now_us: int, *, lapsed: bool) -> None:
        """Register again. If the partition has another owner, the answer names it."""
        if lapsed:
            self._notify(LeaseExpired(self.producer.name, self.partition))
        if self.active:
            self.register(now_us)

    def _drop(self, outgoing: SentBatch, error: RostraError) -> None:
        """Continue without this batch. Those behind it were refused for the gap and take over its numbers.

        Unless it was sent before: then an earlier attempt may be stored under these numbers, and those behind it, too.
        If so, nothing is to be done; if not, the node answers SequenceGap.
        """
        _, sequence = _STAMP.unpack_from(outgoing.batch, _STAMP_AT)
        self._settle(outgoing, error)
        if outgoing.attempts == 1:
            self._renumber_after(outgoing, sequence)
        self._drop_settled()

    def _renumber_after(self, dropped: SentBatch, sequence: int) -> None:
        awaiting = self.link.awaiting
        self.sequence = sequence
        for outgoing in self.queue:
            if outgoing.ordinal > dropped.ordinal and not outgoing.settled:
                awaiting.pop(outgoing.request, None)
                outgoing.restamp(self.epoch, self.sequence)
                self.sequence = (self.sequence + outgoing.count) % SEQUENCES
                if self.active:
                    self._send(outgoing)

    def _drop_settled(self) -> None:
        queue = self.queue
        while queue and queue[0].settled:
            queue.popleft()

    def _settle(self, outgoing: SentBatch, outcome: int | RostraError) -> None:
        """Record the outcome of a batch: its first offset, or the error it failed with."""
        outgoing.settled = True
        producer = self.producer
        if isinstance(outcome, RostraError):
            self._give_up(outgoing.count, outgoing.calls, outcome)
        else:
            out = self.out
            out.append(Acknowledged(producer.number, self.partition, outcome, outgoing.count))
            if outgoing.calls is not None:
                for route, call in enumerate(outgoing.calls):
                    if call:
                        offset = outcome + route if outcome >= 0 else -1
                        out.append(Done(call, Ack(producer.name, self.partition, offset)))
        producer.settled(outgoing, acknowledged=not isinstance(outcome, RostraError))

    def _give_up(self, count: int, calls: list[CallNumber] | None, error: RostraError) -> None:
        out = self.out
        waiting = [call for call in calls or () if call]
        out.extend(Fail(call, error) for call in waiting)
        if len(waiting) < count:
            self.producer.failed(error)
            out.append(BatchRefused(self.producer.number, error, count - len(waiting)))

    def fail_all(self, error: RostraError) -> None:
        self._abandon()
        builder = self.builder.moved()
        if builder.values:
            builder.fill_up(0)
            self._give_up(len(builder.values), builder.calls, error)
        unsettled = [outgoing for outgoing in self.queue if not outgoing.settled]
        self.queue.clear()
        for outgoing in unsettled:
            self._settle(outgoing, error)

    def partition_changed(self) -> None:
        """The number is read from the route when needed."""

    def fail(self, error: RostraError) -> None:
        """The partition, and so its topic, does not exist any more."""
        self.producer.end(error)

    def oldest_ordinal(self) -> int | None:
        """The ordinal of the oldest unsettled batch."""
        for outgoing in self.queue:
            if not outgoing.settled:
                return outgoing.ordinal
        return None

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        due = self.builder.due_us
        paused = self.paused_until_us
        if paused is not None and (due is None or paused < due):
            due = paused
        if self.queue:
            expires = self.queue[0].closed_us + self.producer.delivery_timeout_us
            if due is None or expires < due:
                due = expires
        return due

    def tick(self, now_us: int) -> None:
        if self.builder.due_us is not None and self.builder.due_us <= now_us:
            self.close(now_us)
        if self.queue:
            self._expire(now_us)
        if self.paused_until_us is not None and self.paused_until_us <= now_us:
            self.resume(now_us)

    def _expire(self, now_us: int) -> None:
        timeout_us = self.producer.delivery_timeout_us
        expired = [o for o in self.queue if not o.settled and o.closed_us + timeout_us <= now_us]
        if not expired:
            return
        awaiting = self.link.awaiting
        _, sequence = _STAMP.unpack_from(expired[0].batch, _STAMP_AT)
        for outgoing in expired:
            awaiting.pop(outgoing.request, None)
            waited_ms = (now_us - outgoing.closed_us) // 1000
            self._settle(outgoing, NotAcknowledged(outgoing.count, waited_ms, self.obstacle()))
        self._drop_settled()
        if not expired[0].attempts:
            # None of these numbers was ever used. Otherwise they stay: if there is a gap now, the node reports it.
            self._renumber(self.epoch, sequence)
        self._close_waiting(now_us)

    def obstacle(self) -> str:
        """What is known to keep batches from being acknowledged."""
        error = self.refusal or self.route.error
        if error is not None and not isinstance(error, Moved):
            return error.summary
        if not self.link.up:
            return f"no connection to {self.link.address}"
        return f"no answer from {self.link.address}"

    def _retrying(self, error: RostraError) -> None:
        """Keeps the reason, and reports it once."""
        if self.refusal is None or type(self.refusal) is not type(error):
            self._notify(Retrying(self.producer.name, self.partition, error.summary))
        self.refusal = error

    def _notify(self, event: Resent | MayDuplicate | LeaseExpired | Retrying) -> None:
        self.out.append(Notify(event))
