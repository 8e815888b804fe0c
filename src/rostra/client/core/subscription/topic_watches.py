"""Watches for topics that match patterns. One node serves a watch, and another if that one is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum, auto
from functools import partial
from typing import Protocol

from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.links.node_links import NodeLinks
from rostra.client.core.routing.pending_requests import ANSWER_MS
from rostra.errors import NotSupported, RostraError, from_wire
from rostra.wire.features import PATTERNS
from rostra.wire.messages import Ended, Topic, TopicsAppeared, TopicsGone, Unwatch, Watch, Watched


class WatchListener(Protocol):
    """Receives the changes."""

    def appeared(self, now_us: int, topics: tuple[Topic, ...]) -> None:
        """These topics exist; some may be known already."""

    def gone(self, now_us: int, topics: Iterable[int]) -> None:
        """These topics were deleted; that may be known already."""

    def reported(self, now_us: int, topics: Collection[int]) -> None:
        """These are all topics that exist: the first report, or one after changes may have been missed."""

    def end(self, error: RostraError) -> None: ...


class WatchState(Enum):
    WAITING = auto()
    REQUESTED = auto()
    LIVE = auto()
    ENDED = auto()


class TopicWatch:
    """One watch: patterns, and the node that serves it."""

    def __init__(self, number: int, patterns: tuple[str, ...], listener: WatchListener) -> None:
        self.number = number
        self.patterns = patterns
        self.listener = listener
        self.state = WatchState.WAITING
        self.link: NodeLink | None = None
        self.request = 0
        self.attempts = 0
        """Failed attempts since it was last live."""
        self.due_us = 0
        """When to request it, or when to try another node while it is requested."""
        self.topics: dict[int, None] = {}
        """The existing topics, as reported by the node that serves the watch."""
        self.ever_live = False
        self.error: RostraError | None = None
        """The last error."""


class TopicWatches:
    def __init__(self, links: NodeLinks, backoff: Backoff) -> None:
        self._links = links
        self._backoff = backoff
        self._all: dict[int, TopicWatch] = {}

    # --- opening and closing -------------------------------------------------------------------------

    def open(self, now_us: int, number: int, patterns: tuple[str, ...], listener: WatchListener) -> TopicWatch:
        watch = self._all[number] = TopicWatch(number, patterns, listener)
        self._try_node(now_us, watch)
        return watch

    def close(self, watch: TopicWatch) -> NodeLink | None:
        """End the watch; return the link to a node that must be told, if any."""
        link = self._detach(watch)
        watch.state = WatchState.ENDED
        self._all.pop(watch.number, None)
        return link if link is not None and link.up else None

    def _try_node(self, now_us: int, watch: TopicWatch) -> None:
        if watch.state is not WatchState.WAITING or watch.due_us > now_us:
            return
        link = self._links.pick(watch.attempts)
        if link is None:
            return
        if PATTERNS not in link.features:
            self.refused(now_us, watch, NotSupported(PATTERNS))
            return
        watch.state = WatchState.REQUESTED
        watch.topics = {}
        watch.link = link
        link.watches[watch] = None
        self._send_watch(now_us, watch, link, "")

    def _send_watch(self, now_us: int, watch: TopicWatch, link: NodeLink, after: str) -> None:
        watch.due_us = now_us + ANSWER_MS * 1000
        message = partial(Watch, watch=watch.number, patterns=watch.patterns, after=after)
        watch.request = link.send_request(watch, message)

    def _detach(self, watch: TopicWatch) -> NodeLink | None:
        """Detach the watch from its node."""
        link, watch.link = watch.link, None
        if link is not None:
            link.watches.pop(watch, None)
            link.awaiting.pop(watch.request, None)
        watch.state = WatchState.WAITING
        return link

    def _try_another(self, now_us: int, watch: TopicWatch) -> None:
        self._detach(watch)
        watch.due_us = now_us + self._backoff.pause_us(watch.attempts)
        watch.attempts += 1
        self._links.dial_another(now_us)

    # --- messages ------------------------------------------------------------------------------------

    def watched(self, now_us: int, watch: TopicWatch, message: Watched) -> None:
        link = watch.link
        if watch.state is not WatchState.REQUESTED or link is None:
            return
        for address in message.neighbours:
            self._links.add_address(address)
        self._add_topics(now_us, watch, message.topics)
        if watch.link is not link:
            return
        if message.after:
            self._send_watch(now_us, watch, link, message.after)
            return
        watch.state = WatchState.LIVE
        watch.attempts = 0
        watch.ever_live = True
        watch.error = None
        watch.listener.reported(now_us, watch.topics)

    def appeared(self, now_us: int, link: NodeLink, message: TopicsAppeared) -> None:
        watch = self._of_link(link, message.watch)
        if watch is not None:
            self._add_topics(now_us, watch, message.topics)

    def _add_topics(self, now_us: int, watch: TopicWatch, topics: tuple[Topic, ...]) -> None:
        for topic in topics:
            watch.topics[topic.topic] = None
        watch.listener.appeared(now_us, topics)

    def gone(self, now_us: int, link: NodeLink, message: TopicsGone) -> None:
        watch = self._of_link(link, message.watch)
        if watch is not None:
            for topic in message.topics:
                watch.topics.pop(topic, None)
            watch.listener.gone(now_us, message.topics)

    def ended(self, now_us: int, link: NodeLink, message: Ended) -> bool:
        """Whether the message is about a watch."""
        if message.subscription not in self._all:
            return False
        watch = self._of_link(link, message.subscription)
        if watch is not None:
            self.refused(now_us, watch, from_wire(message.code, message.carried))
        return True

    def refused(self, now_us: int, watch: TopicWatch, error: RostraError) -> None:
        watch.error = error
        if watch.state is WatchState.ENDED:
            return
        # It was live once, so some node supports watches: another one may.
        if error.retryable or (watch.ever_live and isinstance(error, NotSupported)):
            self._try_another(now_us, watch)
        else:
            self.close(watch)
            watch.listener.end(error)

    def _of_link(self, link: NodeLink, number: int) -> TopicWatch | None:
        watch = self._all.get(number)
        return watch if watch is not None and watch.link is link else None

    # --- links and time ------------------------------------------------------------------------------

    def link_up(self, now_us: int) -> None:
        for watch in list(self._all.values()):
            self._try_node(now_us, watch)

    def link_down(self, now_us: int, link: NodeLink) -> None:
        for watch in list(link.watches):
            self._detach(watch)
            watch.due_us = now_us
            self._try_node(now_us, watch)

    def deadline_us(self) -> int | None:
        if not self._all:
            return None
        connected = self._links.connected
        due = [
            watch.due_us
            for watch in self._all.values()
            if watch.state is WatchState.REQUESTED or (watch.state is WatchState.WAITING and connected)
        ]
        return min(due, default=None)

    def tick(self, now_us: int) -> None:
        for watch in list(self._all.values()):
            if watch.due_us > now_us:
                continue
            if watch.state is WatchState.REQUESTED:
                # The node may be cut off. An answer that comes later is ignored.
                if watch.link is not None:
                    watch.link.write(Unwatch(watch.link.next_request(), watch.number))
                self._try_another(now_us, watch)
            self._try_node(now_us, watch)
