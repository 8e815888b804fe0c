"""Barriers for producers that migrate here: one round of the ring before their batches are ordered.

The barrier collects the highest end of every origin partition of the topic. When this broker has that much too, its
producer table covers everything the producer has stored anywhere, so repeated batches are recognized; batches of it
that appear later were sent here again. Every broker that the barrier visits fences the producer (`ProducerMigrated`):
it accepts nothing more of it unless the producer returns by a later move. A barrier is repeated if it is lost, or if a
broker that had more records has failed.
"""

from __future__ import annotations

import msgspec

from rostra.errors import LimitExceeded, Unavailable
from rostra.fabric.api import Forward, ProducerAdmitted, ProducerMigrated, Refused, Send
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import Barrier
from rostra.fabric.flood.origin_partition import VectorEntry
from rostra.fabric.flood.ring import Ring
from rostra.fabric.flood.topics import FloodTopics
from rostra.model.batch import producer_stamp
from rostra.model.ids import Partition
from rostra.safeguards import Safeguard


class ArrivingProducer:
    """A producer that waits for its barrier, with its batches."""

    def __init__(self, name: str, partition: Partition, producer: int, moves: int) -> None:
        self.name = name
        self.partition = partition
        self.producer = producer
        self.moves = moves
        self.batches: list[tuple[int, bytearray]] = []
        self.number = 0
        self.sent_us = 0
        self.ends: dict[Partition, int] | None = None
        """The ends that the barrier returned; None while it travels."""


class ProducerBarriers:
    def __init__(self, context: FloodContext, ring: Ring, topics: FloodTopics) -> None:
        self._context = context
        self._ring = ring
        self._topics = topics
        self._arrivals: dict[tuple[Partition, int, int], ArrivingProducer] = {}
        self._last_number = 0
        self._sends_barriers = Safeguard.BARRIER_AND_FENCE not in context.without
        self._bounded = Safeguard.HOP_BOUND not in context.without

    def producer_arrived(self, given: Forward) -> None:
        context = self._context
        topic = self._topics.of_partition(given.partition)
        if topic is None or topic.own is None or topic.own.partition != given.partition:
            error = Unavailable("", given.partition.index, "this broker has a new partition of the topic now")
            context.out.append(Refused(given.token, error))
            return
        if sum(len(arrival.batches) for arrival in self._arrivals.values()) >= context.settings.early_max:
            context.out.append(Refused(given.token, LimitExceeded("early_max", context.settings.early_max)))
            return
        producer = producer_stamp(given.batch)[0]
        key = given.partition, producer, given.moves
        arrival = self._arrivals.get(key)
        is_new = arrival is None
        if arrival is None:
            arrival = self._arrivals[key] = ArrivingProducer(topic.name, given.partition, producer, given.moves)
        arrival.batches.append((given.token, given.batch))
        if is_new:
            self._send_barrier(arrival)

    def _send_barrier(self, arrival: ArrivingProducer) -> None:
        context = self._context
        self._last_number += 1
        arrival.number = self._last_number
        arrival.sent_us = context.now.mono_us
        arrival.ends = None
        following = self._ring.next
        own = self._merge_ends(arrival.name, ())
        if following is None or not self._sends_barriers:
            self._finish_barrier(arrival, own)
        else:
            barrier = Barrier(
                context.node,
                context.boot,
                arrival.number,
                arrival.name,
                arrival.producer,
                arrival.moves,
                own,
                (context.node,),
                1,
            )
            context.out.append(Send(following, barrier))

    def _merge_ends(self, name: str, entries: tuple[VectorEntry, ...]) -> tuple[VectorEntry, ...]:
        """Merges entries with this broker's ends: the highest per partition."""
        ends = {entry.partition: entry.end for entry in entries}
        topic = self._topics.by_name.get(name)
        for origin_partition in topic.all_partitions() if topic is not None else ():
            log = self._context.logs.get(origin_partition.partition)
            if log is not None:
                ends[origin_partition.partition] = max(log.end, ends.get(origin_partition.partition, 0))
        return tuple(VectorEntry(partition, ends[partition]) for partition in sorted(ends))

    # --- the round ----------------------------------------------------------------------------------

    def barrier_received(self, message: Barrier) -> None:
        context = self._context
        if message.origin == context.node:
            self._barrier_returned(message)
            return
        topic = self._topics.by_name.get(message.name)
        if topic is not None and topic.own is not None:
            context.out.append(ProducerMigrated(topic.own.partition, message.producer, message.moves))
        following = self._ring.next
        # If its origin is dead it would travel for ever.
        if following is None or (self._bounded and message.hops >= len(self._ring.members)):
            return
        visited = message.visited if context.node in message.visited else (*message.visited, context.node)
        onward = msgspec.structs.replace(
            message,
            entries=self._merge_ends(message.name, message.entries),
            visited=visited,
            hops=message.hops + 1,
        )
        context.out.append(Send(following, onward))

    def _barrier_returned(self, message: Barrier) -> None:
        context = self._context
        if message.boot != context.boot or not set(self._ring.view.active) <= set(message.visited):
            return
        for arrival in list(self._arrivals.values()):
            if arrival.number == message.number and arrival.ends is None:
                self._finish_barrier(arrival, message.entries)

    def _finish_barrier(self, arrival: ArrivingProducer, entries: tuple[VectorEntry, ...]) -> None:
        arrival.ends = {entry.partition: entry.end for entry in entries}
        self._admit_if_complete(arrival)

    # --- admission ----------------------------------------------------------------------------------

    def log_advanced(self) -> None:
        """This broker stored more records: admits producers that waited for them."""
        for arrival in list(self._arrivals.values()):
            self._admit_if_complete(arrival)

    def _admit_if_complete(self, arrival: ArrivingProducer) -> None:
        context = self._context
        if arrival.ends is None or not all(self._topics.has(partition, end) for partition, end in arrival.ends.items()):
            return
        del self._arrivals[arrival.partition, arrival.producer, arrival.moves]
        context.out += [ProducerAdmitted(token, arrival.partition, batch) for token, batch in arrival.batches]

    def tick(self, *, retry: bool = False) -> None:
        """Sends barriers again that are lost, or whose ends this broker does not reach."""
        context = self._context
        timeout_us = context.settings.resend_ms * 1000
        for arrival in list(self._arrivals.values()):
            waited_us = context.now.mono_us - arrival.sent_us
            if retry or waited_us >= (timeout_us if arrival.ends is None else 8 * timeout_us):
                self._send_barrier(arrival)

    def refuse_partition(self, partition: Partition) -> None:
        """Refuses the producers of a partition that was deleted here."""
        for key, arrival in list(self._arrivals.items()):
            if arrival.partition == partition:
                del self._arrivals[key]
                error = Unavailable(arrival.name, partition.index, "the topic was deleted here")
                self._context.out += [Refused(token, error) for token, _ in arrival.batches]
