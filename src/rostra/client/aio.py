"""The client for asyncio, on its own loop or on uvloop.

>>> async def main():  # doctest: +SKIP
...     async with rostra.connect() as client:
...         ack = await client.publish("orders", b"one more")
...         async with client.subscribe("orders", start="earliest") as records:
...             async for record in records:
...                 print(record.offset, record.value)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from random import Random, SystemRandom
from time import monotonic_ns, time_ns
from types import TracebackType
from typing import Self, assert_never

from rostra.client.aio_connection import Connection
from rostra.client.aio_producer import Producer
from rostra.client.aio_subscription import Subscription
from rostra.client.core import Core
from rostra.client.core.core import CREDIT_BYTES
from rostra.client.core.effects import (
    Ack,
    Acknowledged,
    ClientEffect,
    Deliver,
    Dial,
    Done,
    Fail,
    Finish,
    HangUp,
    Refused,
    Result,
    Resume,
    Tell,
    TopicDescription,
    Write,
)
from rostra.client.core.events import ClientEvent
from rostra.client.core.options import (
    DEFAULT_ADDRESS,
    Options,
    ProducerSettings,
    Start,
    codec_named,
    host_and_port,
)
from rostra.client.reasons import reason_of
from rostra.errors import ClientClosed, TopicExists, UnknownTopic
from rostra.model.encode import Headers
from rostra.wire.frames import Buffer
from rostra.wire.messages import Acks, NodeMessage, Topic, TopicSettings

EVENTS_KEPT_MAX = 1000


class Client:
    """A connection to Rostra that mends itself. Made by `rostra.connect`; not safe across threads.

    >>> client = await rostra.connect("127.0.0.1:7400")  # doctest: +SKIP
    >>> await client.create_topic("orders", partitions=4, if_not_exists=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        options: Options,
        on_event: Callable[[ClientEvent], None] | None = None,
        random: Random | None = None,
    ) -> None:
        self._core = Core(options, random or SystemRandom(), time_ns() // 1000 - now_us())
        self._on_event = on_event
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._calls: dict[int, asyncio.Future[Result]] = {}
        self._last_call = 0
        self._producers: dict[int, Producer] = {}
        self._room: dict[int, asyncio.Future[None]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._listeners: list[deque[ClientEvent]] = []
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._turn_scheduled = False

    # --- opening and closing -------------------------------------------------------------------------

    async def _start(self) -> Self:
        self._loop = asyncio.get_running_loop()
        call, answer = self._new_call()
        self._core.start(now_us(), call)
        self._run()
        try:
            await answer
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """End the connection; subscriptions end, and what is not acknowledged fails with `ClientClosed`."""
        self._core.close(now_us())
        self._run()
        if self._dialing is not None:
            self._dialing.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._news.set()
        # One turn, so that the transport gets to send what was written and to close its socket.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        return self._core.link.up

    # --- topics --------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        retention_ms: int = 0,
        retention_bytes: int = 0,
        replicas: int = 1,
        segment_bytes: int = 1 << 26,
        if_not_exists: bool = False,
    ) -> Topic:
        """Zero for a retention means that nothing is ever removed on its account.

        >>> await client.create_topic("orders", partitions=4, retention_ms=86_400_000)  # doctest: +SKIP
        """
        settings = TopicSettings(partitions, replicas, retention_ms, retention_bytes, segment_bytes)
        call, answer = self._new_call()
        self._core.create_topic(now_us(), call, name, settings)
        try:
            topic = await self._answered(answer)
        except TopicExists:
            if not if_not_exists:
                raise
            described = await self.describe_topic(name)
            return Topic(described.topic, described.name, described.settings)
        assert isinstance(topic, Topic)
        return topic

    async def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Its records are gone, and its subscriptions end with `TopicDeleted`."""
        call, answer = self._new_call()
        self._core.delete_topic(now_us(), call, name)
        try:
            await self._answered(answer)
        except UnknownTopic:
            if not if_exists:
                raise

    async def list_topics(self) -> tuple[Topic, ...]:
        call, answer = self._new_call()
        self._core.list_topics(now_us(), call)
        topics = await self._answered(answer)
        assert isinstance(topics, tuple)
        return topics

    async def describe_topic(self, name: str) -> TopicDescription:
        """Its settings, and how far each partition reaches."""
        call, answer = self._new_call()
        self._core.describe_topic(now_us(), call, name)
        described = await self._answered(answer)
        assert isinstance(described, TopicDescription)
        return described

    # --- publishing ----------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
        acks: Acks = "all",
    ) -> Ack:
        """Store one record and tell where. For many records take a `producer`.

        >>> ack = await client.publish("orders", b"milk", key=b"customer-7")  # doctest: +SKIP
        >>> ack.offset  # doctest: +SKIP
        41
        """
        call, answer = self._new_call()
        producing = self._core.publish(
            now_us(),
            call,
            topic,
            value,
            key=key,
            headers=headers,
            timestamp_us=timestamp,
            partition=partition,
            acks=acks,
        )
        if not self._core.idle:
            self._run()
        elif not self._turn_scheduled and producing.lanes:
            self._turn_scheduled = True
            assert self._loop is not None
            self._loop.call_soon(self._turn_publishers)
        ack = await answer
        assert isinstance(ack, Ack)
        return ack

    def _turn_publishers(self) -> None:
        self._turn_scheduled = False
        self._core.turn_publishers(now_us())
        self._run()

    def producer(
        self,
        topic: str,
        *,
        acks: Acks = "all",
        batch_bytes: int = 65_536,
        linger_ms: int = 0,
        window_bytes: int = 4 << 20,
        codec: str | None = None,
        partition: int | None = None,
        on_ack: Callable[[Acknowledged], None] | None = None,
    ) -> Producer:
        """For streams of records: batches, keeps a window under way, holds the caller back when it is full.

        >>> async with client.producer("orders") as producer:  # doctest: +SKIP
        ...     for line in lines:
        ...         await producer.send(line)
        """
        settings = ProducerSettings(acks, batch_bytes, linger_ms, window_bytes, codec_named(codec), partition)
        return Producer(self, topic, settings, on_ack)

    # --- subscribing ---------------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        *,
        start: Start = "latest",
        partition: int | None = None,
        credit_bytes: int = CREDIT_BYTES,
    ) -> Subscription:
        """Records as they are stored, from `start` on; of all partitions unless one is named.

        >>> async with client.subscribe("orders", start=rostra.Last(10)) as records:  # doctest: +SKIP
        ...     async for record in records:
        ...         print(record.value)
        """
        return Subscription(self, topic, start, partition, credit_bytes)

    # --- events --------------------------------------------------------------------------------------

    async def events(self) -> AsyncGenerator[ClientEvent, None]:
        """What happens to the connection from now on. The oldest are dropped when nobody reads them.

        >>> async for event in client.events():  # doctest: +SKIP
        ...     print(event)
        """
        kept: deque[ClientEvent] = deque(maxlen=EVENTS_KEPT_MAX)
        self._listeners.append(kept)
        try:
            while not self._core.closed:
                while kept:
                    yield kept.popleft()
                self._news.clear()
                await self._news.wait()
        finally:
            self._listeners.remove(kept)

    # --- inputs --------------------------------------------------------------------------------------

    def _opened(self, number: int) -> None:
        self._core.opened(now_us(), number)
        self._run()

    def _lost(self, number: int, reason: str) -> None:
        self._core.lost(now_us(), number, reason)
        self._run()

    def _received(self, number: int, messages: list[tuple[NodeMessage, bytearray | None]]) -> None:
        now = now_us()
        received = self._core.received
        for message, payload in messages:
            received(now, number, message, payload)
        self._run()

    def _congested(self, number: int) -> None:
        self._core.congested(number)

    def _drained(self, number: int) -> None:
        self._core.drained(number)
        self._run()

    def _ticked(self) -> None:
        self._timer = None
        now = now_us()
        self._core.set_wall_offset(time_ns() // 1000 - now)
        self._core.tick(now)
        self._run()

    # --- effects -------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Carry out the effects; what the application may do in a callback comes last, for it may cause others."""
        writes: list[Buffer] = []
        callbacks: list[Callable[[], None]] = []
        for effect in self._core.take():
            if isinstance(effect, Write):
                writes += effect.buffers
            else:
                if isinstance(effect, Dial | HangUp):
                    self._write(writes)
                    writes = []
                self._carry_out(effect, callbacks)
        self._write(writes)
        self._set_timer()
        for callback in callbacks:
            callback()

    def _write(self, writes: list[Buffer]) -> None:
        if writes and self._connection is not None and self._connection.transport is not None:
            self._connection.transport.writelines(writes)

    def _carry_out(self, effect: ClientEffect, callbacks: list[Callable[[], None]]) -> None:
        match effect:
            case Acknowledged():
                producer = self._producers.get(effect.producer)
                if producer is not None and producer.on_ack is not None:
                    on_ack = producer.on_ack
                    callbacks.append(lambda: on_ack(effect))
            case Resume():
                room = self._room.pop(effect.producer, None)
                if room is not None and not room.done():
                    room.set_result(None)
            case Deliver():
                subscription = self._subscriptions.get(effect.subscription)
                if subscription is not None:
                    subscription._delivered(effect.batches)
            case Finish():
                subscription = self._subscriptions.pop(effect.subscription, None)
                if subscription is not None:
                    subscription._finished(effect.error)
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
                self._hang_up()
            case Tell():
                self._tell(effect.event, callbacks)
            case Refused() | Write():
                # The producer remembers its first error for `flush`; writes were gathered before.
                pass
            case _:
                assert_never(effect)

    def _dial(self, effect: Dial) -> None:
        assert self._loop is not None
        self._hang_up()
        self._dialing = self._loop.create_task(self._open(effect.link, effect.address))

    async def _open(self, number: int, address: str) -> None:
        assert self._loop is not None
        host, port = host_and_port(address)
        connection = self._connection = Connection(self, number)
        try:
            await self._loop.create_connection(lambda: connection, host, port)
        except OSError as error:
            self._lost(number, reason_of(error))

    def _hang_up(self) -> None:
        if self._dialing is not None and not self._dialing.done():
            self._dialing.cancel()
        self._dialing = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _tell(self, event: ClientEvent, callbacks: list[Callable[[], None]]) -> None:
        for kept in self._listeners:
            kept.append(event)
        self._news.set()
        if self._on_event is not None:
            on_event = self._on_event
            callbacks.append(lambda: on_event(event))

    def _set_timer(self) -> None:
        due = self._core.deadline_us()
        if due is None or self._loop is None:
            return
        if self._timer is not None:
            # A timer that fires too early costs less than moving it for every batch.
            if self._timer_us <= due:
                return
            self._timer.cancel()
        self._timer_us = due
        self._timer = self._loop.call_later(max(due - now_us(), 0) / 1_000_000, self._ticked)

    # --- for producers and subscriptions -------------------------------------------------------------

    def _new_call(self) -> tuple[int, asyncio.Future[Result]]:
        if self._loop is None or self._core.closed:
            raise ClientClosed()
        self._last_call += 1
        answer: asyncio.Future[Result] = self._loop.create_future()
        self._calls[self._last_call] = answer
        return self._last_call, answer

    async def _answered(self, answer: asyncio.Future[Result]) -> Result:
        self._run()
        return await answer

    def _room_for(self, producer: int) -> asyncio.Future[None]:
        assert self._loop is not None
        room = self._room.get(producer)
        if room is None:
            room = self._room[producer] = self._loop.create_future()
        return room


class Connecting:
    """What `rostra.connect` gives: await it, or enter it with `async with`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __await__(self) -> Generator[object, None, Client]:
        return self._client._start().__await__()

    async def __aenter__(self) -> Client:
        return await self._client._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()


def connect(
    *addresses: str,
    name: str = "rostra-python",
    auto_create: bool = True,
    connect_timeout_ms: int = 5_000,
    call_timeout_ms: int = 30_000,
    delivery_timeout_ms: int = 120_000,
    backoff_ms: int = 50,
    backoff_ms_max: int = 2_000,
    on_event: Callable[[ClientEvent], None] | None = None,
) -> Connecting:
    """Connect to a node at any of the addresses; without one, to 127.0.0.1:7400.

    >>> async with rostra.connect("10.0.0.1:7400", "10.0.0.2:7400") as client:  # doctest: +SKIP
    ...     await client.publish("orders", b"one more")
    """
    options = Options(
        addresses or (DEFAULT_ADDRESS,),
        name,
        auto_create,
        connect_timeout_ms,
        call_timeout_ms,
        delivery_timeout_ms,
        backoff_ms,
        backoff_ms_max,
    )
    return Connecting(Client(options, on_event))


def now_us() -> int:
    return monotonic_ns() // 1000
