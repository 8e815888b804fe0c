"""The route to one partition: the link to the node that serves it, as far as known, and its followers."""

from __future__ import annotations

from typing import Protocol

from rostra.client.core.links.node_link import NodeLink
from rostra.errors import Moved, RostraError, UnknownTopic


class RouteFollower(Protocol):
    """A sender, feed or group member: it uses the link of its route."""

    link: NodeLink

    @property
    def needs_owner(self) -> bool:
        """Whether it must use the link to the owner, where that is another node than the one that serves reads."""

    def resume(self, now_us: int) -> None:
        """The link is connected: start, or continue."""

    def suspend(self) -> None:
        """The link is closed."""

    def move(self, link: NodeLink) -> None:
        """Stop, and wait for this link instead."""

    def partition_changed(self) -> None:
        """The application-visible number of the partition changed."""

    def fail(self, error: RostraError) -> None:
        """The partition does not exist any more."""


class RouteTable(Protocol):
    """The owner of the routes."""

    def moved(self, now_us: int, route: PartitionRoute, error: Moved) -> None: ...
    def refused(self, now_us: int, route: PartitionRoute, error: RostraError) -> None: ...
    def forget(self, route: PartitionRoute) -> None: ...


class PartitionRoute:
    """Shared by all senders and feeds of a partition, so that one of them finds the new owner for all."""

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
        "owner_link",
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
        """The topic id used in requests, together with `index`."""
        self.index = index
        self.partition = topic if per_node else index
        """The number shown to applications; with per-node partitions this is the topic id."""
        self.per_node = per_node
        self.pinned = False
        """A per-node partition of which no other node has a copy."""
        self.own = own
        """The publishing route: it leads to the partition of whichever node answers."""
        self.migrations = 0
        """How often the own route changed to another node."""
        self.link = link
        """To the node that serves reads and takes publishes."""
        self.owner_link: NodeLink | None = None
        """To the owner, where that is another node."""
        self.epoch = 0
        """Owner epoch of the newest known owner."""
        self.followers: dict[RouteFollower, None] = {}
        self.stale = True
        """Whether the owner must be looked up again."""
        self.retry_at_us = 0
        self.failures = 0
        """Lookups since something was last stored or delivered there."""
        self.hops = 0
        """Redirects in a row."""
        self.error: RostraError | None = None
        """The last error about this partition."""

    def join(self, follower: RouteFollower) -> None:
        self.followers[follower] = None
        follower.link = self.link_for(follower)

    def link_for(self, follower: RouteFollower) -> NodeLink:
        return self.owner_link if self.owner_link is not None and follower.needs_owner else self.link

    def leave(self, follower: RouteFollower) -> None:
        if self.followers.pop(follower, follower) is None and not self.followers:
            self._table.forget(self)

    def become_per_node(self) -> None:
        """Every node turned out to have partitions of its own; from now on the id identifies this one."""
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
        """Whether the error may only mean that this node does not know the partition yet."""
        return error.retryable or (self.per_node and isinstance(error, UnknownTopic))

    def confirm(self) -> None:
        """The node serves the partition: reset the failures."""
        self.failures = self.hops = 0
        self.error = None

    def refused(self, now_us: int, error: RostraError) -> None:
        """A follower's request was refused because the partition is not served there, or not now."""
        if not self.followers:
            # The follower has left meanwhile; no lookup is needed.
            return
        if isinstance(error, Moved):
            self._table.moved(now_us, self, error)
        else:
            self._table.refused(now_us, self, error)
