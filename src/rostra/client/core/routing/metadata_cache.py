"""The client's cache of topic metadata: which topic a name means, and which node owns each of its partitions.

Looking up. `find` sends Locate for a name; concurrent callers share one request. A caller that comes later causes
another request, since the topic may have been deleted and created again. What an answer says about a partition is kept
in its `PartitionRoute`, which all senders, feeds and group members of that partition follow.

Staleness. A route is *stale* when its link is closed or its node refuses to serve the partition. It is then looked up
at any node, with growing pauses, until one names an owner that answers. Owners are compared by epoch: an answer with an
older epoch than the route's is ignored unless the route is stale. A `Moved` error names the new owner and is followed
at once, for at most `HOPS_MAX` hops in a row.

Suspects. A node that leaves requests unanswered may be stopped or partitioned away. Its topics are then looked up at
other nodes; the followers move only if these name an owner with a newer epoch.

Per-node partitions. On fabrics where every node has partitions of its own (`Located.per_node`), a name has one *own*
route, to the partition of whichever node answers, for publishing, and one route per known partition for reading.
Further partitions are added when a node reports them (`PartitionAdded`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.links.node_links import NodeLinks
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.routing.pending_requests import Answer, PendingRequest, PendingRequests
from rostra.errors import Moved, PeerViolation, RostraError, TopicRecreated, Unavailable
from rostra.wire.frames import Violation
from rostra.wire.messages import Locate, Located, PartitionAdded, PartitionLocation, Topic

OnRoutes = Callable[[int, Topic, list[PartitionRoute]], None]
OnError = Callable[[int, RostraError], None]

HOPS_MAX = 3
"""Owners to follow without a pause: two nodes that name each other must not make the client spin."""


class MetadataCache:
    """All routes of a client, by topic id and partition index."""

    def __init__(
        self,
        links: NodeLinks,
        requests: PendingRequests,
        no_owner: Callable[[int], None],
        backoff: Backoff,
        *,
        create: bool,
        timeout_us: int,
    ) -> None:
        self._links = links
        self._no_owner = no_owner
        self._requests = requests
        self._backoff = backoff
        self._create = create
        self._timeout_us = timeout_us
        self._waiting: dict[tuple[str, bool], list[tuple[OnRoutes, OnError]]] = {}
        self._routes: dict[tuple[int, int], PartitionRoute] = {}
        self._stale: dict[PartitionRoute, None] = {}
        self._relocating: dict[str, None] = {}
        self._verifying: dict[str, None] = {}
        """Names being looked up at another node, because their owner is suspect."""
        self._turn = 0
        self._own_routes: dict[str, PartitionRoute] = {}
        """By name, the route for publishing to a topic with per-node partitions."""
        self.partition_added: Callable[[int, str, PartitionRoute], None] = lambda now_us, name, route: None
        """Called for each partition that is reported after its topic was looked up."""

    def silence(self) -> str:
        """Why a request was not answered, as far as it is known."""
        return self._links.silence()

    # --- lookups -------------------------------------------------------------------------------------

    def find(self, now_us: int, name: str, found: OnRoutes, failed: OnError, *, create: bool | None = None) -> None:
        """Look up a topic; with `create` it is created if missing. The default is the client's `auto_create`."""
        create = self._create if create is None else create
        waiting = self._waiting.setdefault((name, create), [])
        waiting.append((found, failed))
        if len(waiting) == 1:
            answered, refused = partial(self._found, create), partial(self._failed, create)
            self._locate(now_us, name, answered, refused, create=create, turn=0)

    def add_reported(self, now_us: int, link: NodeLink, topic: Topic, reported: PartitionLocation) -> PartitionRoute:
        """The route of a partition that this link's node reported. The caller must join it, or it is forgotten."""
        route = self._route(topic, reported.partition, link)
        route.pinned = True
        if reported.address:
            self._links.add_address(reported.address)
        if reported.epoch > route.epoch or route.stale:
            self._apply_reported(now_us, route, reported, link)
        return route

    def routes_of(self, topic: Topic) -> list[PartitionRoute]:
        """The routes of a topic that a node reported. New ones are stale, so that `tick` looks them up."""
        link = self._links.pick() or self._links.latest
        return [self._route(topic, partition, link) for partition in range(topic.settings.partitions)]

    def _locate(
        self,
        now_us: int,
        name: str,
        found: Callable[[str, int, NodeLink, Located], None],
        failed: Callable[[str, int, RostraError], None],
        *,
        create: bool,
        turn: int,
        topic: int = 0,
        exclude: NodeLink | None = None,
    ) -> None:
        def answered(now_us: int, message: Answer) -> None:
            if not isinstance(message, Located):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to Locate")
            assert pending.link is not None
            for reported in message.locations:
                self._links.add_address(reported.address)
            for address in message.neighbours:
                self._links.add_address(address)
            found(name, now_us, pending.link, message)

        build = partial(Locate, name=name, create=create, topic=topic)
        due_us = now_us + self._timeout_us
        pending = PendingRequest(
            f"locate {name}", build, answered, partial(failed, name), due_us, turn=turn, exclude=exclude
        )
        self._requests.add(now_us, pending)

    def _found(self, create: bool, name: str, now_us: int, link: NodeLink, message: Located) -> None:
        topic = message.topic
        if message.per_node:
            routes = [
                self._own_route(topic, link),
                *(self._node_route(topic, reported, link) for reported in message.locations),
            ]
        else:
            routes = [self._route(topic, partition, link) for partition in range(topic.settings.partitions)]
        self._apply_located(now_us, link, message)
        for found, _ in self._waiting.pop((name, create), ()):
            found(now_us, topic, routes)
        for route in routes:
            if not route.followers:
                self.forget(route)

    def _failed(self, create: bool, name: str, now_us: int, error: RostraError) -> None:
        for _, failed in self._waiting.pop((name, create), ()):
            failed(now_us, error)

    def _route(self, topic: Topic, partition: int, link: NodeLink) -> PartitionRoute:
        route = self._routes.get((topic.topic, partition))
        if route is None:
            route = self._routes[topic.topic, partition] = PartitionRoute(
                self, topic.name, topic.topic, partition, link
            )
            self._stale[route] = None
        return route

    def _own_route(self, topic: Topic, link: NodeLink) -> PartitionRoute:
        route = self._own_routes.get(topic.name)
        if route is None:
            route = self._own_routes[topic.name] = PartitionRoute(
                self, topic.name, topic.topic, 0, link, per_node=True, own=True
            )
            self._stale[route] = None
        return route

    def _node_route(self, topic: Topic, reported: PartitionLocation, link: NodeLink) -> PartitionRoute:
        identity = reported.topic or topic.topic
        route = self._routes.get((identity, reported.partition))
        if route is None:
            route = PartitionRoute(self, topic.name, identity, reported.partition, link, per_node=True)
            self._routes[identity, reported.partition] = route
            self._stale[route] = None
        return route

    def place_joined(self, now_us: int, link: NodeLink, message: PartitionAdded) -> None:
        """A node reports a further partition of a topic."""
        own = self._own_routes.get(message.name)
        known = own or next((route for route in self._routes.values() if route.name == message.name), None)
        if known is not None and (message.location.topic, message.location.partition) not in self._routes:
            self._add_route(now_us, message.name, message.location, link)

    def _add_route(self, now_us: int, name: str, reported: PartitionLocation, link: NodeLink) -> None:
        identity = reported.topic, reported.partition
        route = self._routes[identity] = PartitionRoute(
            self, name, reported.topic, reported.partition, link, per_node=True
        )
        self._stale[route] = None
        self._apply_reported(now_us, route, reported, link)
        self.partition_added(now_us, name, route)
        if not route.followers:
            self.forget(route)

    def forget(self, route: PartitionRoute) -> None:
        """Remove a route without followers."""
        if route.own:
            self._own_routes.pop(route.name, None)
        else:
            self._routes.pop((route.topic, route.index), None)
        self._stale.pop(route, None)
        self._detach(route)

    # --- answers from nodes --------------------------------------------------------------------------

    def _apply_located(self, now_us: int, link: NodeLink, message: Located) -> None:
        if message.per_node:
            self._apply_own(now_us, link, message)
        for reported in message.locations:
            route = self._routes.get((reported.topic or message.topic.topic, reported.partition))
            if route is None:
                continue
            if message.per_node:
                route.become_per_node()
            # A route in its pause stays there unless the epoch is new: the answer may be due to another partition.
            if reported.epoch > route.epoch or (route.stale and route.retry_at_us <= now_us):
                self._apply_reported(now_us, route, reported, link)

    def _apply_own(self, now_us: int, link: NodeLink, message: Located) -> None:
        """Publish to the node that answers, under its own id of the topic."""
        own = self._own_routes.get(message.topic.name)
        if own is not None and own.stale and own.retry_at_us <= now_us:
            own.switch_topic(message.topic.topic)
            self._attach(now_us, own, link)

    def _apply_reported(self, now_us: int, route: PartitionRoute, reported: PartitionLocation, link: NodeLink) -> None:
        """Attach the route to the reported owner. An empty address means the node that answers. For a stale route, an
        old epoch is better than none.
        """
        target = None
        if reported.known:
            target = self._links.link_to(now_us, reported.address) if reported.address else link
        if target is not None:
            route.epoch = max(route.epoch, reported.epoch)
            owner = self._links.link_to(now_us, reported.owner) if reported.owner else None
            unreachable = owner is None and bool(reported.owner)
            self._attach(now_us, route, target, route.owner_link if unreachable else owner)
            if unreachable:
                # The owner is in its backoff: readers go on, publishers that are registered there wait.
                self._mark_stale(now_us, route)
                route.retry_at_us = max(route.retry_at_us, self._links.retry_at_us(reported.owner))
        elif route.stale:
            # No owner is known, or it is in its backoff: another node may know better.
            if not reported.known:
                self._no_owner(now_us)
                finding = f": {self._links.finding}" if self._links.finding else ""
                route.error = Unavailable(route.name, route.index, f"it has no owner at the moment{finding}")
            self._back_off(now_us, route)
            route.retry_at_us = max(route.retry_at_us, self._links.retry_at_us(reported.address))
            self._links.dial_another(now_us)

    def moved(self, now_us: int, route: PartitionRoute, error: Moved) -> None:
        route.error = error
        route.hops += 1
        known = error.epoch > route.epoch
        route.epoch = max(route.epoch, error.epoch)
        target = None
        if route.owner_link is None and error.address != route.link.address and (known or route.hops <= HOPS_MAX):
            target = self._links.link_to(now_us, error.address)
        if target is None or target is route.link:
            self._mark_stale(now_us, route)
        else:
            self._attach(now_us, route, target)

    def refused(self, now_us: int, route: PartitionRoute, error: RostraError) -> None:
        route.error = error
        self._mark_stale(now_us, route)

    # --- routes --------------------------------------------------------------------------------------

    def _attach(self, now_us: int, route: PartitionRoute, link: NodeLink, owner: NodeLink | None = None) -> None:
        self._stale.pop(route, None)
        route.stale = False
        self._detach(route)
        route.link, route.owner_link = link, owner
        link.routes[route] = None
        if owner is not None:
            owner.routes[route] = None
        for follower in list(route.followers):
            target = route.link_for(follower)
            if follower.link is not target:
                follower.move(target)
            if target.up:
                follower.resume(now_us)

    def _detach(self, route: PartitionRoute) -> None:
        route.link.routes.pop(route, None)
        if route.owner_link is not None:
            route.owner_link.routes.pop(route, None)

    def _mark_stale(self, now_us: int, route: PartitionRoute) -> None:
        """Look the route up again; followers that are still served continue until another owner is found."""
        if not route.stale:
            route.stale = True
            self._stale[route] = None
            self._back_off(now_us, route)

    def _back_off(self, now_us: int, route: PartitionRoute) -> None:
        route.hops = 0
        route.retry_at_us = now_us + self._backoff.pause_us(route.failures)
        route.failures += 1

    # --- links ---------------------------------------------------------------------------------------

    def link_up(self, now_us: int, link: NodeLink) -> None:
        for route in list(link.routes):
            for follower in list(route.followers):
                if follower.link is link:
                    follower.resume(now_us)
        for route in list(self._stale):
            if not route.link.up and route.link.node == link.node != 0 and not route.per_node:
                # The node is connected again and most likely still serves the partition.
                self._attach(now_us, route, link)
        self.tick(now_us)

    def link_down(self, now_us: int, link: NodeLink) -> None:
        routes, link.routes = list(link.routes), {}
        for route in routes:
            for follower in list(route.followers):
                if follower.link is link:
                    follower.suspend()
            first = not route.failures
            self._mark_stale(now_us, route)
            if first:
                # Another node may know the new owner at once.
                route.retry_at_us = now_us

    # --- retries -------------------------------------------------------------------------------------

    def _relocated(self, name: str, now_us: int, link: NodeLink, message: Located) -> None:
        self._relocating.pop(name, None)
        for route in [route for route in self._stale if route.name == name and not route.per_node]:
            if route.topic != message.topic.topic:
                away = Unavailable(name, route.index, "the node that keeps it does not answer")
                self._fail(route, away if message.per_node else TopicRecreated(name))
        self._apply_located(now_us, link, message)
        if message.per_node:
            self._add_missing(now_us, name, link, message)

    def _add_missing(self, now_us: int, name: str, link: NodeLink, message: Located) -> None:
        """Add the partitions that the previous node did not have; this node may lack others for a while."""
        for reported in message.locations:
            identity = reported.topic or message.topic.topic
            if (identity, reported.partition) not in self._routes:
                self._add_route(now_us, name, replace(reported, topic=identity), link)
        for route in [route for route in self._stale if route.name == name]:
            if route.retry_at_us <= now_us:
                self._back_off(now_us, route)

    def _not_relocated(self, name: str, now_us: int, error: RostraError) -> None:
        self._relocating.pop(name, None)
        for route in [route for route in self._stale if route.name == name]:
            if route.may_retry(error):
                route.error = error
                self._back_off(now_us, route)
            else:
                self._fail(route, error)

    # --- suspect nodes -------------------------------------------------------------------------------

    def _verify_elsewhere(self, now_us: int, link: NodeLink) -> None:
        """Look up the topics of a suspect link at other nodes. The node may be stopped or cut off; a new owner has a
        newer epoch, and the followers move only to such a one.
        """
        for name in dict.fromkeys(route.name for route in link.routes):
            if name not in self._verifying and name not in self._relocating:
                self._verifying[name] = None
                found, failed = self._verified, self._not_verified
                self._locate(now_us, name, found, failed, create=False, turn=self._turn, exclude=link)
        # Ask another node next time.
        self._turn += 1

    def _verified(self, name: str, now_us: int, link: NodeLink, message: Located) -> None:
        self._verifying.pop(name, None)
        self._apply_located(now_us, link, message)

    def _not_verified(self, name: str, now_us: int, error: RostraError) -> None:
        self._verifying.pop(name, None)

    def _fail(self, route: PartitionRoute, error: RostraError) -> None:
        for follower in list(route.followers):
            follower.fail(error)
        self.forget(route)

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        if not self._stale or not self._links.connected:
            return None
        return min([route.retry_at_us for route in self._stale if route.name not in self._relocating], default=None)

    def tick(self, now_us: int) -> None:
        for link in self._links.check_suspects(now_us):
            self._verify_elsewhere(now_us, link)
        if not self._stale or not self._links.connected:
            return
        for route in list(self._stale):
            if route.retry_at_us <= now_us and route.name not in self._relocating:
                self._relocating[route.name] = None
                found, failed = self._relocated, self._not_relocated
                # The node that continues must have the topic, too.
                create = route.per_node and self._create
                # A node that was away may know only an earlier topic of this name; the id makes it catch up first.
                topic = 0 if route.per_node else route.topic
                self._locate(now_us, route.name, found, failed, create=create, turn=route.failures, topic=topic)
