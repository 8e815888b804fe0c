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
    """What was delivered and not yet taken; the driver fills it."""

    __slots__ = ("error", "ready")

    def __init__(self) -> None:
        self.ready: deque[DeliveredBatch] = deque()
        self.error: RostraError | None = None


class Subscription:
    """Records of one or several topics, in order within each partition. Made by `Client.subscribe`.

    Iterate over it for records, over `batches()` for speed, or `poll`. It goes on by itself after a lost connection,
    where it stopped; it ends with an error when it cannot.
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
        """What was subscribed to: topics, and patterns of topics."""
        self._start = start
        self._partition = partition
        self._credit_bytes = credit_bytes
        self._below_start = below_start
        self._state: AnySubscription | None = None
        self._inbox = BlockingInbox()
        self._uncredited: deque[DeliveredBatch] = deque()
        """What the application has, and the node has not heard of."""
        self._over = False
        self._records: Iterator[Record] | None = None
        self._current: DeliveredBatch | None = None
        """The batch whose records are being handed out, up to `_reached`."""
        self._current_next = 0

    # --- opening and closing -------------------------------------------------------------------------

    def open(self) -> Self:
        """Subscribe; `with` and the first iteration do it too."""
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
        """End delivery. When this returns the node sends nothing more, and iteration stops."""
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
        """The next batch, or None when none came within that many seconds, or there will be none.

        >>> batch = subscription.poll(timeout=0.5)  # doctest: +SKIP
        """
        return self._next(timeout)

    def batches(self, timeout: float | None = None) -> Iterator[DeliveredBatch]:
        """Whole batches as they come, the fastest way out; ends when none came within that many seconds.

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
                # What lies in the socket already is not late.
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
        """Only when the application comes for more: whoever waits for one record shall not wait for this."""
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

    # --- where it stands -----------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, dict[int, int]]:
        """The topics it has now, and of each, by partition, the offset before which everything was handed out."""
        if self._state is None:
            return {}
        topics = self._state.by_topic(self._inbox.ready)
        current = self._current
        if current is not None and self._current_next < current.next_offset and current.topic in topics:
            topics[current.topic][current.partition] = self._current_next
        return topics

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset before which everything was handed out; what is no record needs no handing out.

        It is of one topic. With several, look at `topics`.
        """
        return positions_of_one(self.topics)

    @property
    def next_offset(self) -> int:
        """The offset before which everything was handed out; of the only partition, or the first, of one topic."""
        positions = self.positions
        return positions[min(positions)] if positions else 0

    @property
    def lag(self) -> int:
        """How many offsets lie between what was handed out and the end, as last heard."""
        return 0 if self._state is None else self._state.lag(self.topics)


def _now_us() -> int:
    return monotonic_ns() // 1000
