"""All subscriptions of a client, and the feeds that pushes are for."""

from __future__ import annotations

from rostra.client.core.directory import Directory
from rostra.client.core.effects import CallNumber, ClientEffect, Done, SubscriptionNumber
from rostra.client.core.link import Link
from rostra.client.core.options import Start, start_on_the_wire
from rostra.client.core.place import Place
from rostra.client.core.subscribing import Feed, FeedState, Leaving, Subscribing
from rostra.errors import InvalidSetting, RostraError, from_wire
from rostra.model.ids import check_topic_name
from rostra.wire.messages import Ended, Push, Subscribed, Topic


class Subscriptions:
    def __init__(self, directory: Directory, timeout_us: int, out: list[ClientEffect]) -> None:
        self._directory = directory
        self._timeout_us = timeout_us
        self._out = out
        self._all: dict[SubscriptionNumber, Subscribing] = {}
        self._feeds: dict[int, Feed] = {}
        self._last = 0
        self._awaited: dict[Subscribing, int] = {}
        """Those that do not stand yet, and until when their callers wait; they share one timeout, so in that order."""

    # --- coming and going ----------------------------------------------------------------------------

    def open(
        self, now_us: int, call: CallNumber, name: str, start: Start, partition: int | None, credit_bytes: int
    ) -> Subscribing:
        check_topic_name(name)
        if credit_bytes < 1:
            raise InvalidSetting("credit_bytes", "it must be above zero")
        self._last += 1
        wired = start_on_the_wire(start)
        subscribing = Subscribing(self._last, name, wired, partition, credit_bytes, call, self._out)
        self._all[subscribing.number] = subscribing
        self._awaited[subscribing] = now_us + self._timeout_us

        def found(now_us: int, topic: Topic, places: list[Place]) -> None:
            if subscribing.ended:
                return
            first, self._last = self._last + 1, self._last + len(places)
            subscribing.located(now_us, topic.topic, places, first)
            self._feeds.update((feed.number, feed) for feed in subscribing.feeds.values())

        def failed(now_us: int, error: RostraError) -> None:
            subscribing.end(error)

        self._directory.find(now_us, name, found, failed)
        return subscribing

    def close(self, call: CallNumber, subscribing: Subscribing) -> None:
        self._forget(subscribing)
        if subscribing.ended:
            self._out.append(Done(call, None))
        else:
            subscribing.leave(call)

    def _forget(self, subscribing: Subscribing) -> None:
        self._all.pop(subscribing.number, None)
        self._awaited.pop(subscribing, None)
        for feed in subscribing.feeds.values():
            self._feeds.pop(feed.number, None)

    def left(self, leaving: Leaving) -> None:
        """One of the nodes knows that nothing more is wanted, or is gone."""
        leaving.open -= 1
        if leaving.open == 0 and leaving.call:
            self._out.append(Done(leaving.call, None))

    def end_all(self, error: RostraError) -> None:
        for subscribing in list(self._all.values()):
            subscribing.end(error)
        self._all.clear()
        self._awaited.clear()
        self._feeds.clear()

    # --- messages ------------------------------------------------------------------------------------

    def pushed(self, link: Link, message: Push, payload: bytearray | None) -> None:
        feed = self._feeds.get(message.subscription)
        # A node that was left may not know it yet.
        if feed is not None and feed.link is link and payload is not None:
            feed.pushed(message, payload)

    def subscribed(self, feed: Feed, message: Subscribed) -> None:
        if feed.state is FeedState.ASKED:
            feed.subscribed(message)
            feed.subscribing.stands()
            if not feed.subscribing.call:
                self._awaited.pop(feed.subscribing, None)

    def ended(self, now_us: int, link: Link, message: Ended) -> None:
        feed = self._feeds.get(message.subscription)
        # Before it is answered, this can only be about an earlier subscription under the same number.
        if feed is not None and feed.link is link and feed.state is FeedState.LIVE:
            feed.refused(now_us, from_wire(message.code, message.carried))

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        return next(iter(self._awaited.values())) if self._awaited else None

    def tick(self, now_us: int) -> None:
        for subscribing, due_us in list(self._awaited.items()):
            if subscribing.ended or not subscribing.call:
                del self._awaited[subscribing]
            elif due_us <= now_us:
                subscribing.overdue(self._timeout_us // 1000)
        for subscribing in list(self._all.values()):
            if subscribing.ended:
                self._forget(subscribing)
