"""What the clients' applications do: produce in bursts, subscribe at different paces, make and delete topics.

An application reacts to an answer by a later event, never inside it, as a program behind a queue would.
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
    place_of,
)
from rostra.wire.messages import Acks, Subscribed, Topic, TopicSettings

REOPEN_US = 700 * MS_US
STRENGTH_CHANGES = 0.15
"""In so many bursts of a publisher that has one."""
LAST_LOOKS_US = 4 * SECOND_US


class Application(ABC):
    """One client and a life of its own until `ends_us`."""

    def __init__(self, client: SimulatedClient, random: Random, topics: list[str], ends_us: int) -> None:
        self.client = client
        self.random = random
        self.topics = topics
        self.ends_us = ends_us
        self.clock = client.clock
        self.history: History = client.history

    @abstractmethod
    def begin(self) -> None:
        """Its first act; whatever follows it sets off itself."""

    @property
    def over(self) -> bool:
        return self.clock.now_us >= self.ends_us

    def later(self, low_us: int, high_us: int, act: Callable[..., None], *about: object) -> None:
        self.clock.after(self.random.randint(low_us, high_us), act, *about)


class PublisherApplication(Application):
    """Bursts of records to one topic, so that several batches are under way at once."""

    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        topics: list[str],
        ends_us: int,
        acks: Acks,
        records: int,
        rivalry: Random,
    ) -> None:
        super().__init__(client, random, topics, ends_us)
        self.acks = acks
        self._rivalry = rivalry
        self._left = records
        self._order = 0
        self._pace_us = int(ends_us * 14 / records)
        self._settings = ProducerSettings(
            acks=acks,
            batch_bytes=random.choice((200, 800, 3_000)),
            linger_ms=random.choice((0, 0, 5)),
            window_bytes=random.choice((3_000, 20_000)),
            partition=random.choice((None, None, 0)),
            strength=rivalry.choice((None, None, 1, 2, 3)),
            lease_ms=rivalry.choice((4_000, 8_000)),
        )
        self._keyed = random.random() < 0.3
        self._stays_bursts = random.choice((5, 1_000))
        self._bursts = 0
        self._producing: ProducerState | None = None
        self._unsettled: dict[bytes, str] = {}
        client.told.append(self._told)

    def begin(self) -> None:
        topic = self.random.choice(self.topics)
        self._bursts = 0
        self.history.operations += 1
        call = self.client.call(f"producer on {topic}", self._opened)
        self._producing = self.client.core.open_producer(self.clock.now_us, call, topic, self._settings)
        self.history.wanted(self._producing.producer_id, self._settings.strength or 0, self.clock.now_us)
        self.client.act()

    def _opened(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._again()
        else:
            self.later(0, self._pace_us, self._burst)

    def _again(self) -> None:
        self._producing = None
        self.later(REOPEN_US, 2 * REOPEN_US, self._reopen)

    def _reopen(self) -> None:
        if not self.over:
            self.begin()

    def _burst(self) -> None:
        producing = self._producing
        if producing is None or self.over:
            return
        if producing.ended is not None:
            self._again()
            return
        if producing.registration is not None and self._rivalry.random() < STRENGTH_CHANGES:
            self._change_strength(producing)
        for _ in range(min(self.random.choice((1, 3, 12, 30)), self._left)):
            if producing.full:
                break
            self._send(producing)
        producing.end_turn(self.clock.now_us)
        self._bursts += 1
        if self._bursts >= self._stays_bursts:
            self._flush(producing)
        elif self._left > 0:
            self.later(self._pace_us // 3, self._pace_us, self._burst)
        self.client.act()

    def _change_strength(self, producing: ProducerState) -> None:
        strength = self._rivalry.randrange(5)
        self.history.operations += 1
        self.history.wanted(producing.producer_id, strength, self.clock.now_us)
        producing.set_strength(self.clock.now_us, self.client.call(f"strength {strength}", lambda _: None), strength)

    def _flush(self, producing: ProducerState) -> None:
        """Wait for everything, then go on with a new producer."""
        self.history.operations += 1
        producing.flush(self.clock.now_us, self.client.call("flush", partial(self._flushed, producing)))

    def _flushed(self, producing: ProducerState, result: Result | RostraError) -> None:
        self.clock.after(0, self._leave if self._rivalry.random() < 0.5 else self._close, producing)

    def _leave(self, producing: ProducerState) -> None:
        """Wait until the nodes know that it publishes no more; `_close` alone tells them without waiting."""
        producing.resign(self.clock.now_us, self.client.call("leave", partial(self._left_topic, producing)))
        self.client.act()

    def _left_topic(self, producing: ProducerState, result: Result | RostraError) -> None:
        self.clock.after(0, self._close, producing)

    def _close(self, producing: ProducerState) -> None:
        self.client.core.close_producer(producing)
        self.client.act()
        self._again()

    def _send(self, producing: ProducerState) -> None:
        value = self._next_value(producing)
        key = b"k%d" % self.random.randrange(5) if self._keyed else None
        self.history.sent[value] = self.history.sent[value]._replace(key=key)
        call = self.client.call(f"publish of {value[:20]!r}", partial(self._settled, value, producing))
        producing.add(self.clock.now_us, value, key=key, call=call)

    def _next_value(self, producing: ProducerState) -> bytes:
        self._left -= 1
        self._order += 1
        value = b"%b.%d " % (self.client.name.encode(), self._order)
        value += b"x" * self.random.choice((0, 20, 60, 300))
        producer = f"{self.client.name}/{producing.producer_id:x}"
        self.history.sent[value] = RecordSent(
            value, producer, self._order, producing.name, self.acks, self.clock.now_us
        )
        self._unsettled[value] = producing.name
        self.history.operations += 1
        return value

    def _settled(self, value: bytes, producing: ProducerState, result: Result | RostraError) -> None:
        del self._unsettled[value]
        if isinstance(result, Ack):
            place = place_of(producing.topic, result.partition)
            self.history.acked[value] = RecordAcked(value, *place, result.offset, self.clock.now_us)
        else:
            assert isinstance(result, RostraError)
            self.history.failed[value] = RecordFailed(value, result)

    def _told(self, event: ClientEvent) -> None:
        if isinstance(event, MayDuplicate):
            self.history.maybe_twice.update(value for value, topic in self._unsettled.items() if topic == event.topic)


class ShortLivedPublisher(Application):
    """Comes with a new client each time, publishes one by one to whatever topic, and leaves or dies in the middle."""

    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        topics: list[str],
        ends_us: int,
        newcomer: Callable[[str], SimulatedClient],
        death: Random,
    ) -> None:
        super().__init__(client, random, topics, ends_us)
        self._newcomer = newcomer
        self._death = death
        self._visits = 0
        self._order = 0
        self._unsettled: dict[bytes, str] = {}

    def begin(self) -> None:
        self._watch(self.client)
        self._publish()

    def _watch(self, client: SimulatedClient) -> None:
        client.told.append(self._told)
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
            # The name of its producer is known only when it was given away; until then no order can be checked.
            call = client.call(f"publish of {value!r}", lambda result: self._settled(value, holder[0], result))
            holder = [core.publish(self.clock.now_us, call, topic, value, acks=acks)]
            producer = f"{client.name}/{holder[0].producer_id:x}"
            self.history.sent[value] = RecordSent(value, producer, self._order, topic, acks, self.clock.now_us)
            core.end_turn(self.clock.now_us)
            client.act()
        self.later(1, SECOND_US // 2, self._publish)

    def _settled(self, value: bytes, producing: ProducerState, result: Result | RostraError) -> None:
        del self._unsettled[value]
        if isinstance(result, Ack):
            place = place_of(producing.topic, result.partition)
            self.history.acked[value] = RecordAcked(value, *place, result.offset, self.clock.now_us)
        else:
            assert isinstance(result, RostraError)
            self.history.failed[value] = RecordFailed(value, result)

    def _told(self, event: ClientEvent) -> None:
        if isinstance(event, MayDuplicate):
            self.history.maybe_twice.update(value for value, topic in self._unsettled.items() if topic == event.topic)

    def _leave(self) -> None:
        if self.over:
            return
        if self._death.random() < 0.5:
            self.client.close()
        else:
            # Killed: whatever topics it was the strongest publisher of must wait for its lease.
            self.client.vanish()
        self._visits += 1
        self.client = self._newcomer(f"{self.client.name.split('-')[0]}-{self._visits}")
        self.client.start()
        self._watch(self.client)


class SubscriberApplication(Application):
    """Subscribes, takes what comes at its own pace, leaves and comes again."""

    starts: tuple[str, ...] = ("earliest", "latest", "offset", "last")
    partitions: tuple[int | None, ...] = (None, None, None, 0)

    def __init__(self, client: SimulatedClient, random: Random, topics: list[str], ends_us: int) -> None:
        super().__init__(client, random, topics, ends_us)
        self._pace_us = random.choice((0, 200, 20 * MS_US, 900 * MS_US))
        self._credit_bytes = random.choice((600, 4_000, 100_000))
        self._stays_us = random.choice((2, 9, 60)) * SECOND_US
        self._count = 0
        self._untaken: deque[tuple[TopicSubscription, int, int]] = deque()
        self._taking = False
        self._retired = False
        self._subscribing: TopicSubscription | None = None
        self._seen: SubscriptionHistory | None = None
        client.credit_bytes += self._credit_bytes
        client.subscribed.append(self._began)

    def begin(self) -> None:
        self._subscribe("earliest", 0)

    def _again(self) -> None:
        if self._retired:
            return
        if self.over:
            # The last one stays to the end, so that convergence has somebody to show it.
            self._subscribe("earliest", 0)
            return
        start = self.random.choice(self.starts)
        self._subscribe(start, self.random.randrange(12))

    def _subscribe(self, start: str, value: int) -> None:
        topic = self.random.choice(self.topics)
        self._count += 1
        seen = self._seen = SubscriptionHistory(f"{self.client.name}.{self._count}", topic, start, value)
        self.history.subscriptions.append(seen)
        self.history.operations += 1
        asked: Start = Offset(value) if start == "offset" else Last(value) if start == "last" else start
        subscribing = self._subscribing = self.client.core.subscribe(
            self.clock.now_us,
            self.client.call(f"subscription {seen.name} to {topic}", partial(self._stands, seen)),
            topic,
            asked,
            self.random.choice(self.partitions),
            self._credit_bytes,
        )
        self.client.delivered[subscribing.number] = partial(self._delivered, seen, subscribing)
        self.client.finished[subscribing.number] = partial(self._finished, seen)
        self.client.act()

    def _stands(self, seen: SubscriptionHistory, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._finished(seen, result)
            return
        seen.stands = True
        self.later(self._stays_us // 2, self._stays_us, self._leave, seen)

    def _began(self, message: Subscribed) -> None:
        if self._subscribing is None or self._seen is None:
            return
        for partition, feed in self._subscribing.feeds.items():
            seen = self._seen.feed(self._subscribing.topic, partition)
            if feed.number == message.subscription and seen.began is None:
                seen.began = (message.next, message.commit)

    def _delivered(self, seen: SubscriptionHistory, subscribing: TopicSubscription, effect: Deliver) -> None:
        now_us = self.clock.now_us
        for batch in effect.batches:
            feed = seen.feed(subscribing.topic, batch.partition)
            feed.got += [
                RecordDelivered(now_us, offset, value)
                for offset, value in zip(batch.offsets(), batch.values(), strict=True)
            ]
            feed.reached = batch.next_offset
            self._untaken.append((subscribing, batch.partition, batch.bytes))
        if not self._taking:
            self._taking = True
            self.clock.after(0 if self.over else self._pace_us, self._take)

    def _take(self) -> None:
        """One batch at a time, as slowly as this subscriber is; all at once when the world has healed."""
        for _ in range(len(self._untaken) if self.over else 1):
            self.client.core.consumed(*self._untaken.popleft())
        self.client.act()
        self._taking = bool(self._untaken)
        if self._taking:
            self.clock.after(0 if self.over else self._pace_us, self._take)

    def _leave(self, seen: SubscriptionHistory) -> None:
        if seen is not self._seen or seen.ended is not None or self.over or self._subscribing is None:
            return
        seen.leaving = True
        self.history.operations += 1
        call = self.client.call(f"unsubscribe of {seen.name}", partial(self._left, seen))
        self.client.core.unsubscribe(self.clock.now_us, call, self._subscribing)
        self.client.act()

    def _left(self, seen: SubscriptionHistory, result: Result | RostraError) -> None:
        seen.left_us = self.clock.now_us
        self.later(REOPEN_US, 3 * REOPEN_US, self._again)

    def _finished(self, seen: SubscriptionHistory, error: RostraError) -> None:
        seen.ended, seen.ended_us = error, self.clock.now_us
        if seen is self._seen and not seen.leaving:
            self.later(REOPEN_US, 3 * REOPEN_US, self._again)

    def at_end(self) -> bool:
        """Whether the last subscription stands and has been shown all it knows of."""
        if self._seen is None or self._subscribing is None or not self._seen.stands:
            return False
        return self._seen.ended is None and all(
            feed.state is FeedState.LIVE and (feed.next or 0) >= feed.commit
            for feed in self._subscribing.feeds.values()
        )

    def positions(self) -> None:
        """Where the last subscription has come to, records it passed over included; there will be no other."""
        self._retired = True
        if self._seen is not None and self._subscribing is not None:
            for partition, feed in self._subscribing.feeds.items():
                self._seen.feed(self._subscribing.topic, partition).reached = feed.next or 0


class TopicAdminApplication(Application):
    """Makes the topics, looks at them, deletes one now and then and makes it again."""

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
        self.later(SECOND_US, 3 * SECOND_US, self._look)
        if self._volatile:
            self.later(4 * SECOND_US, 9 * SECOND_US, self._delete, self.topics[-1])

    def _create(self, topic: str) -> None:
        self.history.operations += 1
        call = self.client.call(f"create {topic}", partial(self._created, topic))
        self.client.core.create_topic(self.clock.now_us, call, topic, self._settings[topic])
        self.client.act()

    def _created(self, topic: str, result: Result | RostraError) -> None:
        if isinstance(result, Topic):
            self._ids[topic] = result.topic
            self.history.made.append(CreatedTopic(result.topic, topic))
        elif not isinstance(result, TopicExists):
            self.later(100 * MS_US, SECOND_US, self._create, topic)

    def _delete(self, topic: str) -> None:
        if self.over:
            return
        self.history.operations += 1
        self.history.delete_asked.add(topic)
        call = self.client.call(f"delete {topic}", partial(self._deleted, topic, self._ids.get(topic)))
        self.client.core.delete_topic(self.clock.now_us, call, topic)
        self.client.act()

    def _deleted(self, topic: str, identity: int | None, result: Result | RostraError) -> None:
        if result is None and identity is not None:
            self.history.deleted[identity] = self.clock.now_us
        self._ids.pop(topic, None)
        self.later(100 * MS_US, SECOND_US, self._create, topic)
        self.later(5 * SECOND_US, 9 * SECOND_US, self._delete, topic)

    def _look(self) -> None:
        """Now and then; where the weather kept others from much, often as soon as it is over."""
        enough = self.history.operations >= OPERATIONS_MIN
        if self.over and (enough or self.clock.now_us >= self.ends_us + LAST_LOOKS_US):
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
        self.client.act()
        pace_us = SECOND_US // 20 if self.over else SECOND_US
        self.later(pace_us, 3 * pace_us, self._look)
