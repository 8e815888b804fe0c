"""Those who subscribe to patterns: to all topics that come, wherever they come from, from their first record on."""

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
"""They overlap: each topic must come once all the same."""
FEEDS = 16
"""More partitions there are not in a world."""


class PatternSubscriber(Application):
    """Takes what comes at its own pace; leaves now and then, and comes again."""

    def __init__(self, client: SimulatedClient, random: Random, ends_us: int) -> None:
        super().__init__(client, random, [], ends_us)
        self._pace_us = random.choice((0, 200, 20 * MS_US))
        self._credit_bytes = random.choice((600, 4_000))
        self._stays_us = random.choice((4, 60, 60)) * SECOND_US
        self._count = 0
        self._untaken: deque[tuple[PatternSubscription, DeliveredBatch]] = deque()
        self._taking = False
        self._retired = False
        self._gathering: PatternSubscription | None = None
        self._seen: PatternHistory | None = None
        client.credit_bytes += FEEDS * self._credit_bytes

    def begin(self) -> None:
        if self._retired:
            return
        self._count += 1
        seen = self._seen = PatternHistory(f"{self.client.name}.{self._count}")
        self.history.gathered.append(seen)
        self.history.operations += 1
        call = self.client.call(f"gathering {seen.name}", partial(self._stands, seen))
        gathering = self._gathering = self.client.core.subscribe_to_several(
            self.clock.now_us, call, PATTERNS, "earliest", self._credit_bytes
        )
        self.client.delivered[gathering.number] = partial(self._delivered, seen, gathering)
        self.client.finished[gathering.number] = partial(self._finished, seen)
        self.client.act()

    def _stands(self, seen: PatternHistory, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._finished(seen, result)
            return
        seen.stands = True
        self.later(self._stays_us // 2, self._stays_us, self._leave, seen)

    def _delivered(self, seen: PatternHistory, gathering: PatternSubscription, effect: Deliver) -> None:
        for batch in effect.batches:
            rows = zip(batch.offsets(), batch.values(), strict=True)
            seen.feed(batch.topic_id, batch.partition).got += [
                RecordDelivered(self.clock.now_us, offset, value) for offset, value in rows
            ]
            self._untaken.append((gathering, batch))
        if not self._taking:
            self._taking = True
            self.clock.after(0 if self.over else self._pace_us, self._take)

    def _take(self) -> None:
        for _ in range(len(self._untaken) if self.over else 1):
            gathering, batch = self._untaken.popleft()
            self.client.core.consumed(gathering, batch.partition, batch.bytes, batch.topic_id)
        self.client.act()
        self._taking = bool(self._untaken)
        if self._taking:
            self.clock.after(0 if self.over else self._pace_us, self._take)

    def _leave(self, seen: PatternHistory) -> None:
        if seen is not self._seen or seen.ended is not None or self.over or self._gathering is None:
            return
        seen.leaving = True
        self.history.operations += 1
        call = self.client.call(f"end of {seen.name}", partial(self._left, seen))
        self.client.core.unsubscribe(self.clock.now_us, call, self._gathering)
        self.client.act()

    def _left(self, seen: PatternHistory, result: Result | RostraError) -> None:
        seen.left_us = self.clock.now_us
        self.later(REOPEN_US, 3 * REOPEN_US, self.begin)

    def _finished(self, seen: PatternHistory, error: RostraError) -> None:
        seen.ended = error
        if seen is self._seen and not seen.leaving:
            self.later(REOPEN_US, 3 * REOPEN_US, self.begin)

    def at_end(self) -> bool:
        """Whether it stands, and was shown all of the topics it knows of."""
        if self._seen is None or self._gathering is None or not self._seen.stands or self._seen.ended is not None:
            return False
        lookout = self._gathering.watch
        if lookout is None or lookout.state is not WatchState.LIVE:
            return False
        feeds = [feed for part in self._gathering.parts.values() for feed in part.feeds.values()]
        return all(feed.state is FeedState.LIVE and (feed.next or 0) >= feed.commit for feed in feeds)

    def retire(self) -> None:
        """The end: what it knows of now is what it was to know of."""
        self._retired = True
        if self._seen is not None and self._gathering is not None and self._seen.ended is None:
            self._seen.topics = sorted(self._gathering.parts)
