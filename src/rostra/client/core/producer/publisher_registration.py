"""A producer as a publisher: with which strength it is registered at the owners of its partitions, and its leaving."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from rostra.client.core.effects import CallNumber, Done, Fail
from rostra.errors import NotSupported, RostraError, TimedOut
from rostra.wire.features import PUBLISHERS
from rostra.wire.messages import ClientMessage, Register, Resign

if TYPE_CHECKING:
    from rostra.client.core.producer.partition_sender import PartitionSender
    from rostra.client.core.producer.producer_state import ProducerState
    from rostra.client.core.routing.partition_route import PartitionRoute


class PendingRegistration:
    """What was said about it to the owner of one partition, until it is answered."""

    __slots__ = ("lane", "request", "version")

    def __init__(self, lane: PartitionSender, version: int) -> None:
        self.lane = lane
        self.version = version
        self.request = 0

    def confirmed(self) -> None:
        enrolment = self.lane.producing.enrolment
        if enrolment is not None:
            self.lane.place.proved()
            enrolment.confirmed(self)


class RegistrationWaiter:
    """Whoever waits until all owners have answered to what was said from this version on."""

    __slots__ = ("call", "due_us", "version", "waited_ms", "what")

    def __init__(self, call: CallNumber, what: str, version: int, due_us: int, waited_ms: int) -> None:
        self.call = call
        self.what = what
        self.version = version
        self.due_us = due_us
        self.waited_ms = waited_ms


class PublisherRegistration:
    """It is said again on every new connection, before any batch: so a batch is judged by the strength that its
    producer has, and the lease is renewed by whatever is heard there.
    """

    def __init__(self, producing: ProducerState, strength: int, lease_ms: int, timeout_ms: int) -> None:
        self._producing = producing
        self.strength = strength
        self.lease_ms = lease_ms
        self.leaving = False
        self._timeout_ms = timeout_ms
        self._version = 1
        """Raised by every change."""
        self._waiting: list[RegistrationWaiter] = []

    def _lanes(self) -> Iterable[PartitionSender]:
        """It is a publisher of the partitions it may write to without being told each time."""
        chosen = self._producing.settings.partition
        return self._producing.lanes if chosen is None else self._producing.lanes[chosen : chosen + 1]

    # --- changes -------------------------------------------------------------------------------------

    def change(self, now_us: int, call: CallNumber, strength: int) -> None:
        """What was given to the producer before leaves under the strength that it had then."""
        self.strength = strength
        self.leaving = False
        self._version += 1
        self.wait(now_us, call, f"strength {strength} in {self._producing.name}")
        self._say_all(now_us)

    def leave(self, now_us: int, call: CallNumber) -> None:
        """When it is not heard for its lease it has left too: nobody needs to wait longer."""
        self.leaving = True
        self._version += 1
        self._timeout_ms = min(self._timeout_ms, self.lease_ms)
        self.wait(now_us, call, f"leave {self._producing.name}")
        self._say_all(now_us)

    def _say_all(self, now_us: int) -> None:
        for lane in self._lanes():
            if lane.flowing:
                lane.enrol(now_us)
        self._answer()

    def wait(self, now_us: int, call: CallNumber, what: str) -> None:
        """Done when all owners know what holds now."""
        due_us = now_us + self._timeout_ms * 1000
        self._waiting.append(RegistrationWaiter(call, what, self._version, due_us, self._timeout_ms))
        self._producing.wake_at(due_us)
        self._answer()

    # --- what is said and heard ----------------------------------------------------------------------

    def say(self, lane: PartitionSender) -> PendingRegistration | None:
        """To the owner of the lane's partition, on its present link."""
        if self._producing.settings.partition not in (None, lane.place.index):
            return None
        link, producing = lane.link, self._producing
        if PUBLISHERS not in link.features:
            self.leaving = True
            producing.end(NotSupported(PUBLISHERS))
            return None
        enrolling = PendingRegistration(lane, self._version)
        enrolling.request = link.ask(enrolling, self._message(lane.place))
        link.hasten(self.lease_ms)
        return enrolling

    def _message(self, place: PartitionRoute) -> Callable[[int], ClientMessage]:
        of = {"topic": place.topic, "partition": place.index, "publisher": self._producing.producer}
        if self.leaving:
            return partial(Resign, **of)
        return partial(Register, **of, strength=self.strength, lease_ms=self.lease_ms)

    def confirmed(self, enrolling: PendingRegistration) -> None:
        enrolling.lane.enrolled = max(enrolling.lane.enrolled, enrolling.version)
        self._answer()

    def _answer(self) -> None:
        if not self._waiting:
            return
        known = min((lane.enrolled for lane in self._lanes()), default=0)
        while self._waiting and self._waiting[0].version <= known:
            self._producing.out.append(Done(self._waiting.pop(0).call, None))

    def fail(self, error: RostraError) -> None:
        """Nobody will do what was asked for."""
        waiting, self._waiting = self._waiting, []
        self._producing.out.extend(Fail(one.call, error) for one in waiting)

    def resign(self) -> None:
        """Without waiting for an answer: the producer is given up. What is not heard now, the lease will tell."""
        if self.leaving:
            return
        self.leaving = True
        for lane in self._lanes():
            if lane.flowing:
                lane.link.write(self._message(lane.place)(lane.link.next_request()))

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        return min([one.due_us for one in self._waiting]) if self._waiting else None

    def tick(self, now_us: int) -> None:
        for one in [one for one in self._waiting if one.due_us <= now_us]:
            self._waiting.remove(one)
            heard = [lane.place.error for lane in self._lanes() if lane.place.error is not None]
            error = heard[0] if heard else TimedOut(one.what, one.waited_ms)
            self._producing.out.append(Fail(one.call, error))
