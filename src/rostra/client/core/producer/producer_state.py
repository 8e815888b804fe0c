"""A producer: which lane a record takes, how much is under way, when there is room for more."""

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
from rostra.client.core.producer.wakeup_queue import NEVER_US, WakeupQueue
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.errors import LimitExceeded, RostraError, UnknownPartition
from rostra.model.batch import Codec
from rostra.model.encode import Headers
from rostra.model.ids import random_id
from rostra.wire.messages import Topic

PER_RECORD_BYTES = 4
HELD_MAX = 100_000


class UnroutedRecord:
    """A record that came before the topic's place was known."""

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
    """The producer's state. Drivers may append plain values to `draft` themselves; the rest goes through methods."""

    def __init__(
        self,
        number: ProducerNumber,
        name: str,
        settings: ProducerSettings,
        backoff: Backoff,
        random: Random,
        delivery_timeout_us: int,
        call_timeout_ms: int,
        wakes: WakeupQueue,
        window: InFlightWindow,
        out: list[ClientEffect],
    ) -> None:
        self.number = number
        self.name = name
        self.settings = settings
        self.backoff = backoff
        self.out = out
        self.producer = random_id(random)
        self.delivery_timeout_us = delivery_timeout_us
        self._call_timeout_ms = call_timeout_ms
        self._wakes = wakes
        self._window = window
        self.wakes_us = NEVER_US
        """When it is woken, not later than it wants to be."""
        self.answered = settings.acks != "none"
        self.wall_offset_us = 0
        self.topic = 0
        self.lanes: list[PartitionSender] = []
        self.draft = BatchBuilder()
        """The open batch for records without a key, once the topic is located; another one after each `close`."""
        self.enrolment: PublisherRegistration | None = None
        """As a publisher with a strength, if it is one."""
        self.ended: RostraError | None = None
        self.error: RostraError | None = None
        """The first failure that no call was told of; `flush` tells."""
        self.sent = 0
        self.acked = 0
        self.unacknowledged_bytes = 0
        self.unacknowledged_batches = 0
        self.was_full = False
        self.held: list[UnroutedRecord] = []
        self._sticky = 0
        self._rotates = False
        """Whether records without a key go to the next partition after each batch."""
        self._alone = not settings.linger_ms and settings.codec is Codec.NONE
        """Whether a record may leave without having waited or been packed."""
        self._ordinal = 0
        self._flushes: list[tuple[int, CallNumber]] = []
        self.record_bytes = 0.0
        """Of a record in the batch that was closed last."""

    # --- where it goes -------------------------------------------------------------------------------

    def located(self, now_us: int, topic: Topic, places: list[PartitionRoute]) -> None:
        if self.ended is not None:
            return
        self.topic = topic.topic
        # Where every node has a partition of its own, all goes to that of the node that answers.
        places = [place for place in places if place.own] or places
        chosen = self.settings.partition
        if chosen is not None and chosen >= len(places):
            self.end(UnknownPartition(self.name, chosen))
            return
        self.lanes = [PartitionSender(self, place) for place in places]
        self._sticky = chosen or 0
        self._rotates = chosen is None and len(places) > 1
        self.draft = self.lanes[self._sticky].draft
        if self.settings.strength is not None or topic.settings.ownership == "exclusive":
            self._publish_with(self.settings.strength or 0)
        for lane in self.lanes:
            lane.place.join(lane)
            if not lane.place.lost:
                lane.flow(now_us)
        held, self.held = self.held, []
        for record in held:
            self.add(
                now_us, record.value, record.key, record.headers, record.timestamp_us, record.partition, record.call
            )

    def _publish_with(self, strength: int) -> PublisherRegistration:
        self.enrolment = PublisherRegistration(self, strength, self.settings.lease_ms, self._call_timeout_ms)
        return self.enrolment

    def set_strength(self, now_us: int, call: CallNumber, strength: int) -> None:
        """Done when the owners of all its partitions judge it by that."""
        check_strength(strength)
        if self.ended is not None:
            raise self.ended
        for lane in self.lanes:
            lane.close(now_us)
        (self.enrolment or self._publish_with(strength)).change(now_us, call, strength)

    def resign(self, now_us: int, call: CallNumber) -> None:
        """Done when it is no publisher of the topic any more; `flush` first."""
        if self.enrolment is None or self.ended is not None:
            self.out.append(Done(call, None))
        else:
            self.enrolment.leave(now_us, call)

    def _lane_for(self, key: bytes | None, partition: int | None) -> PartitionSender:
        if partition is None:
            partition = self.settings.partition
        if partition is not None:
            if partition >= len(self.lanes):
                raise UnknownPartition(self.name, partition)
            return self.lanes[partition]
        if key is None or len(self.lanes) == 1:
            return self.lanes[self._sticky]
        return self.lanes[partition_of(key, len(self.lanes))]

    # --- records in ----------------------------------------------------------------------------------

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
        """Put one record into an open batch, which closes when it is full."""
        if self.ended is not None:
            raise self.ended
        if not self.lanes:
            if len(self.held) >= HELD_MAX:
                raise LimitExceeded("records before the topic is located", HELD_MAX)
            self.held.append(UnroutedRecord(value, key, headers, timestamp_us, partition, call))
            return
        try:
            lane = self._lane_for(key, partition)
        except UnknownPartition as error:
            if not call:
                raise
            self.out.append(Fail(call, error))
            return
        lane.draft.add(value, key, headers, timestamp_us, call)
        if lane.draft.bytes >= self.settings.batch_bytes:
            self.close(now_us, lane)

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
        """Whether the record has left, as a batch of its own. If not it lies in an open one, which the caller turns."""
        if (
            key is None
            and headers is None
            and timestamp_us is None
            and partition is None
            and not self.unacknowledged_batches
            and self.sent_alone(now_us, value, call)
        ):
            return True
        self.add(now_us, value, key, headers, timestamp_us, partition, call)
        return False

    def sent_alone(self, now_us: int, value: bytes | None, call: CallNumber = 0) -> bool:
        """Whether a plain value has left, as a batch that was never open.

        Where nothing is open and little under way the outcome is that of `add` and `turn`, for a third of the steps. At
        a low rate that is nearly every record, and each step is taken with cold caches.
        """
        if type(value) is not bytes or not self._alone or not self.lanes or self.ended is not None:
            return False
        lane = self.lanes[self._sticky]
        if not lane.sent_alone(now_us, value, call):
            return False
        if self._rotates:
            self._move_on(lane)
        return True

    def close(self, now_us: int, lane: PartitionSender | None = None) -> None:
        """Close one open batch, by default the one of records without a key; they go to the next partition then."""
        if lane is None:
            lane = self.lanes[self._sticky]
        lane.close(now_us)
        self._move_on(lane)

    def _move_on(self, lane: PartitionSender) -> None:
        if self._rotates and lane is self.lanes[self._sticky]:
            self._sticky = (self._sticky + 1) % len(self.lanes)
            self.draft = self.lanes[self._sticky].draft

    def add_many(self, now_us: int, values: Sequence[bytes | None], at: int) -> int:
        """Take as many of the values from `at` on as make one batch; where to go on."""
        if self.ended is not None:
            raise self.ended
        size = self.record_bytes or self._guess(values)
        fitting = max(1, int(self.settings.batch_bytes / size))
        draft = self.draft
        if len(values) - at < fitting:
            rest = values[at:] if at else values
            draft.values.extend(rest)
            draft.bytes += int(len(rest) * size) + 1
            if draft.bytes >= self.settings.batch_bytes:
                self.close(now_us)
            return len(values)
        if draft.values:
            self.close(now_us)
        # The list is the caller's: what goes into a draft must be a copy of it.
        self.draft.values = list(values[at : at + fitting])
        self.close(now_us)
        return at + fitting

    def _guess(self, values: Sequence[bytes | None]) -> float:
        sample = values[:64]
        return sum(len(value) for value in sample if value) / max(len(sample), 1) + PER_RECORD_BYTES

    def turn(self, now_us: int) -> None:
        """The caller gives way: open batches leave, unless many are under way already or they are to linger."""
        linger_us = self.settings.linger_ms * 1000
        for lane in self.lanes:
            draft = lane.draft
            if not draft.values:
                continue
            if linger_us:
                if draft.due_us is None:
                    draft.due_us = now_us + linger_us
                    self.wake_at(draft.due_us)
            elif len(lane.queue) < EAGER_BATCHES:
                self.close(now_us, lane)

    def flush(self, now_us: int, call: CallNumber) -> None:
        """All that was given so far leaves now; the call is done when all of it is settled."""
        for lane in self.lanes:
            lane.close(now_us)
        self._flushes.append((self._ordinal, call))
        self._answer_flushes()

    # --- bookkeeping for the lanes -------------------------------------------------------------------

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
        ordinals = [ordinal for lane in self.lanes if (ordinal := lane.oldest_ordinal()) is not None]
        oldest = min(ordinals, default=self._ordinal + 1)
        while self._flushes and self._flushes[0][0] < oldest:
            _, call = self._flushes.pop(0)
            error, self.error = self.error, None
            self.out.append(Done(call, None) if error is None else Fail(call, error))

    # --- the window ----------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether the caller must wait for `Resume`. Of one that has ended it is to hear why."""
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
        return any(lane.link.congested for lane in self.lanes)

    def _has_room(self) -> bool:
        """A quarter of the window free: waking the caller for every batch would cost more than it gains."""
        return (
            self.unacknowledged_bytes * 4 <= self.settings.window_bytes * 3
            and self.unacknowledged_batches * 4 <= BATCHES_IN_FLIGHT_MAX * 3
            and (self.answered or not self._congested())
            and self._window.has_room()
        )

    def drained(self) -> None:
        """Something left: whoever waits for room may have it now."""
        if self.was_full and self._has_room():
            self._resume()

    def _resume(self) -> None:
        self.was_full = False
        self._window.waiting.pop(self.number, None)
        self.out.append(Resume(self.number))

    @property
    def busy(self) -> bool:
        return bool(self.unacknowledged_batches or self.held) or any(lane.draft.values for lane in self.lanes)

    # --- end, time -----------------------------------------------------------------------------------

    def leave(self) -> None:
        """Nothing more is sent: it is no publisher any more, and its lanes follow their partitions no longer."""
        if self.enrolment is not None:
            self.enrolment.resign()
        for lane in self.lanes:
            lane.place.leave(lane)

    def end(self, error: RostraError) -> None:
        """Nothing more can be produced here, and what is under way is given up."""
        if self.ended is None:
            self.ended = error
            # To be forgotten.
            self.wake_at(0)
        held, self.held = self.held, []
        for record in held:
            if record.call:
                self.out.append(Fail(record.call, error))
        if self.enrolment is not None:
            self.enrolment.fail(error)
        for lane in self.lanes:
            lane.fail_all(error)
        self.leave()
        if self.was_full:
            self._resume()
        self._answer_flushes()

    def wake_at(self, due_us: int) -> None:
        """`tick` is due then. Whoever asked for an earlier moment keeps it: to be woken for nothing costs little."""
        if due_us < self.wakes_us:
            self.wakes_us = due_us
            self._wakes.add(due_us, self.number)

    def deadline_us(self) -> int | None:
        earliest = None
        for lane in self.lanes:
            due = lane.deadline_us()
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        due = self.enrolment.deadline_us() if self.enrolment is not None else None
        if due is not None and (earliest is None or due < earliest):
            earliest = due
        return earliest

    def tick(self, now_us: int) -> None:
        for lane in self.lanes:
            lane.tick(now_us)
        if self.enrolment is not None:
            self.enrolment.tick(now_us)
