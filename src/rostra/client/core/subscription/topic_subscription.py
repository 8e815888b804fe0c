"""A subscription: one feed per partition, each with its place, its credit and its way back after a lost connection."""

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
from rostra.model.batch import LEDGER, Header, placement_seed
from rostra.model.decode import Batch, stored_batch
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.model.layout import CONTROL
from rostra.model.producer_move import ProducerMove, moves_in
from rostra.wire.features import START_AT_A_TIME
from rostra.wire.frames import Violation
from rostra.wire.messages import Credit, Push, StartAt, Subscribe, Subscribed, Unsubscribe

GRANT_BYTES_MAX = 8 << 20
"""A node counts only so much credit, whatever it is granted: more must come before that is used up."""


class FeedState(Enum):
    WAITING = auto()
    ASKED = auto()
    LIVE = auto()
    ENDED = auto()


class PendingUnsubscribe:
    """An unsubscribe that is under way; all feeds of the subscription must have answered."""

    __slots__ = ("call", "open")

    def __init__(self, call: CallNumber, feeds: int) -> None:
        self.call = call
        self.open = feeds


class PartitionFeed:
    """Delivery of one partition. `next` is the first offset not delivered yet, and survives every connection."""

    def __init__(self, subscribing: TopicSubscription, number: int, place: PartitionRoute) -> None:
        self.subscribing = subscribing
        self.number = number
        self.place = place
        self.link = place.link
        """Where it is delivered from, or was last; it may be gone."""
        self.partition = place.partition
        self._identity = Partition(TopicId(place.topic), PartitionIndex(place.index))
        self._seed = placement_seed(place.topic, place.index)
        self._start = subscribing.start
        self.state = FeedState.WAITING
        start, value = subscribing.start
        self.next: int | None = None
        self._not_before_us: int | None = value if start == "time" else None
        """Until the first record that is not earlier has come."""
        self.commit = 0
        self._held: deque[DeliveredBatch | ProducerMove] = deque()
        """What waits for records of the same producers that come from another partition."""
        self._request = 0
        self._unread_bytes = 0
        """Delivered, and not yet taken by the application."""
        self._owed_bytes = 0
        """Taken by the application, and not yet granted anew."""

    # --- asking --------------------------------------------------------------------------------------

    def flow(self, now_us: int) -> None:
        """Subscribe at the start chosen, or where delivery stopped."""
        if self.state is not FeedState.WAITING or not self.link.up:
            return
        subscribing = self.subscribing
        start, value = self._start
        if self.next is not None:
            start, value = "offset", self.next
        elif start == "time" and START_AT_A_TIME not in self.link.features:
            subscribing.end(NotSupported(START_AT_A_TIME))
            return
        credit = max(subscribing.credit_bytes - self._unread_bytes, 0)
        self._owed_bytes = 0
        self.state = FeedState.ASKED
        message = partial(
            Subscribe,
            subscription=self.number,
            topic=self.place.topic,
            partition=self.place.index,
            start=start,
            value=value,
            credit=credit,
        )
        self._request = self.link.ask(self, message)
        self.link.watch(now_us)

    def renumbered(self) -> None:
        feeds = self.subscribing.feeds
        if feeds.pop(self.partition, None) is self:
            self.partition = self.place.partition
            feeds[self.partition] = self

    def begin_with_first(self) -> None:
        self._start = "earliest", 0

    def subscribed(self, message: Subscribed) -> None:
        again = self.next is not None
        if self.next is None:
            self.next = message.next
        elif message.next > self.next:
            name = self.subscribing.name
            gone = OffsetOutOfRange(name, self.partition, self.next, message.next, message.commit)
            if not self._skips(gone):
                self.subscribing.end(gone)
                return
        self.place.proved()
        self.commit = max(self.commit, message.commit)
        self.state = FeedState.LIVE
        # What the application took since this was asked for: the node was told of less room than there is now.
        self._grant()
        if self.place.roams:
            # Others may have waited to know where this one begins.
            self.subscribing.release()
        if again:
            event = Resubscribed(self.subscribing.name, self.partition, self.next)
            self.subscribing.out.append(Notify(event))

    def refused(self, now_us: int, error: RostraError) -> None:
        """Refused, or ended by the node."""
        if self.state is FeedState.ENDED:
            return
        if isinstance(error, OffsetOutOfRange) and self._skips(error):
            self.state = FeedState.WAITING
            self.flow(now_us)
        elif self.place.is_elsewhere(error):
            self.state = FeedState.WAITING
            self.place.refused(now_us, error)
        else:
            self.state = FeedState.ENDED
            self.subscribing.end(error)

    def _skips(self, gone: OffsetOutOfRange) -> bool:
        """Whether it goes on where the log begins now, because that is what the application wants."""
        subscribing = self.subscribing
        if subscribing.below_start == "raise" or gone.offset >= gone.first:
            return False
        self.next = gone.first
        subscribing.out.append(Notify(Skipped(subscribing.name, self.partition, gone.offset, gone.first)))
        return True

    def move(self, link: NodeLink) -> None:
        """Another node delivers it: from there on where this one stopped."""
        self.leave(PendingUnsubscribe(0, 1))
        self.link.awaiting.pop(self._request, None)
        self.halt()
        self.link = link

    def leave(self, leaving: PendingUnsubscribe) -> bool:
        """Whether the node that delivers it had to be told."""
        if not self.link.up or self.state not in (FeedState.LIVE, FeedState.ASKED):
            return False
        self.link.ask(leaving, partial(Unsubscribe, subscription=self.number))
        return True

    def halt(self) -> None:
        """The connection is gone."""
        if self.state is not FeedState.ENDED:
            self.state = FeedState.WAITING

    def fail(self, error: RostraError) -> None:
        """The partition is gone, and with it its topic."""
        self.subscribing.end(error)

    # --- delivery ------------------------------------------------------------------------------------

    def pushed(self, link: NodeLink, message: Push, payload: bytearray | None) -> None:
        """Hands on what comes next. A repeat is trimmed. A gap is the node's fault; nothing of such a push is taken:
        `next` stays, so the next connection asks for all of it again.
        """
        following = self.next
        # A node that was left may not know it yet.
        if self.link is not link or self.state is not FeedState.LIVE or following is None or payload is None:
            return
        subscribing = self.subscribing
        roams = self.place.roams
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
                    # Control batches are pushed too, so nothing explains a gap.
                    gap = f"a push to {self._identity} goes on at {base}, expected {following}"
                    raise PeerViolation(Violation.OUT_OF_ORDER, gap)
                first = following if self._not_before_us is None else self._first_in_time(batch, following)
                repeated = roams and subscribing.has_seen(header)
                if roams and owner_flags & LEDGER:
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
                            subscribing.name, subscribing.topic, self.partition, behind, length, batch, skipped
                        )
                    )
                else:
                    # Nothing for the application, or compaction has left nothing of it where the subscription begins.
                    dropped_bytes += length
                if behind > following:
                    following = behind
        except BatchRejected:
            self._hand_over(delivered)
            subscribing.end(PartitionDamaged(subscribing.name, self.partition, following))
            return
        self._hand_over(delivered)
        self.next = following
        if roams:
            subscribing.release()
        self.commit = message.commit
        self._unread_bytes += end
        if dropped_bytes:
            self.taken(dropped_bytes)

    def _first_in_time(self, batch: Batch, following: int) -> int:
        """The node begins where no record before is late enough; those behind it may be earlier still."""
        assert self._not_before_us is not None
        for offset, stamp_us in zip(batch.offsets(), batch.timestamps(), strict=True):
            if offset >= following and stamp_us >= self._not_before_us:
                return offset
        return batch.next_offset

    @property
    def handed(self) -> int | None:
        """The first offset that was not handed on yet."""
        held = [one for one in list(self._held) if isinstance(one, DeliveredBatch)]
        return held[0].first_offset if held else self.next

    def release(self) -> bool:
        """Hands on what waits for nothing any more; whether there was anything."""
        out: list[DeliveredBatch | ProducerMove] = []
        held = self._held
        while held:
            first = held[0]
            if isinstance(first, ProducerMove) and not self.subscribing.has_handed(first.after, first.after_offset):
                break
            out.append(held.popleft())
        self._hand_on([one for one in out if isinstance(one, DeliveredBatch)])
        return bool(out)

    def _hand_over(self, delivered: list[DeliveredBatch | ProducerMove]) -> None:
        if self.place.roams and (self._held or any(isinstance(one, ProducerMove) for one in delivered)):
            self._held.extend(delivered)
        else:
            # Nothing waits for another part, so there are no moves among them.
            self._hand_on(cast(list[DeliveredBatch], delivered))

    def _hand_on(self, delivered: list[DeliveredBatch]) -> None:
        subscribing = self.subscribing
        inbox = subscribing.inbox
        if inbox is not None:
            inbox.extend(delivered)
        elif delivered:
            subscribing.out.append(Deliver(subscribing.number, tuple(delivered)))

    def taken(self, size: int) -> None:
        """The application took so many bytes; credit goes back in halves, not per batch."""
        self._unread_bytes -= size
        self._owed_bytes += size
        self._grant()

    def _grant(self) -> None:
        if self._owed_bytes >= self.subscribing.grant_bytes and self.state is FeedState.LIVE:
            self.link.write(Credit(self.number, self._owed_bytes))
            self._owed_bytes = 0


