"""A producer for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.core.effects import Acknowledged
from rostra.client.core.options import ProducerSettings
from rostra.client.core.producer.producer_state import PER_RECORD_BYTES, ProducerState
from rostra.errors import LimitExceeded, ProducerNotOpen, RostraError
from rostra.model.encode import Headers

if TYPE_CHECKING:
    from rostra.client.aio.driver import AsyncioDriver


class Producer:
    """Sends a stream of records into a topic. Made by `Client.producer`.

    A record given to `send` is sent by the end of the loop's turn, or when few batches are in flight; `flush` waits
    until all are stored.

    >>> async with client.producer("orders") as producer:  # doctest: +SKIP
    ...     await producer.send_many([b"one", b"two"])
    """

    def __init__(
        self,
        driver: AsyncioDriver,
        topic: str,
        settings: ProducerSettings,
        on_ack: Callable[[Acknowledged], None] | None,
    ) -> None:
        self._driver = driver
        self._topic = topic
        self._settings = settings
        self._batch_bytes = settings.batch_bytes
        self._state: ProducerState | None = None
        self._turn_scheduled = False
        self.on_ack = on_ack

    # --- opening and closing -------------------------------------------------------------------------

    async def open(self) -> Self:
        """Locate the topic; `async with` and `await` do it, too."""
        if self._state is None:
            driver = self._driver
            call, answer = driver.new_call()
            state = driver.core.open_producer(_now_us(), call, self._topic, self._settings)
            driver.run()
            await answer
            self._state = state
            driver.producers[state.number] = self
            if driver.trace is not None:
                driver.trace.producer_opened(state.number, self._topic)
        return self

    def __await__(self) -> Generator[object, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        elif issubclass(kind, Exception):
            # The exception of the block must not be hidden by ours.
            with suppress(RostraError):
                await self.close()
        else:
            self._forget()

    async def close(self) -> None:
        """Flush, resign as a publisher, and close the producer."""
        try:
            if self._state is not None and not self._driver.core.closed:
                await self.flush()
                # If the message is lost, the lease expires.
                with suppress(RostraError):
                    await self._resign()
        finally:
            self._forget()

    async def leave(self) -> None:
        """Close, and be certain that it is not registered any more, so that the next strongest publisher is delivered.

        >>> await producer.leave()  # doctest: +SKIP
        """
        try:
            await self.flush()
            await self._resign()
        finally:
            self._forget()

    async def set_strength(self, strength: int) -> None:
        """Change the strength. Records sent before this call are judged by the old strength, later ones by the new.

        >>> await producer.set_strength(10)  # doctest: +SKIP
        """
        state = self._state
        if state is None:
            raise ProducerNotOpen(self._topic)
        await self._driver.call(lambda call: state.set_strength(_now_us(), call, strength))

    async def _resign(self) -> None:
        state = self._state
        if state is not None and state.registration is not None:
            await self._driver.call(lambda call: state.resign(_now_us(), call))

    def _forget(self) -> None:
        if self._state is not None:
            self._driver.producers.pop(self._state.number, None)
            self._driver.core.close_producer(self._state)
            self._driver.run()

    # --- records -------------------------------------------------------------------------------------

    async def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Send one record; waits only while the window is full.

        >>> await producer.send(b"milk", key=b"customer-7")  # doctest: +SKIP
        """
        state = self._state
        if state is None:
            raise ProducerNotOpen(self._topic)
        if type(value) is bytes and key is None and headers is None and timestamp is None and partition is None:
            builder = state.builder
            builder.values.append(value)
            builder.bytes += len(value) + PER_RECORD_BYTES
            if builder.bytes < self._batch_bytes and self._turn_scheduled:
                return
            if builder.bytes >= self._batch_bytes:
                if state.full:
                    await self._wait_for_window()
                self._close_full(state)
        else:
            if state.full:
                await self._wait_for_window()
            state.add(_now_us(), value, key, headers, timestamp, partition)
        if self._sent_batch():
            # At least one turn of the loop per batch: acknowledgements are received there.
            await asyncio.sleep(0)

    def send_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Send one record without waiting; raises `LimitExceeded` if the window is full."""
        state = self._state
        if state is None:
            raise ProducerNotOpen(self._topic)
        if state.full:
            raise LimitExceeded("window_bytes", self._settings.window_bytes)
        state.add(_now_us(), value, key, headers, timestamp, partition)
        self._sent_batch()

    def _close_full(self, state: ProducerState) -> None:
        if state.ended is not None:
            raise state.ended
        state.close(_now_us())

    def _sent_batch(self) -> bool:
        """Carry out the effects of a record. True if a batch was sent; otherwise it is sent at the end of the turn."""
        if self._driver.core.out:
            self._driver.run()
            return True
        if not self._turn_scheduled:
            if self._state is not None and self._state.ended is not None:
                raise self._state.ended
            self._schedule_turn()
        return False

    async def send_many(self, values: Sequence[bytes | None]) -> None:
        """Send many records, the fastest way. A wrong value raises; full batches before it in the list were sent.

        >>> await producer.send_many([b"%d" % n for n in range(100_000)])  # doctest: +SKIP
        """
        state = self._state
        if state is None:
            raise ProducerNotOpen(self._topic)
        at, end = 0, len(values)
        while at < end:
            if state.full:
                await self._wait_for_window()
            at = state.add_many(_now_us(), values, at)
            if self._driver.core.out:
                self._driver.run()
        if not self._turn_scheduled:
            self._schedule_turn()

    async def flush(self) -> None:
        """Wait until all records sent so far are acknowledged; raise the first error if some failed."""
        if self._state is None:
            raise ProducerNotOpen(self._topic)
        state = self._state
        await self._driver.call(lambda call: state.flush(_now_us(), call))

    # --- counters ------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """Records in closed batches."""
        return 0 if self._state is None else self._state.sent

    @property
    def acked(self) -> int:
        """Records acknowledged."""
        return 0 if self._state is None else self._state.acked

    # --- turns ---------------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        self._turn_scheduled = True
        self._driver.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn_scheduled = False
        if self._state is not None:
            self._state.end_turn(_now_us())
            self._driver.run()

    async def _wait_for_window(self) -> None:
        state = self._state
        assert state is not None
        while state.full:
            await asyncio.shield(self._driver.resumed(state.number))


def _now_us() -> int:
    return monotonic_ns() // 1000
