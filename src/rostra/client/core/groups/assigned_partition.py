"""A partition that a member of a named subscription holds: what is in hand, what is acknowledged, where it stands."""

from __future__ import annotations

from bisect import insort
from collections import deque
from itertools import repeat
from operator import attrgetter
from types import TracebackType
from typing import Protocol, Self

import msgspec

from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.client.core.subscription.topic_subscription import PartitionFeed, TopicSubscription
from rostra.model.decode import Record
from rostra.wire.groups import GroupPart

_OFFSET = attrgetter("offset")


class AckHandler(Protocol):
    """Where records are settled that were handed out."""

    def ack(self, record: GroupRecord) -> None: ...
    def retry(self, record: GroupRecord) -> None: ...
    def give_back(self, record: GroupRecord) -> None: ...


class GroupRecord(Record, frozen=True, gc=True):
    """A record of a named subscription. It is yours until it is settled, once: later words about it change nothing.

    `with record:` and `async with record:` acknowledge it at the end of the block. If the block fails, the record is
    handed out again and the exception goes on; if it was interrupted or cancelled, that does not count as a try.

    >>> for record in client.subscribe("orders", name="billing"):  # doctest: +SKIP
    ...     with record:
    ...         bill(record.value)
    """

    tries: int = 0
    """How often it was handed out before, to no avail."""
    assigned: AssignedPartition | None = None

    def ack(self) -> None:
        """It is done with: no member will get it again once the position has moved, which it does in a moment."""
        if self.assigned is not None:
            self.assigned.ack_handler.ack(self)

    def retry(self) -> None:
        """It failed: it is handed out again before what comes behind it, or goes to the dead-letter topic."""
        if self.assigned is not None:
            self.assigned.ack_handler.retry(self)

    def give_back(self) -> None:
        """It was not dealt with, through no fault of its own: it is handed out again, and that is no further try."""
        if self.assigned is not None:
            self.assigned.ack_handler.give_back(self)

    def _settle_on_exit(self, kind: type[BaseException] | None) -> None:
        if kind is None:
            self.ack()
        elif issubclass(kind, Exception):
            self.retry()
        else:
            self.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle_on_exit(kind)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle_on_exit(kind)


class AckedPosition(msgspec.Struct, frozen=True):
    """The first offset that is not acknowledged, and how often what lies there was handed out to no avail."""

    offset: int
    tries: int = 0


class AssignedPartition:
    """Every record delivered here is in one of these places, in this order: the feed's `queue`, `_opened` (decoded),
    `in_hand`, and if it failed `_returned`, from where it is handed out before anything else; or it is acknowledged.
    """

    def __init__(self, ack_handler: AckHandler, part: GroupPart, committed: AckedPosition | None) -> None:
        self.ack_handler = ack_handler
        self.topic = part.topic
        self.name = part.name
        self.partition = part.partition
        self.since = part.since
        self.committed = committed
        """What the coordinator is known to have; None before anything was moved."""
        self.queue: deque[DeliveredBatch] = deque()
        self.subscription: TopicSubscription | None = None
        self.unacked: dict[int, GroupRecord] = {}
        self.revoked = False
        """It was taken away: nothing more is handed out, and it is released when nothing is in hand."""
        self.resume_at_us = 0
        """What has failed is not handed out again before."""
        self._opened: deque[GroupRecord] = deque()
        self._returned: list[GroupRecord] = []
        self._tries = part.tries
        """Of the first record, until it is met."""

    def __repr__(self) -> str:
        return f"<Holding of {self.name}/{self.partition}, {len(self.unacked)} in hand>"

    # --- where it stands -----------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether delivery has begun, so that it is known where."""
        return self._feed_next() is not None

    def _feed(self) -> PartitionFeed | None:
        """The only one that its subscription has."""
        return None if self.subscription is None else next(iter(self.subscription.feeds.values()), None)

    def _feed_next(self) -> int | None:
        feed = self._feed()
        return None if feed is None else feed.next

    @property
    def commit(self) -> int:
        """The end of what can be seen, as last heard."""
        feed = self._feed()
        return 0 if feed is None else feed.commit

    def position(self) -> AckedPosition | None:
        """None while it is not known where delivery begins."""
        following = self._feed_next()
        if following is None:
            return self.committed
        if self._opened:
            following, tries = self._opened[0].offset, self._opened[0].tries
        elif self.queue:
            following, tries = self.queue[0].first_offset, self._tries
        else:
            if following >= self.commit:
                # There is no record yet that anybody could have failed at.
                self._tries = 0
            tries = self._tries
        waiting = list(self._returned[:1])
        if self.unacked:
            waiting.append(self.unacked[min(self.unacked)])
        if not waiting:
            return AckedPosition(following, tries)
        lowest = min(waiting, key=_OFFSET)
        return AckedPosition(lowest.offset, lowest.tries)

    def carry_over(self, part: GroupPart) -> bool:
        """Whether it goes on as it stands at a coordinator that did not know it; not if others have come further."""
        position = self.position()
        if position is None or self.revoked or (part.start == "offset" and part.value > position.offset):
            return False
        self.since = part.since
        self.committed = AckedPosition(part.value, part.tries) if part.start == "offset" else None
        return True

    @property
    def lag(self) -> int:
        position = self.position()
        return 0 if position is None else max(self.commit - position.offset, 0)

    # --- handing out ---------------------------------------------------------------------------------

    def next(self, now_us: int) -> GroupRecord | None:
        """The next record, which is in hand from now on."""
        if self.revoked:
            return None
        if self._returned:
            if now_us < self.resume_at_us:
                return None
            record = self._returned.pop(0)
        else:
            if not self._opened and not self._open():
                return None
            record = self._opened.popleft()
        self.unacked[record.offset] = record
        return record

    def has_next(self, now_us: int) -> bool:
        if self.revoked:
            return False
        if self._returned:
            return now_us >= self.resume_at_us
        return bool(self._opened or self.queue)

    @property
    def paused(self) -> bool:
        """Whether something failed that is to be handed out again later."""
        return bool(self._returned) and not self.revoked

    @property
    def at_end_of_batch(self) -> bool:
        return not self._opened

    def _open(self) -> bool:
        """Decode the next batch; its bytes make room for others."""
        while self.queue:
            batch = self.queue[0]
            columns = batch.offsets(), batch.timestamps(), batch.keys(), batch.values(), batch.headers()
            whole = map(GroupRecord, repeat(batch.topic), repeat(batch.partition), *columns, repeat(0), repeat(self))
            self._opened.extend(whole)
            del self.queue[0]
            if self.subscription is not None:
                self.subscription.consumed(batch.partition, batch.bytes)
            if self._opened:
                if self._tries:
                    self._opened[0] = msgspec.structs.replace(self._opened[0], tries=self._tries)
                    self._tries = 0
                return True
        return False

    # --- settling ------------------------------------------------------------------------------------

    def settled(self, record: GroupRecord) -> bool:
        """Whether it was in hand until now. It may have been handed out again since, or taken away."""
        if self.unacked.get(record.offset) is not record:
            return False
        del self.unacked[record.offset]
        return True

    def put_back(self, record: GroupRecord) -> None:
        """To be handed out again, before what comes behind it."""
        insort(self._returned, record, key=_OFFSET)

    def end(self) -> None:
        """What is still in hand is nobody's business here any more."""
        self.revoked = True
        self.unacked.clear()
        self._returned.clear()
        self._opened.clear()
        self.queue.clear()
