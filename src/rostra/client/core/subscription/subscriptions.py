"""All subscriptions of a client, and the feeds that pushes are for."""

from __future__ import annotations

from rostra.client.core.effects import CallNumber, ClientEffect, Done, SubscriptionNumber
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.options import BelowStart, Offset, Start, checked_below_start, start_on_the_wire
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
        self, directory: MetadataCache, lookouts: TopicWatches, timeout_us: int, out: list[ClientEffect]
    ) -> None:
        self._directory = directory
        self._lookouts = lookouts
        self._timeout_us = timeout_us
        self._out = out
        self._all: dict[SubscriptionNumber, AnySubscription] = {}
        self._gatherings: dict[SubscriptionNumber, PatternSubscription] = {}
        """Those of them that have deadlines of their own."""
        self.feeds: dict[int, PartitionFeed] = {}
        """By the numbers that nodes know them under."""
        self._last = 0
        directory.joined = self._joined
        self._awaited: dict[AnySubscription, int] = {}
        """Those that do not stand yet, and until when their callers wait; they share one timeout, so in that order."""

    # --- coming and going ----------------------------------------------------------------------------

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
        return self.begin(now_us, call, name, start_on_the_wire(start), partition, credit_bytes, below_start)

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
        subscribing = TopicSubscription(number, name, start, partition, credit_bytes, call, self._out)
        subscribing.below_start = checked_below_start(below_start)
        subscribing.part = part
        self._add(now_us, subscribing)

        def found(now_us: int, topic: Topic, places: list[PartitionRoute]) -> None:
            if not subscribing.ended:
                self._locate(now_us, subscribing, topic, places, {})

        def failed(now_us: int, error: RostraError) -> None:
            subscribing.end(error)

        self._directory.find(now_us, name, found, failed, create=create)
        return subscribing

    def _joined(self, now_us: int, name: str, place: PartitionRoute) -> None:
        """A topic has one partition more: whoever subscribes to it all gets that, too."""
        for subscription in list(self._all.values()):
            parts = subscription.parts.values() if isinstance(subscription, PatternSubscription) else (subscription,)
            for part in [part for part in parts if part.name == name]:
                feed = part.joined(now_us, place, self._last + 1)
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
        """First the topics that are named, which may have to be made; then the watch, which sees them too."""
        patterns = tuple(dict.fromkeys(Pattern.parse(name) for name in names))
        if not 0 < len(patterns) <= PATTERNS_PER_WATCH_MAX:
            raise InvalidSetting("topics", f"{len(patterns)} names and patterns; 1 to {PATTERNS_PER_WATCH_MAX} can be")
        if isinstance(start, Offset):
            raise InvalidSetting("start", "an offset is a place in one topic; subscribe to each by its name")
        _check_credit(credit_bytes)
        self._last += 1
        spelled = tuple(map(str, patterns))
        gathering = PatternSubscription(
            self._last, spelled, start_on_the_wire(start), credit_bytes, call, self._out, self
        )
        gathering.below_start = checked_below_start(below_start)
        self._add(now_us, gathering)
        unfound = {str(pattern): None for pattern in patterns if not pattern.is_wild}

        def watch(now_us: int) -> None:
            if not unfound and not gathering.ended:
                gathering.lookout = self._lookouts.open(now_us, gathering.number, spelled, gathering)

        def found(now_us: int, topic: Topic, places: list[PartitionRoute]) -> None:
            gathering.found(now_us, topic, places)
            unfound.pop(topic.name, None)
            watch(now_us)

        def failed(now_us: int, error: RostraError) -> None:
            gathering.end(error)

        for name in list(unfound):
            self._directory.find(now_us, name, found, failed)
        watch(now_us)
        return gathering

    def _add(self, now_us: int, subscription: AnySubscription) -> None:
        self._all[subscription.number] = subscription
        if isinstance(subscription, PatternSubscription):
            self._gatherings[subscription.number] = subscription
        self._awaited[subscription] = now_us + self._timeout_us

    def _locate(
        self,
        now_us: int,
        subscribing: TopicSubscription,
        topic: Topic,
        places: list[PartitionRoute],
        reached: dict[int, int],
    ) -> None:
        first, self._last = self._last + 1, self._last + len(places)
        subscribing.located(now_us, topic.topic, places, first, reached)
        if not subscribing.ended:
            self.feeds.update((feed.number, feed) for feed in subscribing.feeds.values())

    def open_part(
        self,
        now_us: int,
        part: TopicSubscription,
        topic: Topic,
        places: list[PartitionRoute] | None,
        reached: dict[int, int],
    ) -> None:
        self._locate(now_us, part, topic, self._directory.enlist(topic) if places is None else places, reached)

    def find_parts(self, now_us: int) -> None:
        self._directory.tick(now_us)

    def forget_part(self, part: TopicSubscription) -> None:
        for feed in part.feeds.values():
            self.feeds.pop(feed.number, None)

    def unwatch(self, lookout: TopicWatch, leaving: PendingUnsubscribe) -> bool:
        """Whether a node had to be told."""
        link = self._lookouts.close(lookout)
        if link is None:
            return False
        link.ask(leaving, lambda request: Unwatch(request, lookout.number))
        return True

    def close(self, call: CallNumber, subscribing: AnySubscription) -> None:
        self._forget(subscribing)
        if subscribing.ended:
            self._out.append(Done(call, None))
        else:
            subscribing.leave(call)

    def _forget(self, subscription: AnySubscription) -> None:
        self._all.pop(subscription.number, None)
        self._gatherings.pop(subscription.number, None)
        self._awaited.pop(subscription, None)
        for part in subscription.parts.values() if isinstance(subscription, PatternSubscription) else (subscription,):
            self.forget_part(part)

    def left(self, leaving: PendingUnsubscribe) -> None:
        """One of the nodes knows that nothing more is wanted, or is gone."""
        leaving.open -= 1
        if leaving.open == 0 and leaving.call:
            self._out.append(Done(leaving.call, None))

    def end_all(self, error: RostraError) -> None:
        for subscribing in list(self._all.values()):
            subscribing.end(error)
        self._all.clear()
        self._gatherings.clear()
        self._awaited.clear()
        self.feeds.clear()

    # --- messages ------------------------------------------------------------------------------------

    def subscribed(self, feed: PartitionFeed, message: Subscribed) -> None:
        if feed.state is FeedState.ASKED:
            feed.subscribed(message)
            feed.subscribing.stands()
            host = feed.subscribing.host
            whole = host if isinstance(host, PatternSubscription) else feed.subscribing
            if not whole.call:
                self._awaited.pop(whole, None)

    def ended(self, now_us: int, link: NodeLink, message: Ended) -> None:
        feed = self.feeds.get(message.subscription)
        # Before it is answered, this can only be about an earlier subscription under the same number.
        if feed is not None and feed.link is link and feed.state is FeedState.LIVE:
            feed.refused(now_us, from_wire(message.code, message.carried))

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        earliest = next(iter(self._awaited.values())) if self._awaited else None
        for gathering in self._gatherings.values():
            due = gathering.deadline_us()
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        return earliest

    def tick(self, now_us: int) -> None:
        for subscribing, due_us in list(self._awaited.items()):
            if subscribing.ended or not subscribing.call:
                del self._awaited[subscribing]
            elif due_us <= now_us:
                subscribing.overdue(self._timeout_us // 1000)
        for subscription in list(self._all.values()):
            if subscription.ended:
                self._forget(subscription)
            elif isinstance(subscription, PatternSubscription):
                subscription.tick(now_us)


def of_one(topics: dict[str, dict[int, int]]) -> dict[int, int]:
    """The positions of the one topic that there is."""
    if len(topics) > 1:
        raise InvalidSetting("positions", "there are several topics; `topics` has the positions of each")
    return next(iter(topics.values()), {})


def _check_credit(credit_bytes: int) -> None:
    if credit_bytes < 1:
        raise InvalidSetting("credit_bytes", "it must be above zero")
