"""A subscription to several topics, by their names and by patterns: each topic once, whatever matches it."""

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
"""Each topic's partition may have this part of the whole subscription's credit on its way."""
SHARE_BYTES_MIN = 64 << 10
DOUBT_US = 500_000
"""After so long a topic that somebody called gone, and that the watch still shows, is tried again."""


class SubscriptionOpener(Protocol):
    """Whoever opens subscriptions to single topics, and ends the watch."""

    def open_part(
        self,
        now_us: int,
        part: TopicSubscription,
        topic: Topic,
        places: list[PartitionRoute] | None,
        reached: dict[int, int],
    ) -> None: ...
    def find_parts(self, now_us: int) -> None:
        """Where are those that were opened without places?"""

    def forget_part(self, part: TopicSubscription) -> None: ...
    def unwatch(self, lookout: TopicWatch, leaving: PendingUnsubscribe) -> bool: ...


class SuspectTopic(NamedTuple):
    """A topic that somebody called gone."""

    topic: Topic
    start: tuple[StartAt, int]
    reached: dict[int, int]
    again_us: int = 0
    """When to try it again; it is set by the first tick."""


class PatternSubscription:
    """One `TopicSubscription` per topic. Existing topics begin as asked, later ones with their first record.

    A topic that is deleted is left quietly. Whether it was is for the watch to say: the node that was asked where a
    topic is may be behind the one that told of it.
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
        """Whoever waits for the subscription to stand; zero afterwards."""
        self.ended = False
        self.parts: dict[int, TopicSubscription] = {}
        """By topic."""
        self.lookout: TopicWatch | None = None
        """None until the topics that were named are found."""
        self._reported = False
        self._opener = opener
        self._known: dict[int, Topic] = {}
        self._awaited: list[TopicSubscription] = []
        """Those that have not told where they begin, as far as somebody waits for that."""
        self._doubted: dict[int, SuspectTopic] = {}
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

    # --- topics come and go --------------------------------------------------------------------------

    def found(self, now_us: int, topic: Topic, places: list[PartitionRoute]) -> None:
        """One that was named."""
        if not self.ended and topic.topic not in self._known:
            self._join(now_us, topic, self.start, {}, places)

    def appeared(self, now_us: int, topics: tuple[Topic, ...]) -> None:
        for topic in topics:
            if self.ended:
                return
            if topic.topic not in self._known:
                if self._reported:
                    self.out.append(Notify(TopicAppeared(topic.name, topic.topic)))
                self._join(now_us, topic, ("earliest", 0) if self._reported else self.start, {})
        self._opener.find_parts(now_us)

    def _join(
        self,
        now_us: int,
        topic: Topic,
        start: tuple[StartAt, int],
        reached: dict[int, int],
        places: list[PartitionRoute] | None = None,
    ) -> None:
        part = TopicSubscription(self.number, topic.name, start, None, self.credit_bytes, 0, self.out, self)
        part.inbox = self._inbox
        part.below_start = self.below_start
        self._known[topic.topic] = topic
        self.parts[topic.topic] = part
        if self.call:
            self._awaited.append(part)
        self._opener.open_part(now_us, part, topic, places, reached)

    def gone(self, now_us: int, topics: Iterable[int]) -> None:
        for number in topics:
            topic = self._known.pop(number, None)
            if topic is None or self.ended:
                continue
            self._doubted.pop(number, None)
            part = self.parts.pop(number, None)
            if part is not None:
                part.withdraw()
                self._opener.forget_part(part)
            self.out.append(Notify(TopicGone(topic.name, topic.topic)))
        self.stands()

    def reported(self, now_us: int, topics: Collection[int]) -> None:
        self._reported = True
        self.gone(now_us, [topic for topic in self._known if topic not in topics])

    def left_by(self, subscribing: TopicSubscription, error: RostraError) -> None:
        """The part has ended by itself."""
        number = subscribing.topic
        if self.ended or self.parts.get(number) is not subscribing:
            return
        del self.parts[number]
        self._opener.forget_part(subscribing)
        if isinstance(error, TopicError):
            handed = {index: feed.handed for index, feed in subscribing.feeds.items()}
            reached = {index: offset for index, offset in handed.items() if offset is not None}
            self._doubted[number] = SuspectTopic(self._known[number], subscribing.start, reached)
        else:
            self.end(error)

    # --- standing ------------------------------------------------------------------------------------

    def stands(self) -> None:
        """Called whenever something came about that the caller may have waited for."""
        if not self.call:
            return
        awaited = self._awaited
        while awaited and (awaited[-1].ended or awaited[-1].is_live):
            awaited.pop()
        if self._reported and not awaited and not self._doubted:
            self.out.append(Done(self.call, None))
            self.call = 0

    def overdue(self, waited_ms: int) -> None:
        heard = [part.heard_against for part in self.parts.values()]
        against = [error for error in heard if error is not None]
        if self.lookout is not None and self.lookout.error is not None:
            against.insert(0, self.lookout.error)
        self.end(against[0] if against else TimedOut(f"subscribe {self.name}", waited_ms))

    def taken(self, partition: int, size: int, topic: int = 0) -> None:
        part = self.parts.get(topic)
        if part is not None:
            part.taken(partition, size)

    def by_topic(self, queued: Iterable[DeliveredBatch]) -> dict[str, dict[int, int]]:
        """By topic and partition, the offset before which nothing was handed out, given what still waits to be."""
        waiting: dict[int, list[DeliveredBatch]] = {}
        for delivered in list(queued):
            waiting.setdefault(delivered.topic_id, []).append(delivered)
        return {part.name: part.positions(waiting.get(topic, ())) for topic, part in list(self.parts.items())}

    def lag(self, by_topic: dict[str, dict[int, int]]) -> int:
        return sum(part.lag(by_topic) for part in list(self.parts.values()))

    # --- ending --------------------------------------------------------------------------------------

    def leave(self, call: CallNumber) -> None:
        """Unsubscribe: nothing is delivered any more, and the call is done when the nodes know."""
        leaving = PendingUnsubscribe(call, 0)
        feeds = [feed for part in self.parts.values() for feed in part.feeds.values()]
        leaving.open = sum(feed.leave(leaving) for feed in feeds)
        if self.lookout is not None:
            leaving.open += self._opener.unwatch(self.lookout, leaving)
        self._close()
        if not leaving.open:
            self.out.append(Done(call, None))

    def end(self, error: RostraError) -> None:
        if self.ended:
            return
        for part in self.parts.values():
            part.withdraw()
        if self.lookout is not None:
            self._opener.unwatch(self.lookout, PendingUnsubscribe(0, 1))
        self._close()
        if self.call:
            self.out.append(Fail(self.call, error))
            self.call = 0
        else:
            self.out.append(Finish(self.number, error))

    def _close(self) -> None:
        self.ended = True
        self._doubted.clear()
        for part in self.parts.values():
            part.close()

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        return min([doubted.again_us for doubted in self._doubted.values()]) if self._doubted else None

    def tick(self, now_us: int) -> None:
        for number, doubted in list(self._doubted.items()):
            if not doubted.again_us:
                self._doubted[number] = doubted._replace(again_us=now_us + DOUBT_US)
            elif doubted.again_us <= now_us:
                del self._doubted[number]
                self._join(now_us, doubted.topic, doubted.start, doubted.reached)
                self._opener.find_parts(now_us)
