"""A producer for blocking code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic_ns
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.core.effects import Acknowledged
from rostra.client.core.options import ProducerSettings
from rostra.client.core.producer.producer_state import PER_RECORD_BYTES, ProducerState
from rostra.errors import ClientClosed, LimitExceeded, RostraError
from rostra.model.encode import Headers

if TYPE_CHECKING:
    from rostra.client.blocking.driver import BlockingDriver

POLL_EVERY_US = 500
"""How often a stream of records polls for acknowledgements, at one system call, before its batch is full."""


class Producer:
    """Sends a stream of records into a topic. Made by `Client.producer`.

    A record is sent at once if nothing is in flight, otherwise with others. Call `flush` when a stream pauses: between
    calls nothing is sent.

    >>> with client.producer("orders") as producer:  # doctest: +SKIP
    ...     producer.send_many([b"one", b"two"])
    """

    def __init__(
        self,
        driver: BlockingDriver,
        topic: str,
        settings: ProducerSettings,
        on_ack: Callable[[Acknowledged], None] | None,
    ) -> None:
        self._driver = driver
        self._topic = topic
        self._settings = settings
        self._batch_bytes = settings.batch_bytes
        self._state: ProducerState | None = None
        self._lock = driver.lock
        self._poll_at_us = 0
        self.on_ack = on_ack

    # --- opening and closing -------------------------------------------------------------------------

    def open(self) -> Self:
        """Locate the topic; `with` and the first record do it, too."""
        if self._state is None:
            driver = self._driver
            with driver.lock:
                call = driver.new_call()
                state = driver.core.open_producer(_now_us(), call, self._topic, self._settings)
                driver.answer(call)
                self._state = state
                driver.producers[state.number] = self
                if driver.trace is not None:
                    driver.trace.producer_opened(state.number, self._topic)
                if state.registration is not None:
                    driver.heartbeat.ensure(self._settings.lease_ms)
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, Exception):
            # The exception of the block must not be hidden by ours.
            with suppress(RostraError):
                self.close()
        else:
            self._forget()

    def close(self) -> None:
        """Flush, resign as a publisher, and close the producer."""
        try:
            if self._state is not None and not self._driver.core.closed:
                self.flush()
                # If the message is lost, the lease expires.
                with suppress(RostraError):
                    self._resign()
        finally:
            self._forget()

    def leave(self) -> None:
        """Close, and be certain that it is not registered any more, so that the next strongest publisher is delivered.

        >>> producer.leave()  # doctest: +SKIP
        """
        try:
            self.flush()
            self._resign()
        finally:
            self._forget()

    def set_strength(self, strength: int) -> None:
        """Change the strength. Records sent before this call are judged by the old strength, later ones by the new.

        >>> producer.set_strength(10)  # doctest: +SKIP
        """
        with self._lock:
            state = self._opened()
            self._driver.call(lambda call: state.set_strength(_now_us(), call, strength))
            self._driver.heartbeat.ensure(self._settings.lease_ms)

    def _resign(self) -> None:
        state = self._state
        if state is not None and state.registration is not None:
            self._driver.call(lambda call: state.resign(_now_us(), call))

    def _forget(self) -> None:
        if self._state is not None:
            with self._lock:
                self._driver.producers.pop(self._state.number, None)
                self._driver.core.close_producer(self._state)
                self._driver.run()

    # --- records -------------------------------------------------------------------------------------

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Send one record; waits only while the window is full.

        >>> producer.send(b"milk", key=b"customer-7")  # doctest: +SKIP
        """
        with self._lock:
            state = self._state or self._opened()
            if type(value) is bytes and key is None and headers is None and timestamp is None and partition is None:
                if not state.unacknowledged_batches and state.send_single(_now_us(), value):
                    self._poll(state)
                    return
                builder = state.builder
                builder.values.append(value)
                builder.bytes += len(value) + PER_RECORD_BYTES
                now = monotonic_ns() // 1000
                if builder.bytes < self._batch_bytes and now < self._poll_at_us and state.unacknowledged_batches:
                    return
                self._opened()
                if builder.bytes >= self._batch_bytes:
                    self._wait_for_window(state)
                    state.close(now)
            else:
                self._opened()
                self._wait_for_window(state)
                state.add(_now_us(), value, key, headers, timestamp, partition)
            self._poll(state)

    def send_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Send one record without waiting; raises `LimitExceeded` if the window is full."""
        with self._lock:
            state = self._opened()
            if state.full:
                self._driver.receive(0)
                if state.full:
                    raise LimitExceeded("window_bytes", self._settings.window_bytes)
            now = _now_us()
            plain = key is None and headers is None and timestamp is None and partition is None
            if not plain or not state.send_single(now, value):
                state.add(now, value, key, headers, timestamp, partition)
            self._poll(state)

    def send_many(self, values: Sequence[bytes | None]) -> None:
        """Send many records, the fastest way. A wrong value raises; full batches before it in the list were sent.

        >>> producer.send_many([b"%d" % n for n in range(100_000)])  # doctest: +SKIP
        """
        with self._lock:
            state = self._opened()
            at, end = 0, len(values)
            while at < end:
                self._wait_for_window(state)
                at = state.add_many(_now_us(), values, at)
                self._driver.run()
            self._poll(state)

    def flush(self) -> None:
        """Wait until all records sent so far are acknowledged; raise the first error if some failed."""
        with self._lock:
            state = self._opened()
            call = self._driver.new_call()
            state.flush(_now_us(), call)
            self._driver.answer(call)

    def _opened(self) -> ProducerState:
        if self._state is None:
            self.open()
        if self._state is None or self._driver.core.closed:
            raise ClientClosed()
        if self._state.ended is not None:
            raise self._state.ended
        return self._state

    def _poll(self, state: ProducerState) -> None:
        """Send the open batch if few are in flight, receive acknowledgements, run timers; never waits."""
        driver = self._driver
        # Send first: receiving an answer takes as long as sending, and no caller waits for it here.
        state.end_turn(_now_us())
        driver.run()
        driver.step(0)
        now = _now_us()
        self._poll_at_us = now + POLL_EVERY_US
        state.end_turn(now)
        driver.run()

    def _wait_for_window(self, state: ProducerState) -> None:
        while state.full and not self._driver.core.closed:
            self._driver.step(None)

    # --- counters ------------------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        """Records in closed batches."""
        return 0 if self._state is None else self._state.sent

    @property
    def acked(self) -> int:
        """Records acknowledged, as far as received."""
        return 0 if self._state is None else self._state.acked


def _now_us() -> int:
    return monotonic_ns() // 1000
