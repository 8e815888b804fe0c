"""The sans-IO core of the client: one state machine that every client drives.

Inputs are method calls. The driver reports what happens to connections (`opened`, `received`, `lost`, `congested`,
`drained`), the passing of time (`tick`), and what the application asks for (`publish`, `subscribe`, `join`, …). Each
input appends effects to `out`; the driver takes them with `take` and carries them out in order. Nothing here reads a
clock, a socket or a random source of its own, so the simulator can replay a run from its seed.

An application's request is a *call*: the driver chooses its number, and exactly one `Done` or `Fail` effect answers it.
Calls with negative numbers are the core's own (`InternalCalls`) and never reach the driver.

The parts, bottom up: `NodeLinks` keeps one connection per node in use. `PendingRequests` sends requests that any node
answers, and repeats them on another connection if needed. `MetadataCache` knows which node owns which partition;
senders and feeds follow a `PartitionRoute` and are moved when it changes. `Producers`, `Subscriptions` and
`Memberships` stand on these. The core itself passes each received message to the part that waits for it.

`deadline_us` is the earliest deadline of all parts; `tick` is due by then. All times are monotonic microseconds; adding
`wall_offset_us` gives the time of day.
"""

from __future__ import annotations

from random import Random
from typing import assert_never

from rostra.client.core.admin.cluster_admin import ClusterAdmin
from rostra.client.core.admin.group_admin import GroupAdmin
from rostra.client.core.admin.topic_admin import TopicAdmin
from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, LinkNumber, Notify
from rostra.client.core.events import Connected, Disconnected, Reconnected
from rostra.client.core.groups.assigned_partition import AckHandler
from rostra.client.core.groups.membership import Membership
from rostra.client.core.groups.memberships import Memberships
from rostra.client.core.internal_calls import InternalCalls
from rostra.client.core.links.backoff import Backoff
from rostra.client.core.links.node_link import LinkState, NodeLink
from rostra.client.core.links.node_links import ADDRESSES_MAX, NodeLinks
from rostra.client.core.options import BelowStart, MemberSettings, Options, ProducerSettings, Start
from rostra.client.core.producer.partition_sender import SentBatch
from rostra.client.core.producer.producer_state import ProducerState
from rostra.client.core.producer.producers import Producers
from rostra.client.core.producer.publisher_registration import PendingRegistration
from rostra.client.core.producer.record_arguments import checked_record
from rostra.client.core.routing.cluster_probe import ClusterProbe
from rostra.client.core.routing.coordinator_request import CoordinatorLookup, Rpc
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.pending_requests import PendingRequest, PendingRequests
from rostra.client.core.subscription.pattern_subscription import PatternSubscription
from rostra.client.core.subscription.subscriptions import AnySubscription, Subscriptions
from rostra.client.core.subscription.topic_subscription import PartitionFeed, PendingUnsubscribe, TopicSubscription
from rostra.client.core.subscription.topic_watches import TopicWatch, TopicWatches
from rostra.errors import (
    ClientClosed,
    IncompatibleVersion,
    InvalidSetting,
    PeerViolation,
    ProducerClosed,
    RostraError,
    TopicError,
    Unreachable,
    WrongPort,
    from_wire,
)
from rostra.model.encode import Headers
from rostra.model.patterns import is_wild
from rostra.wire.frames import Violation
from rostra.wire.groups import CoordinatorLocation, GroupDescribed, GroupEnded, GroupJoined, GroupPage, MemberAssignment
from rostra.wire.messages import (
    Acks,
    Agreed,
    ClusterDescribed,
    Ended,
    Failed,
    Goodbye,
    Located,
    NodeMessage,
    PartitionAdded,
    Ping,
    Pong,
    Published,
    PublisherRegistered,
    Push,
    Subscribed,
    TopicAltered,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
    TopicsAppeared,
    TopicSettings,
    TopicsGone,
    Unregistered,
    Unsubscribed,
    Watched,
    Welcome,
)

CREDIT_BYTES = 4 << 20


