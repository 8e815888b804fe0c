"""A subscription to several topics, by names and patterns; each topic is delivered once, whatever matches it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, Finish, Notify, SubscriptionNumber
from rostra.client.core.events import TopicAppeared, TopicGone
from rostra.client.core.options import BelowStart
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.client.core.subscription.topic_subscription import PendingUnsubscribe, TopicSubscription
from rostra.client.core.subscription.topic_watches import TopicWatch
from rostra.errors import RostraError, TimedOut, TopicError
from rostra.wire.messages import StartAt, Topic

SHARES = 16
"""The fraction of the subscription's credit that each partition gets is one in so many."""
SHARE_BYTES_MIN = 64 << 10
SUSPECT_US = 500_000
"""After this time, a topic that was reported as deleted while the watch still shows it is tried again."""


class SubscriptionOpener(Protocol):
    """Opens subscriptions to single topics, and ends the watch."""

    def open_topic(
        self,
        now_us: int,
        part: TopicSubscription,
        topic: Topic,
        routes: list[PartitionRoute] | None,
        resume_at: dict[int, int],
    ) -> None: ...
    def locate_topics(self, now_us: int) -> None:
        """Look up the topics that were opened without routes."""

    def forget_topic(self, part: TopicSubscription) -> None: ...
    def unwatch(self, watch: TopicWatch, leaving: PendingUnsubscribe) -> bool: ...


class SuspectTopic(NamedTuple):
    """A topic that a node reported as deleted."""

    topic: Topic
    start: tuple[StartAt, int]
    resume_at: dict[int, int]
    again_us: int = 0
    """When to try it again; set by the first tick."""


