"""A subscription for blocking code."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.core.options import BelowStart, Start
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.client.core.subscription.subscriptions import AnySubscription, positions_of_one
from rostra.errors import ClientClosed, RostraError
from rostra.model.decode import Record

if TYPE_CHECKING:
    from rostra.client.blocking.driver import BlockingDriver


class BlockingInbox:
    """Delivered batches that the application has not taken; filled by the driver."""

    __slots__ = ("error", "ready")

    def __init__(self) -> None:
        self.ready: deque[DeliveredBatch] = deque()
        self.error: RostraError | None = None


class Subscription:
    """Records of one or several topics, in order within each partition. Made by `Client.subscribe`.

    Iterate over it for records, over `batches()` for speed, or `poll`. After a lost connection it continues where it
    stopped; if it can not, it ends with an error.
    """

    def __init__(
        self,
        driver: BlockingDriver,
        names: tuple[str, ...],
        start: Start,
        partition: int | None,
        credit_bytes: int,
        below_start: BelowStart,
    ) -> None:
        self._driver = driver
        self.names = names
        """The topics and patterns subscribed to."""
        self._start = start
        self._partition = partition
        self._credit_bytes = credit_bytes
        self._below_start = below_start
        self._state: AnySubscription | None = None
        self._inbox = BlockingInbox()
        self._uncredited: deque[DeliveredBatch] = deque()
        """Batches that the application has taken, whose credit was not granted again."""
        self._over = False
        self._records: Iterator[Record] | None = None
        self._current: DeliveredBatch | None = None
        """The batch whose records are being delivered; the next one is at `_current_next`."""
        self._current_next = 0

    # --- opening and closing -------------------------------------------------------------------------

    def open(self) -> Self:
        """Subscribe; `with` and the first iteration do it, too."""
        if self._state is None:
            driver = self._driver
            with driver.lock:
                call = driver.new_call()
                state = driver.core.subscribe_to(
                    _now_us(), call, self.names, self._start, self._partition, self._credit_bytes, self._below_start
                )
                driver.inboxes[state.number] = self._inbox
                state.inbox = self._inbox.ready
                self._state = state
                try:
                    driver.answer(call)
                except BaseException:
                    driver.inboxes.pop(state.number, None)
                    state.inbox = None
                    self._over = True
                    raise
                if driver.trace is not None:
                    driver.trace.subscribed(state.number, self.topics)
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unsubscribe()

    def unsubscribe(self) -> None:
        """Unsubscribe. When this returns, no node sends anything more, and iteration stops."""
        if self._state is None or self._over:
            return
        driver = self._driver
        with driver.lock:
            self._over = True
            self._inbox.ready.clear()
            driver.inboxes.pop(self._state.number, None)
            if driver.trace is not None:
                driver.trace.unsubscribed(self._state.number)
            if not driver.core.closed:
                call = driver.new_call()
                driver.core.unsubscribe(_now_us(), call, self._state)
                driver.answer(call)

    # --- reading -------------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> DeliveredBatch | None:
        """The next batch; None if none came within that many seconds, or after the end.

        >>> batch = subscription.poll(timeout=0.5)  # doctest: +SKIP
        """
        return self._next(timeout)

    def batches(self, timeout: float | None = None) -> Iterator[DeliveredBatch]:
        """Whole batches, the fastest way; ends if none came within that many seconds.

        >>> for batch in subscription.batches(timeout=1.0):  # doctest: +SKIP
        ...     table = batch.to_arrow()
        """
        while (delivered := self.poll(timeout)) is not None:
            yield delivered

    def __iter__(self) -> Iterator[Record]:
        if self._records is None:
            self._records = self._each()
        return self._records

    def __next__(self) -> Record:
        return next(iter(self))

    def _each(self) -> Iterator[Record]:
        while (delivered := self._next(None)) is not None:
            self._current_next, self._current = delivered.first_offset, delivered
            for record in delivered.records():
                self._current_next = record.offset + 1
                yield record
                if self._over:
                    return
            self._current = None

    def _next(self, timeout: float | None) -> DeliveredBatch | None:
        state = self._state
        if state is None:
            state = self.open()._state
            assert state is not None
        if self._uncredited and not self._over:
            self._return_credit(state)
        driver = self._driver
        ready = self._inbox.ready
        due_us = None if timeout is None else _now_us() + int(timeout * 1_000_000)
        while not ready:
            if self._over or self._ended():
                return None
            now = _now_us()
            if due_us is not None and now >= due_us:
                # What the socket has received already is in time.
                driver.step(now)
                if not ready:
                    return None
            else:
                driver.step(due_us)
        delivered = ready.popleft()
        self._uncredited.append(delivered)
        if driver.trace is not None:
            with driver.lock:
                if driver.trace is not None:
                    driver.trace.delivered(state.number, delivered)
        return delivered

    def _return_credit(self, state: AnySubscription) -> None:
        """Grant credit again. Only when the application asks for more, so that the current batch is not delayed."""
        driver = self._driver
        with driver.lock:
            while self._uncredited:
                delivered = self._uncredited.popleft()
                state.consumed(delivered.partition, delivered.bytes, delivered.topic_id)
            if driver.core.out:
                driver.run()

    def _ended(self) -> bool:
        if self._inbox.error is None:
            return False
        self._over = True
        if isinstance(self._inbox.error, ClientClosed):
            return True
        raise self._inbox.error

    # --- position ------------------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, dict[int, int]]:
        """By topic and partition, the offset of the next record that the application gets."""
        if self._state is None:
            return {}
        topics = self._state.by_topic(self._inbox.ready)
        current = self._current
        if current is not None and self._current_next < current.next_offset and current.topic in topics:
            topics[current.topic][current.partition] = self._current_next
        return topics

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset of the next record that the application gets.

        For a subscription to one topic; with several, use `topics`.
        """
        return positions_of_one(self.topics)

    @property
    def next_offset(self) -> int:
        """The offset of the next record, in the only partition or the first one of the topic."""
        positions = self.positions
        return positions[min(positions)] if positions else 0

    @property
    def lag(self) -> int:
        """The number of offsets between the position and the end, as last reported."""
        return 0 if self._state is None else self._state.lag(self.topics)


def _now_us() -> int:
    return monotonic_ns() // 1000
