"""The thread on which named subscriptions run, with an event loop and connections of its own.

So a slow record handler does not delay their heartbeats. Applications take and settle records on their own threads; a
lock guards the core and is only held for moments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rostra.client.aio.driver import AsyncioDriver, now_us
from rostra.client.core.effects import Result
from rostra.client.core.events import ClientEvent, DeliveryPaused
from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.groups.membership import Membership
from rostra.client.core.options import MemberSettings, Options
from rostra.errors import ClientClosed, RostraError
from rostra.wire.messages import NodeMessage

if TYPE_CHECKING:
    from rostra.client.aio.subscription import AsyncioInbox

Answer = TypeVar("Answer")

_log = logging.getLogger("rostra")
LEAVE_S_MAX = 5.0
"""How long a client that is closed waits for its members to leave; after that their leases expire."""


class SharedDriver(AsyncioDriver):
    """A driver whose core is guarded by a lock, because the application's threads use it, too."""

    def __init__(self, options: Options, on_event: Callable[[ClientEvent], None] | None) -> None:
        super().__init__(options, on_event)
        self.lock = RLock()

    async def call(self, begin: Callable[[int], object]) -> Result:
        with self.lock:
            number, answer = self.new_call()
            begin(number)
            self.run()
        return await answer

    async def _close(self) -> None:
        with self.lock:
            self.core.close(now_us())
        await super()._close()

    def opened(self, number: int) -> None:
        with self.lock:
            super().opened(number)

    def lost(self, number: int, reason: str) -> None:
        with self.lock:
            super().lost(number, reason)

    def received(self, number: int, messages: list[tuple[NodeMessage, bytearray | None]]) -> None:
        with self.lock:
            super().received(number, messages)

    def congested(self, number: int) -> None:
        with self.lock:
            super().congested(number)

    def drained(self, number: int) -> None:
        with self.lock:
            super().drained(number)

    def run(self) -> None:
        with self.lock:
            super().run()

    def notify(self, event: ClientEvent) -> None:
        if isinstance(event, DeliveryPaused):
            _log.warning(
                "the subscription %r pauses: %d records are unacknowledged; call record.ack(), or use `with record:`",
                event.name,
                event.unacknowledged,
            )
        super().notify(event)

    def _ticked(self) -> None:
        with self.lock:
            super()._ticked()


class BackgroundThread:
    """Starts with the first named subscription of a client, and stops with the client."""

    def __init__(self, options: Options, on_event: Callable[[ClientEvent], None]) -> None:
        self.driver = SharedDriver(options, on_event)
        self.loop = asyncio.new_event_loop()
        self._handles: dict[int, MemberHandle] = {}
        self._thread = Thread(target=self._run_loop, name="rostra-subscriptions", daemon=True)
        self._connecting: asyncio.Task[None] | None = None
        self._wake_pending = False
        self._thread.start()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    def submit(self, work: Coroutine[Any, Any, Answer]) -> Future[Answer]:
        """Run the coroutine on the thread."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise ClientClosed() from None

    @property
    def failed(self) -> bool:
        """Whether it could not connect and does not try again."""
        return self.driver.core.closed

    async def _connected(self) -> None:
        if self._connecting is None:
            self._connecting = self.loop.create_task(self.driver.start())
        await asyncio.shield(self._connecting)

    # --- members -------------------------------------------------------------------------------------

    async def join(self, name: str, settings: MemberSettings, handle: MemberHandle) -> None:
        await self._connected()
        driver = self.driver

        def begin(call: int) -> None:
            handle.membership = driver.core.join(now_us(), call, name, settings, handle)
            self._handles[handle.membership.number] = handle
            # A handle is woken and finished like an inbox.
            driver.inboxes[handle.membership.number] = cast("AsyncioInbox", handle)

        try:
            await driver.call(begin)
        except BaseException:
            await self._leave_quietly(handle)
            raise

    async def leave(self, handle: MemberHandle) -> None:
        """Leave the group; when this returns, the positions are committed."""
        membership = handle.membership
        if membership is None or self._handles.pop(membership.number, None) is None:
            return
        try:
            if not self.driver.core.closed:
                await self.driver.call(lambda call: self.driver.core.leave(now_us(), call, membership))
        finally:
            self.driver.inboxes.pop(membership.number, None)

    async def _leave_quietly(self, handle: MemberHandle) -> None:
        with suppress(RostraError, TimeoutError):
            async with asyncio.timeout(LEAVE_S_MAX):
                await self.leave(handle)

    def wake_loop(self) -> None:
        """Make the loop run the core, which has work that its timer does not know of. Called with the lock."""
        if self._wake_pending:
            return
        self._wake_pending = True
        # The loop may have been closed meanwhile; then there is no work left.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._run_driver)

    def _run_driver(self) -> None:
        with self.driver.lock:
            self._wake_pending = False
            self.driver.run()

    # --- closing -------------------------------------------------------------------------------------

    async def _stop(self) -> None:
        await asyncio.gather(*(self._leave_quietly(handle) for handle in list(self._handles.values())))
        await self.driver.close()
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)

    def stopping(self) -> Future[None]:
        """Start to stop; call `finish` when the future is done."""
        return self.submit(self._stop())

    def finish(self) -> None:
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class MemberHandle:
    """Takes and settles the records of one membership for the application, on any thread."""

    def __init__(self, background: BackgroundThread, on_wake: Callable[[], None]) -> None:
        self.background = background
        self.lock = background.driver.lock
        self.membership: Membership | None = None
        self.error: RostraError | None = None
        self._on_wake = on_wake

    def take(self) -> GroupRecord | None:
        """The next record. If there is none, `on_wake` is called when there is one or the membership has ended."""
        with self.lock:
            membership = self.membership
            if membership is None or self.error is not None:
                return None
            record = membership.dispatcher.take(now_us())
            if record is None:
                # Set even if another thread waits already, so that a record for that one does not lose this waiter.
                membership.dispatcher.waiting = True
            self._schedule_work(membership)
            return record

    def ack(self, record: GroupRecord) -> None:
        with self.lock:
            if self.membership is not None:
                self.membership.dispatcher.ack(now_us(), record)
                self._schedule_work(self.membership)

    def retry(self, record: GroupRecord) -> None:
        with self.lock:
            if self.membership is not None:
                self.membership.dispatcher.retry(now_us(), record)
                self._schedule_work(self.membership)

    def give_back(self, record: GroupRecord) -> None:
        with self.lock:
            if self.membership is not None:
                self.membership.dispatcher.give_back(now_us(), record)
                self._schedule_work(self.membership)

    def _schedule_work(self, membership: Membership) -> None:
        if membership.timer_moved or self.background.driver.core.out:
            membership.timer_moved = False
            self.background.wake_loop()

    # --- position ------------------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, dict[int, int]]:
        """The assigned partitions by topic and number, with the first offset that is not acknowledged."""
        topics: dict[str, dict[int, int]] = {}
        with self.lock:
            for assigned in self.membership.partitions.values() if self.membership is not None else ():
                position = assigned.position()
                if position is not None:
                    topics.setdefault(assigned.name, {})[assigned.partition] = position.offset
        return topics

    @property
    def lag(self) -> int:
        with self.lock:
            return 0 if self.membership is None else self.membership.lag

    # --- driver --------------------------------------------------------------------------------------

    def wake(self) -> None:
        self._on_wake()

    def finish(self, error: RostraError) -> None:
        self.error = error
        self._on_wake()