class PatternSubscription:
    """One `TopicSubscription` per topic. Existing topics start as requested, later ones with their first record.

    A deleted topic is dropped with an event. Only the watch decides that a topic was deleted: the node that was asked
    for its partitions may lag behind the node that serves the watch.
    """

    def __init__(
        self,
        number: SubscriptionNumber,
        names: tuple[str, ...],
        start: tuple[StartAt, int],
        credit_bytes: int,
        call: CallNumber,
        out: list[ClientEffect],
        opener: SubscriptionOpener,
    ) -> None:
        self.number = number
        self.names = names
        self.start = start
        self.credit_bytes = max(credit_bytes // SHARES, min(credit_bytes, SHARE_BYTES_MIN))
        self.below_start: BelowStart = "raise"
        self.out = out
        self.call = call
        """The call that waits for the subscription to be live; 0 afterwards."""
        self.ended = False
        self.parts: dict[int, TopicSubscription] = {}
        """By topic id."""
        self.watch: TopicWatch | None = None
        """None until the named topics are found."""
        self._reported = False
        self._opener = opener
        self._known: dict[int, Topic] = {}
        self._awaited: list[TopicSubscription] = []
        """Those not live yet, while a call waits for that."""
        self._suspects: dict[int, SuspectTopic] = {}
        self._inbox: deque[DeliveredBatch] | None = None

    @property
    def name(self) -> str:
        return ", ".join(self.names)

    @property
    def inbox(self) -> deque[DeliveredBatch] | None:
        """Where a driver that waits for this subscription alone wants its batches."""
        return self._inbox

    @inbox.setter
    def inbox(self, inbox: deque[DeliveredBatch] | None) -> None:
        self._inbox = inbox
        for part in self.parts.values():
            part.inbox = inbox

    # --- topics --------------------------------------------------------------------------------------

    def found(self, now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
        """A topic that was subscribed to by name was located."""
        if not self.ended and topic.topic not in self._known:
            self._join(now_us, topic, self.start, {}, routes)

    def appeared(self, now_us: int, topics: tuple[Topic, ...]) -> None:
        for topic in topics:
            if self.ended:
                return
            if topic.topic not in self._known:
                if self._reported:
                    self.out.append(Notify(TopicAppeared(topic.name, topic.topic)))
                self._join(now_us, topic, ("earliest", 0) if self._reported else self.start, {})
        self._opener.locate_topics(now_us)

    def _join(
        self,
        now_us: int,
        topic: Topic,
        start: tuple[StartAt, int],
        resume_at: dict[int, int],
        routes: list[PartitionRoute] | None = None,
    ) -> None:
        part = TopicSubscription(self.number, topic.name, start, None, self.credit_bytes, 0, self.out, self)
        part.inbox = self._inbox
        part.below_start = self.below_start
        self._known[topic.topic] = topic
        self.parts[topic.topic] = part
        if self.call:
            self._awaited.append(part)
        self._opener.open_topic(now_us, part, topic, routes, resume_at)

    def gone(self, now_us: int, topics: Iterable[int]) -> None:
        for number in topics:
            topic = self._known.pop(number, None)
            if topic is None or self.ended:
                continue
            self._suspects.pop(number, None)
            part = self.parts.pop(number, None)
            if part is not None:
                part.withdraw()
                self._opener.forget_topic(part)
            self.out.append(Notify(TopicGone(topic.name, topic.topic)))
        self.check_live()

    def reported(self, now_us: int, topics: Collection[int]) -> None:
        self._reported = True
        self.gone(now_us, [topic for topic in self._known if topic not in topics])

    def topic_ended(self, subscription: TopicSubscription, error: RostraError) -> None:
        """The subscription to one of the topics ended with an error."""
        number = subscription.topic
        if self.ended or self.parts.get(number) is not subscription:
            return
        del self.parts[number]
        self._opener.forget_topic(subscription)
        if isinstance(error, TopicError):
            undelivered = {index: feed.undelivered for index, feed in subscription.feeds.items()}
            resume_at = {index: offset for index, offset in undelivered.items() if offset is not None}
            self._suspects[number] = SuspectTopic(self._known[number], subscription.start, resume_at)
        else:
            self.end(error)

    # --- state ---------------------------------------------------------------------------------------

    def check_live(self) -> None:
        """Answer the waiting call if all topics are live."""
        if not self.call:
            return
        awaited = self._awaited
        while awaited and (awaited[-1].ended or awaited[-1].is_live):
            awaited.pop()
        if self._reported and not awaited and not self._suspects:
            self.out.append(Done(self.call, None))
            self.call = 0

    def time_out(self, waited_ms: int, reason: str) -> None:
        errors = [part.last_error for part in self.parts.values()]
        known = [error for error in errors if error is not None]
        if self.watch is not None and self.watch.error is not None:
            known.insert(0, self.watch.error)
        self.end(known[0] if known else TimedOut(f"subscribe {self.name}", waited_ms, reason))

    def consumed(self, partition: int, size: int, topic: int = 0) -> None:
        part = self.parts.get(topic)
        if part is not None:
            part.consumed(partition, size)

    def by_topic(self, queued: Iterable[DeliveredBatch]) -> dict[str, dict[int, int]]:
        """By topic and partition, the offset of the first record that the application has not taken."""
        waiting: dict[int, list[DeliveredBatch]] = {}
        for delivered in list(queued):
            waiting.setdefault(delivered.topic_id, []).append(delivered)
        return {part.name: part.positions(waiting.get(topic, ())) for topic, part in list(self.parts.items())}

    def lag(self, by_topic: dict[str, dict[int, int]]) -> int:
        return sum(part.lag(by_topic) for part in list(self.parts.values()))

    # --- end -----------------------------------------------------------------------------------------

    def leave(self, call: CallNumber) -> None:
        """Unsubscribe. Nothing more is delivered; the call is done when all nodes have answered."""
        leaving = PendingUnsubscribe(call, 0)
        feeds = [feed for part in self.parts.values() for feed in part.feeds.values()]
        leaving.open = sum(feed.leave(leaving) for feed in feeds)
        if self.watch is not None:
            leaving.open += self._opener.unwatch(self.watch, leaving)
        self._close()
        if not leaving.open:
            self.out.append(Done(call, None))

    def end(self, error: RostraError) -> None:
        if self.ended:
            return
        for part in self.parts.values():
            part.withdraw()
        if self.watch is not None:
            self._opener.unwatch(self.watch, PendingUnsubscribe(0, 1))
        self._close()
        if self.call:
            self.out.append(Fail(self.call, error))
            self.call = 0
        else:
            self.out.append(Finish(self.number, error))

    def _close(self) -> None:
        self.ended = True
        self._suspects.clear()
        for part in self.parts.values():
            part.close()

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        return min([suspect.again_us for suspect in self._suspects.values()]) if self._suspects else None

    def tick(self, now_us: int) -> None:
        for number, suspect in list(self._suspects.items()):
            if not suspect.again_us:
                self._suspects[number] = suspect._replace(again_us=now_us + SUSPECT_US)
            elif suspect.again_us <= now_us:
                del self._suspects[number]
                self._join(now_us, suspect.topic, suspect.start, suspect.resume_at)
                self._opener.locate_topics(now_us)
