"""All producers of a client: those the application opened, and those that `publish` keeps."""

from __future__ import annotations

from random import Random

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, ProducerNumber
from rostra.client.core.links.backoff import Backoff
from rostra.client.core.options import Options, ProducerSettings
from rostra.client.core.producer.in_flight_window import InFlightWindow
from rostra.client.core.producer.producer_state import ProducerState
from rostra.client.core.producer.wakeup_queue import WakeupQueue
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.errors import RostraError
from rostra.model.ids import check_topic_name
from rostra.wire.messages import Acks, Topic, Unregistered

PUBLISHERS_MAX = 16_384
"""Topics for which `publish` keeps a producer, a few kilobytes each; beyond it, an idle one is forgotten."""


class Producers:
    def __init__(
        self, options: Options, backoff: Backoff, metadata: MetadataCache, random: Random, out: list[ClientEffect]
    ) -> None:
        self._backoff = backoff
        self._metadata = metadata
        self._random = random
        self._out = out
        self._delivery_timeout_us = options.delivery_timeout_ms * 1000
        self._call_timeout_ms = options.call_timeout_ms
        self._wall_offset_us = 0
        self._last = 0
        self._all: dict[ProducerNumber, ProducerState] = {}
        self._wakeups = WakeupQueue(self._all)
        self._window = InFlightWindow()
        self._publishers: dict[tuple[str, str], ProducerState] = {}
        self._unsent: dict[ProducerNumber, ProducerState] = {}
        """Those of them that were given records in this turn."""

    # --- opening and closing -------------------------------------------------------------------------

    def open(self, now_us: int, call: CallNumber, name: str, settings: ProducerSettings) -> ProducerState:
        check_topic_name(name)
        producer = self._new(name, settings)

        def found(now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
            producer.located(now_us, topic, routes)
            if producer.ended is not None:
                self._out.append(Fail(call, producer.ended))
            elif producer.registration is not None:
                producer.registration.wait(now_us, call, f"register in {name}")
            else:
                self._out.append(Done(call, None))

        def failed(now_us: int, error: RostraError) -> None:
            self.close(producer, error)
            self._out.append(Fail(call, error))

        self._metadata.find(now_us, name, found, failed)
        return producer

    def close(self, producer: ProducerState, reason: RostraError) -> None:
        if self._forget(producer):
            producer.end(reason)

    def publisher(self, now_us: int, name: str, acks: Acks) -> ProducerState:
        """The producer that `publish` uses for this topic and level of acknowledgement."""
        producer = self._publishers.get((name, acks))
        if producer is None or producer.ended is not None:
            producer = self._new_publisher(now_us, name, acks)
        return producer

    def _new_publisher(self, now_us: int, name: str, acks: Acks) -> ProducerState:
        check_topic_name(name)
        settings = ProducerSettings(acks=acks)
        if len(self._publishers) >= PUBLISHERS_MAX:
            self._drop_idle_publisher()
        producer = self._publishers[name, acks] = self._new(name, settings)

        def found(now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
            producer.located(now_us, topic, routes)
            producer.end_turn(now_us)

        def failed(now_us: int, error: RostraError) -> None:
            self._publishers.pop((name, acks), None)
            self.close(producer, error)

        self._metadata.find(now_us, name, found, failed)
        return producer

    def _new(self, name: str, settings: ProducerSettings) -> ProducerState:
        self._last += 1
        producer = ProducerState(
            self._last,
            name,
            settings,
            self._backoff,
            self._random,
            self._delivery_timeout_us,
            self._call_timeout_ms,
            self._wakeups,
            self._window,
            self._out,
        )
        self._window.raise_limit(settings.window_bytes)
        producer.wall_offset_us = self._wall_offset_us
        self._all[producer.number] = producer
        return producer

    def _drop_idle_publisher(self) -> None:
        for key, producer in self._publishers.items():
            if not producer.busy:
                del self._publishers[key]
                self._forget(producer)
                producer.leave()
                return

    def forget_topic(self, name: str) -> None:
        """Forget the producers of a deleted topic, so that the next `publish` looks the name up again."""
        for acks in ("none", "owner", "all"):
            producer = self._publishers.pop((name, acks), None)
            if producer is not None and not producer.busy:
                self._forget(producer)
                producer.leave()

    def forget_if_ended(self, producer: ProducerState) -> None:
        if producer.ended is not None:
            self._forget(producer)

    def _forget(self, producer: ProducerState) -> bool:
        self._unsent.pop(producer.number, None)
        return self._all.pop(producer.number, None) is not None

    # --- publisher registration ----------------------------------------------------------------------

    def unregistered(self, now_us: int, message: Unregistered) -> None:
        for producer in self._all.values():
            ours = (producer.topic, producer.producer_id) == (message.topic, message.publisher)
            if ours and message.partition < len(producer.senders):
                producer.senders[message.partition].unregistered(now_us, lapsed=message.lapsed)

    @property
    def has_leases(self) -> bool:
        return any(one.registration is not None and not one.registration.leaving for one in self._all.values())

    def resign_all(self) -> None:
        """Unregister all publishers on the connected links, without waiting for answers."""
        for producer in self._all.values():
            if producer.registration is not None:
                producer.registration.resign()

    @property
    def unsettled(self) -> list[ProducerState]:
        """Without those of `publish`, each of whose records has a caller that waits for it."""
        opened = self._all.keys() - {one.number for one in self._publishers.values()}
        states = [self._all[number] for number in sorted(opened)]
        return [one for one in states if one.ended is None and (one.error is not None or one.busy)]

    # --- all producers -------------------------------------------------------------------------------

    def added(self, now_us: int, producer: ProducerState) -> None:
        """`publish` added a record: send it now, or with others at the end of the turn."""
        if producer.unacknowledged_batches:
            self._unsent[producer.number] = producer
        else:
            producer.end_turn(now_us)

    def end_turn(self, now_us: int) -> None:
        # One by one: if one raises because of an invalid value, the others are sent with the next turn.
        while self._unsent:
            self._unsent.pop(next(iter(self._unsent))).end_turn(now_us)

    def set_wall_offset(self, wall_offset_us: int) -> None:
        self._wall_offset_us = wall_offset_us
        for producer in self._all.values():
            producer.wall_offset_us = wall_offset_us

    def drained(self) -> None:
        self._window.wake()

    def end_all(self, error: RostraError) -> None:
        for producer in list(self._all.values()):
            producer.end(error)
        self._all.clear()
        self._publishers.clear()
        self._unsent.clear()
        self._wakeups.clear()

    def deadline_us(self) -> int | None:
        return self._wakeups.first_us()

    def tick(self, now_us: int) -> None:
        woken = []
        try:
            for producer in self._wakeups.due(now_us):
                woken.append(producer)
                producer.tick(now_us)
        finally:
            for producer in woken:
                self._sleep(producer)

    def _sleep(self, producer: ProducerState) -> None:
        """Schedule its next wakeup."""
        due_us = producer.deadline_us()
        if producer.ended is not None:
            self._forget(producer)
        elif due_us is not None:
            producer.wake_at(due_us)
