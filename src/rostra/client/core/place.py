"""Where one partition is served, as far as this client knows, and who follows it there."""

from __future__ import annotations

from typing import Protocol

from rostra.client.core.link import Link
from rostra.errors import Moved, RostraError


class Follower(Protocol):
    """A lane or a feed: it uses the link that its place names."""

    link: Link

    def flow(self, now_us: int) -> None:
        """The link stands: begin, or go on."""

    def halt(self) -> None:
        """The link is gone."""

    def move(self, link: Link) -> None:
        """Stop where it is, and wait for this link instead."""

    def fail(self, error: RostraError) -> None:
        """There is no such partition any more."""


class Router(Protocol):
    """Whoever keeps the places."""

    def moved(self, now_us: int, place: Place, error: Moved) -> None: ...
    def refused(self, now_us: int, place: Place, error: RostraError) -> None: ...
    def forsaken(self, place: Place) -> None: ...


class Place:
    """Shared by all lanes and feeds of a partition, so that one of them finds the new owner for all."""

    __slots__ = (
        "_router",
        "epoch",
        "error",
        "failures",
        "followers",
        "hops",
        "link",
        "lost",
        "name",
        "partition",
        "retry_at_us",
        "topic",
    )

    def __init__(self, router: Router, name: str, topic: int, partition: int, link: Link) -> None:
        self._router = router
        self.name = name
        self.topic = topic
        self.partition = partition
        self.link = link
        self.epoch = 0
        """Of the newest owner heard of."""
        self.followers: dict[Follower, None] = {}
        self.lost = True
        """Whether it must be asked for again before it is of use."""
        self.retry_at_us = 0
        self.failures = 0
        """Since something was last stored or delivered there."""
        self.hops = 0
        """Nodes that sent us on to another, in a row."""
        self.error: RostraError | None = None
        """What was last heard against it."""

    def join(self, follower: Follower) -> None:
        self.followers[follower] = None
        follower.link = self.link

    def leave(self, follower: Follower) -> None:
        if self.followers.pop(follower, follower) is None and not self.followers:
            self._router.forsaken(self)

    def proved(self) -> None:
        """The node serves it."""
        self.failures = self.hops = 0
        self.error = None

    def refused(self, now_us: int, error: RostraError) -> None:
        """A follower was told that the partition is not served here, or not now."""
        if isinstance(error, Moved):
            self._router.moved(now_us, self, error)
        else:
            self._router.refused(now_us, self, error)
