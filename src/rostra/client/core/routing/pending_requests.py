"""Requests that are answered once: topics, their places. They outlive the connection they were sent on."""

from __future__ import annotations

from collections.abc import Callable

from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.links.node_links import NodeLinks
from rostra.errors import NotSupported, RostraError, TimedOut
from rostra.wire.groups import GroupPlace
from rostra.wire.messages import (
    Agreed,
    ClientMessage,
    ClusterDescribed,
    Located,
    TopicAltered,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
)

Answer = (
    Located
    | TopicCreated
    | TopicAltered
    | TopicDropped
    | TopicPage
    | TopicDescribed
    | ClusterDescribed
    | Agreed
    | GroupPlace
)
"""The messages that answer an `PendingRequest`."""

PATIENCE_MS = 3_000
"""A node that has not answered by then is asked no further if another one can be: it may be cut off from the others."""


class PendingRequest:
    """One question, asked again on another link or after an error that a retry may mend, if possible of another node.

    Where it needs a `feature` that the node lacks, it fails with `NotSupported` and is not sent.
    """

    __slots__ = (
        "answered",
        "attempts",
        "build",
        "due_us",
        "error",
        "failed",
        "feature",
        "link",
        "not_before_us",
        "other_than",
        "patient_until_us",
        "request",
        "turn",
        "what",
    )

    def __init__(
        self,
        what: str,
        build: Callable[[int], ClientMessage],
        answered: Callable[[int, Answer], None],
        failed: Callable[[int, RostraError], None],
        due_us: int,
        feature: str = "",
        turn: int = 0,
        other_than: NodeLink | None = None,
    ) -> None:
        self.what = what
        self.build = build
        self.answered = answered
        self.failed = failed
        self.due_us = due_us
        self.feature = feature
        self.turn = turn
        """Which of several nodes is asked first."""
        self.other_than = other_than
        """The one that is not asked, for it is the one in doubt."""
        self.attempts = 0
        self.link: NodeLink | None = None
        """Where it was sent and not answered yet."""
        self.request = 0
        self.not_before_us = 0
        self.patient_until_us = 0
        self.error: RostraError | None = None


class PendingRequests:
    """All that is asked, oldest first; they share one timeout, so the first is also the first to run out."""

    def __init__(self, links: NodeLinks, backoff: Backoff) -> None:
        self._links = links
        self._backoff = backoff
        self._open: dict[PendingRequest, None] = {}

    def add(self, now_us: int, ask: PendingRequest) -> None:
        self._open[ask] = None
        self._send(now_us, ask)

    def _send(self, now_us: int, ask: PendingRequest) -> None:
        if ask.link is not None or ask.not_before_us > now_us:
            return
        link = self._links.any(ask.turn + ask.attempts, ask.other_than)
        if link is None:
            if ask.other_than is not None:
                self._links.widen(now_us)
                ask.not_before_us = now_us + self._backoff.pause_us(ask.attempts)
            return
        if ask.feature and ask.feature not in link.features:
            del self._open[ask]
            ask.failed(now_us, NotSupported(ask.feature))
            return
        ask.link = link
        ask.attempts += 1
        ask.patient_until_us = now_us + PATIENCE_MS * 1000
        ask.request = link.ask(ask, ask.build)
        link.watch(now_us)

    def answered(self, now_us: int, ask: PendingRequest, message: Answer) -> None:
        del self._open[ask]
        ask.answered(now_us, message)

    def refused(self, now_us: int, ask: PendingRequest, error: RostraError) -> None:
        if error.retryable:
            ask.error = error
            ask.link = None
            ask.not_before_us = now_us + self._backoff.pause_us(ask.attempts)
            self._links.widen(now_us)
        else:
            del self._open[ask]
            ask.failed(now_us, error)

    def link_up(self, now_us: int) -> None:
        for ask in list(self._open):
            self._send(now_us, ask)

    def link_gone(self, now_us: int, link: NodeLink) -> None:
        for ask in list(self._open):
            if ask.link is link:
                ask.link = None
                self._send(now_us, ask)

    def fail_all(self, now_us: int, error: RostraError, link: NodeLink | None = None) -> None:
        """Those asked over this link, by default all."""
        for ask in [ask for ask in self._open if link is None or ask.link is link]:
            del self._open[ask]
            ask.failed(now_us, error)

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        if not self._open:
            return None
        due = next(iter(self._open)).due_us
        impatient = len(self._links.addresses) > 1
        for ask in self._open:
            if ask.link is not None:
                if impatient and ask.patient_until_us < due:
                    due = ask.patient_until_us
            elif ask.not_before_us < due and self._links.standing:
                due = ask.not_before_us
        return due

    def tick(self, now_us: int, timeout_ms: int) -> None:
        for ask in list(self._open):
            if ask.due_us <= now_us:
                del self._open[ask]
                self._disown(ask)
                ask.failed(now_us, ask.error or TimedOut(ask.what, timeout_ms))
                continue
            if ask.link is not None and ask.patient_until_us <= now_us and len(self._links.addresses) > 1:
                self._look_further(now_us, ask)
            self._send(now_us, ask)

    def _look_further(self, now_us: int, ask: PendingRequest) -> None:
        if self._links.any(ask.turn + ask.attempts, ask.other_than) is ask.link:
            self._links.widen(now_us)
            ask.patient_until_us = now_us + PATIENCE_MS * 1000
        else:
            self._disown(ask)

    def _disown(self, ask: PendingRequest) -> None:
        """An answer that comes later finds nobody."""
        if ask.link is not None:
            ask.link.awaiting.pop(ask.request, None)
            ask.link = None