class Core:
    def __init__(self, options: Options, random: Random, wall_offset_us: int = 0) -> None:
        self.options = options
        self.random = random
        self.closed = False
        self.out: list[ClientEffect] = []
        """Effects that the driver has not taken yet."""
        backoff = Backoff(options, random)
        self.links = NodeLinks(options, backoff, self.out)
        timeout_us = options.call_timeout_ms * 1000
        self._requests = PendingRequests(self.links, backoff)
        self._probe = ClusterProbe(self.links, timeout_us)
        self._metadata = MetadataCache(
            self.links, self._requests, self._probe.no_owner, backoff, create=options.auto_create, timeout_us=timeout_us
        )
        self._producers = Producers(options, backoff, self._metadata, random, self.out)
        self._producers.set_wall_offset(wall_offset_us)
        self._topic_admin = TopicAdmin(self._requests, self.out, timeout_us)
        self._cluster_admin = ClusterAdmin(self._requests, self.out, timeout_us)
        self._watches = TopicWatches(self.links, backoff)
        self._subscriptions = Subscriptions(self._metadata, self._watches, timeout_us, self.out)
        self._coordinators = CoordinatorLookup(self._requests, self._metadata, timeout_us)
        self._internal_calls = calls = InternalCalls()
        self._memberships = Memberships(
            self._metadata,
            self._coordinators,
            self._subscriptions,
            self._producers,
            calls,
            backoff,
            random,
            timeout_us,
            self.out,
        )
        self._group_admin = GroupAdmin(
            self._coordinators, self._metadata, self._subscriptions, calls, timeout_us, self.out
        )
        routing = self.links, self._requests, self._probe, self._metadata
        users = self._producers, self._watches, self._subscriptions, self._coordinators, self._memberships, calls
        self._deadlines = tuple(part.deadline_us for part in (*routing, *users))
        self._starting: CallNumber = 0
        self.start_due_us = 0
        self._nodes_met: dict[str, None] = {}

    @property
    def link(self) -> NodeLink:
        """A connected link, or the one dialed last."""
        return self.links.pick() or self.links.latest

    def take(self) -> list[ClientEffect]:
        """Return the effects since the last call, to be carried out in order."""
        out = self.out
        effects = out.copy()
        out.clear()
        return self._internal_calls.intercept(effects) if self._internal_calls.started else effects

    # --- connections ---------------------------------------------------------------------------------

    def start(self, now_us: int, call: CallNumber) -> None:
        """Connect. Done when a node sent Welcome; fails when none did in time."""
        self._starting = call
        self.start_due_us = now_us + self.options.connect_timeout_ms * 1000
        self.links.dial_next(now_us)

    def opened(self, now_us: int, link: LinkNumber) -> None:
        here = self.links.by_number.get(link)
        if here is not None and here.state is LinkState.DIALING:
            here.send_hello(self.options.name)

    def lost(self, now_us: int, link: LinkNumber, reason: str) -> None:
        """The connection ended, or could not be opened."""
        here = self.links.by_number.get(link)
        if here is not None:
            self._disconnected(now_us, here, reason, hang_up=False)

    def congested(self, link: LinkNumber) -> None:
        """The driver's send buffer is over its mark; producers with acks `none` wait until it is drained."""
        here = self.links.by_number.get(link)
        if here is not None:
            here.congested = True

    def drained(self, link: LinkNumber) -> None:
        here = self.links.by_number.get(link)
        if here is not None:
            here.congested = False
            self._producers.drained()

    def _connected(self, now_us: int, link: NodeLink, welcome: Welcome) -> None:
        links = self.links
        attempts, alone = links.attempts, links.pick() is None
        links.welcomed(now_us, link, welcome)
        if (self._nodes_met and alone) or link.address in self._nodes_met:
            event: Connected | Reconnected = Reconnected(link.address, welcome.cluster, welcome.node, max(attempts, 1))
        else:
            event = Connected(link.address, welcome.cluster, welcome.node, welcome.fabric)
        self.out.append(Notify(event))
        self._nodes_met[link.address] = None
        if len(self._nodes_met) > ADDRESSES_MAX:
            del self._nodes_met[next(iter(self._nodes_met))]
        if self._starting:
            self.out.append(Done(self._starting, None))
            self._starting = 0
        self._requests.link_up(now_us)
        self._watches.link_up(now_us)
        self._metadata.link_up(now_us, link)

    def _disconnected(self, now_us: int, link: NodeLink, reason: str, *, hang_up: bool) -> None:
        if link.up:
            self.out.append(Notify(Disconnected(link.address, reason)))
        leaving = [waiter for waiter in link.awaiting.values() if isinstance(waiter, PendingUnsubscribe)]
        self.links.disconnected(now_us, link, reason, hang_up=hang_up)
        self._metadata.link_down(now_us, link)
        self._requests.link_down(now_us, link)
        self._watches.link_down(now_us, link)
        for waiter in leaving:
            # A subscription ends with its connection, and an Unsubscribe in the send buffer is lost with it.
            self._subscriptions.left(waiter)
        self._producers.drained()

    def close(self, now_us: int) -> None:
        """Close all connections; calls without an answer and unacknowledged records fail."""
        if self.closed:
            return
        self.closed = True
        error = ClientClosed()
        waiting = [waiter for link in self.links.by_number.values() for waiter in link.awaiting.values()]
        self._producers.resign_all()
        self.links.stop()
        for waiter in waiting:
            if isinstance(waiter, PendingUnsubscribe):
                self._subscriptions.left(waiter)
        if self._starting:
            self.out.append(Fail(self._starting, error))
            self._starting = 0
        self._requests.fail_all(now_us, error)
        self._coordinators.fail_all(now_us, error)
        self._memberships.end_all(error)
        self._producers.end_all(error)
        self._subscriptions.end_all(error)

    # --- messages ------------------------------------------------------------------------------------

    def received(self, now_us: int, link: LinkNumber, message: NodeMessage, payload: bytearray | None) -> None:
        here = self.links.by_number.get(link)
        if here is None:
            return
        here.missed_heartbeats = 0
        here.suspect = False
        try:
            if here.up:
                self._received(now_us, here, message, payload)
            elif here.state is LinkState.HANDSHAKE:
                self._handshake_reply(now_us, here, message)
        except PeerViolation as violation:
            self._disconnected(now_us, here, str(violation), hang_up=True)

    def _handshake_reply(self, now_us: int, link: NodeLink, message: NodeMessage) -> None:
        match message:
            case Welcome():
                self._connected(now_us, link, message)
            case Failed():
                error = from_wire(message.code, message.carried)
                self._disconnected(now_us, link, str(error), hang_up=True)
                if isinstance(error, IncompatibleVersion | WrongPort) and self._starting:
                    self._give_up_start(now_us, error)
            case Goodbye():
                self._disconnected(now_us, link, message.reason, hang_up=True)
            case _:
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} before Welcome")

    def _received(self, now_us: int, link: NodeLink, message: NodeMessage, payload: bytearray | None) -> None:
        match message:
            case Push():
                feed = self._subscriptions.feeds.get(message.subscription)
                if feed is not None:
                    feed.pushed(link, message, payload)
                    if feed.subscription.number in self._memberships.member_feeds:
                        self._memberships.pushed(now_us, feed.subscription)
            case Published():
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, SentBatch):
                    waiter.sender.published(now_us, waiter, message)
            case Pong():
                pass
            case Ping():
                link.write(Pong(message.request))
            case Failed():
                self._failed(now_us, link, message)
            case Subscribed():
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, PartitionFeed):
                    self._subscriptions.subscribed(waiter, message)
            case Unsubscribed():
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, PendingUnsubscribe):
                    self._subscriptions.left(waiter)
            case Ended():
                if not self._watches.ended(now_us, link, message):
                    self._subscriptions.ended(now_us, link, message)
            case TopicsAppeared():
                self._watches.appeared(now_us, link, message)
            case TopicsGone():
                self._watches.gone(now_us, link, message)
            case Watched():
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, TopicWatch):
                    self._watches.watched(now_us, waiter, message)
            case PartitionAdded():
                self._metadata.place_joined(now_us, link, message)
            case (
                Located()
                | TopicCreated()
                | TopicAltered()
                | TopicDropped()
                | TopicPage()
                | TopicDescribed()
                | ClusterDescribed()
                | CoordinatorLocation()
            ):
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, PendingRequest):
                    self._requests.answered(now_us, waiter, message)
            case Agreed():
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, PendingRequest):
                    self._requests.answered(now_us, waiter, message)
                elif isinstance(waiter, Rpc):
                    waiter.answered(now_us, message)
                elif isinstance(waiter, PendingUnsubscribe):
                    self._subscriptions.left(waiter)
                elif isinstance(waiter, PendingRegistration):
                    waiter.confirmed()
            case PublisherRegistered():
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, PendingRegistration):
                    waiter.confirmed()
            case Unregistered():
                self._producers.unregistered(now_us, message)
            case GroupJoined() | GroupPage() | GroupDescribed():
                waiter = link.awaiting.pop(message.request, None)
                if isinstance(waiter, Rpc):
                    waiter.answered(now_us, message)
            case MemberAssignment():
                self._memberships.assigned(now_us, link, message)
            case GroupEnded():
                self._memberships.ended(now_us, link, message)
            case Goodbye():
                self._disconnected(now_us, link, message.reason, hang_up=True)
            case Welcome():
                raise PeerViolation(Violation.OUT_OF_ORDER, "a second Welcome")
            case _:
                assert_never(message)

    def _failed(self, now_us: int, link: NodeLink, message: Failed) -> None:
        error = from_wire(message.code, message.carried)
        if isinstance(error, PeerViolation):
            # The node names no request and closes the connection next; a second attempt would repeat the violation.
            self._requests.fail_all(now_us, error, link)
            return
        waiter = link.awaiting.pop(message.request, None)
        match waiter:
            case SentBatch():
                producer = waiter.sender.producer
                if isinstance(error, TopicError) and not waiter.sender.route.may_retry(error):
                    self._producers.forget_topic(producer.name)
                waiter.sender.refused(now_us, waiter, error)
                self._producers.forget_if_ended(producer)
            case PartitionFeed():
                waiter.refused(now_us, error)
            case PendingRequest():
                self._requests.refused(now_us, waiter, error)
            case PendingUnsubscribe():
                self._subscriptions.left(waiter)
            case PendingRegistration():
                producer = waiter.sender.producer
                if isinstance(error, TopicError):
                    self._producers.forget_topic(producer.name)
                waiter.sender.registration_refused(now_us, error)
                self._producers.forget_if_ended(producer)
            case TopicWatch():
                self._watches.refused(now_us, waiter, error)
            case Rpc():
                waiter.refused(now_us, error)
            case None:
                for request, sender, epoch in link.unanswered:
                    if request == message.request:
                        sender.refused_unanswered(now_us, epoch, error)
                        break
            case _:
                assert_never(waiter)

    # --- topics --------------------------------------------------------------------------------------

    def create_topic(self, now_us: int, call: CallNumber, name: str, settings: TopicSettings) -> None:
        self._check_open()
        self._topic_admin.create(now_us, call, name, settings)

    def alter_topic(self, now_us: int, call: CallNumber, name: str, changes: dict[str, int | str]) -> None:
        """Done with the altered `Topic`."""
        self._check_open()
        self._topic_admin.alter(now_us, call, name, changes)

    def delete_topic(self, now_us: int, call: CallNumber, name: str) -> None:
        self._check_open()
        self._producers.forget_topic(name)
        self._topic_admin.delete(now_us, call, name)

    def describe_topic(self, now_us: int, call: CallNumber, name: str) -> None:
        """Done with a `TopicDescription`."""
        self._check_open()
        self._topic_admin.describe(now_us, call, name)

    def list_topics(self, now_us: int, call: CallNumber) -> None:
        """Done with all topics, sorted by name, over as many pages as needed."""
        self._check_open()
        self._topic_admin.list(now_us, call)

    # --- the cluster ---------------------------------------------------------------------------------

    def describe_cluster(self, now_us: int, call: CallNumber) -> None:
        """Done with a `ClusterState`."""
        self._check_open()
        self._cluster_admin.describe(now_us, call)

    def remove_member(self, now_us: int, call: CallNumber, node: int) -> None:
        self._check_open()
        self._cluster_admin.remove_member(now_us, call, node)

    def transfer_partition(self, now_us: int, call: CallNumber, name: str, partition: int, node: int) -> None:
        self._check_open()
        self._cluster_admin.transfer_partition(now_us, call, name, partition, node)

    def _check_open(self) -> None:
        if self.closed:
            raise ClientClosed()

    # --- producing -----------------------------------------------------------------------------------

    def open_producer(self, now_us: int, call: CallNumber, name: str, settings: ProducerSettings) -> ProducerState:
        """Done when the topic is located, so that `builder` may be used."""
        self._check_open()
        return self._producers.open(now_us, call, name, settings)

    @property
    def has_leases(self) -> bool:
        """Whether a publisher with a lease exists, so that nodes must keep receiving pings from this client."""
        return self._producers.has_leases

    def close_producer(self, producer: ProducerState) -> None:
        """Forget the producer; unacknowledged records fail. `flush` first."""
        self._producers.close(producer, ProducerClosed(producer.name))

    @property
    def unsettled_producers(self) -> list[ProducerState]:
        """Those with records without acknowledgement, or with a failure that no `flush` has reported."""
        return self._producers.unsettled

    def publish(
        self,
        now_us: int,
        call: CallNumber,
        name: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_us: int | None = None,
        partition: int | None = None,
        acks: Acks = "all",
    ) -> ProducerState:
        """Done with an `Ack`. The record is sent at once, or at the end of the turn if batches are in flight."""
        if self.closed:
            raise ClientClosed()
        plain = key is None and headers is None and timestamp_us is None and partition is None
        if not plain or type(value) is not bytes:
            # Before the topic is looked up, which may create it.
            checked_record(value, key, headers, timestamp_us, partition)
        producer = self._producers.publisher(now_us, name, acks)
        if not producer.publish(now_us, value, key, headers, timestamp_us, partition, call):
            self._producers.added(now_us, producer)
        return producer

    def end_turn(self, now_us: int) -> None:
        """End an event-loop turn: send the records that `publish` has collected."""
        self._producers.end_turn(now_us)

    def set_wall_offset(self, wall_offset_us: int) -> None:
        """Set the difference between the time of day and the monotonic clock."""
        self._producers.set_wall_offset(wall_offset_us)

    # --- subscribing ---------------------------------------------------------------------------------

    def subscribe(
        self,
        now_us: int,
        call: CallNumber,
        name: str,
        start: Start = "latest",
        partition: int | None = None,
        credit_bytes: int = CREDIT_BYTES,
        below_start: BelowStart = "raise",
    ) -> TopicSubscription:
        """Done when every partition has reported where delivery starts."""
        self._check_open()
        return self._subscriptions.open(now_us, call, name, start, partition, credit_bytes, below_start)

    def subscribe_to_several(
        self,
        now_us: int,
        call: CallNumber,
        names: tuple[str, ...],
        start: Start = "latest",
        credit_bytes: int = CREDIT_BYTES,
        below_start: BelowStart = "raise",
    ) -> PatternSubscription:
        """Subscribe to names and patterns. Done when every partition of every existing topic reported its start."""
        self._check_open()
        return self._subscriptions.open_several(now_us, call, names, start, credit_bytes, below_start)

    def subscribe_to(
        self,
        now_us: int,
        call: CallNumber,
        names: tuple[str, ...],
        start: Start,
        partition: int | None,
        credit_bytes: int,
        below_start: BelowStart = "raise",
    ) -> AnySubscription:
        """Subscribe to one topic by name, or to several names and patterns."""
        if len(names) == 1 and not is_wild(names[0]):
            return self.subscribe(now_us, call, names[0], start, partition, credit_bytes, below_start)
        if partition is not None:
            raise InvalidSetting("partition", "one partition can be chosen of one topic only")
        return self.subscribe_to_several(now_us, call, names, start, credit_bytes, below_start)

    def unsubscribe(self, now_us: int, call: CallNumber, subscription: AnySubscription) -> None:
        """Done when no node delivers anything more."""
        self._subscriptions.close(call, subscription)

    def consumed(self, subscription: AnySubscription, partition: int, size: int, topic: int = 0) -> None:
        """The application took a batch of this size, which frees credit."""
        subscription.consumed(partition, size, topic)

    # --- named subscriptions -------------------------------------------------------------------------

    def join(
        self, now_us: int, call: CallNumber, name: str, settings: MemberSettings, ack_handler: AckHandler
    ) -> Membership:
        """Join a consumer group. Done when the start of every assigned partition is known."""
        self._check_open()
        return self._memberships.join(now_us, call, name, settings, ack_handler)

    def leave(self, now_us: int, call: CallNumber, membership: Membership) -> None:
        """Leave a group. Done when its positions are committed and its partitions are released."""
        self._memberships.leave(now_us, call, membership)

    @property
    def groups(self) -> GroupAdmin:
        """Administration of consumer groups."""
        self._check_open()
        return self._group_admin

    # --- time ----------------------------------------------------------------------------------------

    def deadline_us(self) -> int | None:
        """When the next `tick` is due."""
        earliest = self.start_due_us if self._starting else None
        for part_us in self._deadlines:
            due_us = part_us()
            if due_us is not None and (earliest is None or due_us < earliest):
                earliest = due_us
        return earliest

    def tick(self, now_us: int) -> None:
        if self._starting and self.start_due_us <= now_us:
            addresses = ", ".join(self.options.addresses)
            self._give_up_start(now_us, Unreachable(addresses, self.links.last_reason))
            return
        for link, reason in self.links.tick(now_us):
            self._disconnected(now_us, link, reason, hang_up=True)
        self._probe.tick(now_us)
        self._requests.tick(now_us, self.options.call_timeout_ms)
        self._metadata.tick(now_us)
        self._producers.tick(now_us)
        self._watches.tick(now_us)
        self._subscriptions.tick(now_us)
        self._coordinators.tick(now_us)
        self._internal_calls.tick(now_us)
        self._memberships.tick(now_us)

    def _give_up_start(self, now_us: int, error: RostraError) -> None:
        call, self._starting = self._starting, 0
        self.out.append(Fail(call, error))
        self.close(now_us)
