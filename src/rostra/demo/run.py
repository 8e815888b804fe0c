"""The course of the demo: start, stream, kill, restart, count."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console

import rostra.testing
from rostra import blocking
from rostra.demo.expected import Interest, expect
from rostra.demo.ledger import Received, Sent
from rostra.demo.screen import Counted, Screen
from rostra.demo.verdict import Verdict, judge
from rostra.demo.workers import (
    AsyncioPublisher,
    AsyncioSubscriber,
    BlockingPublisher,
    BlockingSubscriber,
    Publisher,
    Subscriber,
    Worker,
)
from rostra.testing.process import ProcessNode

ORDERS = "orders"
CLICKS = "clicks"
CHUNK = 25
TICK_S = 0.05
DOWN_S = 0.5
"""How long the node stays dead, so that it is noticed."""
QUIET_S = 20.0
"""Nothing new for so long means that nothing more will come."""

EXIT_OK = 0
EXIT_LOST = 1


def run(*, records_per_publisher: int, kills: int, duration_s: float, console: Console | None = None) -> int:
    """The exit code: 0 only if every acknowledged record was delivered to every subscriber, once."""
    console = console or Console(highlight=False)
    with Screen(console) as screen, rostra.testing.process_node() as node:
        screen.say(f"node started: process {node.pid}, {node.address}, fsync before every acknowledgement", "bold")
        demo = Demo(node, screen, records_per_publisher, kills, duration_s)
        try:
            verdict = demo.play()
        finally:
            demo.end()
    screen.conclude(verdict)
    if verdict.complaints:
        console.print("The node did not keep its word; see the lines above.", style="bold red")
        return EXIT_LOST
    killed = "once" if kills == 1 else f"{kills} times"
    console.print(f"Killed {killed} with SIGKILL: every acknowledged record was delivered, none twice.", style="bold")
    return EXIT_OK


class Demo:
    def __init__(
        self, node: ProcessNode, screen: Screen, records_per_publisher: int, kills: int, duration_s: float
    ) -> None:
        self._node = node
        self._screen = screen
        self._kills = kills
        self._records = records_per_publisher
        address, tell = node.address, screen.happened
        pace = (records_per_publisher, CHUNK, duration_s, address, tell)
        self._publishers: list[Publisher] = [
            AsyncioPublisher(Sent("alice", ORDERS, 0), *pace),
            BlockingPublisher(Sent("bob", ORDERS, 0), *pace),
            AsyncioPublisher(Sent("carol", CLICKS, 0), *pace),
            BlockingPublisher(Sent("dave", CLICKS, 1), *pace),
        ]
        self._subscribers: list[Subscriber] = [
            AsyncioSubscriber(Received(Interest("shipping", ORDERS)), address, tell),
            BlockingSubscriber(Received(Interest("billing", ORDERS)), address, tell),
            AsyncioSubscriber(Received(Interest("statistics", CLICKS)), address, tell),
        ]
        self._late: Subscriber = BlockingSubscriber(Received(Interest("latecomer", ORDERS)), address, tell)

    def play(self) -> Verdict:
        with blocking.connect(self._node.address) as client:
            client.create_topic(ORDERS)
            client.create_topic(CLICKS, partitions=2)
        for worker in (*self._subscribers, *self._publishers):
            worker.start()
        total = self._records * len(self._publishers)
        for kill in range(self._kills):
            self._watch_until_sent(total * (kill + 1) // (self._kills + 1))
            self._kill_and_restart()
        self._screen.say("latecomer: subscribes now, from the earliest record on", "bold")
        self._late.start()
        self._subscribers.append(self._late)
        self._watch_until_published()
        return self._collect()

    def end(self) -> None:
        """Whatever happened: no thread goes on against a node that is about to stop."""
        workers: Sequence[Worker] = (*self._publishers, *self._subscribers)
        for worker in workers:
            worker.leave.set()
        for worker in workers:
            if worker.is_alive():
                worker.join(timeout=2.0)

    def _watch_until_sent(self, records: int) -> None:
        while sum(publisher.book.sent for publisher in self._publishers) < records:
            self._look()
            time.sleep(TICK_S)

    def _kill_and_restart(self) -> None:
        self._screen.say(f"kill -9 of the node, process {self._node.pid}, in mid-stream", "bold red")
        self._node.sigkill()
        time.sleep(DOWN_S)
        begun = time.monotonic()
        self._node.start()
        took_ms = (time.monotonic() - begun) * 1000
        self._screen.say(f"node restarted on the same files: process {self._node.pid}, {took_ms:.0f} ms", "bold")

    def _watch_until_published(self) -> None:
        while any(publisher.is_alive() for publisher in self._publishers):
            self._look()
            time.sleep(TICK_S)
        self._look()
        self._screen.say("all publishers have every acknowledgement", "bold")

    def _collect(self) -> Verdict:
        """Expected first, from acknowledgements alone; then what came is held against it."""
        acknowledgements = [ack for publisher in self._publishers for ack in publisher.book.acknowledgements]
        expected = expect(acknowledgements, [subscriber.book.interest for subscriber in self._subscribers])
        due = {interest: len(names) for interest, names in expected.items()}
        came, changed_at = -1, time.monotonic()
        while any(len(subscriber.book.names) < due[subscriber.book.interest] for subscriber in self._subscribers):
            self._look()
            now = sum(len(subscriber.book.names) for subscriber in self._subscribers)
            if now != came:
                came, changed_at = now, time.monotonic()
            if time.monotonic() - changed_at > QUIET_S:
                break
            time.sleep(TICK_S)
        # A duplicate may come behind the last record that was due.
        time.sleep(10 * TICK_S)
        self._look()
        return judge(
            {publisher.name: publisher.book.sent for publisher in self._publishers},
            {publisher.name: publisher.book.topic for publisher in self._publishers},
            expected,
            {subscriber.book.interest: tuple(subscriber.book.names) for subscriber in self._subscribers},
        )

    def _look(self) -> None:
        for worker in (*self._publishers, *self._subscribers):
            if worker.error is not None:
                raise worker.error
        counted = [
            Counted(worker.name, worker.kind, worker.book.topic, "acknowledged", worker.book.acknowledged)
            for worker in self._publishers
        ]
        counted += [
            Counted(worker.name, worker.kind, worker.book.interest.topic, "received", len(worker.book.names))
            for worker in self._subscribers
        ]
        self._screen.progress(counted)
