"""The interface of a contender: Rostra or a peer, with its client."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from enum import Enum
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from time import monotonic_ns

import msgspec

from benchmarks.records import Inbox, stamped_record
from benchmarks.servers import Servers


class Durability(Enum):
    """When a record counts as acknowledged; printed beside every figure."""

    FSYNC = "fsync before acknowledge"
    FSYNC_LATER = "written, fsync later"
    NOTHING = "memory only"
    MAJORITY_FSYNC = "fsync by a majority before acknowledge"
    MAJORITY_LATER = "written by a majority, fsync later"
    ALL_FSYNC = "fsync by all three before acknowledge"
    ALL_LATER = "written by all three, fsync later"


class Unavailable(Exception):
    """This machine cannot run the contender; the reason is one printable line."""


class Endpoint(msgspec.Struct, frozen=True):
    """A started server: where it listens, which processes are its own, where its files lie."""

    port: int
    pids: tuple[int, ...] = ()
    folder: Path | None = None
    ports: tuple[int, ...] = ()
    """Of each node where there are several; `port` is then one of them."""


class Pace(msgspec.Struct, frozen=True):
    """An open-loop schedule: records are due at a fixed rate, however slow the acknowledgements."""

    count: int
    record_bytes: int
    per_second: int

    def values(self) -> Iterator[bytes]:
        padding = self._padding()
        began = time.perf_counter()
        for index in range(self.count):
            wait = began + index / self.per_second - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            yield stamped_record(index, padding)

    async def values_async(self) -> AsyncIterator[bytes]:
        padding = self._padding()
        began = time.perf_counter()
        sent = 0
        while sent < self.count:
            # Loop timers tick in milliseconds: wake each tick and send what is due by then.
            await asyncio.sleep(0.001)
            due = int((time.perf_counter() - began) * self.per_second)
            for index in range(sent, min(due, self.count)):
                yield stamped_record(index, padding)
                sent = index + 1

    def _padding(self) -> bytes:
        return bytes(self.record_bytes - 16)


class Stage:
    """A role's view of a trial: it reports that it is ready, waits for the start, and marks its end."""

    def __init__(self, ready: Semaphore, start: Event, timeout_s: float) -> None:
        self._ready = ready
        self._start = start
        self.timeout_s = timeout_s
        self.started_ns = 0
        self.finished_ns = 0
        self.on_ready: Callable[[], None] = lambda: None

    def ready(self) -> None:
        self.on_ready()
        self._ready.release()

    def wait_for_start(self) -> None:
        if not self._start.wait(self.timeout_s):
            raise TimeoutError("the trial never started")
        self.started_ns = monotonic_ns()

    async def start(self) -> None:
        """Reports that the role is ready, then waits for the start without blocking the event loop."""
        self.ready()
        await asyncio.to_thread(self._start.wait, self.timeout_s)
        self.started_ns = monotonic_ns()

    def finished(self) -> None:
        self.finished_ns = monotonic_ns()


class Contender(ABC):
    """A broker with its client. Roles run in processes of their own, forked by the harness."""

    name: str
    durability: Durability
    settings: tuple[str, ...]
    """Everything that differs from the defaults of server and client, for the report."""

    @abstractmethod
    def start(self, servers: Servers) -> Endpoint:
        """Starts the servers on loopback and waits until they serve; `Unavailable` with the reason if it cannot."""

    def create(self, endpoint: Endpoint, topic: str) -> None:
        """Creates the topic, if publishing does not create it."""
        return

    @abstractmethod
    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        """Publishes all messages as fast as the client can; `stage.finished` after the last ack."""

    @abstractmethod
    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        """Subscribes with one connection per inbox; `stage.finished` when every inbox is full."""


class PacedContender(Contender):
    """A contender whose latency is measured too."""

    @abstractmethod
    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        """Publishes each value of the pace at once, without waiting for a batch to fill."""


def chunks(messages: Iterable[bytes], count_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    """Splits messages into groups for a client's pipeline, bounded in number and bytes."""
    chunk: list[bytes] = []
    size = 0
    for message in messages:
        chunk.append(message)
        size += len(message)
        if len(chunk) >= count_max or size >= bytes_max:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
