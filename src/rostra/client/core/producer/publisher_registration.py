"""The registration of a producer as a publisher with a strength, at the owners of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from rostra.client.core.effects import CallNumber, Done, Fail
from rostra.errors import NotSupported, RostraError, TimedOut
from rostra.wire.features import PUBLISHERS
from rostra.wire.messages import ClientMessage, Register, Unregister

if TYPE_CHECKING:
    from rostra.client.core.producer.partition_sender import PartitionSender
    from rostra.client.core.producer.producer_state import ProducerState
    from rostra.client.core.routing.partition_route import PartitionRoute


class PendingRegistration:
    """A Register or Unregister sent to the owner of one partition, until it is answered."""

    __slots__ = ("request", "sender", "version")

    def __init__(self, sender: PartitionSender, version: int) -> None:
        self.sender = sender
        self.version = version
        self.request = 0

    def confirmed(self) -> None:
        registration = self.sender.producer.registration
        if registration is not None:
            self.sender.route.confirm()
            registration.confirmed(self)


class RegistrationWaiter:
    """A call that waits until all owners have confirmed this version."""

    __slots__ = ("call", "due_us", "version", "waited_ms", "what")

    def __init__(self, call: CallNumber, what: str, version: int, due_us: int, waited_ms: int) -> None:
        self.call = call
        self.what = what
        self.version = version
        self.due_us = due_us
        self.waited_ms = waited_ms


class PublisherRegistration:
    """Sent on every new connection before any batch, so that batches are judged by the producer's current strength.
    Anything received on that connection renews the lease.
    """

    def __init__(self, producer: ProducerState, strength: int, lease_ms: int, timeout_ms: int) -> None:
        self._producer = producer
        self.strength = strength
        self.lease_ms = lease_ms
        self.leaving = False
        self._timeout_ms = timeout_ms
        self._version = 1
        """Incremented by every change."""
        self._waiting: list[RegistrationWaiter] = []

    def _senders(self) -> Iterable[PartitionSender]:
        """The senders of the partitions that it is registered in: all, or the one it is bound to."""
        chosen = self._producer.settings.partition
        return self._producer.senders if chosen is None else self._producer.senders[chosen : chosen + 1]

    # --- changes -------------------------------------------------------------------------------------

    def change(self, now_us: int, call: CallNumber, strength: int) -> None:
        """Change the strength. Records given before are sent under the old one."""
        self.strength = strength
        self.leaving = False
        self._version += 1
        self.wait(now_us, call, f"strength {strength} in {self._producer.name}")
        self._send_all(now_us)

    def leave(self, now_us: int, call: CallNumber) -> None:
        """Unregister. The call waits no longer than the lease, after which the owners forget the publisher anyway."""
        self.leaving = True
        self._version += 1
        self._timeout_ms = min(self._timeout_ms, self.lease_ms)
        self.wait(now_us, call, f"leave {self._producer.name}")
        self._send_all(now_us)

    def _send_all(self, now_us: int) -> None:
        for sender in self._senders():
            if sender.active:
                sender.register(now_us)
        self._answer()

    def wait(self, now_us: int, call: CallNumber, what: str) -> None:
        """Done when all owners have confirmed the current version."""
        due_us = now_us + self._timeout_ms * 1000
        self._waiting.append(RegistrationWaiter(call, what, self._version, due_us, self._timeout_ms))
        self._producer.wake_at(due_us)
        self._answer()

    # --- messages ------------------------------------------------------------------------------------

    def send(self, sender: PartitionSender) -> PendingRegistration | None:
        """Send to the owner of the sender's partition, on its current link."""
        if self._producer.settings.partition not in (None, sender.route.index):
            return None
        link, producer = sender.link, self._producer
        if PUBLISHERS not in link.features:
            self.leaving = True
            producer.end(NotSupported(PUBLISHERS))
            return None
        pending = PendingRegistration(sender, self._version)
        pending.request = link.send_request(pending, self._message(sender.route))
        link.require_pings(self.lease_ms)
        return pending

    def _message(self, route: PartitionRoute) -> Callable[[int], ClientMessage]:
        publisher = {"topic": route.topic, "partition": route.index, "publisher": self._producer.producer_id}
        if self.leaving:
            return partial(Unregister, **publisher)
        return partial(Register, **publisher, strength=self.strength, lease_ms=self.lease_ms)

    def confirmed(self, pending: PendingRegistration) -> None:
        pending.sender.registered_version = max(pending.sender.registered_version, pending.version)
        self._answer()

    def _answer(self) -> None:
        if not self._waiting:
            return
        known = min((sender.registered_version for sender in self._senders()), default=0)
        while self._waiting and self._waiting[0].version <= known:
            self._producer.out.append(Done(self._waiting.pop(0).call, None))

    def fail(self, error: RostraError) -> None:
        """Fail all waiting calls."""
        waiting, self._waiting = self._waiting, []
        self._producer.out.extend(Fail(waiter.call, error) for waiter in waiting)

    def resign(self) -> None:
        """Unregister without waiting for answers; where the message is lost, the lease expires."""
        if self.leaving:
            return
        self.leaving = True
        for sender in self._senders():
            if sender.active:
                sender.link.write(self._message(sender.route)(sender.link.next_request()))

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        return min([waiter.due_us for waiter in self._waiting]) if self._waiting else None

    def tick(self, now_us: int) -> None:
        for waiter in [waiter for waiter in self._waiting if waiter.due_us <= now_us]:
            self._waiting.remove(waiter)
            errors = [sender.route.error for sender in self._senders() if sender.route.error is not None]
            error = errors[0] if errors else TimedOut(waiter.what, waiter.waited_ms, "a node has not confirmed it")
            self._producer.out.append(Fail(waiter.call, error))
