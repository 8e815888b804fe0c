"""One demonstration with real nodes: actions, the log lines of the nodes, and the expected results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

import rostra.testing
from rostra import blocking
from rostra.demo.node_logs import NodeLine, NodeLogs
from rostra.demo.screen import Screen
from rostra.testing.clusters import Cluster
from rostra.testing.process import ProcessNode

PATIENCE_S = 60.0
POLL_S = 0.02


class ScenarioFailed(Exception):
    """A step of a demonstration did not succeed."""


class Scenario:
    """The steps of a demonstration. Nodes are numbered from 1."""

    def __init__(self, screen: Screen, cluster: Cluster[ProcessNode]) -> None:
        self.cluster = cluster
        self._screen = screen
        self._logs = NodeLogs()
        self._open = ExitStack()
        self._subscriptions: dict[str, blocking.Subscription] = {}
        for number in range(1, len(cluster.nodes) + 1):
            self._follow(number)

    def _follow(self, number: int) -> None:
        node = self.cluster[number - 1]
        self._logs.follow(f"node {number}", node.log_file)
        self._screen.names[node.address] = f"node {number}"

    def close(self) -> None:
        """Closes the clients and kills the nodes, whose data is not used again."""
        try:
            self._open.close()
        finally:
            for node in self.cluster:
                node.sigkill()

    # --- output ---

    def say(self, line: str) -> None:
        self.print_logs()
        self._screen.say(line)

    def print_logs(self) -> None:
        self._screen.log(self._logs.read_new())

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise ScenarioFailed(what)
            self.print_logs()
            time.sleep(POLL_S)
        self.print_logs()

    def logged(self, event: str, partition: str, *, above_term: int = -1, by_other_than: str = "") -> NodeLine:
        """Waits until a node has logged the event; returns the last such line."""
        found: list[NodeLine] = []

        def is_logged() -> bool:
            self.print_logs()
            found[:] = [
                line
                for line in self._logs.lines
                if (line.event, line.partition) == (event, partition)
                and line.term > above_term
                and line.node != by_other_than
            ]
            return bool(found)

        self.wait_until(is_logged, f"a node logs: {event} {partition}")
        return found[-1]

    # --- actions ---

    def client(self, number: int) -> blocking.Client:
        return self._open.enter_context(blocking.connect(self.cluster[number - 1].address, name="demo"))

    def create(self, topic: str, number: int = 1) -> None:
        self.say(f"creating topic {topic} at node {number}")
        self.client(number).create_topic(topic)
        if len(self.cluster.nodes) > 1:
            # A single node does not log that it elects itself for each partition.
            self.logged("leads", f"{topic}/0")

    def subscribe(self, who: str, topic: str, number: int) -> None:
        self.say(f"{who} subscribes to {topic} at node {number}")
        self._subscriptions[who] = self._open.enter_context(self.client(number).subscribe(topic))

    def unsubscribe(self, who: str) -> None:
        self._subscriptions[who].unsubscribe()
        self.say(f"{who} has unsubscribed, acknowledged by the node")

    def publish(self, topic: str, value: str, number: int) -> None:
        ack = self.client(number).publish(topic, value.encode())
        self.say(f"published at node {number}: {value!r} is {topic}/0 offset {ack.offset}")

    def receives(self, who: str, value: str) -> None:
        """Checks that the next record is this one."""
        received: list[bytes | None] = []

        def has_received() -> bool:
            batch = self._subscriptions[who].poll(POLL_S)
            received.extend(batch.values() if batch is not None else [])
            return bool(received)

        self.wait_until(has_received, f"{who} receives {value!r}")
        if received != [value.encode()]:
            raise ScenarioFailed(f"{who} receives {value!r}, but got {received}")
        self.say(f"{who} received {value!r}")

    def receives_nothing(self, who: str) -> None:
        batch = self._subscriptions[who].poll(POLL_S)
        if batch is not None:
            raise ScenarioFailed(f"{who} receives nothing more, but got {batch.values()}")
        self.say(f"{who} received nothing")

    def pushes(self) -> float:
        """How often any node has sent records to a subscriber."""
        return sum(node.metrics().value("rostra_pushes_total") for node in self.cluster.running())

    def leader(self, topic: str) -> int:
        """The number of the node that leads the topic's only partition."""
        return self.cluster.nodes.index(self.cluster.owner(topic)) + 1

    def kill(self, number: int) -> None:
        self.say(f"kill -9 of node {number}, process {self.cluster[number - 1].pid}")
        self.cluster[number - 1].sigkill()

    def add_node(self) -> int:
        number = len(self.cluster.nodes) + 1
        self.say(f"starting node {number} with --join and the peer address of a member")
        self.cluster.add()
        self._follow(number)
        self.await_members(number)
        return number

    def remove_node(self, number: int) -> None:
        address = self.cluster[number - 1].address
        client = self.client(1)
        state = client.describe_cluster()
        member = next(node.node for node in state.nodes if node.address == address)
        self.say(f"removing node {number}: `rostra cluster remove {member:016x}`")
        client.remove_member(member)

    def await_members(self, count: int) -> None:
        """Waits until every node knows every other, and all vote."""

        def all_know() -> bool:
            for node in self.cluster.nodes[:count]:
                with node.client() as client:
                    seen = client.describe_cluster().nodes
                if len(seen) != count or not all(one.alive and one.votes for one in seen):
                    return False
            return True

        self.wait_until(all_know, f"all {count} members know each other")
        self.say(f"each of {count} nodes knows {count} members, all alive, all with a vote")


@contextmanager
def scenario(console: Console, nodes: int) -> Iterator[Scenario]:
    with Screen(console) as screen:
        screen.say(f"starting {nodes} node{'s' if nodes > 1 else ''}")
        with rostra.testing.process_cluster(nodes) as cluster:
            demo = Scenario(screen, cluster)
            try:
                demo.print_logs()
                yield demo
            finally:
                demo.close()
