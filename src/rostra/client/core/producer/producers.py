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
"""Topics that `publish` keeps a producer for, some kilobytes each; beyond it, one that is idle is forgotten."""


class Producers:
    def __init__(
        self, options: Options, backoff: Backoff, directory: MetadataCache, random: Random, out: list[ClientEffect]
    ) -> None:
        self._backoff = backoff
        self._directory = directory
        self._random = random
        self._out = out
        self._delivery_timeout_us = options.delivery_timeout_ms * 1000
        self._call_timeout_ms = options.call_timeout_ms
        self._wall_offset_us = 0
        self._last = 0
        self._all: dict[ProducerNumber, ProducerState] = {}
        self._wakes = WakeupQueue(self._all)
        self._window = InFlightWindow()
        self._publishers: dict[tuple[str, str], ProducerState] = {}
        self._gathering: dict[ProducerNumber, ProducerState] = {}
        """Of those, the ones that were given records in this turn."""

    # --- coming and going ----------------------------------------------------------------------------

    def open(self, now_us: int, call: CallNumber, name: str, settings: ProducerSettings) -> ProducerState:
        check_topic_name(name)
        producing = self._new(name, settings)

        def found(now_us: int, topic: Topic, places: list[PartitionRoute]) -> None:
            producing.located(now_us, topic, places)
            if producing.ended is not None:
                self._out.append(Fail(call, producing.ended))
            elif producing.enrolment is not None:
                producing.enrolment.wait(now_us, call, f"register in {name}")
            else:
                self._out.append(Done(call, None))

        def failed(now_us: int, error: RostraError) -> None:
            self.close(producing, error)
            self._out.append(Fail(call, error))

        self._directory.find(now_us, name, found, failed)
        return producing

    def close(self, producing: ProducerState, reason: RostraError) -> None:
        if self._forget(producing):
            producing.end(reason)

    def publisher(self, now_us: int, name: str, acks: Acks) -> ProducerState:
        """The producer that `publish` uses for this topic and level of acknowledgement."""
        producing = self._publishers.get((name, acks))
        if producing is None or producing.ended is not None:
            producing = self._new_publisher(now_us, name, acks)
        return producing

    def _new_publisher(self, now_us: int, name: str, acks: Acks) -> ProducerState:
        check_topic_name(name)
        settings = ProducerSettings(acks=acks)
        if len(self._publishers) >= PUBLISHERS_MAX:
            self._drop_idle_publisher()
        producing = self._publishers[name, acks] = self._new(name, settings)

        def found(now_us: int, topic: Topic, places: list[PartitionRoute]) -> None:
            producing.located(now_us, topic, places)
            producing.turn(now_us)

        def failed(now_us: int, error: RostraError) -> None:
            self._publishers.pop((name, acks), None)
            self.close(producing, error)

        self._directory.find(now_us, name, found, failed)
        return producing

    def _new(self, name: str, settings: ProducerSettings) -> ProducerState:
        self._last += 1
        producing = ProducerState(
            self._last,
            name,
            settings,
            self._backoff,
            self._random,
            self._delivery_timeout_us,
            self._call_timeout_ms,
            self._wakes,
            self._window,
            self._out,
        )
        self._window.widen(settings.window_bytes)
        producing.wall_offset_us = self._wall_offset_us
        self._all[producing.number] = producing
        return producing

    def _drop_idle_publisher(self) -> None:
        for place, producing in self._publishers.items():
            if not producing.busy:
                del self._publishers[place]
                self._forget(producing)
                producing.leave()
                return

    def forget_topic(self, name: str) -> None:
        """What the name meant is gone; the next `publish` gets what it means then."""
        for acks in ("none", "owner", "all"):
            producing = self._publishers.pop((name, acks), None)
            if producing is not None and not producing.busy:
                self._forget(producing)
                producing.leave()

    def forget_if_ended(self, producing: ProducerState) -> None:
        if producing.ended is not None:
            self._forget(producing)

    def _forget(self, producing: ProducerState) -> bool:
        self._gathering.pop(producing.number, None)
        return self._all.pop(producing.number, None) is not None

    # --- publishers with a strength ------------------------------------------------------------------

    def unregistered(self, now_us: int, message: Unregistered) -> None:
        for producing in self._all.values():
            ours = (producing.topic, producing.producer) == (message.topic, message.publisher)
            if ours and message.partition < len(producing.lanes):
                producing.lanes[message.partition].unregistered(now_us, lapsed=message.lapsed)

    @property
    def has_leases(self) -> bool:
        return any(one.enrolment is not None and not one.enrolment.leaving for one in self._all.values())

    def resign_all(self) -> None:
        """While the links stand; nobody waits for an answer."""
        for producing in self._all.values():
            if producing.enrolment is not None:
                producing.enrolment.resign()

    # --- what concerns all ---------------------------------------------------------------------------

    def added(self, now_us: int, producing: ProducerState) -> None:
        """It was given a record by `publish`, which leaves now, or with others at the end of the turn."""
        if producing.unacknowledged_batches:
            self._gathering[producing.number] = producing
        else:
            producing.turn(now_us)

    def turn_publishers(self, now_us: int) -> None:
        # One by one: should one of them raise, for a value that is none, the others leave with the next turn.
        while self._gathering:
            self._gathering.pop(next(iter(self._gathering))).turn(now_us)

    def set_wall_offset(self, wall_offset_us: int) -> None:
        self._wall_offset_us = wall_offset_us
        for producing in self._all.values():
            producing.wall_offset_us = wall_offset_us

    def drained(self) -> None:
        self._window.wake()

    def end_all(self, error: RostraError) -> None:
        for producing in list(self._all.values()):
            producing.end(error)
        self._all.clear()
        self._publishers.clear()
        self._gathering.clear()
        self._wakes.clear()

    def deadline_us(self) -> int | None:
        return self._wakes.first_us()

    def tick(self, now_us: int) -> None:
        woken = []
        try:
            for producing in self._wakes.due(now_us):
                woken.append(producing)
                producing.tick(now_us)
        finally:
            for producing in woken:
                self._sleep(producing)

    def _sleep(self, producing: ProducerState) -> None:
        """Until it wants to be woken again."""
        due_us = producing.deadline_us()
        if producing.ended is not None:
            self._forget(producing)
        elif due_us is not None:
            producing.wake_at(due_us)
