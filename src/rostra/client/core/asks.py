"""Requests that are answered once: topics, their places. They outlive the connection they were sent on."""

from __future__ import annotations

from collections.abc import Callable

from rostra.client.core.link import Link
from rostra.errors import NotSupported, RostraError, TimedOut
from rostra.wire.messages import (
    Agreed,
    ClientMessage,
    ClusterDescribed,
    Located,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
)

Answer = Located | TopicCreated | TopicDropped | TopicPage | TopicDescribed | ClusterDescribed | Agreed
"""The messages that answer an `Ask`."""


class Ask:
    """One question, asked again on a new connection or after an error that a retry may mend.

    Where it needs a `feature` that the node lacks, it fails with `NotSupported` and is not sent.
    """

    __slots__ = (
        "answered",
        "asked",
        "attempts",
        "build",
        "due_us",
        "error",
        "failed",
        "feature",
        "not_before_us",
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
    ) -> None:
        self.what = what
        self.build = build
        self.answered = answered
        self.failed = failed
        self.due_us = due_us
        self.feature = feature
        self.attempts = 0
        self.asked = False
        self.not_before_us = 0
        self.error: RostraError | None = None


class Asks:
    """All that is asked, oldest first; they share one timeout, so the first is also the first to run out."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._open: dict[int, Ask] = {}
        self._last = 0
        self._number_of: dict[int, int] = {}

    def add(self, now_us: int, ask: Ask) -> None:
        self._last += 1
        self._open[self._last] = ask
        self._send(now_us, self._last, ask)

    def _send(self, now_us: int, number: int, ask: Ask) -> None:
        if self.link.up and not ask.asked and ask.not_before_us <= now_us:
            if ask.feature and ask.feature not in self.link.features:
                del self._open[number]
                ask.failed(now_us, NotSupported(ask.feature))
                return
            ask.asked = True
            ask.attempts += 1
            self._number_of[self.link.ask(ask, ask.build)] = number

    def answered(self, now_us: int, request: int, ask: Ask, message: Answer) -> None:
        del self._open[self._number_of.pop(request)]
        ask.answered(now_us, message)

    def refused(self, now_us: int, request: int, ask: Ask, error: RostraError) -> None:
        number = self._number_of.pop(request)
        if error.retryable:
            ask.error = error
            ask.asked = False
            ask.not_before_us = now_us + self.link.pause_us(ask.attempts)
        else:
            del self._open[number]
            ask.failed(now_us, error)

    def connected(self, now_us: int) -> None:
        for number, ask in list(self._open.items()):
            self._send(now_us, number, ask)

    def disconnected(self) -> None:
        self._number_of.clear()
        for ask in self._open.values():
            ask.asked = False

    def fail_all(self, now_us: int, error: RostraError) -> None:
        asks, self._open = list(self._open.values()), {}
        self._number_of.clear()
        for ask in asks:
            ask.failed(now_us, error)

    def deadline_us(self) -> int | None:
        if not self._open:
            return None
        due = next(iter(self._open.values())).due_us
        for ask in self._open.values():
            if self.link.up and not ask.asked:
                due = min(due, ask.not_before_us)
        return due

    def tick(self, now_us: int, timeout_ms: int) -> None:
        for number, ask in list(self._open.items()):
            if ask.due_us <= now_us:
                del self._open[number]
                # An answer that comes later finds nobody.
                late = [request for request, waiter in self.link.awaiting.items() if waiter is ask]
                for request in late:
                    del self.link.awaiting[request]
                    self._number_of.pop(request, None)
                ask.failed(now_us, ask.error or TimedOut(ask.what, timeout_ms))
            else:
                self._send(now_us, number, ask)
