"""What is said to the owner of one partition, wherever that is: words on one connection, and errands that follow it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.routing.pending_requests import Answer, PendingRequest, PendingRequests
from rostra.errors import GroupError, PeerViolation, RostraError, TimedOut
from rostra.wire.features import GROUPS
from rostra.wire.frames import Violation
from rostra.wire.groups import FindGroup, GroupDescribed, GroupJoined, GroupPage, GroupPlace
from rostra.wire.messages import Agreed, ClientMessage, PartitionPlace, Topic, TopicSettings

GROUPS_TOPIC = "_groups"

Reply = Agreed | GroupJoined | GroupPage | GroupDescribed
"""The messages that answer a `Rpc`."""
OnReply = Callable[[int, Reply], None]
OnError = Callable[[int, RostraError], None]
OnPlace = Callable[[int, PartitionRoute], None]


class Rpc:
    """Something said to the node of one link. It is forgotten when the link goes, and heard of no more."""

    __slots__ = ("answered", "refused")

    def __init__(self, answered: OnReply, refused: OnError) -> None:
        self.answered = answered
        self.refused = refused


class CoordinatorLookup:
    """Which partition of `_groups` keeps a name, and where that is."""

    def __init__(self, asks: PendingRequests, directory: MetadataCache, timeout_us: int) -> None:
        self._asks = asks
        self._directory = directory
        self._timeout_us = timeout_us
        self._errands: dict[CoordinatorRequest, None] = {}

    def find(self, now_us: int, name: str, found: OnPlace, failed: OnError) -> None:
        """The first time, this makes `_groups`."""

        def answered(now_us: int, message: Answer) -> None:
            if not isinstance(message, GroupPlace):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to FindGroup")
            assert ask.link is not None
            topic = Topic(message.topic, GROUPS_TOPIC, TopicSettings())
            told = PartitionPlace(message.partition, message.address, message.epoch, 0, message.known)
            found(now_us, self._directory.told(now_us, ask.link, topic, told))

        build = partial(FindGroup, name=name)
        ask = PendingRequest(
            f"find the coordinator of {name}", build, answered, failed, now_us + self._timeout_us, GROUPS
        )
        self._asks.add(now_us, ask)

    # --- errands -------------------------------------------------------------------------------------

    def send(
        self,
        now_us: int,
        name: str,
        what: str,
        build: Callable[[int], ClientMessage],
        answered: OnReply,
        failed: OnError,
    ) -> None:
        """One request to the coordinator of a name."""

        def found(now_us: int, place: PartitionRoute) -> None:
            self.follow(now_us, CoordinatorRequest(what, build, answered, failed, now_us + self._timeout_us), place)

        self.find(now_us, name, found, failed)

    def follow(self, now_us: int, errand: CoordinatorRequest, place: PartitionRoute) -> None:
        self._errands[errand] = None
        errand.begin(now_us, place)

    def fail_all(self, now_us: int, error: RostraError) -> None:
        errands, self._errands = self._errands, {}
        for errand in errands:
            errand.give_up(now_us, error)

    def deadline_us(self) -> int | None:
        return min([errand.due_us for errand in self._errands]) if self._errands else None

    def tick(self, now_us: int) -> None:
        for errand in list(self._errands):
            if errand.over:
                del self._errands[errand]
            elif errand.due_us <= now_us:
                errand.give_up(now_us, errand.heard or TimedOut(errand.what, self._timeout_us // 1000))


class CoordinatorRequest:
    """One request that only the owner of a partition answers: it follows the partition until it is answered."""

    def __init__(
        self, what: str, build: Callable[[int], ClientMessage], answered: OnReply, failed: OnError, due_us: int
    ) -> None:
        self.what = what
        self.due_us = due_us
        self.over = False
        self._build = build
        self._answered = answered
        self._failed = failed
        self._place: PartitionRoute | None = None
        self._said: tuple[NodeLink, int] | None = None
        self.link: NodeLink

    @property
    def heard(self) -> RostraError | None:
        """What was last heard against the partition."""
        return None if self._place is None else self._place.error

    def begin(self, now_us: int, place: PartitionRoute) -> None:
        self._place = place
        place.join(self)
        if not place.lost:
            self.flow(now_us)

    def flow(self, now_us: int) -> None:
        if self._said is None and self.link.up:
            self._said = self.link, self.link.ask(Rpc(self._replied, self._refused), self._build)

    def halt(self) -> None:
        self._said = None

    def move(self, link: NodeLink) -> None:
        if self._said is not None:
            there, request = self._said
            there.awaiting.pop(request, None)
        self._said = None
        self.link = link

    def renumbered(self) -> None:
        """Of no concern here."""

    def fail(self, error: RostraError) -> None:
        self.give_up(0, error)

    def _replied(self, now_us: int, message: Reply) -> None:
        if self._place is not None:
            self._place.proved()
        self._end()
        self._answered(now_us, message)

    def _refused(self, now_us: int, error: RostraError) -> None:
        self._said = None
        if error.retryable and not isinstance(error, GroupError) and self._place is not None:
            self._place.refused(now_us, error)
        else:
            self.give_up(now_us, error)

    def give_up(self, now_us: int, error: RostraError) -> None:
        if not self.over:
            self._end()
            self._failed(now_us, error)

    def _end(self) -> None:
        self.over = True
        self.due_us = 0
        if self._place is not None:
            self._place.leave(self)
