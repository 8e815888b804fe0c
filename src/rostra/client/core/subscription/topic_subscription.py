"""A subscription to one topic: a feed per partition, with its position, its credit and its resumption.

Position. A feed subscribes at the owner of its partition with a start (`earliest`, `latest`, an offset, …). From the
answer on, `next` is the first offset that was not received; it survives the connection. After a lost link or a move the
feed subscribes at `next`, so that delivery continues without gap or repeat. A push that overlaps is trimmed. A push
that leaves a gap is a protocol violation: the link is closed and all of it is requested again. If retention removed
`next`, the subscription ends with `OffsetOutOfRange` or skips to the start of the log, as `below_start` says.

Credit. The node may push as many bytes as it was granted. Bytes that the application has taken are granted again in
halves of the credit, so that one message serves many batches.

Start. The subscription is *live* when every feed was answered; that answers the caller. A `PatternSubscription` opens
one `TopicSubscription` per topic and is its parent.

Per-node partitions. Where every node orders records of its own, a producer that migrated may have sent the same batch
to two nodes: `SeenRecords` drops the second. A control record says up to which offset of its previous partition a
producer's records come first (`ProducerMove`); batches behind it are held until that offset was delivered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from enum import Enum, auto
from functools import partial
from typing import Protocol, cast

from rostra.client.core.effects import CallNumber, ClientEffect, Deliver, Done, Fail, Finish, Notify, SubscriptionNumber
from rostra.client.core.events import Resubscribed, Skipped
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.options import BelowStart
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.client.core.subscription.seen_records import SeenRecords
from rostra.errors import (
    BatchRejected,
    NotSupported,
    OffsetOutOfRange,
    PartitionDamaged,
    PeerViolation,
    RostraError,
    TimedOut,
    TopicRecreated,
    Unavailable,
    UnknownPartition,
)
from rostra.model.batch import BROKER_STATE, Header, placement_seed
from rostra.model.decode import Batch, stored_batch
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.model.layout import CONTROL
from rostra.model.producer_move import ProducerMove, moves_in
from rostra.wire.features import START_AT_A_TIME
from rostra.wire.frames import Violation
from rostra.wire.messages import Credit, Push, StartAt, Subscribe, Subscribed, Unsubscribe

GRANT_BYTES_MAX = 8 << 20
"""A node counts at most this much credit, whatever it is granted; more must be granted before it is used up."""


class FeedState(Enum):
    WAITING = auto()
    REQUESTED = auto()
    LIVE = auto()
    ENDED = auto()


class PendingUnsubscribe:
    """An unsubscribe in progress; all feeds of the subscription must answer."""

    __slots__ = ("call", "open")

    def __init__(self, call: CallNumber, feeds: int) -> None:
        self.call = call
        self.open = feeds


class PartitionFeed:
    """Delivery of one partition. `next` is the first offset not received yet; it survives the connection."""

    def __init__(self, subscription: TopicSubscription, number: int, route: PartitionRoute) -> None:
        self.subscription = subscription
        self.number = number
        self.route = route
        self.link = route.link
        """The link it is delivered on, or was last; it may be closed."""
        self.partition = route.partition
        self._identity = Partition(TopicId(route.topic), PartitionIndex(route.index))
        self._seed = placement_seed(route.topic, route.index)
        self._start = subscription.start
        self.state = FeedState.WAITING
        start, value = subscription.start
        self.next: int | None = None
        self._not_before_us: int | None = value if start == "time" else None
        """Skip earlier records until the first one that is not earlier."""
        self.commit = 0
        self._held: deque[DeliveredBatch | ProducerMove] = deque()
        """Batches that wait for records of the same producers from another partition."""
        self._request = 0
        self._unread_bytes = 0
        """Delivered, and not yet taken by the application."""
        self._ungranted_bytes = 0
        """Taken by the application, and not yet granted again."""

    # --- requests ------------------------------------------------------------------------------------

    @property
    def needs_owner(self) -> bool:
        """Any node that serves the partition delivers it."""
        return False

    def resume(self, now_us: int) -> None:
        """Subscribe at the chosen start, or where delivery stopped."""
        if self.state is not FeedState.WAITING or not self.link.up:
            return
        subscription = self.subscription
        start, value = self._start
        if self.next is not None:
            start, value = "offset", self.next
        elif start == "time" and START_AT_A_TIME not in self.link.features:
            subscription.end(NotSupported(START_AT_A_TIME))
            return
        credit = max(subscription.credit_bytes - self._unread_bytes, 0)
        self._ungranted_bytes = 0
        self.state = FeedState.REQUESTED
        message = partial(
            Subscribe,
            subscription=self.number,
            topic=self.route.topic,
            partition=self.route.index,
            start=start,
            value=value,
            credit=credit,
        )
        self._request = self.link.send_request(self, message)
        self.link.arm_check(now_us)

    def partition_changed(self) -> None:
        feeds = self.subscription.feeds
        if feeds.pop(self.partition, None) is self:
            self.partition = self.route.partition
            feeds[self.partition] = self

    def start_at_earliest(self) -> None:
        self._start = "earliest", 0

    def subscribed(self, message: Subscribed) -> None:
        again = self.next is not None
        if self.next is None:
            self.next = message.next
        elif message.next > self.next:
            name = self.subscription.name
            removed = OffsetOutOfRange(name, self.partition, self.next, message.next, message.commit)
            if not self._skip_to_start(removed):
                self.subscription.end(removed)
                return
        self.route.confirm()
        self.commit = max(self.commit, message.commit)
        self.state = FeedState.LIVE
        # The application took batches since the request was sent, so there is more credit than the request granted.
        self._grant()
        if self.route.per_node:
            # Other feeds may wait for the start of this one.
            self.subscription.release()
        if again:
            event = Resubscribed(self.subscription.name, self.partition, self.next)
            self.subscription.out.append(Notify(event))

    def refused(self, now_us: int, error: RostraError) -> None:
        """The node refused or ended the feed."""
        if self.state is FeedState.ENDED:
            return
        if isinstance(error, OffsetOutOfRange) and self._skip_to_start(error):
            self.state = FeedState.WAITING
            self.resume(now_us)
        elif self.route.may_retry(error):
            self.state = FeedState.WAITING
            self.route.refused(now_us, error)
        else:
            self.state = FeedState.ENDED
            self.subscription.end(error)

    def _skip_to_start(self, removed: OffsetOutOfRange) -> bool:
        """If `below_start` allows it, continue at the start of the log; return whether it does."""
        subscription = self.subscription
        if subscription.below_start == "raise" or removed.offset >= removed.first:
            return False
        self.next = removed.first
        subscription.out.append(Notify(Skipped(subscription.name, self.partition, removed.offset, removed.first)))
        return True

    def move(self, link: NodeLink) -> None:
        """The partition has another owner: continue there where this one stopped."""
        self.leave(PendingUnsubscribe(0, 1))
        self.link.awaiting.pop(self._request, None)
        self.suspend()
        self.link = link

    def leave(self, leaving: PendingUnsubscribe) -> bool:
        """Unsubscribe; return whether a node must answer."""
        if not self.link.up or self.state not in (FeedState.LIVE, FeedState.REQUESTED):
            return False
        self.link.send_request(leaving, partial(Unsubscribe, subscription=self.number))
        return True

    def suspend(self) -> None:
        """The link is closed."""
        if self.state is not FeedState.ENDED:
            self.state = FeedState.WAITING

    def fail(self, error: RostraError) -> None:
        """The partition, and so its topic, does not exist any more."""
        self.subscription.end(error)

    # --- delivery ------------------------------------------------------------------------------------

    def pushed(self, link: NodeLink, message: Push, payload: bytearray | None) -> None:
        """Deliver the records of a push. Repeated ones are trimmed. On a gap, which is the node's fault, nothing is
        taken and `next` stays, so that the next connection requests all of it again.
        """
        following = self.next
        # The previous owner may not know yet that the feed has moved.
        if self.link is not link or self.state is not FeedState.LIVE or following is None or payload is None:
            return
        subscription = self.subscription
        per_node = self.route.per_node
        delivered: list[DeliveredBatch | ProducerMove] = []
        dropped_bytes = 0
        at, end = 0, len(payload)
        try:
            while at < end:
                batch = stored_batch(payload, at, self._identity, self._seed)
                header = batch.header
                length, base, owner_flags = header.length, header.base_offset, header.owner_flags
                behind = base + header.last_offset_delta + 1
                at += length
                if base > following:
                    # Control batches are pushed too, so a gap is always an error.
                    gap = f"a push to {self._identity} goes on at {base}, expected {following}"
                    raise PeerViolation(Violation.OUT_OF_ORDER, gap)
                first = following if self._not_before_us is None else self._first_in_time(batch, following)
                repeated = per_node and subscription.has_seen(header)
                if per_node and owner_flags & BROKER_STATE:
                    delivered += [move for move in moves_in(batch.values()) if move.after]
                skipped = 0
                if behind <= first or header.flags & CONTROL or owner_flags or repeated:
                    skipped = header.count
                elif base < first:
                    skipped = bisect_left(batch.offsets(), first)
                if skipped < header.count:
                    self._not_before_us = None
                    delivered.append(
                        DeliveredBatch(
                            subscription.name, subscription.topic, self.partition, behind, length, batch, skipped
                        )
                    )
                else:
                    # No record for the application, or compaction removed all records from the start on.
                    dropped_bytes += length
                if behind > following:
                    following = behind
        except BatchRejected:
            self._deliver_or_hold(delivered)
            subscription.end(PartitionDamaged(subscription.name, self.partition, following))
            return
        self._deliver_or_hold(delivered)
        self.next = following
        if per_node:
            subscription.release()
        self.commit = message.commit
        self._unread_bytes += end
        if dropped_bytes:
            self.consumed(dropped_bytes)

    def _first_in_time(self, batch: Batch, following: int) -> int:
        """The offset of the first record that is not earlier. The node starts at or before it; later records may have
        earlier timestamps.
        """
        assert self._not_before_us is not None
        for offset, stamp_us in zip(batch.offsets(), batch.timestamps(), strict=True):
            if offset >= following and stamp_us >= self._not_before_us:
                return offset
        return batch.next_offset

    @property
    def undelivered(self) -> int | None:
        """The first offset that was not delivered to the application."""
        held = [one for one in list(self._held) if isinstance(one, DeliveredBatch)]
        return held[0].first_offset if held else self.next

    def release(self) -> bool:
        """Deliver held batches that need not wait any longer; return whether there were any."""
        out: list[DeliveredBatch | ProducerMove] = []
        held = self._held
        while held:
            first = held[0]
            if isinstance(first, ProducerMove) and not self.subscription.has_delivered(first.after, first.after_offset):
                break
            out.append(held.popleft())
        self._deliver([one for one in out if isinstance(one, DeliveredBatch)])
        return bool(out)

    def _deliver_or_hold(self, delivered: list[DeliveredBatch | ProducerMove]) -> None:
        if self.route.per_node and (self._held or any(isinstance(one, ProducerMove) for one in delivered)):
            self._held.extend(delivered)
        else:
            # Nothing is held, so there are no moves among them.
            self._deliver(cast(list[DeliveredBatch], delivered))

    def _deliver(self, delivered: list[DeliveredBatch]) -> None:
        subscription = self.subscription
        inbox = subscription.inbox
        if inbox is not None:
            inbox.extend(delivered)
        elif delivered:
            subscription.out.append(Deliver(subscription.number, tuple(delivered)))

    def consumed(self, size: int) -> None:
        """The application took this many bytes; credit is granted in halves, not per batch."""
        self._unread_bytes -= size
        self._ungranted_bytes += size
        self._grant()

    def _grant(self) -> None:
        if self._ungranted_bytes >= self.subscription.grant_bytes and self.state is FeedState.LIVE:
            self.link.write(Credit(self.number, self._ungranted_bytes))
            self._ungranted_bytes = 0


class ParentSubscription(Protocol):
    """A subscription to several topics, as seen by the subscription to one of them."""

    def check_live(self) -> None: ...
    def topic_ended(self, subscription: TopicSubscription, error: RostraError) -> None: ...


class TopicSubscription:
    """A subscription to one topic, to one partition or all; possibly one of a `PatternSubscription`."""

    def __init__(
        self,
        number: SubscriptionNumber,
        name: str,
        start: tuple[StartAt, int],
        partition: int | None,
        credit_bytes: int,
        call: CallNumber,
        out: list[ClientEffect],
        parent: ParentSubscription | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.parent = parent
        self.topic = 0
        self.start = start
        self.partition = partition
        self.exact: tuple[int, int] | None = None
        """The only partition that is wanted, by topic id and index."""
        self.below_start: BelowStart = "raise"
        self.credit_bytes = credit_bytes
        self.grant_bytes = min(credit_bytes // 2, GRANT_BYTES_MAX)
        self.out = out
        self.call = call
        """The call that waits for the subscription to be live; 0 afterwards."""
        self.feeds: dict[int, PartitionFeed] = {}
        self._seen = SeenRecords()
        self.ended = False
        self.inbox: deque[DeliveredBatch] | None = None
        """Where a driver that waits for this subscription alone wants its batches, instead of `Deliver` effects."""

    def has_seen(self, header: Header) -> bool:
        """With per-node partitions: whether the batch was delivered before, from another node.

        A node that crashed may have delivered what no other node has; its producer sends that again, to the next one.
        """
        if not header.producer or header.flags & CONTROL or header.owner_flags:
            return False
        return self._seen.has(header.producer, header.producer_epoch, header.sequence, header.last_offset_delta + 1)

    def has_delivered(self, partition: int, offset: int) -> bool:
        """Whether the application has everything below the offset, if it gets that partition at all."""
        feed = self.feeds.get(partition)
        if feed is None or feed.state is FeedState.ENDED:
            return True
        undelivered = feed.undelivered
        return undelivered is not None and undelivered >= offset

    def release(self) -> None:
        """A feed made progress: deliver what others held back for it."""
        released = True
        while released:
            released = False
            for feed in list(self.feeds.values()):
                released = feed.release() or released

    def located(
        self,
        now_us: int,
        topic: int,
        routes: list[PartitionRoute],
        first_number: int,
        resume_at: dict[int, int] | None = None,
    ) -> None:
        """`resume_at`: the next offsets, if the subscription is not new."""
        self.topic = topic
        chosen = [route for route in routes if self._wants(route)]
        if not chosen and (self.partition, self.exact) != (None, None):
            self.end(self._not_among(routes))
            return
        feeds = [PartitionFeed(self, first_number + at, route) for at, route in enumerate(chosen)]
        self.feeds = {feed.partition: feed for feed in feeds}
        for feed in feeds:
            feed.next = (resume_at or {}).get(feed.partition)
            feed.route.join(feed)
            if not feed.route.stale:
                feed.resume(now_us)
                if self.ended:
                    return

    def _wants(self, route: PartitionRoute) -> bool:
        if self.exact is not None:
            return not route.own and (route.topic, route.index) == self.exact
        return not route.own and self.partition in (None, route.partition)

    def _not_among(self, routes: list[PartitionRoute]) -> RostraError:
        if self.exact is None:
            return UnknownPartition(self.name, self.partition or 0)
        if any(route.per_node for route in routes):
            # The partition will come to this node, too, or another node answers next time.
            return Unavailable(self.name, self.exact[1], "the node that was asked has nothing of it yet")
        return TopicRecreated(self.name)

    def add_partition(self, now_us: int, route: PartitionRoute, number: int) -> PartitionFeed | None:
        """Deliver a partition that was added later from its beginning; return None if it is not wanted."""
        one_only = self.partition is not None or self.exact is not None
        if self.ended or not self.topic or one_only or route.partition in self.feeds:
            return None
        feed = self.feeds[route.partition] = PartitionFeed(self, number, route)
        feed.start_at_earliest()
        route.join(feed)
        if not route.stale:
            feed.resume(now_us)
        return feed

    def check_live(self) -> None:
        """Called when a feed became live; answers the caller when all are."""
        if self.parent is not None:
            self.parent.check_live()
        elif self.call and self.is_live:
            self.out.append(Done(self.call, None))
            self.call = 0

    @property
    def is_live(self) -> bool:
        return all(feed.state is FeedState.LIVE for feed in self.feeds.values())

    def time_out(self, waited_ms: int) -> None:
        """The caller has waited long enough."""
        self.end(self.last_error or TimedOut(f"subscribe {self.name}", waited_ms))

    @property
    def last_error(self) -> RostraError | None:
        """The first error that keeps a feed from being live."""
        return next((feed.route.error for feed in self.feeds.values() if feed.route.error is not None), None)

    def consumed(self, partition: int, size: int, topic: int = 0) -> None:
        feed = self.feeds.get(partition)
        if feed is not None:
            feed.consumed(size)

    def positions(self, queued: Iterable[DeliveredBatch]) -> dict[int, int]:
        """By partition, the offset of the first record that the application has not taken."""
        # In the reverse order of a push, because another thread may be receiving one.
        positions = {index: feed.undelivered or 0 for index, feed in self.feeds.items()}
        for delivered in reversed(list(queued)):
            positions[delivered.partition] = delivered.first_offset
        return positions

    def by_topic(self, queued: Iterable[DeliveredBatch]) -> dict[str, dict[int, int]]:
        return {self.name: self.positions(queued)}

    def lag(self, by_topic: dict[str, dict[int, int]]) -> int:
        positions = by_topic.get(self.name, {})
        return sum(max(feed.commit - positions.get(index, feed.commit), 0) for index, feed in self.feeds.items())

    def leave(self, call: CallNumber) -> None:
        """Unsubscribe. Nothing more is delivered; the call is done when all nodes have answered."""
        leaving = PendingUnsubscribe(call, 0)
        leaving.open = sum(feed.leave(leaving) for feed in self.feeds.values())
        self.close()
        if not leaving.open:
            self.out.append(Done(call, None))

    def end(self, error: RostraError) -> None:
        if self.ended:
            return
        self.withdraw()
        if self.parent is not None:
            self.parent.topic_ended(self, error)
        elif self.call:
            self.out.append(Fail(self.call, error))
            self.call = 0
        else:
            self.out.append(Finish(self.number, error))

    def withdraw(self) -> None:
        """Unsubscribe without waiting for the nodes."""
        for feed in self.feeds.values():
            feed.leave(PendingUnsubscribe(0, 1))
        self.close()

    def close(self) -> None:
        self.ended = True
        for feed in self.feeds.values():
            feed.state = FeedState.ENDED
            feed.route.leave(feed)
