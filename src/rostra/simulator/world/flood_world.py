"""The world of the flood fabric: nodes form a ring, each serves alone if need be, and all end with all records."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

import msgspec

from rostra.fabric.api import Fabric
from rostra.fabric.flood.machine import Flood
from rostra.fabric.flood.settings import FloodSettings
from rostra.model.ids import NodeId, Partition
from rostra.simulator.clients.applications import PublisherApplication, ShortLivedPublisher, SubscriberApplication
from rostra.simulator.clients.pattern_subscriber import PatternSubscriber
from rostra.simulator.clock import MS_US, SECOND_US, random_for
from rostra.simulator.faults.fault_plan import Fault
from rostra.simulator.world.simulated_node import SimulatedNode
from rostra.simulator.world.world import POLL_US, World
from rostra.wire.messages import Acks

T = TypeVar("T")


class FloodNode(SimulatedNode):
    """A simulated node with the flood fabric."""

    flood: Flood | None = None

    def _make_fabric(self) -> Fabric:
        plan = self.plan
        first = self.founders[0].node if self.founders else NodeId(0)
        others = tuple(one.peer_address for one in self.founders if one.node != self.id)
        settings = FloodSettings(
            heartbeat_ms=plan.heartbeat_ms,
            failure_timeout_ms=4 * plan.heartbeat_ms,
            resend_ms=2 * plan.heartbeat_ms,
            recovery_timeout_ms=4 * plan.heartbeat_ms,
            window_bytes=self.raft_settings.window_bytes,
            read_bytes=self.raft_settings.read_bytes,
            stop_timeout_ms=1_000,
            both_ways=plan.nodes % 2 == 0,
        )
        self.flood = Flood(
            self.id,
            self.address,
            self.peer_address,
            joins=self.join or (() if first == self.id else others),
            random=self.random,
            settings=settings,
            without=self.without,
        )
        self.fabric = self._observed(self.flood)
        return self.fabric

    def voters(self) -> dict[Partition, tuple[str, tuple[NodeId, ...]]]:
        """None: the flood fabric has no quorum."""
        return {}

    def upcoming_voters(self) -> tuple[int, dict[Partition, list[tuple[NodeId, ...]]]]:
        return 0, {}

    def has_removed(self, member: NodeId) -> bool:
        return self.flood is not None and member in self.flood.ring.removed

    def is_caught_up(self) -> bool:
        """Whether all members are in its view and its ring neighbours have all of its records."""
        flood = self.flood
        if self.fabric is None or flood is None or not flood.ready:
            return False
        whole = set(flood.ring.view.active) == set(flood.ring.members)
        return whole and all(link.open and not link.missing_records() for link in flood.links.values())


class FirstChoice(Random):
    """A generator that always takes the first choice: publishers draw no strength from it."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]

    def random(self) -> float:
        return 1.0


class FloodSubscriber(SubscriberApplication):
    """A subscriber that starts at earliest and reads all partitions.

    Offsets and counts are per origin, and `latest` delivers partitions that appear later from their beginning.
    """

    starts = ("earliest",)
    partitions = (None,)

    def missing(self) -> list[str]:
        """Violations for partitions of its topic that the last subscription does not have."""
        observed = self._observed
        if observed is None or not observed.established or observed.ended is not None:
            return []
        return [
            f"{observed.name} lacks the partition {key[0]:x} of {final.name}"
            for key, final in sorted(self.history.final.items())
            if final.name == observed.topic
            and key not in observed.feeds
            and any(not one.control for one in final.stored)
        ]


class FloodPatternSubscriber(PatternSubscriber):
    """A pattern subscriber that must reach the end, and nothing more.

    Topics have other ids at another node, so a client that changes its node gets their records from the first one on.
    """

    checked = False


class FloodWorld(World):
    """A seed of the flood fabric. Its topics are created by publishing to them."""

    node_type = FloodNode
    excluded_faults = (Fault.REMOVED,)
    auto_create = True

    def _adjust_plan(self) -> None:
        """Removes no node: records that only a removed node has are lost by design."""
        self.plan = msgspec.structs.replace(self.plan, removes=False)
        self.history.per_origin = True

    def _add_applications(self, random: Random) -> None:
        names = [f"t{number}" for number in range(random.randint(1, 2))]
        publishers = random.randint(2, 3)
        for number in range(publishers):
            acks: Acks = random.choice(("all", "all", "owner", "none") if number else ("all", "owner"))
            client = self.client(f"p{number}", random)
            records = self.bounds.records_in_cluster * 3 // 2 // publishers
            publisher = PublisherApplication(
                client,
                random_for(self.seed, client.name),
                names,
                self.bounds.publish_until_us,
                acks,
                records,
                FirstChoice(),
            )
            self.publishers.append(publisher)
            self._start_at(200 * MS_US + number, publisher)
        if random.random() < 0.5:
            visits = random_for(self.seed, "visits")
            death = random_for(self.seed, "deaths of visitors")
            new_client = lambda name: self.client(name, visits)  # noqa: E731
            short_lived = ShortLivedPublisher(
                self.client("v", random), visits, names, self.bounds.heal_us, new_client, death
            )
            self._start_at(250 * MS_US, short_lived)
        for number in range(2):
            client = self.client(f"s{number}", random)
            subscriber = FloodSubscriber(client, random_for(self.seed, client.name), names, self.bounds.heal_us)
            self.subscribers.append(subscriber)
            self._start_at(300 * MS_US + number, subscriber)

        pattern_random = random_for(self.seed, "gathering")
        if pattern_random.random() < 0.5:
            client = self.client("g", pattern_random)
            pattern_subscriber = FloodPatternSubscriber(client, pattern_random, self.bounds.heal_us)
            self.pattern_subscribers.append(pattern_subscriber)
            self._start_at(310 * MS_US, pattern_subscriber)

    def _read_final_state(self) -> None:
        super()._read_final_state()
        history = self.history
        until_us = self.clock.now_us + 10 * SECOND_US
        while not self._is_serving() and self.clock.now_us < until_us:
            # Reading may discover damage; then the other nodes resend the records.
            self.until(self.clock.now_us + POLL_US)
        ends: dict[Partition, int] = {}
        for node in self.members:
            if isinstance(node, FloodNode) and node.flood is not None:
                for partition, copy in node.flood.logs.items():
                    ends[partition] = max(copy.end, ends.get(partition, 0))
        for node in self.members:
            if isinstance(node, FloodNode) and node.flood is not None:
                for partition, end in sorted(ends.items()):
                    if not node.flood.topics.has(partition, end):
                        history.unsettled.append(f"{node.name} lacks records of {partition}, which ends at {end}")
        for subscriber in self.subscribers:
            assert isinstance(subscriber, FloodSubscriber)
            history.unsettled += subscriber.missing()
