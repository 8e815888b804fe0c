"""The client without asyncio: blocking sockets, no thread, no loop; the lowest latency from Python.

>>> with rostra.blocking.connect() as client:  # doctest: +SKIP
...     ack = client.publish("orders", b"one more")
...     for record in client.subscribe("orders", start="earliest"):
...         print(record.offset, record.value)

Nothing happens between calls: heartbeats are answered, connections mended and batches sent inside them. A lock makes
one client safe to share, but a thread that waits for records holds it; give each thread a client of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from random import Random, SystemRandom
from threading import RLock
from time import monotonic_ns, sleep, time_ns
from types import EllipsisType, TracebackType
from typing import Self, assert_never

from rostra.client.blocking_producer import Producer
from rostra.client.blocking_socket import SLICE_US, BlockingSocket
from rostra.client.blocking_subscription import Subscription
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
from rostra.errors import ClientClosed, PeerViolation, RostraError, TopicExists, UnknownTopic
from rostra.model.encode import Headers
from rostra.wire.messages import Acks, Topic, TopicSettings

EVENTS_KEPT_MAX = 1000


class Client:
    """A connection to Rostra that mends itself. Made by `rostra.blocking.connect`.

    >>> client = rostra.blocking.connect("127.0.0.1:7400")  # doctest: +SKIP
    >>> client.create_topic("orders", partitions=4, if_not_exists=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        options: Options,
        on_event: Callable[[ClientEvent], None] | None = None,
        random: Random | None = None,
    ) -> None:
        self._core = Core(options, random or SystemRandom(), time_ns() // 1000 - now_us())
        self._lock = RLock()
        self._socket: BlockingSocket | None = None
        self._answers: dict[int, Result | RostraError | EllipsisType] = {}
        self._last_call = 0
        self._producers: dict[int, Producer] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._on_event = on_event
        self._events: deque[ClientEvent] = deque(maxlen=EVENTS_KEPT_MAX)

    # --- opening and closing -------------------------------------------------------------------------

    def _start(self) -> Self:
        with self._lock:
            try:
                self._call(lambda call: self._core.start(now_us(), call))
            except BaseException:
                self.close()
                raise
        return self

    def close(self) -> None:
        """End the connection; subscriptions end, and what is not acknowledged fails with `ClientClosed`."""
        with self._lock:
            self._core.close(now_us())
            self._run()
            self._hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """As last heard."""
        return self._core.link.up

    # --- topics --------------------------------------------------------------------------------------

    def create_topic(
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

        >>> client.create_topic("orders", partitions=4, retention_ms=86_400_000)  # doctest: +SKIP
        """
        settings = TopicSettings(partitions, replicas, retention_ms, retention_bytes, segment_bytes)
        try:
            topic = self._call(lambda call: self._core.create_topic(now_us(), call, name, settings))
        except TopicExists:
            if not if_not_exists:
                raise
            described = self.describe_topic(name)
            return Topic(described.topic, described.name, described.settings)
        assert isinstance(topic, Topic)
        return topic

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Its records are gone, and its subscriptions end with `TopicDeleted`."""
        try:
            self._call(lambda call: self._core.delete_topic(now_us(), call, name))
        except UnknownTopic:
            if not if_exists:
                raise

    def list_topics(self) -> tuple[Topic, ...]:
        topics = self._call(lambda call: self._core.list_topics(now_us(), call))
        assert isinstance(topics, tuple)
        return topics

    def describe_topic(self, name: str) -> TopicDescription:
        """Its settings, and how far each partition reaches."""
        described = self._call(lambda call: self._core.describe_topic(now_us(), call, name))
        assert isinstance(described, TopicDescription)
        return described

    # --- publishing ----------------------------------------------------------------------------------

    def publish(
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

        >>> client.publish("orders", b"milk", key=b"customer-7").offset  # doctest: +SKIP
        41
        """
        with self._lock:
            call = self._new_call()
            now = now_us()
            producing = self._core.publish(
                now,
                call,
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_us=timestamp,
                partition=partition,
                acks=acks,
            )
            if self._core.idle:
                producing.turn(now)
            ack = self._answer(call)
        assert isinstance(ack, Ack)
        return ack

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

        >>> with client.producer("orders") as producer:  # doctest: +SKIP
        ...     for line in lines:
        ...         producer.send(line)
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

        >>> with client.subscribe("orders", start=rostra.Last(10)) as records:  # doctest: +SKIP
        ...     for record in records:
        ...         print(record.value)
        """
        return Subscription(self, topic, start, partition, credit_bytes)

    # --- events --------------------------------------------------------------------------------------

    def events(self) -> Iterator[ClientEvent]:
        """What happened to the connection since the last time this was asked; never waits.

        >>> for event in client.events():  # doctest: +SKIP
        ...     print(event)
        """
        while self._events:
            yield self._events.popleft()

    # --- calls ---------------------------------------------------------------------------------------

    def _call(self, begin: Callable[[int], object]) -> Result:
        with self._lock:
            call = self._new_call()
            begin(call)
            return self._answer(call)

    def _new_call(self) -> int:
        if self._core.closed:
            raise ClientClosed()
        self._last_call += 1
        return self._last_call

    def _answer(self, call: int) -> Result:
        """Drive the core until the call is answered."""
        answers = self._answers
        answers[call] = Ellipsis
        try:
            self._run()
            while answers[call] is Ellipsis:
                self._step(None)
            answer = answers[call]
        finally:
            del answers[call]
        if isinstance(answer, RostraError):
            raise answer
        return answer  # type: ignore[return-value]

    def _step(self, due_us: int | None) -> None:
        """Wait for one thing to happen: something received, a timer, the caller's time."""
        with self._lock:
            try:
                self._step_once(due_us)
            except Exception:
                raise
            except BaseException:
                # Interrupted anywhere: bytes may be lost between the socket and the core. A new connection is certain.
                self._lost("interrupted")
                raise

    def _step_once(self, due_us: int | None) -> None:
        core = self._core
        now = now_us()
        timer_us = core.deadline_us()
        if timer_us is not None and timer_us <= now:
            # First what lies in the socket: a node is not silent if we did not listen.
            while self._receive(0):
                pass
            now = now_us()
            core.set_wall_offset(time_ns() // 1000 - now)
            core.tick(now)
            self._run()
            return
        wait_us = SLICE_US if timer_us is None else timer_us - now
        if due_us is not None:
            wait_us = min(wait_us, due_us - now)
        if self._socket is None:
            sleep(max(min(wait_us, SLICE_US), 0) / 1_000_000)
        else:
            self._receive(wait_us)

    def _receive(self, wait_us: int) -> bool:
        if self._socket is None:
            return False
        try:
            messages = self._socket.read(wait_us)
        except (OSError, PeerViolation) as error:
            self._lost(reason_of(error))
            return False
        now = now_us()
        number = self._core.link.number
        for message, payload in messages:
            self._core.received(now, number, message, payload)
        if self._core.link.congested and self._socket is not None and not self._socket.congested:
            self._core.drained(number)
        self._run()
        return bool(messages)

    def _lost(self, reason: str) -> None:
        self._hang_up()
        self._core.lost(now_us(), self._core.link.number, reason)
        self._run()

    # --- effects -------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Carry out the effects, and those they cause; the application's callbacks come last."""
        callbacks: list[Callable[[], None]] = []
        while not self._core.idle:
            for effect in self._core.take():
                self._carry_out(effect, callbacks)
        for callback in callbacks:
            callback()

    def _carry_out(self, effect: ClientEffect, callbacks: list[Callable[[], None]]) -> None:
        match effect:
            case Write():
                self._write(effect)
            case Done():
                if effect.call in self._answers:
                    self._answers[effect.call] = effect.result
            case Fail():
                if effect.call in self._answers:
                    self._answers[effect.call] = effect.error
            case Acknowledged():
                producer = self._producers.get(effect.producer)
                if producer is not None and producer.on_ack is not None:
                    on_ack = producer.on_ack
                    callbacks.append(lambda: on_ack(effect))
            case Deliver():
                subscription = self._subscriptions.get(effect.subscription)
                if subscription is not None:
                    subscription._delivered(effect.batches)
            case Finish():
                subscription = self._subscriptions.pop(effect.subscription, None)
                if subscription is not None:
                    subscription._finished(effect.error)
            case Dial():
                self._dial(effect)
            case HangUp():
                self._hang_up()
            case Tell():
                self._events.append(effect.event)
                if self._on_event is not None:
                    on_event, event = self._on_event, effect.event
                    callbacks.append(lambda: on_event(event))
            case Resume() | Refused():
                # Whoever waits for room looks for itself; the producer remembers its first error for `flush`.
                pass
            case _:
                assert_never(effect)

    def _write(self, effect: Write) -> None:
        if self._socket is None or effect.link != self._core.link.number:
            return
        try:
            self._socket.write(effect.buffers)
        except OSError as error:
            self._hang_up()
            self._core.lost(now_us(), effect.link, reason_of(error))
            return
        if self._socket.congested:
            self._core.congested(effect.link)

    def _dial(self, effect: Dial) -> None:
        self._hang_up()
        host, port = host_and_port(effect.address)
        due_us = self._core.deadline_us()
        timeout_s = 0.001 if due_us is None else max((due_us - now_us()) / 1_000_000, 0.001)
        try:
            self._socket = BlockingSocket(host, port, timeout_s)
        except OSError as error:
            self._core.lost(now_us(), effect.link, reason_of(error))
        else:
            self._core.opened(now_us(), effect.link)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


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
) -> Client:
    """Connect to a node at any of the addresses; without one, to 127.0.0.1:7400.

    >>> with rostra.blocking.connect("10.0.0.1:7400", "10.0.0.2:7400") as client:  # doctest: +SKIP
    ...     client.publish("orders", b"one more")
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
    return Client(options, on_event)._start()


def now_us() -> int:
    return monotonic_ns() // 1000
