"""Producers that come with a history: one barrier goes round before anything of theirs is ordered here.

It brings back how much of the topic any broker has. When this broker has that much too, its tables know all that the
producer has stored anywhere; what surfaces later of it was sent here again. Whoever the barrier visits takes nothing
more of the producer, unless it comes back by a later move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rostra.errors import LimitExceeded, Unavailable
from rostra.fabric.api import Forward, ProducerAdmitted, ProducerMigrated, Refused, Send
from rostra.fabric.flood.messages import Barrier
from rostra.fabric.flood.origin_partition import VectorEntry
from rostra.model.batch import producer_stamp
from rostra.model.ids import Partition
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood


class ArrivingProducer:
    """One producer at the door, and what it has brought."""

    def __init__(self, name: str, partition: Partition, producer: int, moves: int) -> None:
        self.name = name
        self.partition = partition
        self.producer = producer
        self.moves = moves
        self.batches: list[tuple[int, bytearray]] = []
        self.number = 0
        self.sent_us = 0
        self.ends: dict[Partition, int] | None = None
        """What the barrier has brought back."""


class ProducerBarriers:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._arrivals: dict[tuple[Partition, int, int], ArrivingProducer] = {}
        self._last_number = 0
        self._sends_barriers = Safeguard.BARRIER_AND_FENCE not in flood.without
        self._bounded = Safeguard.HOP_BOUND not in flood.without

    def producer_arrived(self, given: Forward) -> None:
        flood = self._flood
        topic = flood.topics.of_partition(given.partition)
        if topic is None or topic.own is None or topic.own.partition != given.partition:
            error = Unavailable("", given.partition.index, "this broker publishes to another part of the topic now")
            flood.out.append(Refused(given.token, error))
            return
        if sum(len(arrival.batches) for arrival in self._arrivals.values()) >= flood.settings.early_max:
            flood.out.append(Refused(given.token, LimitExceeded("early_max", flood.settings.early_max)))
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
        flood = self._flood
        self._last_number += 1
        arrival.number = self._last_number
        arrival.sent_us = flood.now.mono_us
        arrival.ends = None
        following = flood.ring.next
        own = self._merge_ends(arrival.name, ())
        if following is None or not self._sends_barriers:
            self._finish_barrier(arrival, own)
        else:
            barrier = Barrier(
                flood.node,
                flood.boot,
                arrival.number,
                arrival.name,
                arrival.producer,
                arrival.moves,
                own,
                (flood.node,),
                1,
            )
            flood.out.append(Send(following, barrier))

    def _merge_ends(self, name: str, entries: tuple[VectorEntry, ...]) -> tuple[VectorEntry, ...]:
        """The longest that is known of each part."""
        ends = {entry.partition: entry.end for entry in entries}
        topic = self._flood.topics.by_name.get(name)
        for origin_partition in topic.all_partitions() if topic is not None else ():
            log = self._flood.logs.get(origin_partition.partition)
            if log is not None:
                ends[origin_partition.partition] = max(log.end, ends.get(origin_partition.partition, 0))
        return tuple(VectorEntry(partition, ends[partition]) for partition in sorted(ends))

    # --- on its way ----------------------------------------------------------------------------------

    def barrier_received(self, message: Barrier) -> None:
        flood = self._flood
        if message.origin == flood.node:
            self._barrier_returned(message)
            return
        topic = flood.topics.by_name.get(message.name)
        if topic is not None and topic.own is not None:
            flood.out.append(ProducerMigrated(topic.own.partition, message.producer, message.moves))
        following = flood.ring.next
        # Where its origin has died it would go round for ever.
        if following is None or (self._bounded and message.hops >= len(flood.ring.members)):
            return
        visited = message.visited if flood.node in message.visited else (*message.visited, flood.node)
        onward = msgspec.structs.replace(
            message,
            entries=self._merge_ends(message.name, message.entries),
            visited=visited,
            hops=message.hops + 1,
        )
        flood.out.append(Send(following, onward))

    def _barrier_returned(self, message: Barrier) -> None:
        flood = self._flood
        if message.boot != flood.boot or not set(flood.ring.view.active) <= set(message.visited):
            return
        for arrival in list(self._arrivals.values()):
            if arrival.number == message.number and arrival.ends is None:
                self._finish_barrier(arrival, message.entries)

    def _finish_barrier(self, arrival: ArrivingProducer, entries: tuple[VectorEntry, ...]) -> None:
        arrival.ends = {entry.partition: entry.end for entry in entries}
        self._admit_if_complete(arrival)

    # --- at its end ----------------------------------------------------------------------------------

    def log_advanced(self) -> None:
        """This broker has more than before: perhaps all that was waited for."""
        for arrival in list(self._arrivals.values()):
            self._admit_if_complete(arrival)

    def _admit_if_complete(self, arrival: ArrivingProducer) -> None:
        flood = self._flood
        if arrival.ends is None or not all(flood.has(partition, end) for partition, end in arrival.ends.items()):
            return
        del self._arrivals[arrival.partition, arrival.producer, arrival.moves]
        flood.out += [ProducerAdmitted(token, arrival.partition, batch) for token, batch in arrival.batches]

    def tick(self, *, retry: bool = False) -> None:
        """A barrier may be lost, and who had more than others may be gone: then another one goes round."""
        flood = self._flood
        timeout_us = flood.settings.resend_ms * 1000
        for arrival in list(self._arrivals.values()):
            waited_us = flood.now.mono_us - arrival.sent_us
            if retry or waited_us >= (timeout_us if arrival.ends is None else 8 * timeout_us):
                self._send_barrier(arrival)

    def refuse_partition(self, partition: Partition) -> None:
        """The part is gone from here."""
        for key, arrival in list(self._arrivals.items()):
            if arrival.partition == partition:
                del self._arrivals[key]
                error = Unavailable(arrival.name, partition.index, "the topic was deleted here")
                self._flood.out += [Refused(token, error) for token, _ in arrival.batches]
