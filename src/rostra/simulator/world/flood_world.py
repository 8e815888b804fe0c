"""A world whose nodes form a ring: each of them goes on whoever is there, and all have everything in the end."""

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
from rostra.simulator.clock import MS_US, SECOND_US, chance
from rostra.simulator.faults.fault_plan import Fault
from rostra.simulator.world.simulated_node import SimulatedNode
from rostra.simulator.world.world import HEAL_US, LOOK_EVERY_US, QUIET_US, RECORDS_AMONG_NODES, World
from rostra.wire.messages import Acks

T = TypeVar("T")


class FloodNode(SimulatedNode):
    flood: Flood | None = None

    def _take_seat(self) -> Fabric:
        swarm = self.swarm
        first = self.founders[0].node if self.founders else NodeId(0)
        others = tuple(one.peer_address for one in self.founders if one.node != self.id)
        settings = FloodSettings(
            heartbeat_ms=swarm.heartbeat_ms,
            silence_ms=4 * swarm.heartbeat_ms,
            resend_ms=2 * swarm.heartbeat_ms,
            ask_ms=4 * swarm.heartbeat_ms,
            window_bytes=self.raft_settings.window_bytes,
            read_bytes=self.raft_settings.read_bytes,
            leave_ms=1_000,
            both_ways=swarm.nodes % 2 == 0,
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
        self.fabric = self._watched(self.flood)
        return self.fabric

    def voters(self) -> dict[Partition, tuple[str, tuple[NodeId, ...]]]:
        """Nobody votes."""
        return {}

    def prospects(self) -> tuple[int, dict[Partition, list[tuple[NodeId, ...]]]]:
        return 0, {}

    def has_removed(self, member: NodeId) -> bool:
        return self.flood is not None and member in self.flood.ring.removed

    def knows_leaders(self) -> bool:
        """Whether its ring is whole, and whoever comes next has all that it has."""
        flood = self.flood
        if self.fabric is None or flood is None or not flood.ready:
            return False
        whole = set(flood.ring.view.active) == set(flood.ring.members)
        return whole and all(link.open and not link.lacks() for link in flood.links.values())


class NoStrength(Random):
    """Who publishes without a strength: of what it may choose, the first."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[0]

    def random(self) -> float:
        return 1.0


class FloodSubscriber(SubscriberApplication):
    """Offsets and counts mean something in one partition only; who asks for the latest gets those that join whole."""

    starts = ("earliest",)
    partitions = (None,)

    def missing(self) -> list[str]:
        """Partitions of its topic that the last subscription has not heard of."""
        seen = self._seen
        if seen is None or not seen.stands or seen.ended is not None:
            return []
        return [
            f"{seen.name} has not heard of the partition {place[0]:x} of {final.name}"
            for place, final in sorted(self.history.final.items())
            if final.name == seen.topic and place not in seen.feeds and any(not one.control for one in final.stored)
        ]


class FloodWorld(World):
    made_of = FloodNode
    spared = (Fault.REMOVED,)
    auto_create = True

    def _arrange(self) -> None:
        """Nobody is removed: what only such a node has is gone with it, as it was told."""
        self.swarm = msgspec.structs.replace(self.swarm, removes=False)
        self.history.origins = True

    def _people(self, random: Random) -> None:
        names = [f"t{number}" for number in range(random.randint(1, 2))]
        publishers = random.randint(2, 3)
        for number in range(publishers):
            acks: Acks = random.choice(("all", "all", "owner", "none") if number else ("all", "owner"))
            client = self.client(f"p{number}", random)
            records = RECORDS_AMONG_NODES * 3 // 2 // publishers
            publisher = PublisherApplication(
                client, chance(self.seed, client.name), names, QUIET_US, acks, records, NoStrength()
            )
            self.publishers.append(publisher)
            self._begin_at(200 * MS_US + number, publisher)
        if random.random() < 0.5:
            visits = chance(self.seed, "visits")
            death = chance(self.seed, "deaths of visitors")
            newcomer = lambda name: self.client(name, visits)  # noqa: E731
            visitor = ShortLivedPublisher(self.client("v", random), visits, names, HEAL_US, newcomer, death)
            self._begin_at(250 * MS_US, visitor)
        for number in range(2):
            client = self.client(f"s{number}", random)
            subscriber = FloodSubscriber(client, chance(self.seed, client.name), names, HEAL_US)
            self.subscribers.append(subscriber)
            self._begin_at(300 * MS_US + number, subscriber)

    def _probe(self) -> None:
        super()._probe()
        history = self.history
        until_us = self.clock.now_us + 10 * SECOND_US
        while not self._works() and self.clock.now_us < until_us:
            # Reading may be what finds damage: then the others send it again.
            self.until(self.clock.now_us + LOOK_EVERY_US)
        ends: dict[Partition, int] = {}
        for node in self.members:
            if isinstance(node, FloodNode) and node.flood is not None:
                for partition, copy in node.flood.copies.items():
                    ends[partition] = max(copy.end, ends.get(partition, 0))
        for node in self.members:
            if isinstance(node, FloodNode) and node.flood is not None:
                for partition, end in sorted(ends.items()):
                    if not node.flood.has(partition, end):
                        history.unsettled.append(f"{node.name} has not all of {partition}, which ends at {end}")
        for subscriber in self.subscribers:
            assert isinstance(subscriber, FloodSubscriber)
            history.unsettled += subscriber.missing()