class ParentSubscription(Protocol):
    """A subscription to several topics, as each of them sees it."""

    def stands(self) -> None: ...
    def left_by(self, subscribing: TopicSubscription, error: RostraError) -> None: ...


class TopicSubscription:
    """The subscription of an application to one topic, over one partition or all; or its part in one to several."""

    def __init__(
        self,
        number: SubscriptionNumber,
        name: str,
        start: tuple[StartAt, int],
        partition: int | None,
        credit_bytes: int,
        call: CallNumber,
        out: list[ClientEffect],
        host: ParentSubscription | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.host = host
        self.topic = 0
        self.start = start
        self.partition = partition
        self.part: tuple[int, int] | None = None
        """The only partition that is wanted, by the topic id and the index that nodes know it under."""
        self.below_start: BelowStart = "raise"
        self.credit_bytes = credit_bytes
        self.grant_bytes = min(credit_bytes // 2, GRANT_BYTES_MAX)
        self.out = out
        self.call = call
        """Whoever waits for the subscription to stand; zero afterwards."""
        self.feeds: dict[int, PartitionFeed] = {}
        self._seen = SeenRecords()
        self.ended = False
        self.inbox: deque[DeliveredBatch] | None = None
        """Where a driver that waits for this subscription alone wants its batches, instead of being told to `Deliver`.
        """

    def has_seen(self, header: Header) -> bool:
        """Where every node orders records of its own: whether the producer's batch came before, from another of them.

        A node that dies may have shown what nobody else had: its producer sends that again, to the next one.
        """
        if not header.producer or header.flags & CONTROL or header.owner_flags:
            return False
        return self._seen.has(header.producer, header.producer_epoch, header.sequence, header.last_offset_delta + 1)

    def has_handed(self, partition: int, offset: int) -> bool:
        """Whether the application has all below it, if it gets that partition at all."""
        feed = self.feeds.get(partition)
        if feed is None or feed.state is FeedState.ENDED:
            return True
        handed = feed.handed
        return handed is not None and handed >= offset

    def release(self) -> None:
        """One partition has come further: perhaps others have waited for that."""
        released = True
        while released:
            released = False
            for feed in list(self.feeds.values()):
                released = feed.release() or released

    def located(
        self,
        now_us: int,
        topic: int,
        places: list[PartitionRoute],
        first_number: int,
        reached: dict[int, int] | None = None,
    ) -> None:
        """`reached`: where its partitions were left, if it is not its first time."""
        self.topic = topic
        chosen = [place for place in places if self._wants(place)]
        if not chosen and (self.partition, self.part) != (None, None):
            self.end(self._not_among(places))
            return
        feeds = [PartitionFeed(self, first_number + at, place) for at, place in enumerate(chosen)]
        self.feeds = {feed.partition: feed for feed in feeds}
        for feed in feeds:
            feed.next = (reached or {}).get(feed.partition)
            feed.place.join(feed)
            if not feed.place.lost:
                feed.flow(now_us)
                if self.ended:
                    return

    def _wants(self, place: PartitionRoute) -> bool:
        if self.part is not None:
            return not place.own and (place.topic, place.index) == self.part
        return not place.own and self.partition in (None, place.partition)

    def _not_among(self, places: list[PartitionRoute]) -> RostraError:
        if self.part is None:
            return UnknownPartition(self.name, self.partition or 0)
        if any(place.roams for place in places):
            # It comes to this node too, or another one answers next time.
            return Unavailable(self.name, self.part[1], "the node that was asked has nothing of it yet")
        return TopicRecreated(self.name)

    def joined(self, now_us: int, place: PartitionRoute, number: int) -> PartitionFeed | None:
        """A partition that came later is delivered from its beginning; None if it is not wanted."""
        one_only = self.partition is not None or self.part is not None
        if self.ended or not self.topic or one_only or place.partition in self.feeds:
            return None
        feed = self.feeds[place.partition] = PartitionFeed(self, number, place)
        feed.begin_with_first()
        place.join(feed)
        if not place.lost:
            feed.flow(now_us)
        return feed

    def stands(self) -> None:
        """Called whenever a feed became live: the last one answers the caller."""
        if self.host is not None:
            self.host.stands()
        elif self.call and self.is_live:
            self.out.append(Done(self.call, None))
            self.call = 0

    @property
    def is_live(self) -> bool:
        return all(feed.state is FeedState.LIVE for feed in self.feeds.values())

    def overdue(self, waited_ms: int) -> None:
        """Whoever waits for it to stand has waited long enough."""
        self.end(self.heard_against or TimedOut(f"subscribe {self.name}", waited_ms))

    @property
    def heard_against(self) -> RostraError | None:
        """The first reason that was heard why it does not stand."""
        return next((feed.place.error for feed in self.feeds.values() if feed.place.error is not None), None)

    def taken(self, partition: int, size: int, topic: int = 0) -> None:
        feed = self.feeds.get(partition)
        if feed is not None:
            feed.taken(size)

    def positions(self, queued: Iterable[DeliveredBatch]) -> dict[int, int]:
        """By partition, the offset before which nothing was handed out, given what still waits to be."""
        # In this order, the reverse of that of a push: another thread may be receiving one.
        positions = {index: feed.handed or 0 for index, feed in self.feeds.items()}
        for delivered in reversed(list(queued)):
            positions[delivered.partition] = delivered.first_offset
        return positions

    def by_topic(self, queued: Iterable[DeliveredBatch]) -> dict[str, dict[int, int]]:
        return {self.name: self.positions(queued)}

    def lag(self, by_topic: dict[str, dict[int, int]]) -> int:
        positions = by_topic.get(self.name, {})
        return sum(max(feed.commit - positions.get(index, feed.commit), 0) for index, feed in self.feeds.items())

    def leave(self, call: CallNumber) -> None:
        """Unsubscribe: nothing is delivered any more, and the call is done when the nodes know."""
        leaving = PendingUnsubscribe(call, 0)
        leaving.open = sum(feed.leave(leaving) for feed in self.feeds.values())
        self.close()
        if not leaving.open:
            self.out.append(Done(call, None))

    def end(self, error: RostraError) -> None:
        if self.ended:
            return
        self.withdraw()
        if self.host is not None:
            self.host.left_by(self, error)
        elif self.call:
            self.out.append(Fail(self.call, error))
            self.call = 0
        else:
            self.out.append(Finish(self.number, error))

    def withdraw(self) -> None:
        """Nothing is wanted any more, and nobody waits for the nodes to know."""
        for feed in self.feeds.values():
            feed.leave(PendingUnsubscribe(0, 1))
        self.close()

    def close(self) -> None:
        self.ended = True
        for feed in self.feeds.values():
            feed.state = FeedState.ENDED
            feed.place.leave(feed)
