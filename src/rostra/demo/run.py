"""The course of the main demo: three nodes, a stream of records, the owner killed and back again, the count."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

import rostra.testing
from rostra import blocking
from rostra.demo.cluster_watch import ClusterWatch
from rostra.demo.expected import ExpectedSubscription, expect
from rostra.demo.node_logs import NodeLogs
from rostra.demo.record_log import PublishedLog, ReceivedLog
from rostra.demo.scenario import ScenarioFailed
from rostra.demo.screen import PartitionLine, Screen, SubscriptionLine
from rostra.demo.verdict import Verdict, judge
from rostra.demo.workers import (
    AsyncioPublisher,
    AsyncioSubscriber,
    BlockingPublisher,
    BlockingSubscriber,
    PublisherThread,
    SubscriberThread,
    Worker,
)
from rostra.model.cluster import PlacedPartition
from rostra.testing.clusters import Cluster
from rostra.testing.process import ProcessNode

NODES = 3
ORDERS = "orders"
CLICKS = "clicks"
CHUNK = 25
TICK_S = 0.05
DOWN_S = 2.0
"""How long a killed node stays away, so that it has something to catch up with."""
QUIET_S = 20.0
"""Nothing new for so long means that nothing more will come."""
PATIENCE_S = 30.0
TOLD = ("leads", "peer is away", "copy is filled anew")
"""Of what the nodes log, what is shown: the rest would bury it."""


class PublisherPlan(NamedTuple):
    """Who publishes to which partition of what."""

    name: str
    topic: str
    partition: int


EXIT_OK = 0
EXIT_LOST = 1


def run(
    *,
    records_per_publisher: int,
    kills: int,
    duration_s: float,
    with_spark: bool = False,
    console: Console | None = None,
) -> int:
    """The exit code: 0 only if every acknowledged record was delivered to every subscriber, once."""
    console = console or Console(highlight=False)
    place = Path(tempfile.mkdtemp(prefix="rostra-demo-")) if with_spark else None
    traces = None if place is None else place / "traces"
    arguments = () if traces is None else ("--trace", str(traces))
    try:
        with rostra.testing.process_cluster(NODES, arguments=arguments) as cluster:
            with Screen(console) as screen:
                screen.say(f"{NODES} nodes are there, each a process of its own")
                demo = Demo(cluster, screen, records_per_publisher, kills, duration_s, traces)
                try:
                    verdict = demo.play()
                finally:
                    demo.leave()
            try:
                screen.conclude(verdict)
                if place is not None and traces is not None and not verdict.complaints:
                    _audit(console, cluster, traces, place / "report.html")
            finally:
                demo.end()
    except ScenarioFailed as error:
        console.print(f"This did not happen: {error}", style="bold red")
        return EXIT_LOST
    if verdict.complaints:
        console.print("The cluster did not keep its word; see the lines above.", style="bold red")
        return EXIT_LOST
    killed = "once" if kills == 1 else f"{kills} times"
    console.print(
        f"The owner was killed {killed} with SIGKILL: every acknowledged record was delivered, none twice.",
        style="bold green",
    )
    return EXIT_OK


def _audit(console: Console, cluster: Cluster[ProcessNode], traces: Path, page: Path) -> None:
    """Spark comes to its own count, from what everybody noted by themselves."""
    from rostra.demo import pipeline
    from rostra.spark.environment.session import SMALL, running, session

    console.print("starting Spark, to hold the traces of all of them against each other")
    there = running()
    quiet = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
    spark = there or session("rostra-demo", conf=quiet | SMALL)
    try:
        found = pipeline.show(spark, console, [node.address for node in cluster], [ORDERS, CLICKS], traces, page)
    finally:
        if there is None:
            spark.stop()
    if not found.total.sound or found.total.percent < 100:
        raise ScenarioFailed("by the traces too, every record arrived once and in order")


class Demo:
    told: tuple[str, ...] = TOLD
    people: tuple[PublisherPlan, ...] = (
        PublisherPlan("alice", ORDERS, 0),
        PublisherPlan("bob", ORDERS, 0),
        PublisherPlan("carol", CLICKS, 0),
        PublisherPlan("dave", CLICKS, 1),
    )

    def __init__(
        self,
        cluster: Cluster[ProcessNode],
        screen: Screen,
        records_per_publisher: int,
        kills: int,
        duration_s: float,
        traces: Path | None = None,
    ) -> None:
        self._cluster = cluster
        self._screen = screen
        self._kills = kills
        self._records = records_per_publisher
        self._logs = NodeLogs()
        self._names = [f"node {number}" for number in range(1, len(cluster.nodes) + 1)]
        for name, node in zip(self._names, cluster, strict=True):
            self._logs.follow(name, node.log_file)
            screen.names[node.address] = name
        first, second, third = (node.address for node in cluster)
        tell = screen.happened
        pace = (records_per_publisher, CHUNK, duration_s)
        books = [PublishedLog(*person) for person in self.people]
        self._publishers: list[PublisherThread] = [
            AsyncioPublisher(books[0], *pace, first, tell),
            BlockingPublisher(books[1], *pace, second, tell),
            AsyncioPublisher(books[2], *pace, third, tell),
            BlockingPublisher(books[3], *pace, first, tell),
        ]
        self._subscribers: list[SubscriberThread] = [
            AsyncioSubscriber(ReceivedLog(ExpectedSubscription("shipping", ORDERS)), second, tell),
            BlockingSubscriber(ReceivedLog(ExpectedSubscription("billing", ORDERS)), third, tell),
            AsyncioSubscriber(ReceivedLog(ExpectedSubscription("statistics", CLICKS)), first, tell),
        ]
        self._late: SubscriberThread = BlockingSubscriber(
            ReceivedLog(ExpectedSubscription("latecomer", ORDERS)), second, tell
        )
        self._watch = ClusterWatch(first, second, third)
        self._traces = None if traces is None else str(traces)
        for worker in (*self._publishers, *self._subscribers, self._late):
            worker.trace = self._traces

    def play(self) -> Verdict:
        for name, node in zip(self._names, self._cluster, strict=True):
            self._say(f"{name}: process {node.pid}, {node.address}, fsync before every acknowledgement")
        self._create_topics()
        for worker in (self._watch, *self._subscribers, *self._publishers):
            worker.start()
        total = self._records * len(self._publishers)
        for kill in range(self._kills):
            self._watch_until_sent(total * (kill + 1) // (self._kills + 1))
            self._kill_and_restart()
        self._say("latecomer subscribes now, from the earliest record on")
        self._late.start()
        self._subscribers.append(self._late)
        self._watch_until_published()
        return self._collect()

    def _create_topics(self) -> None:
        with blocking.connect(self._cluster[0].address, trace=self._traces) as client:
            client.create_topic(ORDERS)
            client.create_topic(CLICKS, partitions=2)
        self._say(f"topics {ORDERS} (1 partition) and {CLICKS} (2), each with a copy on every node")

    def leave(self) -> None:
        """Whatever happened: no thread goes on."""
        self._watch.leave.set()
        workers: Sequence[Worker] = (*self._publishers, *self._subscribers)
        for worker in workers:
            worker.leave.set()
        for worker in workers:
            if worker.is_alive():
                worker.join(timeout=5.0)

    def end(self) -> None:
        """What the nodes wrote was for this demo alone."""
        for node in self._cluster:
            node.sigkill()

    def _watch_until_sent(self, records: int) -> None:
        while sum(publisher.book.sent for publisher in self._publishers) < records:
            self._look()
            time.sleep(TICK_S)

    def _wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise ScenarioFailed(f"{what}, within {PATIENCE_S:g} s")
            self._look()
            time.sleep(TICK_S)

    # --- the kill ---

    def _kill_and_restart(self) -> None:
        self._wait_until(lambda: self._owner() is not None, f"{ORDERS}/0 has an owner")
        victim = self._owner()
        assert victim is not None
        name = self._screen.names[victim.address]
        self._say(f"kill -9 of {name}, process {victim.pid}, the owner of {ORDERS}/0, in mid-stream", "bold red")
        begun, committed = time.monotonic(), self._committed()
        victim.sigkill()
        self._wait_until(lambda: self._owner() not in (None, victim), f"another node leads {ORDERS}/0")
        heir = self._owner()
        assert heir is not None
        took_s = time.monotonic() - begun
        self._say(f"{self._screen.names[heir.address]} owns {ORDERS}/0 now, seen after {took_s:.1f} s")
        self._wait_until(lambda: time.monotonic() - begun > DOWN_S, "time passes")
        self._restart(victim, name, committed)

    def _owner(self) -> ProcessNode | None:
        """The node that leads the partition, if its process is there."""
        placed = self._watch.partition(ORDERS, 0)
        if placed is None or not placed.owner:
            return None
        running = self._cluster.running()
        return next((node for node in running if self._watch.node_at(node.address) == placed.owner), None)

    def _committed(self) -> dict[tuple[str, int], int]:
        state = self._watch.state
        return {(one.topic, one.partition): one.commit for one in state.partitions if one.topic} if state else {}

    def _restart(self, node: ProcessNode, name: str, committed: dict[tuple[str, int], int]) -> None:
        node.start()
        identity = self._watch.node_at(node.address)
        due = self._committed()
        missed = sum(due.values()) - sum(committed.values())
        self._say(f"{name} restarted on the same files, process {node.pid}: it missed about {missed:,} records")
        begun = time.monotonic()

        def caught_up() -> bool:
            held = self._watch.copies_of(identity)
            return bool(held) and all(copy.match >= due[placed.topic, placed.partition] for placed, copy in held)

        self._wait_until(caught_up, f"{name} catches up")
        self._say(f"{name} is back and has caught up, by itself, in {time.monotonic() - begun:.1f} s")

    # --- the count ---

    def _watch_until_published(self) -> None:
        while any(publisher.is_alive() for publisher in self._publishers):
            self._look()
            time.sleep(TICK_S)
        self._look()
        self._say("all publishers have every acknowledgement")

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
        self._tell_logs()
        self._screen.tell()
        names = self._screen.names
        counted = [
            SubscriptionLine(
                worker.name, worker.kind, names[worker.address], worker.book.topic, "acked", worker.book.acknowledged
            )
            for worker in self._publishers
        ]
        counted += [
            SubscriptionLine(
                worker.name,
                worker.kind,
                names[worker.address],
                worker.book.interest.topic,
                "received",
                len(worker.book.names),
            )
            for worker in self._subscribers
        ]
        self._screen.progress(counted, self._placed(), self._names)

    def _say(self, line: str, style: str = "bold") -> None:
        """Behind what the nodes have said of it."""
        self._tell_logs()
        self._screen.say(line, style)

    def _tell_logs(self) -> None:
        lines = self._logs.new()
        self._screen.log(line for line in lines if line.event in self.told and line.partition != "_catalogue")

    def _place(self, placed: PlacedPartition) -> str:
        return f"{placed.topic}/{placed.partition}"

    def _placed(self) -> list[PartitionLine]:
        state = self._watch.state
        if state is None:
            return []
        names = {node.node: self._screen.names.get(node.address, "?") for node in state.nodes}
        there = {node.node for node in state.nodes if node.there}
        rows = []
        for one in state.partitions:
            lags = dict.fromkeys(self._names, "-")
            for copy in one.copies:
                lag = f"{max(one.end - copy.match, 0):,}" if copy.match >= 0 else "?"
                lags[names[copy.node]] = lag if copy.node in there else "away"
            place = self._place(one)
            if one.topic:
                rows.append(
                    PartitionLine(place, names.get(one.owner, "none"), one.epoch, one.commit, tuple(lags.values()))
                )
        return rows
