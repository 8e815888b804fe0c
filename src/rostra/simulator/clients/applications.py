"""The client applications of a seed: publishers, subscribers and the creator of topics.

An application reacts to a reply in a later event, not inside the callback, as a program behind a queue would.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random

from rostra.client.core.effects import Ack, Deliver, Result
from rostra.client.core.events import ClientEvent, MayDuplicate
from rostra.client.core.options import Last, Offset, ProducerSettings, Start
from rostra.client.core.producer.producer_state import ProducerState
from rostra.client.core.subscription.topic_subscription import FeedState, TopicSubscription
from rostra.errors import RostraError, TopicExists
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import MS_US, SECOND_US
from rostra.simulator.history import (
    OPERATIONS_MIN,
    CreatedTopic,
    History,
    RecordAcked,
    RecordDelivered,
    RecordFailed,
    RecordSent,
    SubscriptionHistory,
    partition_key,
)
from rostra.wire.messages import Acks, Subscribed, Topic, TopicSettings

REOPEN_US = 700 * MS_US
STRENGTH_CHANGES = 0.15
"""Share of bursts before which a publisher with a strength changes it."""
FINAL_REQUESTS_US = 4 * SECOND_US


class Application(ABC):
    """A client program that runs until `ends_us`."""

    def __init__(self, client: SimulatedClient, random: Random, topics: list[str], ends_us: int) -> None:
        self.client = client
        self.random = random
        self.topics = topics
        self.ends_us = ends_us
        self.clock = client.clock
        self.history: History = client.history

    @abstractmethod
    def begin(self) -> None:
        """Starts it; it schedules all that follows."""

    @property
    def over(self) -> bool:
        return self.clock.now_us >= self.ends_us

    def later(self, low_us: int, high_us: int, callback: Callable[..., None], *args: object) -> None:
        self.clock.after(self.random.randint(low_us, high_us), callback, *args)


class PublisherApplication(Application):
    """Publishes bursts of records to one topic, so that several batches are in flight at once."""

    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        topics: list[str],
        ends_us: int,
        acks: Acks,
        records: int,
        strength_random: Random,
    ) -> None:
        super().__init__(client, random, topics, ends_us)
        self.acks = acks
        self._strength_random = strength_random
        self._left = records
        self._order = 0
        self._pace_us = int(ends_us * 14 / records)
        self._settings = ProducerSettings(
            acks=acks,
            batch_bytes=random.choice((200, 800, 3_000)),
            linger_ms=random.choice((0, 0, 5)),
            window_bytes=random.choice((3_000, 20_000)),
            partition=random.choice((None, None, 0)),
            strength=strength_random.choice((None, None, 1, 2, 3)),
            lease_ms=strength_random.choice((4_000, 8_000)),
        )
        self._keyed = random.random() < 0.3
        self._bursts_per_producer = random.choice((5, 1_000))
        self._bursts = 0
        self._state: ProducerState | None = None
        self._unsettled: dict[bytes, str] = {}
        client.event_listeners.append(self._on_event)

    def begin(self) -> None:
        topic = self.random.choice(self.topics)
        self._bursts = 0
        self.history.operations += 1
        call = self.client.call(f"producer on {topic}", self._opened)
        self._state = self.client.core.open_producer(self.clock.now_us, call, topic, self._settings)
        self.history.record_strength(self._state.producer_id, self._settings.strength or 0, self.clock.now_us)
        self.client.run_effects()

    def _opened(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._reopen_later()
        else:
            self.later(0, self._pace_us, self._burst)

    def _reopen_later(self) -> None:
        self._state = None
        self.later(REOPEN_US, 2 * REOPEN_US, self._reopen)

    def _reopen(self) -> None:
        if not self.over:
            self.begin()

    def _burst(self) -> None:
        state = self._state
        if state is None or self.over:
            return
        if state.ended is not None:
            self._reopen_later()
            return
        if state.registration is not None and self._strength_random.random() < STRENGTH_CHANGES:
            self._change_strength(state)
        for _ in range(min(self.random.choice((1, 3, 12, 30)), self._left)):
            if state.full:
                break
            self._send(state)
        state.end_turn(self.clock.now_us)
        self._bursts += 1
        if self._bursts >= self._bursts_per_producer:
            self._flush(state)
        elif self._left > 0:
            self.later(self._pace_us // 3, self._pace_us, self._burst)
        self.client.run_effects()

    def _change_strength(self, state: ProducerState) -> None:
        strength = self._strength_random.randrange(5)
        self.history.operations += 1
        self.history.record_strength(state.producer_id, strength, self.clock.now_us)
        state.set_strength(self.clock.now_us, self.client.call(f"strength {strength}", lambda _: None), strength)

    def _flush(self, state: ProducerState) -> None:
        """Waits for all records, then continues with a new producer."""
        self.history.operations += 1
        state.flush(self.clock.now_us, self.client.call("flush", partial(self._flushed, state)))

    def _flushed(self, state: ProducerState, result: Result | RostraError) -> None:
        self.clock.after(0, self._leave if self._strength_random.random() < 0.5 else self._close, state)

    def _leave(self, state: ProducerState) -> None:
        """Leaves the topic and waits for the reply, which `_close` alone does not."""
        state.resign(self.clock.now_us, self.client.call("leave", partial(self._left_topic, state)))
        self.client.run_effects()

    def _left_topic(self, state: ProducerState, result: Result | RostraError) -> None:
        self.clock.after(0, self._close, state)

    def _close(self, state: ProducerState) -> None:
        self.client.core.close_producer(state)
        self.client.run_effects()
        self._reopen_later()

    def _send(self, state: ProducerState) -> None:
        value = self._next_value(state)
        key = b"k%d" % self.random.randrange(5) if self._keyed else None
        self.history.sent[value] = self.history.sent[value]._replace(key=key)
        call = self.client.call(f"publish of {value[:20]!r}", partial(self._settled, value, state))
        state.add(self.clock.now_us, value, key=key, call=call)

    def _next_value(self, state: ProducerState) -> bytes:
        self._left -= 1
        self._order += 1
        value = b"%b.%d " % (self.client.name.encode(), self._order)
        value += b"x" * self.random.choice((0, 20, 60, 300))
        producer = f"{self.client.name}/{state.producer_id:x}"
        self.history.sent[value] = RecordSent(value, producer, self._order, state.name, self.acks, self.clock.now_us)
        self._unsettled[value] = state.name
        self.history.operations += 1
        return value

    def _settled(self, value: bytes, state: ProducerState, result: Result | RostraError) -> None:
        del self._unsettled[value]
        if isinstance(result, Ack):
            key = partition_key(state.topic, result.partition)
            self.history.acked[value] = RecordAcked(value, *key, result.offset, self.clock.now_us)
        else:
            assert isinstance(result, RostraError)
            self.history.failed[value] = RecordFailed(value, result)

    def _on_event(self, event: ClientEvent) -> None:
        if isinstance(event, MayDuplicate):
            self.history.maybe_duplicated.update(
                value for value, topic in self._unsettled.items() if topic == event.topic
            )


class ShortLivedPublisher(Application):
    """Publishes single records to any topic, and every few seconds closes or kills its client and starts a new one."""

    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        topics: list[str],
        ends_us: int,
        new_client: Callable[[str], SimulatedClient],
        death: Random,
    ) -> None:
        super().__init__(client, random, topics, ends_us)
        self._new_client = new_client
        self._death = death
        self._clients_so_far = 0
        self._order = 0
        self._unsettled: dict[bytes, str] = {}

    def begin(self) -> None:
        self._watch(self.client)
        self._publish()

    def _watch(self, client: SimulatedClient) -> None:
        client.event_listeners.append(self._on_event)
        self.later(2 * SECOND_US, 9 * SECOND_US, self._leave)

    def _publish(self) -> None:
        if self.over:
            return
        client, core = self.client, self.client.core
        if not core.closed:
            topic = self.random.choice(self.topics)
            acks: Acks = self.random.choice(("all", "owner", "none"))
            self._order += 1
            value = b"%b.%d visit" % (client.name.encode(), self._order)
            self.history.operations += 1
            self._unsettled[value] = topic
            # `publish` chooses the producer, so its id is known only afterwards.
            call = client.call(f"publish of {value!r}", lambda result: self._settled(value, holder[0], result))
            holder = [core.publish(self.clock.now_us, call, topic, value, acks=acks)]
            producer = f"{client.name}/{holder[0].producer_id:x}"
            self.history.sent[value] = RecordSent(value, producer, self._order, topic, acks, self.clock.now_us)
            core.end_turn(self.clock.now_us)
            client.run_effects()
        self.later(1, SECOND_US // 2, self._publish)

    def _settled(self, value: bytes, state: ProducerState, result: Result | RostraError) -> None:
        del self._unsettled[value]
        if isinstance(result, Ack):
            key = partition_key(state.topic, result.partition)
            self.history.acked[value] = RecordAcked(value, *key, result.offset, self.clock.now_us)
        else:
            assert isinstance(result, RostraError)
            self.history.failed[value] = RecordFailed(value, result)

    def _on_event(self, event: ClientEvent) -> None:
        if isinstance(event, MayDuplicate):
            self.history.maybe_duplicated.update(
                value for value, topic in self._unsettled.items() if topic == event.topic
            )

    def _leave(self) -> None:
        if self.over:
            return
        if self._death.random() < 0.5:
            self.client.close()
        else:
            # Killed: topics where it is the strongest publisher must wait for its lease to expire.
            self.client.kill()
        self._clients_so_far += 1
        self.client = self._new_client(f"{self.client.name.split('-')[0]}-{self._clients_so_far}")
        self.client.start()
        self._watch(self.client)


class SubscriberApplication(Application):
    """Subscribes, reads at its own pace, unsubscribes and subscribes again."""

    starts: tuple[str, ...] = ("earliest", "latest", "offset", "last")
    partitions: tuple[int | None, ...] = (None, None, None, 0)

    def __init__(self, client: SimulatedClient, random: Random, topics: list[str], ends_us: int) -> None:
        super().__init__(client, random, topics, ends_us)
        self._pace_us = random.choice((0, 200, 20 * MS_US, 900 * MS_US))
        self._credit_bytes = random.choice((600, 4_000, 100_000))
        self._lifetime_us = random.choice((2, 9, 60)) * SECOND_US
        self._count = 0
        self._unread: deque[tuple[TopicSubscription, int, int]] = deque()
        self._reading = False
        self._closed = False
        self._subscription: TopicSubscription | None = None
        self._observed: SubscriptionHistory | None = None
        client.credit_bytes += self._credit_bytes
        client.on_subscribed.append(self._record_start)

    def begin(self) -> None:
        self._subscribe("earliest", 0)

    def _reopen_later(self) -> None:
        if self._closed:
            return
        if self.over:
            # The last subscription stays until the end, for the convergence check.
            self._subscribe("earliest", 0)
            return
        start = self.random.choice(self.starts)
        self._subscribe(start, self.random.randrange(12))

    def _subscribe(self, start: str, value: int) -> None:
        topic = self.random.choice(self.topics)
        self._count += 1
        observed = self._observed = SubscriptionHistory(f"{self.client.name}.{self._count}", topic, start, value)
        self.history.subscriptions.append(observed)
        self.history.operations += 1
        start_position: Start = Offset(value) if start == "offset" else Last(value) if start == "last" else start
        subscription = self._subscription = self.client.core.subscribe(
            self.clock.now_us,
            self.client.call(f"subscription {observed.name} to {topic}", partial(self._subscribed, observed)),
            topic,
            start_position,
            self.random.choice(self.partitions),
            self._credit_bytes,
        )
        self.client.delivered[subscription.number] = partial(self._delivered, observed, subscription)
        self.client.finished[subscription.number] = partial(self._finished, observed)
        self.client.run_effects()

    def _subscribed(self, observed: SubscriptionHistory, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._finished(observed, result)
            return
        observed.established = True
        self.later(self._lifetime_us // 2, self._lifetime_us, self._leave, observed)

    def _record_start(self, message: Subscribed) -> None:
        if self._subscription is None or self._observed is None:
            return
        for partition, feed in self._subscription.feeds.items():
            observed = self._observed.feed(self._subscription.topic, partition)
            if feed.number == message.subscription and observed.start is None:
                observed.start = (message.next, message.commit)

    def _delivered(self, observed: SubscriptionHistory, subscription: TopicSubscription, effect: Deliver) -> None:
        now_us = self.clock.now_us
        for batch in effect.batches:
            feed = observed.feed(subscription.topic, batch.partition)
            feed.records += [
                RecordDelivered(now_us, offset, value)
                for offset, value in zip(batch.offsets(), batch.values(), strict=True)
            ]
            feed.position = batch.next_offset
            self._unread.append((subscription, batch.partition, batch.bytes))
        if not self._reading:
            self._reading = True
            self.clock.after(0 if self.over else self._pace_us, self._read_next)

    def _read_next(self) -> None:
        """Consumes one batch per pace; all of them once faults have ended."""
        for _ in range(len(self._unread) if self.over else 1):
            self.client.core.consumed(*self._unread.popleft())
        self.client.run_effects()
        self._reading = bool(self._unread)
        if self._reading:
            self.clock.after(0 if self.over else self._pace_us, self._read_next)

    def _leave(self, observed: SubscriptionHistory) -> None:
        if observed is not self._observed or observed.ended is not None or self.over or self._subscription is None:
            return
        observed.unsubscribing = True
        self.history.operations += 1
        call = self.client.call(f"unsubscribe of {observed.name}", partial(self._left, observed))
        self.client.core.unsubscribe(self.clock.now_us, call, self._subscription)
        self.client.run_effects()

    def _left(self, observed: SubscriptionHistory, result: Result | RostraError) -> None:
        observed.unsubscribed_us = self.clock.now_us
        self.later(REOPEN_US, 3 * REOPEN_US, self._reopen_later)

    def _finished(self, observed: SubscriptionHistory, error: RostraError) -> None:
        observed.ended, observed.ended_us = error, self.clock.now_us
        if observed is self._observed and not observed.unsubscribing:
            self.later(REOPEN_US, 3 * REOPEN_US, self._reopen_later)

    def is_at_end(self) -> bool:
        """Whether the last subscription is established and has reached the commit offsets it knows."""
        if self._observed is None or self._subscription is None or not self._observed.established:
            return False
        return self._observed.ended is None and all(
            feed.state is FeedState.LIVE and (feed.next or 0) >= feed.commit
            for feed in self._subscription.feeds.values()
        )

    def record_positions(self) -> None:
        """Records the final positions of the last subscription; no other one follows."""
        self._closed = True
        if self._observed is not None and self._subscription is not None:
            for partition, feed in self._subscription.feeds.items():
                self._observed.feed(self._subscription.topic, partition).position = feed.next or 0


class TopicAdminApplication(Application):
    """Creates the topics, describes, lists and alters them, and in some seeds deletes and recreates one."""

    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        topics: list[str],
        ends_us: int,
        settings: dict[str, TopicSettings],
    ) -> None:
        super().__init__(client, random, topics, ends_us)
        self._settings = settings
        self._volatile = random.random() < 0.5
        self._ids: dict[str, int] = {}

    def begin(self) -> None:
        for topic in self.topics:
            self._create(topic)
        self.later(SECOND_US, 3 * SECOND_US, self._send_request)
        if self._volatile:
            self.later(4 * SECOND_US, 9 * SECOND_US, self._delete, self.topics[-1])

    def _create(self, topic: str) -> None:
        self.history.operations += 1
        call = self.client.call(f"create {topic}", partial(self._created, topic))
        self.client.core.create_topic(self.clock.now_us, call, topic, self._settings[topic])
        self.client.run_effects()

    def _created(self, topic: str, result: Result | RostraError) -> None:
        if isinstance(result, Topic):
            self._ids[topic] = result.topic
            self.history.created.append(CreatedTopic(result.topic, topic))
        elif not isinstance(result, TopicExists):
            self.later(100 * MS_US, SECOND_US, self._create, topic)

    def _delete(self, topic: str) -> None:
        if self.over:
            return
        self.history.operations += 1
        self.history.delete_asked.add(topic)
        call = self.client.call(f"delete {topic}", partial(self._deleted, topic, self._ids.get(topic)))
        self.client.core.delete_topic(self.clock.now_us, call, topic)
        self.client.run_effects()

    def _deleted(self, topic: str, identity: int | None, result: Result | RostraError) -> None:
        if result is None and identity is not None:
            self.history.deleted[identity] = self.clock.now_us
        self._ids.pop(topic, None)
        self.later(100 * MS_US, SECOND_US, self._create, topic)
        self.later(5 * SECOND_US, 9 * SECOND_US, self._delete, topic)

    def _send_request(self) -> None:
        """Sends a request every few seconds; more often after healing, if the seed still needs operations."""
        enough = self.history.operations >= OPERATIONS_MIN
        if self.over and (enough or self.clock.now_us >= self.ends_us + FINAL_REQUESTS_US):
            return
        self.history.operations += 1
        core, now_us = self.client.core, self.clock.now_us
        topic = self.random.choice(self.topics)
        match self.random.choice(("describe", "describe", "list", "list", "alter")):
            case "describe":
                core.describe_topic(now_us, self.client.call(f"describe {topic}", lambda _: None), topic)
            case "list":
                core.list_topics(now_us, self.client.call("list", lambda _: None))
            case _:
                changes: dict[str, int | str] = {"segment_bytes": self.random.choice((4096, 6000))}
                core.alter_topic(now_us, self.client.call(f"alter {topic}", lambda _: None), topic, changes)
        self.client.run_effects()
        pace_us = SECOND_US // 20 if self.over else SECOND_US
        self.later(pace_us, 3 * pace_us, self._send_request)
