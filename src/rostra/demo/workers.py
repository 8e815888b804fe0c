"""Publishers and subscribers of the demo, each on its own thread, some asyncio, some blocking.

They use the clients as any application would: none of them handles the kill of a node.
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
OnEvent = Callable[[str, rostra.ClientEvent], None]
"""Called with the name of the worker and the event."""


class Worker(Thread, ABC):
    """Runs until its work is done or `leave` is set; an exception is stored in `error`."""

    trace: str | None = None
    """Directory of its trace, if it writes one."""

    def __init__(self, name: str, address: str, on_event: OnEvent) -> None:
        super().__init__(name=name, daemon=True)
        self.address = address
        self.leave = Event()
        self.error: Exception | None = None
        self._on_event = on_event

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:
            self.error = error

    @abstractmethod
    def work(self) -> None:
        """Returns when done, or when `leave` is set."""

    def on_event(self, event: rostra.ClientEvent) -> None:
        self._on_event(self.name, event)


class Pace:
    """Spreads chunks evenly over a duration."""

    def __init__(self, chunks: int, duration_s: float) -> None:
        self._interval_s = duration_s / max(chunks, 1)
        self._next_s = time.monotonic()

    def wait_s(self) -> float:
        self._next_s += self._interval_s
        return max(0.0, self._next_s - time.monotonic())


class PublisherThread(Worker):
    kind = ""

    def __init__(
        self, log: PublishedLog, records: int, chunk: int, duration_s: float, address: str, on_event: OnEvent
    ) -> None:
        super().__init__(log.publisher, address, on_event)
        self.log = log
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
        log, chunks = self.log, self.chunks()
        pace = Pace(len(chunks), self.duration_s)
        async with (
            rostra.connect(self.address, name=self.name, trace=self.trace, on_event=self.on_event) as client,
            client.producer(
                log.topic, partition=log.partition, on_ack=lambda ack: log.acknowledge(ack.count)
            ) as producer,
        ):
            for count in chunks:
                if self.leave.is_set():
                    break
                await producer.send_many(log.next_values(count))
                await asyncio.sleep(pace.wait_s())
            await producer.flush()


class BlockingPublisher(PublisherThread):
    kind = "blocking"

    def work(self) -> None:
        log, chunks = self.log, self.chunks()
        pace = Pace(len(chunks), self.duration_s)
        with (
            blocking.connect(self.address, name=self.name, trace=self.trace, on_event=self.on_event) as client,
            client.producer(
                log.topic, partition=log.partition, on_ack=lambda ack: log.acknowledge(ack.count)
            ) as producer,
        ):
            for count in chunks:
                if self.leave.is_set():
                    break
                producer.send_many(log.next_values(count))
                # A blocking client does nothing between calls, so wait for the acknowledgement here.
                producer.flush()
                time.sleep(pace.wait_s())


class SubscriberThread(Worker):
    kind = ""

    def __init__(self, log: ReceivedLog, address: str, on_event: OnEvent) -> None:
        super().__init__(log.subscription.subscriber, address, on_event)
        self.log = log


class AsyncioSubscriber(SubscriberThread):
    kind = "asyncio"

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with (
            rostra.connect(self.address, name=self.name, trace=self.trace, on_event=self.on_event) as client,
            client.subscribe(self.log.subscription.topic, start="earliest") as subscription,
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
            self.log.take(batch.values())


class BlockingSubscriber(SubscriberThread):
    kind = "blocking"

    def work(self) -> None:
        with (
            blocking.connect(self.address, name=self.name, trace=self.trace, on_event=self.on_event) as client,
            client.subscribe(self.log.subscription.topic, start="earliest") as subscription,
        ):
            while not self.leave.is_set():
                batch = subscription.poll(POLL_S)
                if batch is not None:
                    self.log.take(batch.values())
