"""Publishers and subscribers on threads of their own, some with asyncio, some with blocking sockets.

Each is an ordinary user of a client: none of them does anything about the node being killed.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Event, Thread

import rostra
from rostra import blocking
from rostra.demo.record_log import PublishedLog, ReceivedLog

POLL_S = 0.05
Tell = Callable[[str, rostra.ClientEvent], None]
"""Who it happened to, and what."""


class Worker(Thread, ABC):
    """Runs until its work is done or `leave` is set; what went wrong is kept for whoever joins it."""

    trace: str | None = None
    """Where it notes what it does, if anywhere."""

    def __init__(self, name: str, address: str, tell: Tell) -> None:
        super().__init__(name=name, daemon=True)
        self.address = address
        self.leave = Event()
        self.error: Exception | None = None
        self._tell = tell

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.error = error

    @abstractmethod
    def work(self) -> None:
        """What it is there for; returns when it is done, or told to leave."""

    def tell(self, event: rostra.ClientEvent) -> None:
        self._tell(self.name, event)


class Pace:
    """So many chunks in so many seconds, however long each takes."""

    def __init__(self, chunks: int, duration_s: float) -> None:
        self._interval_s = duration_s / max(chunks, 1)
        self._next_s = time.monotonic()

    def wait_s(self) -> float:
        self._next_s += self._interval_s
        return max(0.0, self._next_s - time.monotonic())


class PublisherThread(Worker):
    kind = ""

    def __init__(
        self, book: PublishedLog, records: int, chunk: int, duration_s: float, address: str, tell: Tell
    ) -> None:
        super().__init__(book.publisher, address, tell)
        self.book = book
        self.records = records
        self.chunk = chunk
        self.duration_s = duration_s

    def chunks(self) -> list[int]:
        whole, rest = divmod(self.records, self.chunk)
        return [self.chunk] * whole + ([rest] if rest else [])


class AsyncioPublisher(PublisherThread):
    kind = "asyncio"

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        book, chunks = self.book, self.chunks()
        pace = Pace(len(chunks), self.duration_s)
        async with (
            rostra.connect(self.address, name=self.name, trace=self.trace, on_event=self.tell) as client,
            client.producer(
                book.topic, partition=book.partition, on_ack=lambda ack: book.acknowledge(ack.count)
            ) as producer,
        ):
            for count in chunks:
                if self.leave.is_set():
                    break
                await producer.send_many(book.next_values(count))
                await asyncio.sleep(pace.wait_s())
            await producer.flush()


class BlockingPublisher(PublisherThread):
    kind = "blocking"

    def work(self) -> None:
        book, chunks = self.book, self.chunks()
        pace = Pace(len(chunks), self.duration_s)
        with (
            blocking.connect(self.address, name=self.name, trace=self.trace, on_event=self.tell) as client,
            client.producer(
                book.topic, partition=book.partition, on_ack=lambda ack: book.acknowledge(ack.count)
            ) as producer,
        ):
            for count in chunks:
                if self.leave.is_set():
                    break
                producer.send_many(book.next_values(count))
                # Nothing happens between the calls of a blocking client, so it waits for its word here.
                producer.flush()
                time.sleep(pace.wait_s())


class SubscriberThread(Worker):
    kind = ""

    def __init__(self, book: ReceivedLog, address: str, tell: Tell) -> None:
        super().__init__(book.interest.subscriber, address, tell)
        self.book = book


class AsyncioSubscriber(SubscriberThread):
    kind = "asyncio"

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with (
            rostra.connect(self.address, name=self.name, trace=self.trace, on_event=self.tell) as client,
            client.subscribe(self.book.interest.topic, start="earliest") as subscription,
        ):
            receiving = asyncio.create_task(self._receive(subscription))
            while not self.leave.is_set() and not receiving.done():
                await asyncio.sleep(POLL_S)
            receiving.cancel()
            await asyncio.wait([receiving])
            if not receiving.cancelled() and (error := receiving.exception()) is not None:
                raise error

    async def _receive(self, subscription: rostra.Subscription) -> None:
        async for batch in subscription.batches():
            self.book.take(batch.values())


class BlockingSubscriber(SubscriberThread):
    kind = "blocking"

    def work(self) -> None:
        with (
            blocking.connect(self.address, name=self.name, trace=self.trace, on_event=self.tell) as client,
            client.subscribe(self.book.interest.topic, start="earliest") as subscription,
        ):
            while not self.leave.is_set():
                batch = subscription.poll(POLL_S)
                if batch is not None:
                    self.book.take(batch.values())
