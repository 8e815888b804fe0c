"""A subscription for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.core.delivered import Delivered
from rostra.client.core.options import Start
from rostra.client.core.subscribing import Subscribing
from rostra.errors import ClientClosed, RostraError
from rostra.model.decode import Record

if TYPE_CHECKING:
    from rostra.client.aio import Client


class Subscription:
    """Records of a topic in order within each partition. Made by `Client.subscribe`.

    Iterate over it for records, over `batches()` for speed. It goes on by itself after a lost connection, where it
    stopped; it ends with an error when it cannot.
    """

    def __init__(self, client: Client, topic: str, start: Start, partition: int | None, credit_bytes: int) -> None:
        self._client = client
        self.topic = topic
        self._start = start
        self._partition = partition
        self._credit_bytes = credit_bytes
        self._state: Subscribing | None = None
        self._ready: deque[Delivered] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: RostraError | None = None
        self._over = False
        self._records: AsyncIterator[Record] | None = None
        self._positions: dict[int, int] = {}

    # --- opening and closing -------------------------------------------------------------------------

    async def open(self) -> Self:
        """Subscribe; `async with`, `await` and the first iteration do it too."""
        if self._state is None:
            client = self._client
            call, answer = client._new_call()
            state = client._core.subscribe(
                _now_us(), call, self.topic, self._start, self._partition, self._credit_bytes
            )
            client._subscriptions[state.number] = self
            self._state = state
            try:
                await client._answered(answer)
            except BaseException:
                client._subscriptions.pop(state.number, None)
                self._over = True
                raise
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
        """End delivery. When this returns the node sends nothing more, and iteration stops."""
        if self._state is None or self._over:
            return
        self._over = True
        self._ready.clear()
        self._wake()
        self._client._subscriptions.pop(self._state.number, None)
        if self._client._core.closed:
            return
        call, answer = self._client._new_call()
        self._client._core.unsubscribe(_now_us(), call, self._state)
        await self._client._answered(answer)

    # --- reading -------------------------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[Delivered, None]:
        """Whole batches as they come, the fastest way out.

        >>> async for batch in subscription.batches():  # doctest: +SKIP
        ...     table = batch.to_arrow()
        """
        await self.open()
        while True:
            while self._ready:
                delivered = self._take()
                self._positions[delivered.partition] = delivered.next_offset
                yield delivered
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
        positions = self._positions
        while True:
            while self._ready:
                delivered = self._take()
                partition = delivered.partition
                for record in delivered.records():
                    positions[partition] = record.offset + 1
                    yield record
                    if self._over:
                        return
                positions[partition] = delivered.next_offset
            if not await self._more():
                return

    async def _more(self) -> bool:
        """Wait for batches; False when there will be none."""
        if self._over:
            return False
        if self._error is not None:
            self._over = True
            if isinstance(self._error, ClientClosed):
                return False
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        return True

    def _take(self) -> Delivered:
        delivered = self._ready.popleft()
        assert self._state is not None
        self._client._core.taken(self._state, delivered.partition, delivered.bytes)
        if not self._client._core.idle:
            self._client._run()
        return delivered

    # --- where it stands -----------------------------------------------------------------------------

    @property
    def positions(self) -> dict[int, int]:
        """By partition, the offset behind the last record handed out."""
        if self._state is None:
            return {}
        return {**self._state.positions(self._ready), **self._positions}

    @property
    def next_offset(self) -> int:
        """The offset behind the last record handed out; of the only partition, or the first."""
        positions = self.positions
        return positions[min(positions)] if positions else 0

    @property
    def lag(self) -> int:
        """How many offsets lie between the records handed out and the end, as last heard."""
        return 0 if self._state is None else self._state.lag(self.positions)

    # --- from the client -----------------------------------------------------------------------------

    def _delivered(self, batches: tuple[Delivered, ...]) -> None:
        self._ready.extend(batches)
        self._wake()

    def _finished(self, error: RostraError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _now_us() -> int:
    return monotonic_ns() // 1000
