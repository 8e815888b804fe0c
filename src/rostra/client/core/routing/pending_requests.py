"""Requests that any node answers, such as lookups and administration. They survive the connection they were sent on."""

from __future__ import annotations

from collections.abc import Callable

from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.links.node_links import NodeLinks
from rostra.errors import NotSupported, RostraError, TimedOut, Unavailable
from rostra.wire.groups import CoordinatorLocation
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
    | CoordinatorLocation
)
"""The messages that answer a `PendingRequest`."""

ANSWER_MS = 3_000
"""If a node has not answered by then, the request goes to another one: the node may be cut off."""


class PendingRequest:
    """One request. It is sent again on another link, or after a retryable error, if possible to another node.

    If it needs a `feature` that the node lacks, it fails with `NotSupported` and is not sent.
    """

    __slots__ = (
        "answer_by_us",
        "answered",
        "attempts",
        "build",
        "due_us",
        "error",
        "exclude",
        "failed",
        "feature",
        "link",
        "not_before_us",
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
        exclude: NodeLink | None = None,
    ) -> None:
        self.what = what
        self.build = build
        self.answered = answered
        self.failed = failed
        self.due_us = due_us
        self.feature = feature
        self.turn = turn
        """Which of several nodes is asked first."""
        self.exclude = exclude
        """A suspect link that is not used."""
        self.attempts = 0
        self.link: NodeLink | None = None
        """The link it was sent on, while unanswered."""
        self.request = 0
        self.not_before_us = 0
        self.answer_by_us = 0
        self.error: RostraError | None = None


class PendingRequests:
    """All pending requests, oldest first. They share one timeout, so the first is also the first to expire."""

    def __init__(self, links: NodeLinks, backoff: Backoff) -> None:
        self._links = links
        self._backoff = backoff
        self._open: dict[PendingRequest, None] = {}

    def add(self, now_us: int, pending: PendingRequest) -> None:
        self._open[pending] = None
        self._send(now_us, pending)

    def _send(self, now_us: int, pending: PendingRequest) -> None:
        if pending.link is not None or pending.not_before_us > now_us:
            return
        link = self._links.pick(pending.turn + pending.attempts, pending.exclude)
        if link is None:
            if pending.exclude is not None:
                self._links.dial_another(now_us)
                pending.not_before_us = now_us + self._backoff.pause_us(pending.attempts)
            return
        if pending.feature and pending.feature not in link.features:
            del self._open[pending]
            pending.failed(now_us, NotSupported(pending.feature))
            return
        pending.link = link
        pending.attempts += 1
        pending.answer_by_us = now_us + ANSWER_MS * 1000
        pending.request = link.send_request(pending, pending.build)
        link.arm_check(now_us)

    def answered(self, now_us: int, pending: PendingRequest, message: Answer) -> None:
        self._open.pop(pending, None)
        pending.answered(now_us, message)

    def refused(self, now_us: int, pending: PendingRequest, error: RostraError) -> None:
        if error.retryable and pending in self._open:
            pending.error = error
            pending.link = None
            pending.not_before_us = now_us + self._backoff.pause_us(pending.attempts)
            self._links.dial_another(now_us)
        else:
            self._open.pop(pending, None)
            pending.failed(now_us, error)

    def link_up(self, now_us: int) -> None:
        for pending in list(self._open):
            self._send(now_us, pending)

    def link_down(self, now_us: int, link: NodeLink) -> None:
        for pending in list(self._open):
            if pending.link is link:
                pending.link = None
                self._send(now_us, pending)

    def fail_all(self, now_us: int, error: RostraError, link: NodeLink | None = None) -> None:
        """Fail the requests sent on this link, by default all."""
        for pending in [pending for pending in self._open if link is None or pending.link is link]:
            del self._open[pending]
            pending.failed(now_us, error)

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        if not self._open:
            return None
        due = next(iter(self._open)).due_us
        several = len(self._links.addresses) > 1
        for pending in self._open:
            if pending.link is not None:
                if several and pending.answer_by_us < due:
                    due = pending.answer_by_us
            elif pending.not_before_us < due and self._links.connected:
                due = pending.not_before_us
        return due

    def tick(self, now_us: int, timeout_ms: int) -> None:
        for pending in list(self._open):
            if pending.due_us <= now_us:
                del self._open[pending]
                self._abandon(pending)
                pending.failed(now_us, self._cause(pending, timeout_ms))
                continue
            if pending.link is not None and pending.answer_by_us <= now_us and len(self._links.addresses) > 1:
                self._try_another_node(now_us, pending)
            self._send(now_us, pending)

    def _cause(self, pending: PendingRequest, timeout_ms: int) -> RostraError:
        """The last refusal, with what is known about the cluster; else that nothing was answered."""
        error, finding = pending.error, self._links.finding
        if isinstance(error, Unavailable) and finding:
            return Unavailable(error.topic, error.partition, f"{error.reason}: {finding}")
        return error or TimedOut(pending.what, timeout_ms, self._links.silence())

    def _try_another_node(self, now_us: int, pending: PendingRequest) -> None:
        if self._links.pick(pending.turn + pending.attempts, pending.exclude) is pending.link:
            self._links.dial_another(now_us)
            pending.answer_by_us = now_us + ANSWER_MS * 1000
        else:
            self._abandon(pending)

    def _abandon(self, pending: PendingRequest) -> None:
        """Ignore an answer that comes later."""
        if pending.link is not None:
            pending.link.awaiting.pop(pending.request, None)
            pending.link = None
