"""All memberships of a client, the feeds of what they hold, and the dead letters they write."""

from __future__ import annotations

from functools import partial
from random import Random

from rostra.client.core.effects import CallNumber, ClientEffect, Result, SubscriptionNumber
from rostra.client.core.groups.assigned_partition import AckHandler, AssignedPartition, GroupRecord
from rostra.client.core.groups.dispatcher import Dispatcher
from rostra.client.core.groups.membership import Membership, MembershipState
from rostra.client.core.internal_calls import InternalCalls
from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.options import MemberSettings, check_group_name
from rostra.client.core.producer.producers import Producers
from rostra.client.core.routing.coordinator_request import CoordinatorLookup
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.subscription.subscriptions import Subscriptions
from rostra.client.core.subscription.topic_subscription import TopicSubscription
from rostra.errors import RostraError, TopicError, from_wire
from rostra.model.ids import is_internal, random_id
from rostra.model.patterns import is_wild
from rostra.wire.groups import Assignment, GroupEnded, GroupPart
from rostra.wire.messages import StartAt, Topic


class MemberFeed:
    """One feed of a member, and from where on it was to be opened."""

    __slots__ = ("holding", "membership", "part")

    def __init__(self, membership: Membership, holding: AssignedPartition, part: GroupPart) -> None:
        self.membership = membership
        self.holding = holding
        self.part = part


