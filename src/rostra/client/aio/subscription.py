"""A subscription for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.core.options import BelowStart, Start
from rostra.client.core.subscription.delivered_batch import DeliveredBatch
from rostra.client.core.subscription.subscriptions import AnySubscription, positions_of_one
from rostra.errors import ClientClosed, RostraError
from rostra.model.decode import Record

if TYPE_CHECKING:
    from rostra.client.aio.driver import AsyncioDriver


class AsyncioInbox:
    """Delivered batches that the application has not taken; filled by the driver."""

    __slots__ = ("error", "ready", "waiter")

    def __init__(self) -> None:
        self.ready: deque[DeliveredBatch] = deque()
        self.error: RostraError | None = None
        self.waiter: asyncio.Future[None] | None = None

    def deliver(self, batches: tuple[DeliveredBatch, ...]) -> None:
        self.ready.extend(batches)
        self.wake()

    def finish(self, error: RostraError) -> None:
        self.error = error
        self.wake()

    def wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Subscription:
    """Records of one or several topics, in order within each partition. Made by `Client.subscribe`.

    Iterate over it for records, over `batches()` for speed. After a lost connection it continues where it stopped; if
    it can not, it ends with an error.
    """

    def __init__(
        self,
        driver: AsyncioDriver,
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
        self._inbox = AsyncioInbox()
        self._over = False
        self._records: AsyncIterator[Record] | None = None
        self._current: DeliveredBatch | None = None
        """The batch whose records are being delivered; the next one is at `_current_next`."""
        self._current_next = 0

    # --- opening and closing -------------------------------------------------------------------------

    async def open(self) -> Self:
        """Subscribe; `async with`, `await` and the first iteration do it, too."""
        if self._state is None:
            driver = self._driver
            call, answer = driver.new_call()
            state = driver.core.subscribe_to(
                _now_us(), call, self.names, self._start, self._partition, self._credit_bytes, self._below_start
            )
            driver.inboxes[state.number] = self._inbox
            self._state = state
            try:
                driver.run()
                await answer
            except BaseException:
                driver.inboxes.pop(state.number, None)
                self._over = True
                raise
            if driver.trace is not None:
                driver.trace.subscribed(state.number, self.topics)
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.unsubscribe()

    async def unsubscribe(self) -> None:
        """Unsubscribe. When this returns, no node sends anything more, and iteration stops."""
        if self._state is None or self._over:
            return
        self._over = True
        self._inbox.ready.clear()
        self._inbox.wake()
        self._driver.inboxes.pop(self._state.number, None)
        if self._driver.trace is not None:
            self._driver.trace.unsubscribed(self._state.number)
        if self._driver.core.closed:
            return
        state = self._state
        await self._driver.call(lambda call: self._driver.core.unsubscribe(_now_us(), call, state))

    # --- reading -------------------------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[DeliveredBatch, None]:
        """Whole batches, the fastest way.

        >>> async for batch in subscription.batches():  # doctest: +SKIP
        ...     table = batch.to_arrow()
        """
        await self.open()
        while True:
            while self._inbox.ready:
                yield self._take()
            if not await self._more():
                return

    def __aiter__(self) -> AsyncIterator[Record]:
        if self._records is None:
            self._records = self._each()
        return self._records

    async def __anext__(self) -> Record:
        return await anext(self.__aiter__())

    async def _each(self) -> AsyncIterator[Record]:
        await self.open()
        while True:
            while self._inbox.ready:
                delivered = self._take()
                self._current_next, self._current = delivered.first_offset, delivered
                for record in delivered.records():
                    self._current_next = record.offset + 1
                    yield record
                    if self._over:
                        return
                self._current = None
            if not await self._more():
                return

    async def _more(self) -> bool:
        """Wait for batches; False after the end."""
        if self._over:
            return False
        if self._inbox.error is not None:
            self._over = True
            if isinstance(self._inbox.error, ClientClosed):
                return False
            raise self._inbox.error
        waiter = self._inbox.waiter = asyncio.get_running_loop().create_future()
        await waiter
        return True

    def _take(self) -> DeliveredBatch:
        delivered = self._inbox.ready.popleft()
        assert self._state is not None
        if self._driver.trace is not None:
            self._driver.trace.delivered(self._state.number, delivered)
        self._driver.core.consumed(self._state, delivered.partition, delivered.bytes, delivered.topic_id)
        if self._driver.core.out:
            self._driver.run()
        return delivered

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
