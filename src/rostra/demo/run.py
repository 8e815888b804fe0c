"""The main demo: three nodes, a stream of records, the owner killed and restarted, and the count of deliveries."""

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
"""How long a killed node stays down, so that it has records to catch up with."""
QUIET_S = 20.0
"""After this time without new records no more are expected."""
PATIENCE_S = 60.0
LOG_EVENTS = ("leads", "peer lost", "log restarted")
"""The log events of nodes that are printed; the others would hide them."""


class PublisherPlan(NamedTuple):
    """A publisher and the partition it publishes to."""

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
    directory = Path(tempfile.mkdtemp(prefix="rostra-demo-")) if with_spark else None
    traces = None if directory is None else directory / "traces"
    arguments = () if traces is None else ("--trace", str(traces))
    try:
        with rostra.testing.process_cluster(NODES, arguments=arguments) as cluster:
            with Screen(console) as screen:
                screen.say(f"{NODES} nodes are running, each in its own process")
                demo = Demo(cluster, screen, records_per_publisher, kills, duration_s, traces)
                try:
                    verdict = demo.run()
                finally:
                    demo.stop_workers()
            try:
                screen.conclude(verdict)
                if directory is not None and traces is not None and not verdict.failures:
                    _audit(console, cluster, traces, directory / "report.html")
            finally:
                demo.kill_nodes()
    except ScenarioFailed as error:
        console.print(f"Failed: {error}", style="bold red")
        return EXIT_LOST
    if verdict.failures:
        console.print("Records were lost or duplicated; see the lines above.", style="bold red")
        return EXIT_LOST
    killed = "once" if kills == 1 else f"{kills} times"
    console.print(
        f"The owner was killed {killed} with SIGKILL: every acknowledged record was delivered, none twice.",
        style="bold green",
    )
    return EXIT_OK


def _audit(console: Console, cluster: Cluster[ProcessNode], traces: Path, page: Path) -> None:
    """Counts again with Spark, from the traces of nodes and clients."""
    from rostra.demo import pipeline
    from rostra.spark.environment.session import SMALL, running, session

    console.print("starting Spark to audit the traces of all nodes and clients")
    existing = running()
    quiet = {"spark.log.level": "OFF", "spark.ui.showConsoleProgress": "false"}
    spark = existing or session("rostra-demo", conf=quiet | SMALL)
    try:
        found = pipeline.show(spark, console, [node.address for node in cluster], [ORDERS, CLICKS], traces, page)
    finally:
        if existing is None:
            spark.stop()
    if not found.total.sound or found.total.percent < 100:
        raise ScenarioFailed("the audit of the traces finds every record delivered once and in order")


