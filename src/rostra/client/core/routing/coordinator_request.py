"""Requests to the coordinator of a consumer group or of a sink's query: its lookup, and requests that follow it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.routing.pending_requests import Answer, PendingRequest, PendingRequests
from rostra.errors import GroupError, NotSupported, PeerViolation, RostraError, TimedOut
from rostra.model.batch import Buffer
from rostra.wire.features import GROUPS, SINKS
from rostra.wire.frames import Violation
from rostra.wire.groups import (
    CoordinatorLocation,
    CoordinatorRole,
    FindCoordinator,
    GroupDescribed,
    GroupJoined,
    GroupPage,
)
from rostra.wire.messages import Agreed, ClientMessage, PartitionLocation, Topic, TopicSettings
from rostra.wire.sinks import SinkCommitted

GROUPS_TOPIC = "_groups"
SINKS_TOPIC = "_sinks"

Reply = Agreed | GroupJoined | GroupPage | GroupDescribed | SinkCommitted
"""The messages that answer an `Rpc`."""
OnReply = Callable[[int, Reply], None]
OnError = Callable[[int, RostraError], None]
OnRoute = Callable[[int, PartitionRoute], None]


class Rpc:
    """A request on one link. It is forgotten when the link is closed."""

    __slots__ = ("answered", "refused")

    def __init__(self, answered: OnReply, refused: OnError) -> None:
        self.answered = answered
        self.refused = refused


class CoordinatorLookup:
    """Finds the partition of `_groups` or `_sinks` that stores a name, and tracks the requests sent to its owner."""

    def __init__(self, requests: PendingRequests, metadata: MetadataCache, timeout_us: int) -> None:
        self._requests = requests
        self._metadata = metadata
        self._timeout_us = timeout_us
        self._in_flight: dict[CoordinatorRequest, None] = {}

    def find(self, now_us: int, name: str, found: OnRoute, failed: OnError, role: CoordinatorRole = "group") -> None:
        """Find the coordinator's partition; the first lookup creates the topic."""

        def answered(now_us: int, message: Answer) -> None:
            if not isinstance(message, CoordinatorLocation):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to FindCoordinator")
            assert lookup.link is not None
            topic = Topic(message.topic, GROUPS_TOPIC if role == "group" else SINKS_TOPIC, TopicSettings())
            reported = PartitionLocation(message.partition, message.address, message.epoch, 0, message.known)
            found(now_us, self._metadata.add_reported(now_us, lookup.link, topic, reported))

        build = partial(FindCoordinator, name=name, role=role)
        feature = GROUPS if role == "group" else SINKS
        lookup = PendingRequest(
            f"find the coordinator of {name}", build, answered, failed, now_us + self._timeout_us, feature
        )
        self._requests.add(now_us, lookup)

    # --- requests ------------------------------------------------------------------------------------

    def send(
        self,
        now_us: int,
        name: str,
        what: str,
        build: Callable[[int], ClientMessage],
        answered: OnReply,
        failed: OnError,
        role: CoordinatorRole = "group",
    ) -> None:
        """Send one request to the coordinator of a name."""

        def found(now_us: int, route: PartitionRoute) -> None:
            self.follow(now_us, CoordinatorRequest(what, build, answered, failed, now_us + self._timeout_us), route)

        self.find(now_us, name, found, failed, role)

    def follow(self, now_us: int, request: CoordinatorRequest, route: PartitionRoute) -> None:
        self._in_flight[request] = None
        request.start(now_us, route)

    def fail_all(self, now_us: int, error: RostraError) -> None:
        in_flight, self._in_flight = self._in_flight, {}
        for request in in_flight:
            request.give_up(now_us, error)

    def deadline_us(self) -> int | None:
        return min([request.due_us for request in self._in_flight]) if self._in_flight else None

    def tick(self, now_us: int) -> None:
        for request in list(self._in_flight):
            if request.over:
                del self._in_flight[request]
            elif request.due_us <= now_us:
                request.give_up(now_us, request.last_error or TimedOut(request.what, self._timeout_us // 1000))


class CoordinatorRequest:
    """A request that only the owner of a partition answers. It follows the partition until it is answered."""

    def __init__(
        self,
        what: str,
        build: Callable[[int], ClientMessage],
        answered: OnReply,
        failed: OnError,
        due_us: int,
        payload: Buffer | None = None,
        feature: str = "",
    ) -> None:
        self.what = what
        self.due_us = due_us
        self.over = False
        self._build = build
        self._answered = answered
        self._failed = failed
        self._payload = payload
        self._feature = feature
        self._route: PartitionRoute | None = None
        self._sent: tuple[NodeLink, int] | None = None
        self.link: NodeLink

    @property
    def last_error(self) -> RostraError | None:
        """The last error about the partition."""
        return None if self._route is None else self._route.error

    def start(self, now_us: int, route: PartitionRoute) -> None:
        self._route = route
        route.join(self)
        if not route.stale:
            self.resume(now_us)

    @property
    def needs_owner(self) -> bool:
        """The coordinator is named by its own address."""
        return False

    def resume(self, now_us: int) -> None:
        if self._sent is not None or not self.link.up:
            return
        if self._feature and self._feature not in self.link.features:
            self.give_up(now_us, NotSupported(self._feature))
            return
        rpc = Rpc(self._replied, self._refused)
        self._sent = self.link, self.link.send_request(rpc, self._build, self._payload)

    def suspend(self) -> None:
        self._sent = None

    def move(self, link: NodeLink) -> None:
        if self._sent is not None:
            previous, request = self._sent
            previous.awaiting.pop(request, None)
        self._sent = None
        self.link = link

    def partition_changed(self) -> None:
        """Group requests do not depend on the partition's number."""

    def fail(self, error: RostraError) -> None:
        self.give_up(0, error)

    def _replied(self, now_us: int, message: Reply) -> None:
        if self.over:
            # It was given up, and the reply came late.
            return
        if self._route is not None:
            self._route.confirm()
        self._end()
        self._answered(now_us, message)

    def _refused(self, now_us: int, error: RostraError) -> None:
        if self.over:
            return
        self._sent = None
        if error.retryable and not isinstance(error, GroupError) and self._route is not None:
            self._route.refused(now_us, error)
        else:
            self.give_up(now_us, error)

    def give_up(self, now_us: int, error: RostraError) -> None:
        if not self.over:
            self._end()
            self._failed(now_us, error)

    def _end(self) -> None:
        self.over = True
        self.due_us = 0
        if self._route is not None:
            self._route.leave(self)
