"""All group memberships of a client, the feeds of their partitions, and their dead letters."""

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
from rostra.wire.groups import GroupEnded, MemberAssignment, PartitionPosition
from rostra.wire.messages import StartAt, Topic


class MemberFeed:
    """The feed of an assigned partition, and where it was to start."""

    __slots__ = ("assigned", "membership", "part")

    def __init__(self, membership: Membership, assigned: AssignedPartition, part: PartitionPosition) -> None:
        self.membership = membership
        self.assigned = assigned
        self.part = part


class Memberships:
    def __init__(
        self,
        metadata: MetadataCache,
        coordinators: CoordinatorLookup,
        subscriptions: Subscriptions,
        producers: Producers,
        internal_calls: InternalCalls,
        backoff: Backoff,
        random: Random,
        timeout_us: int,
        out: list[ClientEffect],
    ) -> None:
        self._metadata = metadata
        self._coordinators = coordinators
        self._subscriptions = subscriptions
        self._producers = producers
        self._internal_calls = internal_calls
        self._backoff = backoff
        self._random = random
        self._timeout_us = timeout_us
        self._out = out
        self._all: dict[SubscriptionNumber, Membership] = {}
        self.member_feeds: dict[SubscriptionNumber, MemberFeed] = {}
        """By the number of the subscription that delivers it."""
        self._retry_at_us: dict[SubscriptionNumber, int] = {}
        """Feeds that could not be opened, and when to try again."""

    # --- opening and closing -------------------------------------------------------------------------

    def join(
        self, now_us: int, call: CallNumber, name: str, settings: MemberSettings, ack_handler: AckHandler
    ) -> Membership:
        check_group_name(name)
        number = self._subscriptions.next_number()
        membership = Membership(number, name, settings, self, ack_handler, call, now_us + self._timeout_us, self._out)
        self._all[number] = membership
        self._create_topics(now_us, membership, [topic for topic in settings.patterns if not is_wild(topic)])
        return membership

    def _create_topics(self, now_us: int, membership: Membership, topics: list[str]) -> None:
        """Locate the named topics, which creates them if allowed; then find the coordinator."""
        if not topics or is_internal(topics[0]):
            self.find(now_us, membership)
            return

        def found(now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
            self._create_topics(now_us, membership, topics[1:])

        self._metadata.find(now_us, topics[0], found, membership.not_found)

    def leave(self, now_us: int, call: CallNumber, membership: Membership) -> None:
        membership.leave(now_us, call, now_us + self._timeout_us)

    def end_all(self, error: RostraError) -> None:
        for membership in list(self._all.values()):
            membership.end(error)
        self._all.clear()

    # --- services for members ------------------------------------------------------------------------

    def find(self, now_us: int, membership: Membership) -> None:
        self._coordinators.find(now_us, membership.name, membership.found, membership.not_found)

    def pause_us(self, failures: int) -> int:
        return self._backoff.pause_us(failures)

    def silence(self) -> str:
        return self._metadata.silence()

    def new_member(self) -> int:
        return random_id(self._random)

    def open_feed(
        self, now_us: int, membership: Membership, assigned: AssignedPartition, part: PartitionPosition
    ) -> None:
        self._open(now_us, MemberFeed(membership, assigned, part), (part.start, part.value))

    def _open(self, now_us: int, feed: MemberFeed, start: tuple[StartAt, int]) -> None:
        assigned, credit_bytes = feed.assigned, feed.membership.settings.credit_bytes
        call = self._internal_calls.new(partial(self._feed_started, feed))
        # A deleted topic must not be created again because a member was still assigned to it.
        part = assigned.topic, assigned.partition
        subscription = self._subscriptions.begin(
            now_us, call, assigned.name, start, None, credit_bytes, "earliest", create=False, part=part
        )
        subscription.inbox = assigned.queue
        assigned.subscription = subscription
        self._internal_calls.watch(subscription.number, partial(self._feed_ended, feed))
        self.member_feeds[subscription.number] = feed

    def close_feed(self, assigned: AssignedPartition) -> None:
        subscription, assigned.subscription = assigned.subscription, None
        if subscription is not None:
            self._internal_calls.forget(subscription.call)
            self._internal_calls.unwatch(subscription.number)
            self._retry_at_us.pop(subscription.number, None)
            del self.member_feeds[subscription.number]
            self._subscriptions.close(0, subscription)

    def publish_dead_letter(self, now_us: int, dispatcher: Dispatcher, record: GroupRecord) -> None:
        origin = {
            "rostra-subscription": dispatcher.name,
            "rostra-topic": record.topic,
            "rostra-partition": str(record.partition),
            "rostra-offset": str(record.offset),
            "rostra-tries": str(record.tries),
        }
        headers = [*record.headers, *((name, value.encode()) for name, value in origin.items())]

        def settled(now_us: int, result: Result | RostraError) -> None:
            if isinstance(result, RostraError):
                dispatcher.dead_letter_failed(now_us, record)
            else:
                dispatcher.dead_letter_stored(now_us, record)

        producer = self._producers.publisher(now_us, dispatcher.dead_letter, "all")
        try:
            producer.add(now_us, record.value, record.key, headers, call=self._internal_calls.new(settled))
        except RostraError as error:
            settled(now_us, error)
        else:
            producer.end_turn(now_us)

    # --- feeds ---------------------------------------------------------------------------------------

    def _feed_started(self, feed: MemberFeed, now_us: int, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self._feed_ended(feed, now_us, result)
        else:
            feed.membership.feed_started(now_us)

    def _feed_ended(self, feed: MemberFeed, now_us: int, error: Result | RostraError) -> None:
        assigned = feed.assigned
        if assigned.subscription is None or not isinstance(error, RostraError):
            return
        if isinstance(error, TopicError) and assigned.started:
            feed.membership.feed_failed(now_us, assigned, None)
        elif error.retryable or isinstance(error, TopicError):
            # The node that answered may not know a new topic yet. If it was deleted, the coordinator says so.
            self._retry_at_us[assigned.subscription.number] = now_us + self._backoff.pause_us(3)
        else:
            feed.membership.feed_failed(now_us, assigned, error)

    def _reopen(self, now_us: int, feed: MemberFeed) -> None:
        committed = feed.assigned.committed
        self.close_feed(feed.assigned)
        if committed is None:
            self.open_feed(now_us, feed.membership, feed.assigned, feed.part)
        else:
            self._open(now_us, feed, ("offset", committed.offset))

    # --- messages ------------------------------------------------------------------------------------

    def assigned(self, now_us: int, link: NodeLink, message: MemberAssignment) -> None:
        membership = self._member(link, message.member)
        if membership is not None:
            membership.assigned(now_us, message)

    def ended(self, now_us: int, link: NodeLink, message: GroupEnded) -> None:
        membership = self._member(link, message.member)
        if membership is not None:
            membership.ended_by_node(now_us, from_wire(message.code, message.carried))

    def _member(self, link: NodeLink, member: int) -> Membership | None:
        for membership in self._all.values():
            if membership.member == member and membership.route is not None and membership.link is link:
                return membership
        return None

    def pushed(self, now_us: int, subscription: TopicSubscription) -> None:
        feed = self.member_feeds[subscription.number]
        feed.membership.dispatcher.wake_waiter(now_us)
        feed.membership.skipped(now_us, feed.assigned)

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        if not self._all and not self._retry_at_us:
            return None
        due = [membership.deadline_us() for membership in self._all.values()]
        due += self._retry_at_us.values()
        return min([moment for moment in due if moment is not None], default=None)

    def tick(self, now_us: int) -> None:
        for number, at_us in list(self._retry_at_us.items()):
            if at_us <= now_us:
                self._reopen(now_us, self.member_feeds[number])
        for membership in list(self._all.values()):
            membership.tick(now_us)
            if membership.state is MembershipState.ENDED:
                del self._all[membership.number]
