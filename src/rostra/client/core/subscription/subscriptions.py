"""All subscriptions of a client, and the feeds that receive pushes."""

from __future__ import annotations

from rostra.client.core.effects import CallNumber, ClientEffect, Done, SubscriptionNumber
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.options import BelowStart, Offset, Start, checked_below_start, wire_start
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.subscription.pattern_subscription import PatternSubscription
from rostra.client.core.subscription.topic_subscription import (
    FeedState,
    PartitionFeed,
    PendingUnsubscribe,
    TopicSubscription,
)
from rostra.client.core.subscription.topic_watches import TopicWatch, TopicWatches
from rostra.errors import InvalidSetting, RostraError, from_wire
from rostra.model.ids import check_topic_name
from rostra.model.patterns import Pattern
from rostra.wire.messages import PATTERNS_PER_WATCH_MAX, Ended, StartAt, Subscribed, Topic, Unwatch

AnySubscription = TopicSubscription | PatternSubscription


class Subscriptions:
    def __init__(
        self, metadata: MetadataCache, watches: TopicWatches, timeout_us: int, out: list[ClientEffect]
    ) -> None:
        self._metadata = metadata
        self._watches = watches
        self._timeout_us = timeout_us
        self._out = out
        self._all: dict[SubscriptionNumber, AnySubscription] = {}
        self._pattern_subscriptions: dict[SubscriptionNumber, PatternSubscription] = {}
        """Those of them that have deadlines of their own."""
        self.feeds: dict[int, PartitionFeed] = {}
        """By the numbers that nodes use for them."""
        self._last = 0
        metadata.partition_added = self._partition_added
        self._awaited: dict[AnySubscription, int] = {}
        """Subscriptions that are not live yet, with their deadlines, in order since they share one timeout."""

    # --- opening and closing -------------------------------------------------------------------------

    def open(
        self,
        now_us: int,
        call: CallNumber,
        name: str,
        start: Start,
        partition: int | None,
        credit_bytes: int,
        below_start: BelowStart,
    ) -> TopicSubscription:
        check_topic_name(name)
        _check_credit(credit_bytes)
        return self.begin(now_us, call, name, wire_start(start), partition, credit_bytes, below_start)

    def next_number(self) -> SubscriptionNumber:
        self._last += 1
        return self._last

    def begin(
        self,
        now_us: int,
        call: CallNumber,
        name: str,
        start: tuple[StartAt, int],
        partition: int | None,
        credit_bytes: int,
        below_start: BelowStart,
        *,
        create: bool | None = None,
        part: tuple[int, int] | None = None,
    ) -> TopicSubscription:
        number = self.next_number()
        subscription = TopicSubscription(number, name, start, partition, credit_bytes, call, self._out)
        subscription.below_start = checked_below_start(below_start)
        subscription.exact = part
        self._add(now_us, subscription)

        def found(now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
            if not subscription.ended:
                self._locate(now_us, subscription, topic, routes, {})

        def failed(now_us: int, error: RostraError) -> None:
            subscription.end(error)

        self._metadata.find(now_us, name, found, failed, create=create)
        return subscription

    def _partition_added(self, now_us: int, name: str, route: PartitionRoute) -> None:
        """A topic has a further partition: add it to all subscriptions to the whole topic."""
        for subscription in list(self._all.values()):
            parts = subscription.parts.values() if isinstance(subscription, PatternSubscription) else (subscription,)
            for part in [part for part in parts if part.name == name]:
                feed = part.add_partition(now_us, route, self._last + 1)
                if feed is not None:
                    self._last += 1
                    self.feeds[feed.number] = feed

    def open_several(
        self,
        now_us: int,
        call: CallNumber,
        names: tuple[str, ...],
        start: Start,
        credit_bytes: int,
        below_start: BelowStart,
    ) -> PatternSubscription:
        """Locate the named topics first, creating them if allowed; then open the watch, which also covers them."""
        patterns = tuple(dict.fromkeys(Pattern.parse(name) for name in names))
        if not 0 < len(patterns) <= PATTERNS_PER_WATCH_MAX:
            raise InvalidSetting("topics", f"{len(patterns)} names and patterns; 1 to {PATTERNS_PER_WATCH_MAX} can be")
        if isinstance(start, Offset):
            raise InvalidSetting("start", "an offset is a place in one topic; subscribe to each by its name")
        _check_credit(credit_bytes)
        self._last += 1
        spelled = tuple(map(str, patterns))
        subscription = PatternSubscription(self._last, spelled, wire_start(start), credit_bytes, call, self._out, self)
        subscription.below_start = checked_below_start(below_start)
        self._add(now_us, subscription)
        unfound = {str(pattern): None for pattern in patterns if not pattern.is_wild}

        def watch(now_us: int) -> None:
            if not unfound and not subscription.ended:
                subscription.watch = self._watches.open(now_us, subscription.number, spelled, subscription)

        def found(now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
            subscription.found(now_us, topic, routes)
            unfound.pop(topic.name, None)
            watch(now_us)

        def failed(now_us: int, error: RostraError) -> None:
            subscription.end(error)

        for name in list(unfound):
            self._metadata.find(now_us, name, found, failed)
        watch(now_us)
        return subscription

    def _add(self, now_us: int, subscription: AnySubscription) -> None:
        self._all[subscription.number] = subscription
        if isinstance(subscription, PatternSubscription):
            self._pattern_subscriptions[subscription.number] = subscription
        self._awaited[subscription] = now_us + self._timeout_us

    def _locate(
        self,
        now_us: int,
        subscription: TopicSubscription,
        topic: Topic,
        routes: list[PartitionRoute],
        resume_at: dict[int, int],
    ) -> None:
        first, self._last = self._last + 1, self._last + len(routes)
        subscription.located(now_us, topic.topic, routes, first, resume_at)
        if not subscription.ended:
            self.feeds.update((feed.number, feed) for feed in subscription.feeds.values())

    def open_topic(
        self,
        now_us: int,
        part: TopicSubscription,
        topic: Topic,
        routes: list[PartitionRoute] | None,
        resume_at: dict[int, int],
    ) -> None:
        self._locate(now_us, part, topic, self._metadata.routes_of(topic) if routes is None else routes, resume_at)

    def locate_topics(self, now_us: int) -> None:
        self._metadata.tick(now_us)

    def forget_topic(self, part: TopicSubscription) -> None:
        for feed in part.feeds.values():
            self.feeds.pop(feed.number, None)

    def unwatch(self, watch: TopicWatch, leaving: PendingUnsubscribe) -> bool:
        """End the watch; return whether a node must answer."""
        link = self._watches.close(watch)
        if link is None:
            return False
        link.send_request(leaving, lambda request: Unwatch(request, watch.number))
        return True

    def close(self, call: CallNumber, subscription: AnySubscription) -> None:
        self._forget(subscription)
        if subscription.ended:
            self._out.append(Done(call, None))
        else:
            subscription.leave(call)

    def _forget(self, subscription: AnySubscription) -> None:
        self._all.pop(subscription.number, None)
        self._pattern_subscriptions.pop(subscription.number, None)
        self._awaited.pop(subscription, None)
        for part in subscription.parts.values() if isinstance(subscription, PatternSubscription) else (subscription,):
            self.forget_topic(part)

    def left(self, leaving: PendingUnsubscribe) -> None:
        """A node answered the unsubscribe, or its connection is closed."""
        leaving.open -= 1
        if leaving.open == 0 and leaving.call:
            self._out.append(Done(leaving.call, None))

    def end_all(self, error: RostraError) -> None:
        for subscription in list(self._all.values()):
            subscription.end(error)
        self._all.clear()
        self._pattern_subscriptions.clear()
        self._awaited.clear()
        self.feeds.clear()

    # --- messages ------------------------------------------------------------------------------------

    def subscribed(self, feed: PartitionFeed, message: Subscribed) -> None:
        if feed.state is FeedState.REQUESTED:
            feed.subscribed(message)
            feed.subscription.check_live()
            parent = feed.subscription.parent
            whole = parent if isinstance(parent, PatternSubscription) else feed.subscription
            if not whole.call:
                self._awaited.pop(whole, None)

    def ended(self, now_us: int, link: NodeLink, message: Ended) -> None:
        feed = self.feeds.get(message.subscription)
        # Before the answer to Subscribe, this can only be about an earlier subscription under the same number.
        if feed is not None and feed.link is link and feed.state is FeedState.LIVE:
            feed.refused(now_us, from_wire(message.code, message.carried))

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        earliest = next(iter(self._awaited.values())) if self._awaited else None
        for subscription in self._pattern_subscriptions.values():
            due = subscription.deadline_us()
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        return earliest

    def tick(self, now_us: int) -> None:
        for subscription, due_us in list(self._awaited.items()):
            if subscription.ended or not subscription.call:
                del self._awaited[subscription]
            elif due_us <= now_us:
                subscription.time_out(self._timeout_us // 1000, self._metadata.silence())
        for subscription in list(self._all.values()):
            if subscription.ended:
                self._forget(subscription)
            elif isinstance(subscription, PatternSubscription):
                subscription.tick(now_us)


def positions_of_one(topics: dict[str, dict[int, int]]) -> dict[int, int]:
    """The positions of the only topic."""
    if len(topics) > 1:
        raise InvalidSetting("positions", "there are several topics; `topics` has the positions of each")
    return next(iter(topics.values()), {})


def _check_credit(credit_bytes: int) -> None:
    if credit_bytes < 1:
        raise InvalidSetting("credit_bytes", "it must be above zero")
