"""The demo of the flood fabric: a broker with connected clients is killed, and the other brokers close the ring."""

from __future__ import annotations

import time

from rich.console import Console

import rostra.testing
from rostra.demo.run import CLICKS, DOWN_S, NODES, ORDERS, Demo, PublisherPlan
from rostra.demo.scenario import ScenarioFailed
from rostra.demo.screen import Screen
from rostra.model.cluster import PlacedPartition, RingState

RECORDS = 3_000
DURATION_S = 6.0
TOPICS = (ORDERS, ORDERS, CLICKS, CLICKS)
SHOWS = "a ring of three: a broker with connected clients is killed, the ring closes, the broker returns"


def flood(console: Console) -> None:
    with Screen(console) as screen:
        screen.say(f"starting {NODES} brokers of a ring, each a process of its own")
        with rostra.testing.process_cluster(NODES, fabric="flood") as cluster:
            demo = RingDemo(cluster, screen, RECORDS, 1, DURATION_S)
            try:
                verdict = demo.run()
            finally:
                demo.stop_workers()
                demo.kill_nodes()
    screen.conclude(verdict)
    if verdict.failures:
        raise ScenarioFailed("; ".join(verdict.failures))


class RingDemo(Demo):
    log_events = ("view changed", "link opened", "new incarnation", "log restarted")
    plans = tuple(
        PublisherPlan(name, topic, 0) for name, topic in zip(("alice", "bob", "carol", "dave"), TOPICS, strict=True)
    )

    def _create_topics(self) -> None:
        self._say(f"topics {ORDERS} and {CLICKS}: created by the first publish or subscribe, at that broker")

    def _partition_name(self, placed: PlacedPartition) -> str:
        """The partition that holds what one broker has published to a topic."""
        return f"{placed.topic} part {placed.partition:016x}"[: len(placed.topic) + 10]

    def _rings(self) -> list[RingState]:
        state = self._watch.state
        return list(state.ring) if state is not None else []

    def _is_closed(self, among: int) -> bool:
        rings = self._rings()
        return len(rings) == among and all(len(ring.members) == among for ring in rings)

    def _kill_and_restart(self) -> None:
        self._wait_until(lambda: self._is_closed(NODES), "the ring of all brokers closes")
        self._say(f"the ring: {self._ring_text()}")
        victim = self._cluster[0]
        name = self._screen.names[victim.address]
        attached = [
            worker.name for worker in (*self._publishers, *self._subscribers) if worker.address == victim.address
        ]
        line = f"kill -9 of {name}, process {victim.pid}, with {', '.join(attached)} connected, while records flow"
        self._say(line, "bold red")
        begun, committed = time.monotonic(), self._committed()
        victim.sigkill()
        self._wait_until(lambda: self._is_closed(NODES - 1), "the ring closes without it")
        self._say(f"the ring has closed without it after {time.monotonic() - begun:.1f} s: {self._ring_text()}")
        self._wait_until(lambda: time.monotonic() - begun > DOWN_S, "time passes")
        self._restart(victim, name, committed)
        self._wait_until(lambda: self._is_closed(NODES), "the ring of all brokers closes again")
        self._say(f"the ring: {self._ring_text()}")

    def _ring_text(self) -> str:
        state = self._watch.state
        assert state is not None
        names = {node.node: self._screen.names.get(node.address, "?") for node in state.nodes}
        following = {ring.node: ring.next for ring in state.ring}
        first = min(following)
        path, at = [names[first]], following[first]
        while at != first and at in following and len(path) <= len(following):
            path.append(names[at])
            at = following[at]
        return " -> ".join([*path, names[first]])
