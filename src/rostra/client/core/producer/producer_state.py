"""The state of one producer: which partition a record goes to, what is in flight, when the caller must wait."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, ProducerNumber, Resume
from rostra.client.core.links.backoff import Backoff
from rostra.client.core.options import BATCHES_IN_FLIGHT_MAX, EAGER_BATCHES, ProducerSettings, check_strength
from rostra.client.core.producer.batch_builder import BatchBuilder
from rostra.client.core.producer.in_flight_window import InFlightWindow
from rostra.client.core.producer.partition_sender import PartitionSender, SentBatch
from rostra.client.core.producer.partitioner import partition_of
from rostra.client.core.producer.publisher_registration import PublisherRegistration
from rostra.client.core.producer.record_arguments import check_values, checked_record
from rostra.client.core.producer.wakeup_queue import NEVER_US, WakeupQueue
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.errors import LimitExceeded, RostraError, UnknownPartition
from rostra.model.batch import Codec
from rostra.model.encode import Headers
from rostra.model.ids import random_id
from rostra.wire.messages import Topic

PER_RECORD_BYTES = 4
UNROUTED_MAX = 100_000


class UnroutedRecord:
    """A record given before the topic was located."""

    __slots__ = ("call", "headers", "key", "partition", "timestamp_us", "value")

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_us: int | None,
        partition: int | None,
        call: CallNumber,
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.timestamp_us = timestamp_us
        self.partition = partition
        self.call = call


class ProducerState:
    """One producer. Drivers may append plain values to `builder` themselves; everything else goes through methods."""

    def __init__(
        self,
        number: ProducerNumber,
        name: str,
        settings: ProducerSettings,
        backoff: Backoff,
        random: Random,
        delivery_timeout_us: int,
        call_timeout_ms: int,
        wakeups: WakeupQueue,
        window: InFlightWindow,
        out: list[ClientEffect],
    ) -> None:
        self.number = number
        self.name = name
        self.settings = settings
        self.backoff = backoff
        self.out = out
        self.producer_id = random_id(random)
        self.delivery_timeout_us = delivery_timeout_us
        self._call_timeout_ms = call_timeout_ms
        self._wakeups = wakeups
        self._window = window
        self.wakeup_us = NEVER_US
        """When it is woken; never later than `deadline_us`."""
        self.answered = settings.acks != "none"
        self.wall_offset_us = 0
        self.topic = 0
        self.senders: list[PartitionSender] = []
        self.builder = BatchBuilder()
        """The open batch for records without a key, once the topic is located; may change with each `close`."""
        self.registration: PublisherRegistration | None = None
        """Its registration as a publisher with a strength, if it is one."""
        self.ended: RostraError | None = None
        self.error: RostraError | None = None
        """The first failure that was reported to no call; `flush` raises it."""
        self.sent = 0
        self.acked = 0
        self.unacknowledged_bytes = 0
        self.unacknowledged_batches = 0
        self.was_full = False
        self.unrouted: list[UnroutedRecord] = []
        self._sticky = 0
        self._rotates = False
        """Whether records without a key go to the next partition after each batch."""
        self._may_send_single = not settings.linger_ms and settings.codec is Codec.NONE
        """Whether a record may be sent without waiting and without compression."""
        self._ordinal = 0
        self._flushes: list[tuple[int, CallNumber]] = []
        self.record_bytes = 0.0
        """Average bytes of a record in the batch that was closed last."""

    # --- routing -------------------------------------------------------------------------------------

    def located(self, now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
        if self.ended is not None:
            return
        self.topic = topic.topic
        # With per-node partitions, everything goes to that of the node that answers.
        routes = [route for route in routes if route.own] or routes
        chosen = self.settings.partition
        if chosen is not None and chosen >= len(routes):
            self.end(UnknownPartition(self.name, chosen))
            return
        self.senders = [PartitionSender(self, route) for route in routes]
        self._sticky = chosen or 0
        self._rotates = chosen is None and len(routes) > 1
        self.builder = self.senders[self._sticky].builder
        if self.settings.strength is not None or topic.settings.ownership == "exclusive":
            self._publish_with(self.settings.strength or 0)
        for sender in self.senders:
            sender.route.join(sender)
            if not sender.route.stale:
                sender.resume(now_us)
        unrouted, self.unrouted = self.unrouted, []
        for record in unrouted:
            self.add(
                now_us, record.value, record.key, record.headers, record.timestamp_us, record.partition, record.call
            )

    def _publish_with(self, strength: int) -> PublisherRegistration:
        self.registration = PublisherRegistration(self, strength, self.settings.lease_ms, self._call_timeout_ms)
        return self.registration

    def set_strength(self, now_us: int, call: CallNumber, strength: int) -> None:
        """Done when the owners of all its partitions have the new strength."""
        check_strength(strength)
        if self.ended is not None:
            raise self.ended
        for sender in self.senders:
            sender.close(now_us)
        (self.registration or self._publish_with(strength)).change(now_us, call, strength)

    def resign(self, now_us: int, call: CallNumber) -> None:
        """Done when it is not registered in the topic any more; `flush` first."""
        if self.registration is None or self.ended is not None:
            self.out.append(Done(call, None))
        else:
            self.registration.leave(now_us, call)

    def _sender_for(self, key: bytes | None, partition: int | None) -> PartitionSender:
        if partition is None:
            partition = self.settings.partition
        if partition is not None:
            if partition >= len(self.senders):
                raise UnknownPartition(self.name, partition)
            return self.senders[partition]
        if key is None or len(self.senders) == 1:
            return self.senders[self._sticky]
        return self.senders[partition_of(key, len(self.senders))]

    # --- records -------------------------------------------------------------------------------------

    def add(
        self,
        now_us: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        call: CallNumber = 0,
    ) -> None:
        """Add one record to an open batch, which is closed when it is full."""
        if (
            type(value) is not bytes
            or key is not None
            or headers is not None
            or timestamp_us is not None
            or partition is not None
        ):
            headers = checked_record(value, key, headers, timestamp_us, partition)
        if self.ended is not None:
            raise self.ended
        if not self.senders:
            if len(self.unrouted) >= UNROUTED_MAX:
                raise LimitExceeded("records before the topic is located", UNROUTED_MAX)
            self.unrouted.append(UnroutedRecord(value, key, headers, timestamp_us, partition, call))
            return
        try:
            sender = self._sender_for(key, partition)
        except UnknownPartition as error:
            if not call:
                raise
            self.out.append(Fail(call, error))
            return
        sender.builder.add(value, key, headers, timestamp_us, call)
        if sender.builder.bytes >= self.settings.batch_bytes:
            self.close(now_us, sender)

    def publish(
        self,
        now_us: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_us: int | None,
        partition: int | None,
        call: CallNumber,
    ) -> bool:
        """Send the record at once as a batch of its own, and return True; or add it to an open batch, which the caller
        must send with `end_turn`.
        """
        if (
            key is None
            and headers is None
            and timestamp_us is None
            and partition is None
            and not self.unacknowledged_batches
            and self.send_single(now_us, value, call)
        ):
            return True
        self.add(now_us, value, key, headers, timestamp_us, partition, call)
        return False

    def send_single(self, now_us: int, value: bytes | None, call: CallNumber = 0) -> bool:
        """Send a plain value at once as a batch of its own, if possible; return whether it was.

        With no open batch and little in flight the outcome is that of `add` and `end_turn`, in a third of the steps. At
        a low rate that is nearly every record, and each step runs with cold caches.
        """
        if type(value) is not bytes or not self._may_send_single or not self.senders or self.ended is not None:
            return False
        sender = self.senders[self._sticky]
        if not sender.send_single(now_us, value, call):
            return False
        if self._rotates:
            self._rotate(sender)
        return True

    def close(self, now_us: int, sender: PartitionSender | None = None) -> None:
        """Close one open batch, by default that of records without a key; these go to the next partition then."""
        if sender is None:
            sender = self.senders[self._sticky]
        sender.close(now_us)
        self._rotate(sender)

    def _rotate(self, sender: PartitionSender) -> None:
        if self._rotates and sender is self.senders[self._sticky]:
            self._sticky = (self._sticky + 1) % len(self.senders)
            self.builder = self.senders[self._sticky].builder

    def add_many(self, now_us: int, values: Sequence[bytes | None], at: int) -> int:
        """Take values from `at` on for one batch; return the index of the next one."""
        if self.ended is not None:
            raise self.ended
        size = self.record_bytes or self._guess(values, at)
        fitting = max(1, int(self.settings.batch_bytes / size))
        builder = self.builder
        if len(values) - at < fitting:
            rest = values[at:] if at else values
            check_values(rest, at)
            builder.values.extend(rest)
            builder.bytes += int(len(rest) * size) + 1
            if builder.bytes >= self.settings.batch_bytes:
                self.close(now_us)
            return len(values)
        if builder.values:
            self.close(now_us)
        # The list is the caller's, so this needs a copy.
        batch = list(values[at : at + fitting])
        sender = self.senders[self._sticky]
        try:
            sender.send_values(now_us, batch)
        except TypeError:
            # Looking for the wrong one before would cost more than the rest of the encoding's checks.
            check_values(batch, at)
            raise
        self._rotate(sender)
        return at + fitting

    def _guess(self, values: Sequence[bytes | None], at: int) -> float:
        sample = values[at : at + 64]
        check_values(sample, at)
        return sum(len(value) for value in sample if value) / max(len(sample), 1) + PER_RECORD_BYTES

    def end_turn(self, now_us: int) -> None:
        """End an event-loop turn: send open batches, unless many are in flight already or they are to linger."""
        linger_us = self.settings.linger_ms * 1000
        for sender in self.senders:
            builder = sender.builder
            if not builder.values:
                continue
            if linger_us:
                if builder.due_us is None:
                    builder.due_us = now_us + linger_us
                    self.wake_at(builder.due_us)
            elif len(sender.queue) < EAGER_BATCHES:
                self.close(now_us, sender)

    def flush(self, now_us: int, call: CallNumber) -> None:
        """Send everything given so far; the call is done when all of it is settled."""
        for sender in self.senders:
            sender.close(now_us)
        self._flushes.append((self._ordinal, call))
        self._answer_flushes()

    # --- bookkeeping for the senders -----------------------------------------------------------------

    def closed(self, outgoing: SentBatch) -> None:
        outgoing.ordinal = self._ordinal = self._ordinal + 1
        self.sent += outgoing.count
        size = outgoing.bytes
        self.unacknowledged_bytes += size
        self.unacknowledged_batches += 1
        self._window.bytes += size

    def settled(self, outgoing: SentBatch, *, acknowledged: bool) -> None:
        self.unacknowledged_bytes -= outgoing.bytes
        self.unacknowledged_batches -= 1
        if acknowledged:
            self.acked += outgoing.count
        self._window.settled(outgoing.bytes)
        self.drained()
        if self._flushes:
            self._answer_flushes()

    def failed(self, error: RostraError) -> None:
        if self.error is None:
            self.error = error

    def _answer_flushes(self) -> None:
        ordinals = [ordinal for sender in self.senders if (ordinal := sender.oldest_ordinal()) is not None]
        oldest = min(ordinals, default=self._ordinal + 1)
        while self._flushes and self._flushes[0][0] < oldest:
            _, call = self._flushes.pop(0)
            error, self.error = self.error, None
            self.out.append(Done(call, None) if error is None else Fail(call, error))

    # --- the window ----------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the caller must wait for `Resume`. False after the end, so that the caller gets the error."""
        if self.ended is not None or (
            self.unacknowledged_bytes < self.settings.window_bytes
            and self.unacknowledged_batches < BATCHES_IN_FLIGHT_MAX
            and (self.answered or not self._congested())
            and not self._window.full()
        ):
            return False
        self.was_full = True
        self._window.waiting[self.number] = self
        return True

    def _congested(self) -> bool:
        return any(sender.link.congested for sender in self.senders)

    def _has_space(self) -> bool:
        """Whether a quarter of the window is free; waking the caller for every batch would cost more than it gains."""
        return (
            self.unacknowledged_bytes * 4 <= self.settings.window_bytes * 3
            and self.unacknowledged_batches * 4 <= BATCHES_IN_FLIGHT_MAX * 3
            and (self.answered or not self._congested())
            and self._window.has_space()
        )

    def drained(self) -> None:
        """Resume a waiting caller if there is space now."""
        if self.was_full and self._has_space():
            self._resume()

    def _resume(self) -> None:
        self.was_full = False
        self._window.waiting.pop(self.number, None)
        self.out.append(Resume(self.number))

    @property
    def unacknowledged(self) -> int:
        """Records that were given and neither acknowledged nor failed."""
        waiting = len(self.unrouted)
        for sender in self.senders:
            waiting += len(sender.builder.values)
            waiting += sum(outgoing.count for outgoing in sender.queue if not outgoing.settled)
        return waiting

    def obstacle(self) -> str:
        """What is known to keep its records from being acknowledged."""
        waiting = (sender.obstacle() for sender in self.senders if sender.queue)
        return next(waiting, f"no node has named the partitions of {self.name}")

    @property
    def busy(self) -> bool:
        return bool(self.unacknowledged_batches or self.unrouted) or any(
            sender.builder.values for sender in self.senders
        )

    # --- end, time -----------------------------------------------------------------------------------

    def leave(self) -> None:
        """Stop: resign as a publisher and leave the routes."""
        if self.registration is not None:
            self.registration.resign()
        for sender in self.senders:
            sender.route.leave(sender)

    def end(self, error: RostraError) -> None:
        """End the producer; everything in flight fails with this error."""
        if self.ended is None:
            self.ended = error
            # `tick` then forgets it.
            self.wake_at(0)
        unrouted, self.unrouted = self.unrouted, []
        for record in unrouted:
            if record.call:
                self.out.append(Fail(record.call, error))
        if self.registration is not None:
            self.registration.fail(error)
        for sender in self.senders:
            sender.fail_all(error)
        self.leave()
        if self.was_full:
            self._resume()
        self._answer_flushes()

    def wake_at(self, due_us: int) -> None:
        """Request a `tick` at this time, unless an earlier one is requested already."""
        if due_us < self.wakeup_us:
            self.wakeup_us = due_us
            self._wakeups.add(due_us, self.number)

    def deadline_us(self) -> int | None:
        earliest = None
        for sender in self.senders:
            due = sender.deadline_us()
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        due = self.registration.deadline_us() if self.registration is not None else None
        if due is not None and (earliest is None or due < earliest):
            earliest = due
        return earliest

    def tick(self, now_us: int) -> None:
        for sender in self.senders:
            sender.tick(now_us)
        if self.registration is not None:
            self.registration.tick(now_us)
