"""Subscribes to patterns that match all topics, each from its first record."""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random

from rostra.client.core.effects import Deliver, Result
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.client.core.subscription.pattern_subscription import PatternSubscription
from rostra.client.core.subscription.topic_subscription import FeedState
from rostra.client.core.subscription.topic_watches import WatchState
from rostra.errors import RostraError
from rostra.simulator.clients.applications import REOPEN_US, Application
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import MS_US, SECOND_US
from rostra.simulator.history import PatternHistory, RecordDelivered

PATTERNS = ("#", "+", "t0/#")
"""They overlap, yet each topic must be delivered once."""
FEEDS = 16
"""At least the number of partitions in a world."""


class PatternSubscriber(Application):
    """Reads at its own pace; unsubscribes now and then, and subscribes again."""

    checked = True
    """Whether the checkers judge what it got."""

    def __init__(self, client: SimulatedClient, random: Random, ends_us: int) -> None:
        super().__init__(client, random, [], ends_us)
        self._pace_us = random.choice((0, 200, 20 * MS_US))
        self._credit_bytes = random.choice((600, 4_000))
        self._lifetime_us = random.choice((4, 60, 60)) * SECOND_US
        self._count = 0
        self._unread: deque[tuple[PatternSubscription, DeliveredBatch]] = deque()
        self._reading = False
        self._closed = False
        self._subscription: PatternSubscription | None = None
        self._observed: PatternHistory | None = None
        client.credit_bytes += FEEDS * self._credit_bytes

    def begin(self) -> None:
        if self._closed:
            return
        self._count += 1
        observed = self._observed = PatternHistory(f"{self.client.name}.{self._count}")
        if self.checked:
            self.history.pattern_subscriptions.append(observed)
        self.history.operations += 1
        call = self.client.call(f"pattern subscription {observed.name}", partial(self._subscribed, observed))
        subscription = self._subscription = self.client.core.subscribe_to_several(
            self.clock.now_us, call, PATTERNS, "earliest", self._credit_bytes
        )
        self.client.delivered[subscription.number] = partial(self._delivered, observed, subscription)
        self.client.finished[subscription.number] = partial(self._finished, observed)
        self.client.run_effects()

    def _subscribed(self, observed: PatternHistory, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._finished(observed, result)
            return
        observed.established = True
        self.later(self._lifetime_us // 2, self._lifetime_us, self._unsubscribe, observed)

    def _delivered(self, observed: PatternHistory, subscription: PatternSubscription, effect: Deliver) -> None:
        for batch in effect.batches:
            rows = zip(batch.offsets(), batch.values(), strict=True)
            observed.feed(batch.topic_id, batch.partition).records += [
                RecordDelivered(self.clock.now_us, offset, value) for offset, value in rows
            ]
            self._unread.append((subscription, batch))
        if not self._reading:
            self._reading = True
            self.clock.after(0 if self.over else self._pace_us, self._read_next)

    def _read_next(self) -> None:
        for _ in range(len(self._unread) if self.over else 1):
            subscription, batch = self._unread.popleft()
            self.client.core.consumed(subscription, batch.partition, batch.bytes, batch.topic_id)
        self.client.run_effects()
        self._reading = bool(self._unread)
        if self._reading:
            self.clock.after(0 if self.over else self._pace_us, self._read_next)

    def _unsubscribe(self, observed: PatternHistory) -> None:
        if observed is not self._observed or observed.ended is not None or self.over or self._subscription is None:
            return
        observed.unsubscribing = True
        self.history.operations += 1
        call = self.client.call(f"end of {observed.name}", partial(self._unsubscribed, observed))
        self.client.core.unsubscribe(self.clock.now_us, call, self._subscription)
        self.client.run_effects()

    def _unsubscribed(self, observed: PatternHistory, result: Result | RostraError) -> None:
        observed.unsubscribed_us = self.clock.now_us
        self.later(REOPEN_US, 3 * REOPEN_US, self.begin)

    def _finished(self, observed: PatternHistory, error: RostraError) -> None:
        observed.ended = error
        if observed is self._observed and not observed.unsubscribing:
            self.later(REOPEN_US, 3 * REOPEN_US, self.begin)

    def is_at_end(self) -> bool:
        """Whether it is established and has reached the commit offsets of all its topics."""
        if (
            self._observed is None
            or self._subscription is None
            or not self._observed.established
            or self._observed.ended is not None
        ):
            return False
        lookout = self._subscription.watch
        if lookout is None or lookout.state is not WatchState.LIVE:
            return False
        feeds = [feed for part in self._subscription.parts.values() for feed in part.feeds.values()]
        return all(feed.state is FeedState.LIVE and (feed.next or 0) >= feed.commit for feed in feeds)

    def record_final_topics(self) -> None:
        """Records the topics it has at the end."""
        self._closed = True
        if self._observed is not None and self._subscription is not None and self._observed.ended is None:
            self._observed.topics = sorted(self._subscription.parts)
