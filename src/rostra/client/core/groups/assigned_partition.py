"""A partition assigned to a group member: its unacknowledged records and its position."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Generator
from itertools import repeat
from operator import attrgetter
from types import TracebackType
from typing import Protocol, Self

import msgspec

from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.client.core.subscription.topic_subscription import PartitionFeed, TopicSubscription
from rostra.model.decode import Record
from rostra.wire.groups import PartitionPosition

_OFFSET = attrgetter("offset")


class AckHandler(Protocol):
    """Settles records that were delivered."""

    def ack(self, record: GroupRecord) -> None: ...
    def retry(self, record: GroupRecord) -> None: ...
    def give_back(self, record: GroupRecord) -> None: ...


class Settlement:
    """What settling a record returns: already done, so that `record.ack()` and `await record.ack()` both work."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


SETTLED = Settlement()


class GroupRecord(Record, frozen=True, gc=True):
    """A record of a named subscription. It is yours until you settle it; only the first settlement counts.

    `with record:` and `async with record:` acknowledge it at the end of the block. If the block raises, the record is
    delivered again and the exception propagates; an interruption or cancellation does not count as a try.

    >>> for record in client.subscribe("orders", name="billing"):  # doctest: +SKIP
    ...     with record:
    ...         bill(record.value)
    """

    tries: int = 0
    """How often it was delivered before and failed."""
    assigned: AssignedPartition | None = None

    def ack(self) -> Settlement:
        """Acknowledge it. No member gets it again once the position is committed, which happens within moments."""
        if self.assigned is not None:
            self.assigned.ack_handler.ack(self)
        return SETTLED

    def retry(self) -> Settlement:
        """It failed: deliver it again before later records, or move it to the dead-letter topic."""
        if self.assigned is not None:
            self.assigned.ack_handler.retry(self)
        return SETTLED

    def give_back(self) -> Settlement:
        """It was not processed: deliver it again, without counting a try."""
        if self.assigned is not None:
            self.assigned.ack_handler.give_back(self)
        return SETTLED

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
    """The first offset that is not acknowledged, and how often the record there was delivered and failed."""

    offset: int
    tries: int = 0


class AssignedPartition:
    """Every delivered record is in one of these, in this order: the feed's `queue`, `_opened` (decoded), `unacked`, and
    if it failed `_returned`, from where it is delivered before anything else; or it is acknowledged.
    """

    def __init__(self, ack_handler: AckHandler, part: PartitionPosition, committed: AckedPosition | None) -> None:
        self.ack_handler = ack_handler
        self.topic = part.topic
        self.name = part.name
        self.partition = part.partition
        self.since = part.since
        self.committed = committed
        """The position that the coordinator has; None before the first commit."""
        self.queue: deque[DeliveredBatch] = deque()
        self.subscription: TopicSubscription | None = None
        self.unacked: dict[int, GroupRecord] = {}
        self.revoked = False
        """Assigned to another member: nothing more is delivered, and it is released when nothing is unacknowledged."""
        self.resume_at_us = 0
        """Failed records are not delivered again before this time."""
        self._opened: deque[GroupRecord] = deque()
        self._returned: list[GroupRecord] = []
        self._tries = part.tries
        """The tries of the first record, until it is decoded."""

    def __repr__(self) -> str:
        return f"<AssignedPartition {self.name}/{self.partition}, {len(self.unacked)} unacknowledged>"

    # --- position ------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the start of delivery is known."""
        return self._feed_next() is not None

    def _feed(self) -> PartitionFeed | None:
        """The only feed of its subscription."""
        return None if self.subscription is None else next(iter(self.subscription.feeds.values()), None)

    def _feed_next(self) -> int | None:
        feed = self._feed()
        return None if feed is None else feed.next

    @property
    def commit(self) -> int:
        """The end of what is readable, as last reported."""
        feed = self._feed()
        return 0 if feed is None else feed.commit

    def position(self) -> AckedPosition | None:
        """The position to commit; None while the start of delivery is not known."""
        following = self._feed_next()
        if following is None:
            return self.committed
        if self._opened:
            following, tries = self._opened[0].offset, self._opened[0].tries
        elif self.queue:
            following, tries = self.queue[0].first_offset, self._tries
        else:
            if following >= self.commit:
                # No record is there yet that could have failed.
                self._tries = 0
            tries = self._tries
        waiting = list(self._returned[:1])
        if self.unacked:
            waiting.append(self.unacked[min(self.unacked)])
        if not waiting:
            return AckedPosition(following, tries)
        lowest = min(waiting, key=_OFFSET)
        return AckedPosition(lowest.offset, lowest.tries)

    def carry_over(self, part: PartitionPosition) -> bool:
        """Continue at a coordinator that did not know this partition; False if another member has come further."""
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

    # --- delivery ------------------------------------------------------------------------------------

    def next(self, now_us: int) -> GroupRecord | None:
        """The next record, which is unacknowledged from now on."""
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
        """Whether a failed record waits to be delivered again."""
        return bool(self._returned) and not self.revoked

    @property
    def at_end_of_batch(self) -> bool:
        return not self._opened

    def _open(self) -> bool:
        """Decode the next batch, which frees its credit."""
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

    # --- settlement ----------------------------------------------------------------------------------

    def settled(self, record: GroupRecord) -> bool:
        """Remove the record from those unacknowledged; False if it was settled, delivered again or revoked before."""
        if self.unacked.get(record.offset) is not record:
            return False
        del self.unacked[record.offset]
        return True

    def put_back(self, record: GroupRecord) -> None:
        """Deliver it again, before later records."""
        insort(self._returned, record, key=_OFFSET)

    def end(self) -> None:
        """Drop everything; records that are still unacknowledged can not be settled any more."""
        self.revoked = True
        self.unacked.clear()
        self._returned.clear()
        self._opened.clear()
        self.queue.clear()
