"""Where one partition is served, as far as this client knows, and who follows it there."""

from __future__ import annotations

from typing import Protocol

from rostra.client.core.links.node_link import NodeLink
from rostra.errors import Moved, RostraError, UnknownTopic


class RouteFollower(Protocol):
    """A lane or a feed: it uses the link that its place names."""

    link: NodeLink

    def resume(self, now_us: int) -> None:
        """The link stands: begin, or go on."""

    def suspend(self) -> None:
        """The link is gone."""

    def move(self, link: NodeLink) -> None:
        """Stop where it is, and wait for this link instead."""

    def partition_changed(self) -> None:
        """Its place has another number for applications."""

    def fail(self, error: RostraError) -> None:
        """There is no such partition any more."""


class RouteTable(Protocol):
    """Whoever keeps the places."""

    def moved(self, now_us: int, route: PartitionRoute, error: Moved) -> None: ...
    def refused(self, now_us: int, route: PartitionRoute, error: RostraError) -> None: ...
    def forget(self, route: PartitionRoute) -> None: ...


class PartitionRoute:
    """Shared by all lanes and feeds of a partition, so that one of them finds the new owner for all."""

    __slots__ = (
        "_table",
        "epoch",
        "error",
        "failures",
        "followers",
        "hops",
        "index",
        "link",
        "migrations",
        "name",
        "own",
        "partition",
        "per_node",
        "pinned",
        "retry_at_us",
        "stale",
        "topic",
    )

    def __init__(
        self,
        table: RouteTable,
        name: str,
        topic: int,
        index: int,
        link: NodeLink,
        *,
        per_node: bool = False,
        own: bool = False,
    ) -> None:
        self._table = table
        self.name = name
        self.topic = topic
        """To be named in requests, with the index."""
        self.index = index
        self.partition = topic if per_node else index
        """As applications know it: where every node has partitions of its own, their ids tell them apart."""
        self.per_node = per_node
        self.pinned = False
        """Whether no other node has a copy of it where every node has partitions of its own."""
        self.own = own
        """Whether it is that of whichever node answers, to publish to."""
        self.migrations = 0
        """How often it has become another node's."""
        self.link = link
        self.epoch = 0
        """Of the newest owner heard of."""
        self.followers: dict[RouteFollower, None] = {}
        self.stale = True
        """Whether it must be asked for again before it is of use."""
        self.retry_at_us = 0
        self.failures = 0
        """Since something was last stored or delivered there."""
        self.hops = 0
        """Nodes that sent us on to another, in a row."""
        self.error: RostraError | None = None
        """What was last heard against it."""

    def join(self, follower: RouteFollower) -> None:
        self.followers[follower] = None
        follower.link = self.link

    def leave(self, follower: RouteFollower) -> None:
        if self.followers.pop(follower, follower) is None and not self.followers:
            self._table.forget(self)

    def become_per_node(self) -> None:
        """It turns out that every node has partitions of its own: then an id tells it from the others."""
        if not self.per_node and not self.pinned:
            self.per_node = True
            self.partition = self.topic
            for follower in list(self.followers):
                follower.partition_changed()

    def switch_topic(self, topic: int) -> None:
        """Another node answers now, or the same one publishes under another id."""
        if topic != self.topic:
            self.topic = self.partition = topic
            self.epoch = 0
            self.migrations += 1

    def may_retry(self, error: RostraError) -> bool:
        """Whether such a refusal only says that this node has not heard of it."""
        return error.retryable or (self.per_node and isinstance(error, UnknownTopic))

    def confirm(self) -> None:
        """The node serves it."""
        self.failures = self.hops = 0
        self.error = None

    def refused(self, now_us: int, error: RostraError) -> None:
        """A follower was told that the partition is not served here, or not now."""
        if not self.followers:
            # It has left meanwhile: nobody wants to know where the partition is.
            return
        if isinstance(error, Moved):
            self._table.moved(now_us, self, error)
        else:
            self._table.refused(now_us, self, error)