class Memberships:
    def __init__(
        self,
        directory: MetadataCache,
        coordinators: CoordinatorLookup,
        subscriptions: Subscriptions,
        producers: Producers,
        own_calls: InternalCalls,
        backoff: Backoff,
        random: Random,
        timeout_us: int,
        out: list[ClientEffect],
    ) -> None:
        self._directory = directory
        self._coordinators = coordinators
        self._subscriptions = subscriptions
        self._producers = producers
        self._own_calls = own_calls
        self._backoff = backoff
        self._random = random
        self._timeout_us = timeout_us
        self._out = out
        self._all: dict[SubscriptionNumber, Membership] = {}
        self.fed: dict[SubscriptionNumber, MemberFeed] = {}
        """Who gets what a subscription delivers."""
        self._again: dict[SubscriptionNumber, int] = {}
        """Feeds that could not be opened, and when that is tried again."""

    # --- coming and going ----------------------------------------------------------------------------

    def join(self, now_us: int, call: CallNumber, name: str, settings: MemberSettings, desk: AckHandler) -> Membership:
        check_group_name(name)
        number = self._subscriptions.next_number()
        membership = Membership(number, name, settings, self, desk, call, now_us + self._timeout_us, self._out)
        self._all[number] = membership
        self._make(now_us, membership, [topic for topic in settings.patterns if not is_wild(topic)])
        return membership

    def _make(self, now_us: int, membership: Membership, topics: list[str]) -> None:
        """Topics that are named must be there, or are made if this client makes topics; then to the coordinator."""
        if not topics or is_internal(topics[0]):
            self.find(now_us, membership)
            return

        def found(now_us: int, topic: Topic, places: list[PartitionRoute]) -> None:
            self._make(now_us, membership, topics[1:])

        self._directory.find(now_us, topics[0], found, membership.not_found)

    def leave(self, now_us: int, call: CallNumber, membership: Membership) -> None:
        membership.leave(now_us, call, now_us + self._timeout_us)

    def end_all(self, error: RostraError) -> None:
        for membership in list(self._all.values()):
            membership.end(error)
        self._all.clear()

    # --- what members need ---------------------------------------------------------------------------

    def find(self, now_us: int, membership: Membership) -> None:
        self._coordinators.find(now_us, membership.name, membership.found, membership.not_found)

    def pause_us(self, failures: int) -> int:
        return self._backoff.pause_us(failures)

    def new_member(self) -> int:
        return random_id(self._random)

    def open_feed(self, now_us: int, membership: Membership, holding: AssignedPartition, part: GroupPart) -> None:
        self._open(now_us, MemberFeed(membership, holding, part), (part.start, part.value))

    def _open(self, now_us: int, fed: MemberFeed, start: tuple[StartAt, int]) -> None:
        holding, credit_bytes = fed.holding, fed.membership.settings.credit_bytes
        call = self._own_calls.new(partial(self._stands, fed))
        # A topic that is gone must not be made anew only because somebody still held a part of it.
        part = holding.topic, holding.partition
        subscribing = self._subscriptions.begin(
            now_us, call, holding.name, start, None, credit_bytes, "earliest", create=False, part=part
        )
        subscribing.inbox = holding.queue
        holding.subscribing = subscribing
        self._own_calls.watch(subscribing.number, partial(self._ended, fed))
        self.fed[subscribing.number] = fed

    def close_feed(self, holding: AssignedPartition) -> None:
        subscribing, holding.subscribing = holding.subscribing, None
        if subscribing is not None:
            self._own_calls.forget(subscribing.call)
            self._own_calls.unwatch(subscribing.number)
            self._again.pop(subscribing.number, None)
            del self.fed[subscribing.number]
            self._subscriptions.close(0, subscribing)

    def bury(self, now_us: int, hands: Dispatcher, record: GroupRecord) -> None:
        told = {
            "rostra-subscription": hands.name,
            "rostra-topic": record.topic,
            "rostra-partition": str(record.partition),
            "rostra-offset": str(record.offset),
            "rostra-tries": str(record.tries),
        }
        headers = [*record.headers, *((name, value.encode()) for name, value in told.items())]

        def settled(now_us: int, result: Result | RostraError) -> None:
            if isinstance(result, RostraError):
                hands.not_buried(now_us, record)
            else:
                hands.buried(now_us, record)

        producing = self._producers.publisher(now_us, hands.dead_letter, "all")
        try:
            producing.add(now_us, record.value, record.key, headers, call=self._own_calls.new(settled))
        except RostraError as error:
            settled(now_us, error)
        else:
            producing.turn(now_us)

    # --- what becomes of feeds -----------------------------------------------------------------------

    def _stands(self, fed: MemberFeed, now_us: int, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._ended(fed, now_us, result)
        else:
            fed.membership.stood(now_us)

    def _ended(self, fed: MemberFeed, now_us: int, error: Result | RostraError) -> None:
        holding = fed.holding
        if holding.subscribing is None or not isinstance(error, RostraError):
            return
        if isinstance(error, TopicError) and holding.stands:
            fed.membership.lost_part(now_us, holding, None)
        elif error.retryable or isinstance(error, TopicError):
            # Whoever answered may not have heard of a topic that was just made. If it is gone the coordinator says so.
            self._again[holding.subscribing.number] = now_us + self._backoff.pause_us(3)
        else:
            fed.membership.lost_part(now_us, holding, error)

    def _try_again(self, now_us: int, fed: MemberFeed) -> None:
        agreed = fed.holding.agreed
        self.close_feed(fed.holding)
        if agreed is None:
            self.open_feed(now_us, fed.membership, fed.holding, fed.part)
        else:
            self._open(now_us, fed, ("offset", agreed.offset))

    # --- messages ------------------------------------------------------------------------------------

    def assigned(self, now_us: int, link: NodeLink, message: Assignment) -> None:
        membership = self._member(link, message.member)
        if membership is not None:
            membership.assigned(now_us, message)

    def ended(self, now_us: int, link: NodeLink, message: GroupEnded) -> None:
        membership = self._member(link, message.member)
        if membership is not None:
            membership.ended_there(now_us, from_wire(message.code, message.carried))

    def _member(self, link: NodeLink, member: int) -> Membership | None:
        for membership in self._all.values():
            if membership.member == member and membership.place is not None and membership.link is link:
                return membership
        return None

    def pushed(self, now_us: int, subscribing: TopicSubscription) -> None:
        fed = self.fed[subscribing.number]
        fed.membership.hands.stir(now_us)
        fed.membership.passed_over(now_us, fed.holding)

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        if not self._all and not self._again:
            return None
        due = [membership.deadline_us() for membership in self._all.values()]
        due += self._again.values()
        return min([moment for moment in due if moment is not None], default=None)

    def tick(self, now_us: int) -> None:
        for number, at_us in list(self._again.items()):
            if at_us <= now_us:
                self._try_again(now_us, self.fed[number])
        for membership in list(self._all.values()):
            membership.tick(now_us)
            if membership.state is MembershipState.ENDED:
                del self._all[membership.number]
