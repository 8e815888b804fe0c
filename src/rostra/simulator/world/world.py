"""Everything of one seed: nodes, clients, what befalls them, and how they come out of it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rostra.client.core.options import Options
from rostra.fabric.raft.metadata.metadata_state import META, REPLICAS
from rostra.model.ids import NodeId, Partition, is_internal
from rostra.safeguards import ALL_ON, Without
from rostra.simulator.clients.applications import (
    Application,
    PublisherApplication,
    ShortLivedPublisher,
    SubscriberApplication,
    TopicAdminApplication,
)
from rostra.simulator.clients.concurrent_topic_admin import ConcurrentTopicAdmin
from rostra.simulator.clients.final_reader import FinalReader
from rostra.simulator.clients.group_member import GroupMemberApplication
from rostra.simulator.clients.liveness_probe import LivenessProbe
from rostra.simulator.clients.operator import Operator
from rostra.simulator.clients.pattern_subscriber import PatternSubscriber
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import MS_US, SECOND_US, Clock, chance
from rostra.simulator.disk.faulty_files import FaultyFiles, SimulatedCrash
from rostra.simulator.faults.fault_injector import FaultInjector
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import GroupHistory, History
from rostra.simulator.network.client_network import ClientNetwork
from rostra.simulator.network.peer_network import PeerNetwork
from rostra.simulator.trace import Trace
from rostra.simulator.world.fabric_observer import below, logs_of
from rostra.simulator.world.settings import raft_settings_for, settings_for
from rostra.simulator.world.simulated_node import SimulatedNode, member
from rostra.wire.messages import Acks, TopicSettings

CALM_US = SECOND_US
"""Nothing goes wrong before: topics are made, clients connect. Several nodes elect a leader first."""
HEAL_US = 25 * SECOND_US
CONVERGE_US = 50 * SECOND_US
END_US = 30 * SECOND_US
QUIET_US = 29 * SECOND_US
MAKE_UP_US = 25 * SECOND_US
OPERATIONS_WANTED = 320
LOOK_EVERY_US = 100 * MS_US
PROGRESS_ELECTIONS = 10
"""Within so many election timeouts a majority must work again."""
RECORDS = 900
RECORDS_AMONG_NODES = 320
"""Fewer, as each is written and sent several times."""
MEMBERS_IN = 0.25
"""The part of the seeds that have a named subscription."""
STEADY_US = 3 * SECOND_US
"""More than the lease of a member: whoever died before is found dead by then."""

COUNTED = {
    "outages": Fault.OUTAGE,
    "bytes_lost": Fault.LOST_BYTES,
    "writes_torn": Fault.TORN_WRITE,
    "disk_full": Fault.FULL,
    "syncs_failed": Fault.FAILED_SYNC,
    "writes_failed": Fault.FAILED_WRITE,
}
"""What the disk counts by itself."""


class World:
    """`nodes`: so many, whatever number the seed has drawn."""

    made_of: type[SimulatedNode] = SimulatedNode
    spared: tuple[Fault, ...] = ()
    """Faults that no node of it suffers."""
    auto_create = False

    def __init__(
        self,
        seed: int,
        without: Without = ALL_ON,
        show: Callable[[str], None] | None = None,
        swarm: FaultPlan | None = None,
        *,
        nodes: int = 0,
    ) -> None:
        self.seed = seed
        self.clock = Clock()
        self.trace = Trace(self.clock, show)
        self.tally = FaultCounts()
        self.swarm = swarm or FaultPlan.draw(chance(seed, "swarm"))
        if nodes:
            self.swarm = self.swarm.of(nodes)
        self.history = History(replicated=self.swarm.nodes > 1)
        self._arrange()
        random = chance(seed, "world")
        self.network = ClientNetwork(self.clock, self.swarm, self.tally, chance(seed, "network"))
        self.mesh = PeerNetwork(self.clock, self.trace, self.swarm, self.tally, self.history, chance(seed, "mesh"))
        self.nodes = self._build(random, without)
        self.mischief = FaultInjector(
            self.clock,
            self.trace,
            self.swarm,
            self.tally,
            chance(seed, "mischief"),
            self.nodes,
            self.network,
            self.mesh,
            self.history,
        )
        self.elected_us = 8 * self.swarm.heartbeat_ms * 1000 if len(self.nodes) > 1 else 0
        """When the nodes should have found each other."""
        self.leaver: SimulatedNode | None = None
        """Who is to be removed."""
        self.clients: list[SimulatedClient] = []
        self.publishers: list[PublisherApplication] = []
        self.subscribers: list[SubscriberApplication] = []
        self.gatherers: list[PatternSubscriber] = []
        self.handlers: list[GroupMemberApplication] = []
        self._generations: list[int] = []
        self._steady_since_us = 0
        self._people(random)

    def _arrange(self) -> None:
        """What a fabric changes of what the seed has drawn."""

    def _build(self, random: Random, without: Without) -> list[SimulatedNode]:
        settings = settings_for(random)
        raft_settings = raft_settings_for(self.swarm, random)
        nodes: list[SimulatedNode] = []
        founders = self.swarm.nodes - self.swarm.joiners
        for number in range(1, self.swarm.nodes + 1):
            node = self.made_of(
                number,
                self.clock,
                self.trace,
                self.swarm,
                self.tally,
                self.history,
                FaultyFiles(chance(self.seed, f"disk {number}")),
                settings,
                raft_settings,
                chance(self.seed, f"node {number}"),
                without,
            )
            node.network, node.mesh = self.network, self.mesh
            if number <= founders:
                node.founders = tuple(member(one) for one in range(1, founders + 1))
            else:
                node.founders = ()
                node.join = tuple(member(one).peer_address for one in random.sample(range(1, number), 2))
            self.network.hosts[node.address] = node
            nodes.append(node)
        self.mesh.add(nodes)
        return nodes

    def client(
        self, name: str, random: Random, addresses: list[str] | None = None, connect_timeout_ms: int = 2_000
    ) -> SimulatedClient:
        if addresses is None:
            addresses = [node.address for node in self.nodes]
            if len(addresses) > 1:
                random.shuffle(addresses)
        options = Options(
            addresses=tuple(addresses),
            auto_create=self.auto_create,
            connect_timeout_ms=connect_timeout_ms,
            call_timeout_ms=random.choice((1_000, 8_000)),
            delivery_timeout_ms=random.choice((1_500, 12_000, 60_000)),
            backoff_ms=random.choice((50, 200)),
            backoff_ms_max=random.choice((500, 2_000)),
        )
        client = SimulatedClient(
            name, self.clock, self.trace, self.history, self.network, options, chance(self.seed, f"client {name}")
        )
        self.clients.append(client)
        return client

    def _people(self, random: Random) -> None:
        """Who is in this world and what they are up to."""
        many = len(self.nodes) > 1
        names = [f"t{number}" for number in range(random.randint(2, 3 if many else 4))]
        owns = chance(self.seed, "ownership")
        compacts = chance(self.seed, "compaction")
        settings = {
            name: TopicSettings(
                partitions=random.randint(1, 2 if many else 3),
                segment_bytes=4096,
                retention_bytes=random.choice((0, 0, 0, 6_000)),
                retention_ms=random.choice((0, 0, 0, 0, 8_000)),
                compaction=compacts.random() < 0.4,
                tombstone_ms=compacts.choice((0, 3_000)),
                ownership=owns.choice(("shared", "shared", "exclusive")),
                history_depth=owns.choice((0, 0, 4)),
            )
            for name in names
        }
        keeper = TopicAdminApplication(
            self.client("keeper", random), chance(self.seed, "keeper"), names, HEAL_US, settings
        )
        self._begin_at(5 * MS_US, keeper)
        publishers = random.randint(2, 3 if many else 4)
        records = (RECORDS_AMONG_NODES if many else RECORDS) // publishers
        for number in range(publishers):
            acks: Acks = random.choice(("all", "all", "owner", "none") if number else ("all", "owner"))
            client = self.client(f"p{number}", random)
            rivalry = chance(self.seed, f"strength of {client.name}")
            publisher = PublisherApplication(
                client, chance(self.seed, client.name), names, QUIET_US, acks, records, rivalry
            )
            self.publishers.append(publisher)
            self._begin_at(200 * MS_US + number, publisher)
        if random.random() < 0.5:
            visits = chance(self.seed, "visits")
            death = chance(self.seed, "death")
            newcomer = lambda name: self.client(name, visits)  # noqa: E731
            visitor = ShortLivedPublisher(self.client("v", random), visits, names, HEAL_US, newcomer, death)
            self._begin_at(250 * MS_US, visitor)
        for number in range(2 if many else random.randint(2, 3)):
            client = self.client(f"s{number}", random)
            subscriber = SubscriberApplication(client, chance(self.seed, client.name), names, HEAL_US)
            self.subscribers.append(subscriber)
            self._begin_at(300 * MS_US + number, subscriber)
        gathering = chance(self.seed, "gathering")
        if gathering.random() < 0.5:
            gatherer = PatternSubscriber(self.client("g", gathering), gathering, HEAL_US)
            self.gatherers.append(gatherer)
            self._begin_at(310 * MS_US, gatherer)
        self._members(names)
        for number in range(random.randint(1, 2) if many else 0):
            client = self.client(f"r{number}", random)
            registrar = ConcurrentTopicAdmin(client, chance(self.seed, client.name), ["m0", "m1"], HEAL_US)
            self._begin_at(400 * MS_US + number, registrar)
        if self.swarm.removes:
            choice = chance(self.seed, "removing")
            self.leaver = choice.choice(self.nodes)
            begins_us = choice.randint(6 * SECOND_US, HEAL_US - 3 * SECOND_US)
            client = self.client("steward", random)
            steward = Operator(client, choice, self.leaver.id, begins_us, HEAL_US, may=self._may_remove)
            self._begin_at(500 * MS_US, steward)
            self.clock.at(begins_us, self._look_for_leaver, steward)

    def _members(self, topics: list[str]) -> None:
        """Of one named subscription, in some of the seeds."""
        random = chance(self.seed, "members")
        if random.random() >= MEMBERS_IN:
            return
        named = self.history.named["g"] = GroupHistory("g", random.sample(topics, random.randint(1, len(topics))))
        for number in range(random.randint(1, 3)):
            client = self.client(f"h{number}", random)
            come = lambda name: self.client(name, random)  # noqa: E731
            handler = GroupMemberApplication(client, chance(self.seed, client.name), named.topics, HEAL_US, named, come)
            self.handlers.append(handler)
            self._begin_at(350 * MS_US + number, handler)

    def _begin_at(self, time_us: int, application: Application) -> None:
        time_us += self.elected_us
        self.clock.at(time_us - 4 * MS_US, application.client.start)
        self.clock.at(time_us + 200 * MS_US, application.begin)

    def _may_remove(self) -> bool:
        """Where a disk is damaged three members stay, who may not have joined yet: of two copies one is no minority."""
        leaver = self.leaver
        assert leaver is not None
        enough = any(node.knows_members(besides=leaver.id) >= REPLICAS for node in self.nodes)
        return enough or not self.swarm.flip_every_us

    def _look_for_leaver(self, steward: Operator) -> None:
        """Until everybody who knows the catalogue knows that it is gone; then it is switched off."""
        leaver = self.leaver
        assert leaver is not None
        if any(node is not leaver and node.has_removed(leaver.id) for node in self.nodes):
            self.mischief.retire(leaver)
        elif steward.asked or not steward.over:
            self.clock.after(LOOK_EVERY_US, self._look_for_leaver, steward)

    @property
    def members(self) -> list[SimulatedNode]:
        """All but those that were removed."""
        return [node for node in self.nodes if node not in self.mischief.retired]

    # --- its story -----------------------------------------------------------------------------------

    def start(self) -> None:
        founders = len(self.nodes) - self.swarm.joiners
        for node in self.nodes[:founders]:
            node.start()
        joining = chance(self.seed, "joining")
        for node in self.nodes[founders:]:
            self.mischief.wait_outside(node)
            self.clock.at(joining.randint(self.elected_us + CALM_US, HEAL_US // 2), self.mischief.join, node)

    def run(self) -> None:
        clock = self.clock
        self.start()
        self.until(self.elected_us + CALM_US)
        self.mischief.begin()
        self.until(HEAL_US)
        self._heal()
        self._work_on()
        # Acks `owner` are given before the others have the record: a look right behind the last one would see less.
        self.until(max(END_US, clock.now_us + SECOND_US))
        while not self._settled() and clock.now_us < HEAL_US + CONVERGE_US:
            self.until(clock.now_us + LOOK_EVERY_US)
        self._look_around()
        if self.seed % 2 and self.swarm.syncs:
            # What was acknowledged must be there after a power cut at any time, now included.
            self.mischief.cut_power_once()
            self.until(clock.now_us + 2 * SECOND_US)
            until_us = clock.now_us + self._elections_us()
            while not self._works() and clock.now_us < until_us:
                self.until(clock.now_us + LOOK_EVERY_US)
        self._probe()
        for node in self.nodes:
            for counter, fault in COUNTED.items():
                self.tally.add(fault, node.files.counters[counter])

    def until(self, time_us: int) -> None:
        while True:
            try:
                self.clock.run_until(time_us)
                return
            except SimulatedCrash as outage:
                # Whatever the node was doing is not finished by anybody.
                self.mischief.outage(outage.files)

    def _heal(self) -> None:
        """First a majority, which must be enough; then everybody."""
        if len(self.nodes) == 1:
            self.mischief.heal()
            return
        voters = self._voters()
        random = chance(self.seed, "healing")
        alive = self._majority(voters, random) if self.swarm.stay_dead else self.members
        dead = [node for node in self.members if node not in alive]
        sound = self._sound(alive)
        places = [
            (partition, name)
            for partition, (name, configs) in sorted(voters.items())
            if partition != META and not is_internal(name) and all(_has_majority(sound, config) for config in configs)
        ]
        self.mischief.heal(dead)
        limit_us = self.clock.now_us + self._elections_us()
        for publisher in self.publishers:
            # Healing may take longer than the time they were given, and whoever went home makes up for nothing.
            publisher.ends_us = max(publisher.ends_us, limit_us + MAKE_UP_US)
        client = self.client("herald", random, [node.address for node in alive], self._elections_us() // 1000)
        herald = LivenessProbe(client, random, places, limit_us)
        herald.begin()
        while not herald.done and self.clock.now_us < limit_us:
            self.until(min(self.clock.now_us + LOOK_EVERY_US, limit_us))
        herald.give_up()
        self.mischief.call_back(dead)

    def _work_on(self) -> None:
        """Publishers go on a while after healing: a seed whose faults kept them from work makes up for it."""
        until_us = self.clock.now_us + MAKE_UP_US
        for publisher in self.publishers:
            publisher.ends_us = until_us
        self.until(QUIET_US)
        while self.history.operations < OPERATIONS_WANTED and self.clock.now_us < until_us:
            self.until(self.clock.now_us + LOOK_EVERY_US)
        for publisher in self.publishers:
            publisher.ends_us = self.clock.now_us

    def _voters(self) -> dict[Partition, tuple[str, list[tuple[NodeId, ...]]]]:
        """By what each node knows or last knew: the partitions, and who has a voice in them, or may have one soon.

        A change that is under way goes on while those who died are not missed yet: a majority is one before and after.
        """
        found: dict[Partition, tuple[str, list[tuple[NodeId, ...]]]] = {}
        for node in self.members:
            for partition, (name, config) in node.voters().items():
                found.setdefault(partition, (name, []))[1].append(config)
        _, ahead = max([node.prospects() for node in self.members], key=lambda known: known[0])
        for partition, (_, configs) in found.items():
            configs += ahead.get(partition, ())
        # What only somebody knows who was away was deleted meanwhile.
        return {partition: known for partition, known in found.items() if partition in ahead or not ahead}

    def _majority(
        self, voters: dict[Partition, tuple[str, list[tuple[NodeId, ...]]]], random: Random
    ) -> list[SimulatedNode]:
        """A random one, just large enough for the catalogue without the copies that were damaged."""
        order = random.sample(self.members, len(self.members))
        for count in range(len(order) // 2 + 1, len(order) + 1):
            alive = order[:count]
            sound = self._sound(alive)
            if all(_has_majority(sound, config) for config in voters.get(META, ("", []))[1]):
                return alive
        return order

    def _sound(self, nodes: list[SimulatedNode]) -> set[NodeId]:
        """Those whose disks were not damaged."""
        flipped = self.tally.counts[Fault.FLIPPED] > 0
        return {node.id for node in nodes if not flipped or node is not self.mischief.victim}

    def _waiting(self) -> list[str]:
        return [f"{client.name}: {what}" for client in self.clients for what in client.waiting]

    def _settled(self) -> bool:
        """Nobody waits for an answer, nobody lags, and nobody has yet to find out that a connection is dead."""
        if self._waiting() or not self._works() or self.network.mistaken:
            return False
        if not all(subscriber.at_end() for subscriber in self.subscribers):
            return False
        # Where the only copy is damaged, whoever wants all of it gets to no end.
        hopeless = bool(self.history.flipped) and not self.history.replicated
        return hopeless or (all(gatherer.at_end() for gatherer in self.gatherers) and self._steady())

    def _steady(self) -> bool:
        """The members of a name have nothing left to do, and no part is on its way from one to another."""
        now_us = self.clock.now_us
        generations = [handler.generation for handler in self.handlers if handler.at_end()]
        if generations != self._generations:
            self._generations, self._steady_since_us = generations, now_us
        return len(generations) == len(self.handlers) and (
            not generations or now_us - self._steady_since_us >= STEADY_US
        )

    def _works(self) -> bool:
        """Every node serves, and knows of everything it has a part in who leads it."""
        return all(node.listening and node.knows_leaders() for node in self.members)

    def _elections_us(self) -> int:
        return PROGRESS_ELECTIONS * self.nodes[0].raft_settings.election_timeout_ms_max * 1000

    def _look_around(self) -> None:
        self.history.unsettled += self._waiting()
        for subscriber in self.subscribers:
            subscriber.positions()
        for gatherer in self.gatherers:
            gatherer.retire()
        for link in self.network.links.values():
            link.client.watch(link)

    def _probe(self) -> None:
        history = self.history
        until_us = self.clock.now_us + 20 * SECOND_US
        probes = self._read_all(until_us)
        while self.clock.now_us < until_us and (
            any(probe.turned_away for probe in probes) or not history.places <= history.final.keys()
        ):
            # Reading may be what finds damage, and then others serve; or leadership went from one reader to another.
            self.until(self.clock.now_us + SECOND_US)
            history.final.clear()
            history.places.clear()
            probes = self._read_all(until_us)
        for probe in probes:
            if not probe.done or probe.turned_away:
                history.unsettled.append(f"{probe.name} did not get its answers")
        for topic, index in sorted(history.places - history.final.keys()):
            history.unsettled.append(f"nobody serves {history.listed.get(topic)}/{index}")
        for node in self.members:
            fabric = node.fabric
            if fabric is None:
                history.unsettled.append(f"{node.name} is not up")
                continue
            commits = fabric.commits()
            for partition, batches in logs_of(node.files).items():
                history.copies[node.id, partition] = below(batches, commits.get(partition, 0))

    def _read_all(self, until_us: int) -> list[FinalReader]:
        probes = [FinalReader(self.network, self.history, self.trace, node.id, node.address) for node in self.members]
        for probe in probes:
            probe.begin()
        while not all(probe.done for probe in probes) and self.clock.now_us < until_us:
            self.until(self.clock.now_us + LOOK_EVERY_US)
        return probes


def _has_majority(alive: set[NodeId], config: tuple[NodeId, ...]) -> bool:
    return not config or 2 * len(alive.intersection(config)) > len(config)