class Demo:
    log_events: tuple[str, ...] = LOG_EVENTS
    plans: tuple[PublisherPlan, ...] = (
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
        on_event = screen.client_event
        pace = (records_per_publisher, CHUNK, duration_s)
        logs = [PublishedLog(*plan) for plan in self.plans]
        self._publishers: list[PublisherThread] = [
            AsyncioPublisher(logs[0], *pace, first, on_event),
            BlockingPublisher(logs[1], *pace, second, on_event),
            AsyncioPublisher(logs[2], *pace, third, on_event),
            BlockingPublisher(logs[3], *pace, first, on_event),
        ]
        self._subscribers: list[SubscriberThread] = [
            AsyncioSubscriber(ReceivedLog(ExpectedSubscription("shipping", ORDERS)), second, on_event),
            BlockingSubscriber(ReceivedLog(ExpectedSubscription("billing", ORDERS)), third, on_event),
            AsyncioSubscriber(ReceivedLog(ExpectedSubscription("statistics", CLICKS)), first, on_event),
        ]
        self._late: SubscriberThread = BlockingSubscriber(
            ReceivedLog(ExpectedSubscription("latecomer", ORDERS)), second, on_event
        )
        self._watch = ClusterWatch(first, second, third)
        self._traces = None if traces is None else str(traces)
        for worker in (*self._publishers, *self._subscribers, self._late):
            worker.trace = self._traces

    def run(self) -> Verdict:
        for name, node in zip(self._names, self._cluster, strict=True):
            self._say(f"{name}: process {node.pid}, {node.address}, fsync before every acknowledgement")
        self._create_topics()
        for worker in (self._watch, *self._subscribers, *self._publishers):
            worker.start()
        total = self._records * len(self._publishers)
        for kill in range(self._kills):
            self._watch_until_sent(total * (kill + 1) // (self._kills + 1))
            self._kill_and_restart()
        self._say("latecomer subscribes, from the earliest record")
        self._late.start()
        self._subscribers.append(self._late)
        self._watch_until_published()
        return self._collect()

    def _create_topics(self) -> None:
        with blocking.connect(self._cluster[0].address, trace=self._traces) as client:
            client.create_topic(ORDERS)
            client.create_topic(CLICKS, partitions=2)
        self._say(f"topics {ORDERS} (1 partition) and {CLICKS} (2), each with a replica on every node")

    def stop_workers(self) -> None:
        """Stops all threads, also after an error."""
        self._watch.leave.set()
        workers: Sequence[Worker] = (*self._publishers, *self._subscribers)
        for worker in workers:
            worker.leave.set()
        for worker in workers:
            if worker.is_alive():
                worker.join(timeout=5.0)

    def kill_nodes(self) -> None:
        """Without a graceful stop: their data is not used again."""
        for node in self._cluster:
            node.sigkill()

    def _watch_until_sent(self, records: int) -> None:
        while sum(publisher.log.sent for publisher in self._publishers) < records:
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
        self._say(f"kill -9 of {name}, process {victim.pid}, the owner of {ORDERS}/0, while records flow", "bold red")
        begun, committed = time.monotonic(), self._committed()
        victim.sigkill()
        self._wait_until(lambda: self._owner() not in (None, victim), f"another node owns {ORDERS}/0")
        successor = self._owner()
        assert successor is not None
        took_s = time.monotonic() - begun
        self._say(f"{self._screen.names[successor.address]} owns {ORDERS}/0, seen after {took_s:.1f} s")
        self._wait_until(lambda: time.monotonic() - begun > DOWN_S, "time passes")
        self._restart(victim, name, committed)

    def _owner(self) -> ProcessNode | None:
        """The node that owns the partition, if its process runs."""
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
            replicas = self._watch.replicas_on(identity)
            return bool(replicas) and all(
                copy.match >= due[placed.topic, placed.partition] for placed, copy in replicas
            )

        self._wait_until(caught_up, f"{name} catches up")
        self._say(f"{name} has caught up in {time.monotonic() - begun:.1f} s")

    # --- the count ---

    def _watch_until_published(self) -> None:
        while any(publisher.is_alive() for publisher in self._publishers):
            self._look()
            time.sleep(TICK_S)
        self._look()
        self._say("all publishers have every acknowledgement")

    def _collect(self) -> Verdict:
        """Computes what is expected from acknowledgements alone, then compares it with what was received."""
        acknowledgements = [ack for publisher in self._publishers for ack in publisher.log.acknowledgements]
        expected = expect(acknowledgements, [subscriber.log.subscription for subscriber in self._subscribers])
        due = {subscription: len(records) for subscription, records in expected.items()}
        received, changed_at = -1, time.monotonic()
        while any(len(subscriber.log.records) < due[subscriber.log.subscription] for subscriber in self._subscribers):
            self._look()
            now = sum(len(subscriber.log.records) for subscriber in self._subscribers)
            if now != received:
                received, changed_at = now, time.monotonic()
            if time.monotonic() - changed_at > QUIET_S:
                break
            time.sleep(TICK_S)
        # A duplicate may follow the last expected record.
        time.sleep(10 * TICK_S)
        self._look()
        return judge(
            {publisher.name: publisher.log.sent for publisher in self._publishers},
            {publisher.name: publisher.log.topic for publisher in self._publishers},
            expected,
            {subscriber.log.subscription: tuple(subscriber.log.records) for subscriber in self._subscribers},
        )

    def _look(self) -> None:
        for worker in (*self._publishers, *self._subscribers):
            if worker.error is not None:
                raise worker.error
        self._print_logs()
        self._screen.print_client_events()
        names = self._screen.names
        counted = [
            SubscriptionLine(
                worker.name, worker.kind, names[worker.address], worker.log.topic, "acked", worker.log.acknowledged
            )
            for worker in self._publishers
        ]
        counted += [
            SubscriptionLine(
                worker.name,
                worker.kind,
                names[worker.address],
                worker.log.subscription.topic,
                "received",
                len(worker.log.records),
            )
            for worker in self._subscribers
        ]
        self._screen.progress(counted, self._placed(), self._names)

    def _say(self, line: str, style: str = "bold") -> None:
        """Prints the line after the log lines that precede it."""
        self._print_logs()
        self._screen.say(line, style)

    def _print_logs(self) -> None:
        lines = self._logs.read_new()
        self._screen.log(line for line in lines if line.event in self.log_events and line.partition != "_metadata")

    def _partition_name(self, placed: PlacedPartition) -> str:
        return f"{placed.topic}/{placed.partition}"

    def _placed(self) -> list[PartitionLine]:
        state = self._watch.state
        if state is None:
            return []
        names = {node.node: self._screen.names.get(node.address, "?") for node in state.nodes}
        alive = {node.node for node in state.nodes if node.alive}
        rows = []
        for one in state.partitions:
            lags = dict.fromkeys(self._names, "-")
            for copy in one.copies:
                lag = f"{max(one.end - copy.match, 0):,}" if copy.match >= 0 else "?"
                lags[names[copy.node]] = lag if copy.node in alive else "down"
            name = self._partition_name(one)
            if one.topic:
                rows.append(
                    PartitionLine(name, names.get(one.owner, "none"), one.epoch, one.commit, tuple(lags.values()))
                )
        return rows
