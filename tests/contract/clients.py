"""Producers and subscribers of the contract tests: the production client core on either driver."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from rostra.client.core import Core
from rostra.client.core.core import CREDIT_BYTES
from rostra.client.core.effects import Ack, Deliver, Result
from rostra.client.core.events import ClientEvent, MayDuplicate, TopicAppeared, TopicGone
from rostra.client.core.options import BelowStart, ProducerSettings, Start
from rostra.client.core.producer.producer_state import ProducerState
from rostra.client.core.subscription.topic_subscription import TopicSubscription
from rostra.errors import RostraError
from rostra.wire.messages import PUBLISHER_LEASE_MS

Outcome = Callable[[Result | RostraError], None]
CoreCall = Callable[[Core, int, int], object]
"""Starts a call on a core; gets the core, the time and the number of the call."""

BATCH_BYTES = 2_000
"""Small, so that a producer has several batches in flight."""


class CoreClient(Protocol):
    """A client core and the driver that executes its effects."""

    core: Core
    delivered: dict[int, Callable[[Deliver], None]]
    finished: dict[int, Callable[[RostraError], None]]
    event_listeners: list[Callable[[ClientEvent], None]]

    @property
    def now_us(self) -> int: ...
    def call(self, what: str, outcome: Outcome) -> int: ...
    def run_effects(self) -> None:
        """Executes the pending effects of the core."""

    def later(self, callback: Callable[..., None], *args: object) -> None: ...
    def kill(self) -> None:
        """Kills the program: closes its connections without sending anything."""


class ReceivedRecord(NamedTuple):
    partition: int
    offset: int
    value: bytes | None
    topic: str


class Producer:
    def __init__(
        self, client: CoreClient, topic: str, strength: int | None = None, lease_ms: int = PUBLISHER_LEASE_MS
    ) -> None:
        self.topic = topic
        self.opened = False
        self.left = False
        self.strength = strength
        """None while a change is pending."""
        self.sent: list[bytes] = []
        self.acked: dict[bytes, Ack] = {}
        self.failed: dict[bytes, RostraError] = {}
        self.warnings: list[MayDuplicate] = []
        """Reports of possible duplicates."""
        self._client = client
        client.event_listeners.append(self._on_event)
        settings = ProducerSettings(batch_bytes=BATCH_BYTES, strength=strength, lease_ms=lease_ms)
        call = client.call(f"producer on {topic}", self._opened)
        self._state: ProducerState = client.core.open_producer(client.now_us, call, topic, settings)
        client.run_effects()

    def _opened(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            raise result
        self.opened = True

    @property
    def publisher(self) -> int:
        return self._state.producer_id

    def set_strength(self, strength: int) -> None:
        """Changes the strength for all later records, without waiting."""
        self.strength = None
        call = self._client.call(f"strength {strength}", partial(self._changed, strength))
        self._state.set_strength(self._client.now_us, call, strength)
        self._client.run_effects()

    def _changed(self, strength: int, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            raise result
        self.strength = strength

    def leave(self) -> None:
        call = self._client.call(f"leave {self.topic}", self._gone)
        self._state.resign(self._client.now_us, call)
        self._client.run_effects()

    def _gone(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            raise result
        self.left = True

    def kill(self) -> None:
        self._client.kill()

    def send(self, *values: bytes) -> None:
        """Sends the values without waiting."""
        client = self._client
        for value in values:
            self.sent.append(value)
            call = client.call(f"send {value!r}", partial(self._settled, value))
            self._state.add(client.now_us, value, call=call)
        self._state.end_turn(client.now_us)
        client.run_effects()

    def _settled(self, value: bytes, result: Result | RostraError) -> None:
        if isinstance(result, Ack):
            self.acked[value] = result
        else:
            assert isinstance(result, RostraError)
            self.failed[value] = result

    def _on_event(self, event: ClientEvent) -> None:
        if isinstance(event, MayDuplicate) and event.topic == self.topic:
            self.warnings.append(event)

    @property
    def settled(self) -> bool:
        return len(self.acked) + len(self.failed) == len(self.sent)


class Subscription:
    def __init__(self, client: CoreClient, topics: tuple[str, ...], start: Start, below_start: BelowStart) -> None:
        self.topic = ", ".join(topics)
        self.records: list[ReceivedRecord] = []
        self.established = False
        self.left = False
        self.ended: RostraError | None = None
        self._client = client
        self.events: list[TopicAppeared | TopicGone] = []
        client.event_listeners.append(self._on_event)
        call = client.call(f"subscription to {self.topic}", self._answered)
        self._subscription = client.core.subscribe_to(
            client.now_us, call, topics, start, None, CREDIT_BYTES, below_start
        )
        client.delivered[self._subscription.number] = self._delivered
        client.finished[self._subscription.number] = self._finished
        client.run_effects()

    def _answered(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self.ended = result
        else:
            self.established = True

    def _on_event(self, event: ClientEvent) -> None:
        if isinstance(event, TopicAppeared | TopicGone):
            self.events.append(event)

    def _finished(self, error: RostraError) -> None:
        self.ended = error

    def _delivered(self, effect: Deliver) -> None:
        for batch in effect.batches:
            places = zip(batch.offsets(), batch.values(), strict=True)
            self.records += [ReceivedRecord(batch.partition, offset, value, batch.topic) for offset, value in places]
            self._client.later(self._take, batch.partition, batch.bytes, batch.topic_id)

    def _take(self, partition: int, size: int, topic: int) -> None:
        self._client.core.consumed(self._subscription, partition, size, topic)
        self._client.run_effects()

    def leave(self) -> None:
        client = self._client
        call = client.call(f"unsubscribe from {self.topic}", self._gone)
        client.core.unsubscribe(client.now_us, call, self._subscription)
        client.run_effects()

    def _gone(self, result: Result | RostraError) -> None:
        self.left = True

    @property
    def values(self) -> list[bytes | None]:
        """Received values, in order."""
        return [record.value for record in self.records]

    def has_reached(self, ends: dict[int, int]) -> bool:
        """Whether it has received all records of its only topic below these offsets."""
        assert isinstance(self._subscription, TopicSubscription)
        feeds = self._subscription.feeds
        return all(partition in feeds and (feeds[partition].next or 0) >= end for partition, end in ends.items())
