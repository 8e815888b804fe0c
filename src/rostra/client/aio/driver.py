"""The driver that carries out the core's effects on an asyncio loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from random import SystemRandom
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, assert_never
from weakref import WeakValueDictionary

from rostra.client.aio.connection import Connection
from rostra.client.connection_errors import reason_of
from rostra.client.core import Core
from rostra.client.core.effects import (
    Acknowledged,
    BatchRefused,
    ClientEffect,
    Deliver,
    Dial,
    Done,
    Fail,
    Finish,
    HangUp,
    Notify,
    RecordsReady,
    Result,
    Resume,
    Write,
)
from rostra.client.core.events import ClientEvent
from rostra.client.core.options import CLOSE_FLUSH_MS_MAX, Options, host_and_port, unix_path
from rostra.client.core.producer.producer_state import ProducerState
from rostra.errors import ClientClosed, NotAcknowledged, RostraError
from rostra.wire.frames import Buffer
from rostra.wire.messages import NodeMessage

if TYPE_CHECKING:
    from rostra.client.aio.producer import Producer
    from rostra.client.aio.subscription import AsyncioInbox
    from rostra.client.background_thread import BackgroundThread
    from rostra.client.client_trace import ClientTrace

EVENTS_KEPT_MAX = 1000


class AsyncioDriver:
    """One core, its connections and its timer. Inputs come from the socket, the timer and the application's calls."""

    def __init__(
        self, options: Options, on_event: Callable[[ClientEvent], None] | None, trace: ClientTrace | None = None
    ) -> None:
        self.core = Core(options, SystemRandom(), time_ns() // 1000 - now_us())
        self.trace = trace
        self.producers: dict[int, Producer] = {}
        self.inboxes: dict[int, AsyncioInbox] = {}
        self._on_event = on_event
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: dict[int, Connection] = {}
        self._dialing: dict[int, asyncio.Task[None]] = {}
        self._calls: WeakValueDictionary[int, asyncio.Future[Result]] = WeakValueDictionary()
        """Weak, because a call that was refused at once or cancelled is never answered."""
        self._last_call = 0
        self._resumed: dict[int, asyncio.Future[None]] = {}
        self._listeners: list[deque[ClientEvent]] = []
        self._event_arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._turn_scheduled = False
        self.background: BackgroundThread | None = None
        """Runs the named subscriptions, if there are any."""

    # --- opening and closing -------------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await self.call(lambda call: self.core.start(now_us(), call))
        except BaseException:
            await self.close(flush=False)
            raise

    async def close(self, *, flush: bool = True) -> None:
        """Flush what producers have sent, then close; raises if some of it was not acknowledged."""
        error = None
        try:
            if flush and not self.core.closed:
                error = await self._flush()
        finally:
            await self._close()
        if error is not None:
            raise error

    async def exit(self, kind: type[BaseException] | None) -> None:
        """Close at the end of a `with` block, which raised an exception of this kind, or none."""
        # The exception of the block must not be hidden by ours; an interrupted program does not wait.
        with suppress(*(() if kind is None else (RostraError,))):
            await self.close(flush=kind is None or issubclass(kind, Exception))

    async def _flush(self) -> RostraError | None:
        """Wait for what producers have sent; the first error."""
        unsettled = self.core.unsettled_producers
        if not unsettled:
            return None
        flushes = [asyncio.ensure_future(self.call(partial(state.flush, now_us()))) for state in unsettled]
        try:
            await asyncio.wait(flushes, timeout=CLOSE_FLUSH_MS_MAX / 1000)
        finally:
            unacknowledged = sum(state.unacknowledged for state in unsettled)
            obstacle = next((state.obstacle() for state in unsettled if state.unacknowledged), "")
            for flush in flushes:
                flush.cancel()
            results = await asyncio.gather(*flushes, return_exceptions=True)
        if unacknowledged:
            return NotAcknowledged(unacknowledged, CLOSE_FLUSH_MS_MAX, obstacle)
        return next((result for result in results if isinstance(result, RostraError)), None)

    async def _close(self) -> None:
        background, self.background = self.background, None
        if background is not None:
            await asyncio.wrap_future(background.stopping())
            background.finish()
        self.core.close(now_us())
        self.run()
        if self._timer is not None:
            self._timer.cancel()
        self._event_arrived.set()
        # One turn of the loop, so that the transport can flush and close its socket.
        await asyncio.sleep(0)
        trace, self.trace = self.trace, None
        if trace is not None:
            await asyncio.to_thread(trace.close)

    # --- calls ---------------------------------------------------------------------------------------

    async def call(self, begin: Callable[[int], object]) -> Result:
        """Start a call under a new number and wait for its answer."""
        call, answer = self.new_call()
        begin(call)
        self.run()
        return await answer

    def new_call(self) -> tuple[int, asyncio.Future[Result]]:
        if self.core.closed:
            raise ClientClosed()
        self._last_call += 1
        answer: asyncio.Future[Result] = self.loop.create_future()
        self._calls[self._last_call] = answer
        return self._last_call, answer

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise ClientClosed()
        return self._loop

    def resumed(self, producer: int) -> asyncio.Future[None]:
        """Done when the producer may send again."""
        resumed = self._resumed.get(producer)
        if resumed is None:
            resumed = self._resumed[producer] = self.loop.create_future()
        return resumed

    def published(self, producer: ProducerState) -> None:
        """A record was published: it was sent already, or is sent at the end of this turn."""
        if self.core.out:
            self.run()
        elif not self._turn_scheduled and producer.senders:
            self._turn_scheduled = True
            self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_scheduled = False
        self.core.end_turn(now_us())
        self.run()

    # --- inputs --------------------------------------------------------------------------------------

    def opened(self, number: int) -> None:
        self.core.opened(now_us(), number)
        self.run()

    def lost(self, number: int, reason: str) -> None:
        self._connections.pop(number, None)
        self.core.lost(now_us(), number, reason)
        self.run()

    def received(self, number: int, messages: list[tuple[NodeMessage, bytearray | None]]) -> None:
        now = now_us()
        received = self.core.received
        for message, payload in messages:
            received(now, number, message, payload)
        self.run()

    def congested(self, number: int) -> None:
        self.core.congested(number)

    def drained(self, number: int) -> None:
        self.core.drained(number)
        self.run()

    def _ticked(self) -> None:
        self._timer = None
        now = now_us()
        self.core.set_wall_offset(time_ns() // 1000 - now)
        self.core.tick(now)
        self.run()

    # --- effects -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Carry out the effects. Callbacks of the application run in a later turn, as they may cause effects."""
        writes: list[Buffer] = []
        link = 0
        for effect in self.core.take():
            if isinstance(effect, Write):
                if effect.link != link:
                    self._write(link, writes)
                    writes, link = [], effect.link
                writes += effect.buffers
            else:
                if isinstance(effect, Dial | HangUp):
                    self._write(link, writes)
                    writes = []
                self._carry_out(effect)
        self._write(link, writes)
        self._set_timer()

    def _write(self, link: int, writes: list[Buffer]) -> None:
        if writes:
            connection = self._connections.get(link)
            if connection is not None and connection.transport is not None:
                connection.transport.writelines(writes)

    def _carry_out(self, effect: ClientEffect) -> None:
        match effect:
            case Acknowledged():
                if self.trace is not None:
                    self.trace.published(effect.producer, effect.partition, effect.offset, effect.count)
                producer = self.producers.get(effect.producer)
                if producer is not None and producer.on_ack is not None:
                    self.loop.call_soon(producer.on_ack, effect)
            case Resume():
                resumed = self._resumed.pop(effect.producer, None)
                if resumed is not None and not resumed.done():
                    resumed.set_result(None)
            case Deliver():
                inbox = self.inboxes.get(effect.subscription)
                if inbox is not None:
                    inbox.deliver(effect.batches)
            case RecordsReady():
                inbox = self.inboxes.get(effect.subscription)
                if inbox is not None:
                    inbox.wake()
            case Finish():
                inbox = self.inboxes.pop(effect.subscription, None)
                if inbox is not None:
                    inbox.finish(effect.error)
            case Done():
                answer = self._calls.pop(effect.call, None)
                if answer is not None and not answer.done():
                    answer.set_result(effect.result)
            case Fail():
                answer = self._calls.pop(effect.call, None)
                if answer is not None and not answer.done():
                    answer.set_exception(effect.error)
            case Dial():
                self._dial(effect)
            case HangUp():
                self._hang_up(effect.link)
            case Notify():
                self.notify(effect.event)
            case BatchRefused() | Write():
                # The producer keeps its first error for `flush`; writes were collected before.
                pass
            case _:
                assert_never(effect)

    def _dial(self, effect: Dial) -> None:
        self._connections[effect.link] = Connection(self, effect.link)
        self._dialing[effect.link] = self.loop.create_task(self._open(effect.link, effect.address))

    async def _open(self, number: int, address: str) -> None:
        connection = self._connections[number]
        path = unix_path(address)
        try:
            if path is not None:
                await self.loop.create_unix_connection(lambda: connection, path)
            else:
                await self.loop.create_connection(lambda: connection, *host_and_port(address))
        except OSError as error:
            self.lost(number, reason_of(error))
        finally:
            self._dialing.pop(number, None)

    def _hang_up(self, number: int) -> None:
        dialing = self._dialing.pop(number, None)
        if dialing is not None:
            dialing.cancel()
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.close()

    def notify(self, event: ClientEvent) -> None:
        for queue in self._listeners:
            queue.append(event)
        self._event_arrived.set()
        if self._on_event is not None:
            self.loop.call_soon(self._on_event, event)

    def _set_timer(self) -> None:
        due = self.core.deadline_us()
        if due is None or self._loop is None:
            return
        if self._timer is not None:
            # A timer that fires too early costs less than moving it for every batch.
            if self._timer_us <= due:
                return
            self._timer.cancel()
        self._timer_us = due
        self._timer = self._loop.call_later(max(due - now_us(), 0) / 1_000_000, self._ticked)

    # --- events --------------------------------------------------------------------------------------

    def events(self) -> AsyncGenerator[ClientEvent, None]:
        queue: deque[ClientEvent] = deque(maxlen=EVENTS_KEPT_MAX)
        self._listeners.append(queue)
        return self._each_event(queue)

    async def _each_event(self, queue: deque[ClientEvent]) -> AsyncGenerator[ClientEvent, None]:
        try:
            while not self.core.closed:
                while queue:
                    yield queue.popleft()
                self._event_arrived.clear()
                await self._event_arrived.wait()
        finally:
            self._listeners.remove(queue)


def now_us() -> int:
    return monotonic_ns() // 1000
