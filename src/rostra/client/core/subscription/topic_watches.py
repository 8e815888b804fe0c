"""Watching which topics match patterns: asked of one node at a time, and of another when that one is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum, auto
from functools import partial
from typing import Protocol

from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.links.node_links import NodeLinks
from rostra.client.core.routing.pending_requests import PATIENCE_MS
from rostra.errors import NotSupported, RostraError, from_wire
from rostra.wire.features import PATTERNS
from rostra.wire.messages import Ended, Topic, TopicsAppeared, TopicsGone, Unwatch, Watch, Watched


class WatchListener(Protocol):
    """Who wants to know."""

    def appeared(self, now_us: int, topics: tuple[Topic, ...]) -> None:
        """These are there; it may be known already."""

    def gone(self, now_us: int, topics: Iterable[int]) -> None:
        """These are there no more; it may be known already."""

    def reported(self, now_us: int, topics: Collection[int]) -> None:
        """These are all that are there, told for the first time, or after something may have been missed."""

    def end(self, error: RostraError) -> None: ...


class WatchState(Enum):
    WAITING = auto()
    ASKED = auto()
    LIVE = auto()
    ENDED = auto()


class TopicWatch:
    """One watch."""

    def __init__(self, number: int, patterns: tuple[str, ...], audience: WatchListener) -> None:
        self.number = number
        self.patterns = patterns
        self.audience = audience
        self.state = WatchState.WAITING
        self.link: NodeLink | None = None
        self.request = 0
        self.attempts = 0
        """In vain since it was last live."""
        self.due_us = 0
        """When to ask, or while asked, to ask somebody else."""
        self.told: dict[int, None] = {}
        """The topics that are there, as far as the node has told that keeps it."""
        self.ever_live = False
        self.error: RostraError | None = None
        """What was last heard against it."""


class TopicWatches:
    def __init__(self, links: NodeLinks, backoff: Backoff) -> None:
        self._links = links
        self._backoff = backoff
        self._all: dict[int, TopicWatch] = {}

    # --- coming and going ----------------------------------------------------------------------------

    def open(self, now_us: int, number: int, patterns: tuple[str, ...], audience: WatchListener) -> TopicWatch:
        lookout = self._all[number] = TopicWatch(number, patterns, audience)
        self._flow(now_us, lookout)
        return lookout

    def close(self, lookout: TopicWatch) -> NodeLink | None:
        """The node that is to be told, if any."""
        link = self._let_go(lookout)
        lookout.state = WatchState.ENDED
        self._all.pop(lookout.number, None)
        return link if link is not None and link.up else None

    def _flow(self, now_us: int, lookout: TopicWatch) -> None:
        if lookout.state is not WatchState.WAITING or lookout.due_us > now_us:
            return
        link = self._links.any(lookout.attempts)
        if link is None:
            return
        if PATTERNS not in link.features:
            self.refused(now_us, lookout, NotSupported(PATTERNS))
            return
        lookout.state = WatchState.ASKED
        lookout.told = {}
        lookout.link = link
        link.lookouts[lookout] = None
        self._ask(now_us, lookout, link, "")

    def _ask(self, now_us: int, lookout: TopicWatch, link: NodeLink, after: str) -> None:
        lookout.due_us = now_us + PATIENCE_MS * 1000
        message = partial(Watch, watch=lookout.number, patterns=lookout.patterns, after=after)
        lookout.request = link.ask(lookout, message)

    def _let_go(self, lookout: TopicWatch) -> NodeLink | None:
        """The node it was asked of is none of its business any more."""
        link, lookout.link = lookout.link, None
        if link is not None:
            link.lookouts.pop(lookout, None)
            link.awaiting.pop(lookout.request, None)
        lookout.state = WatchState.WAITING
        return link

    def _try_another(self, now_us: int, lookout: TopicWatch) -> None:
        self._let_go(lookout)
        lookout.due_us = now_us + self._backoff.pause_us(lookout.attempts)
        lookout.attempts += 1
        self._links.widen(now_us)

    # --- messages ------------------------------------------------------------------------------------

    def watched(self, now_us: int, lookout: TopicWatch, message: Watched) -> None:
        link = lookout.link
        if lookout.state is not WatchState.ASKED or link is None:
            return
        for address in message.neighbours:
            self._links.learn(address)
        self._note(now_us, lookout, message.topics)
        if lookout.link is not link:
            return
        if message.after:
            self._ask(now_us, lookout, link, message.after)
            return
        lookout.state = WatchState.LIVE
        lookout.attempts = 0
        lookout.ever_live = True
        lookout.error = None
        lookout.audience.reported(now_us, lookout.told)

    def appeared(self, now_us: int, link: NodeLink, message: TopicsAppeared) -> None:
        lookout = self._kept_by(link, message.watch)
        if lookout is not None:
            self._note(now_us, lookout, message.topics)

    def _note(self, now_us: int, lookout: TopicWatch, topics: tuple[Topic, ...]) -> None:
        for topic in topics:
            lookout.told[topic.topic] = None
        lookout.audience.appeared(now_us, topics)

    def gone(self, now_us: int, link: NodeLink, message: TopicsGone) -> None:
        lookout = self._kept_by(link, message.watch)
        if lookout is not None:
            for topic in message.topics:
                lookout.told.pop(topic, None)
            lookout.audience.gone(now_us, message.topics)

    def ended(self, now_us: int, link: NodeLink, message: Ended) -> bool:
        """True if it was a watch that the node ended."""
        if message.subscription not in self._all:
            return False
        lookout = self._kept_by(link, message.subscription)
        if lookout is not None:
            self.refused(now_us, lookout, from_wire(message.code, message.carried))
        return True

    def refused(self, now_us: int, lookout: TopicWatch, error: RostraError) -> None:
        lookout.error = error
        if lookout.state is WatchState.ENDED:
            return
        # One that was live once has met a node that knows what to do: others may.
        if error.retryable or (lookout.ever_live and isinstance(error, NotSupported)):
            self._try_another(now_us, lookout)
        else:
            self.close(lookout)
            lookout.audience.end(error)

    def _kept_by(self, link: NodeLink, number: int) -> TopicWatch | None:
        lookout = self._all.get(number)
        return lookout if lookout is not None and lookout.link is link else None

    # --- links and time ------------------------------------------------------------------------------

    def link_up(self, now_us: int) -> None:
        for lookout in list(self._all.values()):
            self._flow(now_us, lookout)

    def link_gone(self, now_us: int, link: NodeLink) -> None:
        for lookout in list(link.lookouts):
            self._let_go(lookout)
            lookout.due_us = now_us
            self._flow(now_us, lookout)

    def deadline_us(self) -> int | None:
        if not self._all:
            return None
        standing = self._links.standing
        due = [
            lookout.due_us
            for lookout in self._all.values()
            if lookout.state is WatchState.ASKED or (lookout.state is WatchState.WAITING and standing)
        ]
        return min(due, default=None)

    def tick(self, now_us: int) -> None:
        for lookout in list(self._all.values()):
            if lookout.due_us > now_us:
                continue
            if lookout.state is WatchState.ASKED:
                # It may be cut off from the others. Should it answer after all, nobody listens to it.
                if lookout.link is not None:
                    lookout.link.write(Unwatch(lookout.link.next_request(), lookout.number))
                self._try_another(now_us, lookout)
            self._flow(now_us, lookout)
