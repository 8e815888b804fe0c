"""Looking up which topic a name means and where its partitions are served, again and again as they move."""

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
from rostra.wire.messages import Locate, Located, PartitionPlace, PlaceJoined, Topic

OnPlaces = Callable[[int, Topic, list[PartitionRoute]], None]
OnError = Callable[[int, RostraError], None]

HOPS_MAX = 3
"""Nodes that may send a follower on without a pause: two that name each other must not make it spin."""


class MetadataCache:
    """A name is asked for once however many wait for it. Whoever comes anew asks anew, for the topic may have been
    created again meanwhile; what is learned about a partition serves all who use it.

    A place is *lost* when its link is gone or its node says that it does not serve it. It is then asked for at any
    node, after a pause that grows, until one names an owner that answers.
    """

    def __init__(
        self, links: NodeLinks, asks: PendingRequests, backoff: Backoff, *, create: bool, timeout_us: int
    ) -> None:
        self._links = links
        self._asks = asks
        self._backoff = backoff
        self._create = create
        self._timeout_us = timeout_us
        self._waiting: dict[tuple[str, bool], list[tuple[OnPlaces, OnError]]] = {}
        self._places: dict[tuple[int, int], PartitionRoute] = {}
        self._lost: dict[PartitionRoute, None] = {}
        self._relocating: dict[str, None] = {}
        self._doubted: dict[str, None] = {}
        """Names of which somebody else is asked, because the node that was named does not answer."""
        self._turn = 0
        self._owns: dict[str, PartitionRoute] = {}
        """By name, where to publish to a topic of which every node has a partition of its own."""
        self.joined: Callable[[int, str, PartitionRoute], None] = lambda now_us, name, place: None
        """Told of partitions that were not there when their topic was looked up."""

    # --- whoever comes anew --------------------------------------------------------------------------

    def find(self, now_us: int, name: str, found: OnPlaces, failed: OnError, *, create: bool | None = None) -> None:
        """With `create`, a topic that is not there is made; unless told, as the client is set."""
        create = self._create if create is None else create
        waiting = self._waiting.setdefault((name, create), [])
        waiting.append((found, failed))
        if len(waiting) == 1:
            answered, refused = partial(self._found, create), partial(self._failed, create)
            self._locate(now_us, name, answered, refused, create=create, turn=0)

    def told(self, now_us: int, link: NodeLink, topic: Topic, told: PartitionPlace) -> PartitionRoute:
        """The place of a partition of which this link's node told; whoever asked joins it, or it is forgotten."""
        place = self._place(topic, told.partition, link)
        place.stays = True
        if told.address:
            self._links.learn(told.address)
        if told.epoch > place.epoch or place.lost:
            self._told(now_us, place, told, link)
        return place

    def enlist(self, topic: Topic) -> list[PartitionRoute]:
        """The places of a topic that a node told of. Those that nobody used so far are lost: `tick` asks for them."""
        link = self._links.any() or self._links.latest
        return [self._place(topic, partition, link) for partition in range(topic.settings.partitions)]

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
        other_than: NodeLink | None = None,
    ) -> None:
        def answered(now_us: int, message: Answer) -> None:
            if not isinstance(message, Located):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to Locate")
            assert ask.link is not None
            for place in message.places:
                self._links.learn(place.address)
            for address in message.neighbours:
                self._links.learn(address)
            found(name, now_us, ask.link, message)

        build = partial(Locate, name=name, create=create, topic=topic)
        due_us = now_us + self._timeout_us
        ask = PendingRequest(
            f"locate {name}", build, answered, partial(failed, name), due_us, turn=turn, other_than=other_than
        )
        self._asks.add(now_us, ask)

    def _found(self, create: bool, name: str, now_us: int, link: NodeLink, message: Located) -> None:
        topic = message.topic
        if message.roams:
            places = [self._own(topic, link), *(self._part(topic, told, link) for told in message.places)]
        else:
            places = [self._place(topic, partition, link) for partition in range(topic.settings.partitions)]
        self._learn(now_us, link, message)
        for found, _ in self._waiting.pop((name, create), ()):
            found(now_us, topic, places)
        for place in places:
            if not place.followers:
                self.forsaken(place)

    def _failed(self, create: bool, name: str, now_us: int, error: RostraError) -> None:
        for _, failed in self._waiting.pop((name, create), ()):
            failed(now_us, error)

    def _place(self, topic: Topic, partition: int, link: NodeLink) -> PartitionRoute:
        place = self._places.get((topic.topic, partition))
        if place is None:
            place = self._places[topic.topic, partition] = PartitionRoute(
                self, topic.name, topic.topic, partition, link
            )
            self._lost[place] = None
        return place

    def _own(self, topic: Topic, link: NodeLink) -> PartitionRoute:
        place = self._owns.get(topic.name)
        if place is None:
            place = self._owns[topic.name] = PartitionRoute(
                self, topic.name, topic.topic, 0, link, roams=True, own=True
            )
            self._lost[place] = None
        return place

    def _part(self, topic: Topic, told: PartitionPlace, link: NodeLink) -> PartitionRoute:
        identity = told.topic or topic.topic
        place = self._places.get((identity, told.partition))
        if place is None:
            place = PartitionRoute(self, topic.name, identity, told.partition, link, roams=True)
            self._places[identity, told.partition] = place
            self._lost[place] = None
        return place

    def place_joined(self, now_us: int, link: NodeLink, message: PlaceJoined) -> None:
        """A node says unasked that a topic has one partition more."""
        own = self._owns.get(message.name)
        known = own or next((place for place in self._places.values() if place.name == message.name), None)
        if known is not None and (message.place.topic, message.place.partition) not in self._places:
            self._join(now_us, message.name, message.place, link)

    def _join(self, now_us: int, name: str, told: PartitionPlace, link: NodeLink) -> None:
        identity = told.topic, told.partition
        place = self._places[identity] = PartitionRoute(self, name, told.topic, told.partition, link, roams=True)
        self._lost[place] = None
        self._told(now_us, place, told, link)
        self.joined(now_us, name, place)
        if not place.followers:
            self.forsaken(place)

    def forsaken(self, place: PartitionRoute) -> None:
        """Nobody uses it any more."""
        if place.own:
            self._owns.pop(place.name, None)
        else:
            self._places.pop((place.topic, place.index), None)
        self._lost.pop(place, None)
        place.link.places.pop(place, None)

    # --- what nodes tell -----------------------------------------------------------------------------

    def _learn(self, now_us: int, link: NodeLink, message: Located) -> None:
        if message.roams:
            self._learn_own(now_us, link, message)
        for told in message.places:
            place = self._places.get((told.topic or message.topic.topic, told.partition))
            if place is None:
                continue
            if message.roams:
                place.roam()
            # What is in its pause stays there, unless this is news: the answer may be on another partition's account.
            if told.epoch > place.epoch or (place.lost and place.retry_at_us <= now_us):
                self._told(now_us, place, told, link)

    def _learn_own(self, now_us: int, link: NodeLink, message: Located) -> None:
        """Whatever node answers: it takes what is to be published, under its own id of the topic."""
        own = self._owns.get(message.topic.name)
        if own is not None and own.lost and own.retry_at_us <= now_us:
            own.become(message.topic.topic)
            self._point(now_us, own, link)

    def _told(self, now_us: int, place: PartitionRoute, told: PartitionPlace, link: NodeLink) -> None:
        """An empty address is the node that answers. For what is lost, even old news are better than none."""
        there = None
        if told.known:
            there = self._links.to(now_us, told.address) if told.address else link
        if there is not None:
            place.epoch = max(place.epoch, told.epoch)
            self._point(now_us, place, there)
        elif place.lost:
            # Nobody is known, or it is the one that just failed: perhaps another node has newer news.
            self._wait(now_us, place)
            place.retry_at_us = max(place.retry_at_us, self._links.well_at_us(told.address))
            self._links.widen(now_us)

    def moved(self, now_us: int, place: PartitionRoute, error: Moved) -> None:
        place.error = error
        place.hops += 1
        known = error.epoch > place.epoch
        place.epoch = max(place.epoch, error.epoch)
        there = None
        if error.address != place.link.address and (known or place.hops <= HOPS_MAX):
            there = self._links.to(now_us, error.address)
        if there is None or there is place.link:
            self._lose(now_us, place)
        else:
            self._point(now_us, place, there)

    def refused(self, now_us: int, place: PartitionRoute, error: RostraError) -> None:
        place.error = error
        self._lose(now_us, place)

    # --- places --------------------------------------------------------------------------------------

    def _point(self, now_us: int, place: PartitionRoute, link: NodeLink) -> None:
        self._lost.pop(place, None)
        place.lost = False
        place.link.places.pop(place, None)
        place.link = link
        link.places[place] = None
        for follower in list(place.followers):
            if follower.link is not link:
                follower.move(link)
            if link.up:
                follower.flow(now_us)

    def _lose(self, now_us: int, place: PartitionRoute) -> None:
        """It is to be asked for again; followers that are served go on until it is found elsewhere."""
        if not place.lost:
            place.lost = True
            self._lost[place] = None
            self._wait(now_us, place)

    def _wait(self, now_us: int, place: PartitionRoute) -> None:
        place.hops = 0
        place.retry_at_us = now_us + self._backoff.pause_us(place.failures)
        place.failures += 1

    # --- links ---------------------------------------------------------------------------------------

    def link_up(self, now_us: int, link: NodeLink) -> None:
        for place in list(link.places):
            for follower in list(place.followers):
                follower.flow(now_us)
        for place in list(self._lost):
            if not place.link.up and place.link.node == link.node != 0 and not place.roams:
                # The node it was lost with is back: most likely it still serves it.
                self._point(now_us, place, link)
        self.tick(now_us)

    def link_gone(self, now_us: int, link: NodeLink) -> None:
        places, link.places = list(link.places), {}
        for place in places:
            for follower in list(place.followers):
                follower.halt()
            first = not place.failures
            self._lose(now_us, place)
            if first:
                # Others may know at once where it is now.
                place.retry_at_us = now_us

    # --- asking again --------------------------------------------------------------------------------

    def _relocated(self, name: str, now_us: int, link: NodeLink, message: Located) -> None:
        self._relocating.pop(name, None)
        for place in [place for place in self._lost if place.name == name and not place.roams]:
            if place.topic != message.topic.topic:
                away = Unavailable(name, place.index, "the node that keeps it does not answer")
                self._fail(place, away if message.roams else TopicRecreated(name))
        self._learn(now_us, link, message)
        if message.roams:
            self._relearn(now_us, name, link, message)

    def _relearn(self, now_us: int, name: str, link: NodeLink, message: Located) -> None:
        """This node may have partitions that the one before had not, and lack some for a while."""
        for told in message.places:
            identity = told.topic or message.topic.topic
            if (identity, told.partition) not in self._places:
                self._join(now_us, name, replace(told, topic=identity), link)
        for place in [place for place in self._lost if place.name == name]:
            if place.retry_at_us <= now_us:
                self._wait(now_us, place)

    def _not_relocated(self, name: str, now_us: int, error: RostraError) -> None:
        self._relocating.pop(name, None)
        for place in [place for place in self._lost if place.name == name]:
            if place.is_elsewhere(error):
                place.error = error
                self._wait(now_us, place)
            else:
                self._fail(place, error)

    # --- in doubt ------------------------------------------------------------------------------------

    def _doubt(self, now_us: int, link: NodeLink) -> None:
        """The node may be stopped, or cut off from the others. Whoever they have chosen in its place has a newer epoch:
        told of that, the followers go there; until then they stay.
        """
        for name in dict.fromkeys(place.name for place in link.places):
            if name not in self._doubted and name not in self._relocating:
                self._doubted[name] = None
                found, failed = self._heard_elsewhere, self._not_heard
                self._locate(now_us, name, found, failed, create=False, turn=self._turn, other_than=link)
        # Whoever is asked next time may know more.
        self._turn += 1

    def _heard_elsewhere(self, name: str, now_us: int, link: NodeLink, message: Located) -> None:
        self._doubted.pop(name, None)
        self._learn(now_us, link, message)

    def _not_heard(self, name: str, now_us: int, error: RostraError) -> None:
        self._doubted.pop(name, None)

    def _fail(self, place: PartitionRoute, error: RostraError) -> None:
        for follower in list(place.followers):
            follower.fail(error)
        self.forsaken(place)

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        if not self._lost or not self._links.standing:
            return None
        return min([place.retry_at_us for place in self._lost if place.name not in self._relocating], default=None)

    def tick(self, now_us: int) -> None:
        for link in self._links.doubtful(now_us):
            self._doubt(now_us, link)
        if not self._lost or not self._links.standing:
            return
        for place in list(self._lost):
            if place.retry_at_us <= now_us and place.name not in self._relocating:
                self._relocating[place.name] = None
                found, failed = self._relocated, self._not_relocated
                # Whoever goes on at a node that has topics of its own makes it there, too.
                create = place.roams and self._create
                # A node that was away may know only what had this name before: it must find out first.
                topic = 0 if place.roams else place.topic
                self._locate(now_us, place.name, found, failed, create=create, turn=place.failures, topic=topic)
