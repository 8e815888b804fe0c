"""A named subscription for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rostra.client.background_thread import BackgroundThread, MemberHandle
from rostra.client.core.events import ClientEvent
from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import MemberSettings
from rostra.errors import ClientClosed, RostraError

if TYPE_CHECKING:
    from rostra.client.aio.driver import AsyncioDriver


def background_of(driver: AsyncioDriver) -> BackgroundThread:
    if driver.core.closed:
        raise ClientClosed()
    if driver.background is not None and driver.background.failed:
        driver.background.finish()
        driver.background = None
    if driver.background is None:
        loop = driver.loop

        def forward(event: ClientEvent) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(driver.notify, event)

        driver.background = BackgroundThread(driver.core.options, forward)
    return driver.background


class NamedSubscription:
    """A subscription whose position the cluster stores, as a consumer group. Made by `Client.subscribe` with a `name`.

    All members of a name share its partitions. Each record is delivered until it is acknowledged: `async with record:`
    does that at the end of the block; if the block raises, the record is delivered again.

    >>> async with client.subscribe("orders/#", name="billing") as records:  # doctest: +SKIP
    ...     async for record in records:
    ...         async with record:
    ...             await bill(record.value)
    """

    def __init__(self, driver: AsyncioDriver, name: str, settings: MemberSettings) -> None:
        self._driver = driver
        self.name = name
        self._settings = settings
        self._handle: MemberHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._over = False

    # --- opening and closing -------------------------------------------------------------------------

    async def open(self) -> Self:
        """Join the group; `async with`, `await` and the first iteration do it, too."""
        if self._handle is None:
            background = background_of(self._driver)
            loop = self._driver.loop

            def on_wake() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(self._wake)

            handle = self._handle = MemberHandle(background, on_wake)
            try:
                await self._in_background(background.join(self.name, self._settings, handle))
            except BaseException:
                self._over = True
                raise
        return self

    async def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._handle is not None
        await asyncio.wrap_future(self._handle.background.submit(work))

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The exception of the block must not be hidden by ours.
        with suppress(*(() if kind is None else (RostraError,))):
            await self.unsubscribe()

    async def unsubscribe(self) -> None:
        """Leave the group. When this returns, all acknowledgements are stored; the name and its position stay."""
        if self._handle is None or self._over:
            return
        self._over = True
        self._wake()
        if not self._driver.core.closed:
            await self._in_background(self._handle.background.leave(self._handle))

    # --- reading -------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[GroupRecord]:
        return self

    async def __anext__(self) -> GroupRecord:
        record = await self.receive()
        if record is None:
            raise StopAsyncIteration
        return record

    async def receive(self, timeout: float | None = None) -> GroupRecord | None:
        """The next record; None if none came within that many seconds, or after the end.

        >>> record = await subscription.receive(timeout=0.5)  # doctest: +SKIP
        """
        await self.open()
        handle = self._handle
        assert handle is not None
        due = None if timeout is None else self._driver.loop.time() + timeout
        while not self._over:
            waiter = self._driver.loop.create_future()
            self._waiters.append(waiter)
            record = handle.take()
            if record is not None:
                self._waiters.remove(waiter)
                return record
            if handle.error is not None:
                self._over = True
                if isinstance(handle.error, ClientClosed):
                    return None
                raise handle.error
            try:
                async with asyncio.timeout_at(due):
                    await waiter
            except TimeoutError:
                return None
            finally:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return None

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- position ------------------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, dict[int, int]]:
        """The partitions of this member by topic and number, with the first offset that is not acknowledged."""
        return {} if self._handle is None else self._handle.topics

    @property
    def lag(self) -> int:
        """The number of offsets between the positions and the ends, as last reported, in this member's partitions."""
        return 0 if self._handle is None else self._handle.lag
