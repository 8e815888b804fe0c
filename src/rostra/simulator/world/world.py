"""Builds and runs the simulated cluster of one seed.

Theory of operation. Everything in a seed runs on one thread, on the virtual time of one `Clock`; every random decision
comes from generators that are seeded by the seed and a purpose, so a seed always takes the same course. The life of a
seed, whose times are in `WorldBounds`:

1. Build: the seed draws a `FaultPlan` (which faults, how often, how many nodes), settings with small bounds, the nodes,
   and the client applications. Nodes and clients are the production state machines; the clock, the networks and the
   disks are simulated.
2. Run under faults: for the first second nothing fails, so that nodes elect leaders and clients connect. Then the
   `FaultInjector` injects the faults of the plan until `heal_us`. Nodes may join and one may be removed meanwhile.
3. Heal: all faults end. In half of the seeds only a random majority restarts at first, and a `LivenessProbe` must
   change metadata and write to every partition with a majority within ten election timeouts. Then all nodes restart.
4. Converge: publishers finish their records, then the world runs until no client waits for a reply, every subscription
   is at the end of its partitions and every node is caught up, or until `converge_us` has passed. In every second seed
   the power of all nodes is cut once more after that.
5. Read the final state: a `FinalReader` per node reads all that the node owns over the wire, and the log files of all
   nodes are read from the simulated disks.

Steps 2 to 5 write what happened into the `History`; the checkers judge it afterwards (`rostra.simulator.seed`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rostra.client.core.options import Options
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.raft.replica_assignments import REPLICAS_DEFAULT
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
from rostra.simulator.clock import MS_US, SECOND_US, Clock, random_for
from rostra.simulator.disk.faulty_files import FaultyFiles, SimulatedCrash
from rostra.simulator.faults.fault_injector import FaultInjector
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import GroupHistory, History
from rostra.simulator.network.client_network import ClientNetwork
from rostra.simulator.network.peer_network import PeerNetwork
from rostra.simulator.trace import Trace
from rostra.simulator.world.bounds import WorldBounds
from rostra.simulator.world.fabric_observer import committed_batches, read_logs
from rostra.simulator.world.settings import raft_settings_for, settings_for
from rostra.simulator.world.simulated_node import SimulatedNode, member
from rostra.wire.messages import Acks, TopicSettings

POLL_US = 100 * MS_US
STABLE_US = 3 * SECOND_US
"""Longer than a member lease, so that crashed members have expired."""

DISK_COUNTERS = {
    "outages": Fault.CRASH_IN_IO,
    "bytes_lost": Fault.LOST_BYTES,
    "writes_torn": Fault.TORN_WRITE,
    "disk_full": Fault.DISK_FULL,
    "syncs_failed": Fault.FAILED_SYNC,
    "writes_failed": Fault.FAILED_WRITE,
}
"""Counters of the simulated disk and the faults they count."""


class World:
    """One simulated cluster. `nodes` overrides the number of nodes that the seed draws; 0 keeps it."""

    node_type: type[SimulatedNode] = SimulatedNode
    excluded_faults: tuple[Fault, ...] = ()
    """Faults that this kind of world never injects."""
    auto_create = False

    def __init__(
        self,
        seed: int,
        without: Without = ALL_ON,
        show: Callable[[str], None] | None = None,
        plan: FaultPlan | None = None,
        *,
        nodes: int = 0,
        bounds: WorldBounds | None = None,
    ) -> None:
        self.seed = seed
        self.bounds = bounds or WorldBounds()
        self.clock = Clock(self.bounds.events_max)
        self.trace = Trace(self.clock, show)
        self.fault_counts = FaultCounts()
        self.plan = plan or FaultPlan.draw(random_for(seed, "swarm"))
        if nodes:
            self.plan = self.plan.with_nodes(nodes)
        self.history = History(replicated=self.plan.nodes > 1)
        self._adjust_plan()
        random = random_for(seed, "world")
        self.client_network = ClientNetwork(self.clock, self.plan, self.fault_counts, random_for(seed, "network"))
        self.peer_network = PeerNetwork(
            self.clock, self.trace, self.plan, self.fault_counts, self.history, random_for(seed, "mesh")
        )
        self.nodes = self._build(random, without)
        self.injector = FaultInjector(
            self.clock,
            self.trace,
            self.plan,
            self.fault_counts,
            random_for(seed, "mischief"),
            self.nodes,
            self.client_network,
            self.peer_network,
            self.history,
        )
        self.election_us = 8 * self.plan.heartbeat_ms * 1000 if len(self.nodes) > 1 else 0
        """When the first leaders should be elected."""
        self.leaving_node: SimulatedNode | None = None
        """The node that an operator removes, if the plan has one."""
        self.clients: list[SimulatedClient] = []
        self.publishers: list[PublisherApplication] = []
        self.subscribers: list[SubscriberApplication] = []
        self.pattern_subscribers: list[PatternSubscriber] = []
        self.group_members: list[GroupMemberApplication] = []
        self._generations: list[int] = []
        self._stable_since_us = 0
        self._add_applications(random)

    def _adjust_plan(self) -> None:
        """Adapts the drawn fault plan to the fabric; the default changes nothing."""

    def _build(self, random: Random, without: Without) -> list[SimulatedNode]:
        settings = settings_for(random)
        raft_settings = raft_settings_for(self.plan, random)
        nodes: list[SimulatedNode] = []
        founders = self.plan.nodes - self.plan.joiners
        founding = tuple(member(one) for one in range(1, founders + 1))
        for number in range(1, self.plan.nodes + 1):
            node = self.node_type(
                number,
                self.clock,
                self.trace,
                self.plan,
                self.fault_counts,
                self.history,
                FaultyFiles(random_for(self.seed, f"disk {number}")),
                settings,
                raft_settings,
                random_for(self.seed, f"node {number}"),
                without,
            )
            node.client_network, node.peer_network = self.client_network, self.peer_network
            if number <= founders:
                node.founders = founding
            else:
                node.founders = ()
                node.join = tuple(member(one).peer_address for one in random.sample(range(1, number), 2))
            self.client_network.hosts[node.address] = node
            nodes.append(node)
        self.peer_network.add(nodes)
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
            name,
            self.clock,
            self.trace,
            self.history,
            self.client_network,
            options,
            random_for(self.seed, f"client {name}"),
        )
        self.clients.append(client)
        return client

    def _add_applications(self, random: Random) -> None:
        """Creates the clients of this world and schedules their applications."""
        many = len(self.nodes) > 1
        names = [f"t{number}" for number in range(random.randint(2, 3 if many else 4))]
        owns = random_for(self.seed, "ownership")
        compacts = random_for(self.seed, "compaction")
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
        topic_admin = TopicAdminApplication(
            self.client("keeper", random), random_for(self.seed, "keeper"), names, self.bounds.heal_us, settings
        )
        self._start_at(5 * MS_US, topic_admin)
        publishers = random.randint(2, 3 if many else 4)
        records = (self.bounds.records_in_cluster if many else self.bounds.records) // publishers
        for number in range(publishers):
            acks: Acks = random.choice(("all", "all", "owner", "none") if number else ("all", "owner"))
            client = self.client(f"p{number}", random)
            strength_random = random_for(self.seed, f"strength of {client.name}")
            publisher = PublisherApplication(
                client,
                random_for(self.seed, client.name),
                names,
                self.bounds.publish_until_us,
                acks,
                records,
                strength_random,
            )
            self.publishers.append(publisher)
            self._start_at(200 * MS_US + number, publisher)
        if random.random() < 0.5:
            visits = random_for(self.seed, "visits")
            death = random_for(self.seed, "death")
            new_client = lambda name: self.client(name, visits)  # noqa: E731
            short_lived = ShortLivedPublisher(
                self.client("v", random), visits, names, self.bounds.heal_us, new_client, death
            )
            self._start_at(250 * MS_US, short_lived)
        for number in range(2 if many else random.randint(2, 3)):
            client = self.client(f"s{number}", random)
            subscriber = SubscriberApplication(client, random_for(self.seed, client.name), names, self.bounds.heal_us)
            self.subscribers.append(subscriber)
            self._start_at(300 * MS_US + number, subscriber)
        pattern_random = random_for(self.seed, "gathering")
        if pattern_random.random() < 0.5:
            pattern_subscriber = PatternSubscriber(
                self.client("g", pattern_random), pattern_random, self.bounds.heal_us
            )
            self.pattern_subscribers.append(pattern_subscriber)
            self._start_at(310 * MS_US, pattern_subscriber)
        self._add_group_members(names)
        for number in range(random.randint(1, 2) if many else 0):
            client = self.client(f"r{number}", random)
            concurrent_admin = ConcurrentTopicAdmin(
                client, random_for(self.seed, client.name), ["m0", "m1"], self.bounds.heal_us
            )
            self._start_at(400 * MS_US + number, concurrent_admin)
        if self.plan.removes:
            choice = random_for(self.seed, "removing")
            self.leaving_node = choice.choice(self.nodes)
            begins_us = choice.randint(6 * SECOND_US, self.bounds.heal_us - 3 * SECOND_US)
            client = self.client("steward", random)
            operator = Operator(
                client, choice, self.leaving_node.id, begins_us, self.bounds.heal_us, is_allowed=self._may_remove
            )
            self._start_at(500 * MS_US, operator)
            self.clock.at(begins_us, self._await_removal, operator)

    def _add_group_members(self, topics: list[str]) -> None:
        """Adds the members of one consumer group, in some of the seeds."""
        random = random_for(self.seed, "members")
        if random.random() >= self.bounds.group_share:
            return
        group = self.history.groups["g"] = GroupHistory("g", random.sample(topics, random.randint(1, len(topics))))
        for number in range(random.randint(1, 3)):
            client = self.client(f"h{number}", random)
            new_client = lambda name: self.client(name, random)  # noqa: E731
            member = GroupMemberApplication(
                client, random_for(self.seed, client.name), group.topics, self.bounds.heal_us, group, new_client
            )
            self.group_members.append(member)
            self._start_at(350 * MS_US + number, member)

    def _start_at(self, time_us: int, application: Application) -> None:
        time_us += self.election_us
        self.clock.at(time_us - 4 * MS_US, application.client.start)
        self.clock.at(time_us + 200 * MS_US, application.begin)

    def _may_remove(self) -> bool:
        """Whether a node may be removed now.

        Where bits are flipped, three other members must exist: of two replicas the damaged one is no minority.
        """
        leaving_node = self.leaving_node
        assert leaving_node is not None
        enough = any(node.member_count(besides=leaving_node.id) >= REPLICAS_DEFAULT for node in self.nodes)
        return enough or not self.plan.flip_every_us

    def _await_removal(self, operator: Operator) -> None:
        """Polls until another node has applied the removal, then shuts the removed node down for good."""
        leaving_node = self.leaving_node
        assert leaving_node is not None
        if any(node is not leaving_node and node.has_removed(leaving_node.id) for node in self.nodes):
            self.injector.retire(leaving_node)
        elif operator.requested or not operator.over:
            self.clock.after(POLL_US, self._await_removal, operator)

    @property
    def members(self) -> list[SimulatedNode]:
        """All nodes that were not removed."""
        return [node for node in self.nodes if node not in self.injector.retired]

    # --- the phases of a seed ------------------------------------------------------------------------

    def start(self) -> None:
        founders = len(self.nodes) - self.plan.joiners
        for node in self.nodes[:founders]:
            node.start()
        joining = random_for(self.seed, "joining")
        for node in self.nodes[founders:]:
            self.injector.hold_back(node)
            self.clock.at(
                joining.randint(self.election_us + self.bounds.calm_us, self.bounds.heal_us // 2),
                self.injector.join,
                node,
            )

    def run(self) -> None:
        clock = self.clock
        self.start()
        self.until(self.election_us + self.bounds.calm_us)
        self.injector.begin()
        self.until(self.bounds.heal_us)
        self._heal()
        self._publish_until_enough()
        # `acks=owner` is sent before the followers have the record: reading right after the last one would see less.
        self.until(max(self.bounds.end_us, clock.now_us + SECOND_US))
        while not self._has_converged() and clock.now_us < self.bounds.heal_us + self.bounds.converge_us:
            self.until(clock.now_us + POLL_US)
        self._record_final_positions()
        if self.seed % 2 and self.plan.syncs:
            # Acknowledged records must survive a power cut at any time.
            self.injector.cut_all_power()
            self.until(clock.now_us + 2 * SECOND_US)
            until_us = clock.now_us + self._election_limit_us()
            while not self._is_serving() and clock.now_us < until_us:
                self.until(clock.now_us + POLL_US)
        self._read_final_state()
        for node in self.nodes:
            for counter, fault in DISK_COUNTERS.items():
                self.fault_counts.add(fault, node.files.counters[counter])

    def until(self, time_us: int) -> None:
        while True:
            try:
                self.clock.run_until(time_us)
                return
            except SimulatedCrash as crash_in_io:
                # The crash unwound the node in the middle of a step.
                self.injector.crash_in_io(crash_in_io.files)

    def _heal(self) -> None:
        """Ends all faults; if the plan says so, restarts a majority first and checks that it makes progress."""
        if len(self.nodes) == 1:
            self.injector.heal()
            return
        voters = self._voters()
        random = random_for(self.seed, "healing")
        alive = self._majority(voters, random) if self.plan.minority_stays_down else self.members
        dead = [node for node in self.members if node not in alive]
        undamaged = self._undamaged(alive)
        partitions = [
            (partition, name)
            for partition, (name, configs) in sorted(voters.items())
            if partition != METADATA_PARTITION
            and not is_internal(name)
            and all(_has_majority(undamaged, config) for config in configs)
        ]
        self.injector.heal(dead)
        limit_us = self.clock.now_us + self._election_limit_us()
        for publisher in self.publishers:
            # Publishers must still run after healing, however long it takes, to reach the wanted operations.
            publisher.ends_us = max(publisher.ends_us, limit_us + self.bounds.extra_time_us)
        client = self.client("herald", random, [node.address for node in alive], self._election_limit_us() // 1000)
        probe = LivenessProbe(client, random, partitions, limit_us)
        probe.begin()
        while not probe.done and self.clock.now_us < limit_us:
            self.until(min(self.clock.now_us + POLL_US, limit_us))
        probe.give_up()
        self.injector.restart_nodes(dead)

    def _publish_until_enough(self) -> None:
        """Lets publishers continue after healing until the seed has enough operations."""
        until_us = self.clock.now_us + self.bounds.extra_time_us
        for publisher in self.publishers:
            publisher.ends_us = until_us
        self.until(self.bounds.publish_until_us)
        while self.history.operations < self.bounds.operations_wanted and self.clock.now_us < until_us:
            self.until(self.clock.now_us + POLL_US)
        for publisher in self.publishers:
            publisher.ends_us = self.clock.now_us

    def _voters(self) -> dict[Partition, tuple[str, list[tuple[NodeId, ...]]]]:
        """Partitions by id, each with its name and every voter set it has or may have soon, as the nodes know them.

        A membership change under way may complete before dead nodes are suspected, so a majority must be one in the
        old and in the new configuration.
        """
        found: dict[Partition, tuple[str, list[tuple[NodeId, ...]]]] = {}
        for node in self.members:
            for partition, (name, config) in node.voters().items():
                found.setdefault(partition, (name, []))[1].append(config)
        _, upcoming = max([node.upcoming_voters() for node in self.members], key=lambda known: known[0])
        for partition, (_, configs) in found.items():
            configs += upcoming.get(partition, ())
        # A partition known only to a node that was down has been deleted meanwhile.
        return {partition: known for partition, known in found.items() if partition in upcoming or not upcoming}

    def _majority(
        self, voters: dict[Partition, tuple[str, list[tuple[NodeId, ...]]]], random: Random
    ) -> list[SimulatedNode]:
        """A random set of nodes, just large enough for a metadata quorum without the damaged replicas."""
        order = random.sample(self.members, len(self.members))
        for count in range(len(order) // 2 + 1, len(order) + 1):
            alive = order[:count]
            undamaged = self._undamaged(alive)
            if all(_has_majority(undamaged, config) for config in voters.get(METADATA_PARTITION, ("", []))[1]):
                return alive
        return order

    def _undamaged(self, nodes: list[SimulatedNode]) -> set[NodeId]:
        """Ids of the nodes without flipped bits on their disks."""
        flipped = self.fault_counts.counts[Fault.FLIPPED] > 0
        return {node.id for node in nodes if not flipped or node is not self.injector.damaged_node}

    def _pending_calls(self) -> list[str]:
        return [f"{client.name}: {what}" for client in self.clients for what in client.waiting]

    def _has_converged(self) -> bool:
        """Whether no call is pending, no subscription lags and no client still uses a dead connection."""
        if self._pending_calls() or not self._is_serving() or self.client_network.has_stale_links:
            return False
        if not all(subscriber.is_at_end() for subscriber in self.subscribers):
            return False
        # With the only replica damaged, a reader of the whole partition never finishes.
        cannot_finish = bool(self.history.flipped) and not self.history.replicated
        return cannot_finish or (
            all(pattern_subscriber.is_at_end() for pattern_subscriber in self.pattern_subscribers)
            and self._groups_are_stable()
        )

    def _groups_are_stable(self) -> bool:
        """Whether all group members are idle and the assignment has not changed for `STABLE_US`."""
        now_us = self.clock.now_us
        generations = [member.generation for member in self.group_members if member.is_at_end()]
        if generations != self._generations:
            self._generations, self._stable_since_us = generations, now_us
        return len(generations) == len(self.group_members) and (
            not generations or now_us - self._stable_since_us >= STABLE_US
        )

    def _is_serving(self) -> bool:
        """Whether every node accepts clients and is caught up."""
        return all(node.listening and node.is_caught_up() for node in self.members)

    def _election_limit_us(self) -> int:
        return self.bounds.elections * self.nodes[0].raft_settings.election_timeout_ms_max * 1000

    def _record_final_positions(self) -> None:
        self.history.unsettled += self._pending_calls()
        for subscriber in self.subscribers:
            subscriber.record_positions()
        for pattern_subscriber in self.pattern_subscribers:
            pattern_subscriber.record_final_topics()
        for link in self.client_network.links.values():
            link.client.record_in_flight(link)

    def _read_final_state(self) -> None:
        history = self.history
        until_us = self.clock.now_us + 20 * SECOND_US
        readers = self._read_all(until_us)
        while self.clock.now_us < until_us and (
            any(reader.moved for reader in readers) or not history.listed_partitions <= history.final.keys()
        ):
            # Reading may discover damage and move leadership, so that the partition must be read elsewhere.
            self.until(self.clock.now_us + SECOND_US)
            history.final.clear()
            history.listed_partitions.clear()
            readers = self._read_all(until_us)
        for reader in readers:
            if not reader.done or reader.moved:
                history.unsettled.append(f"{reader.name} did not finish reading")
        for topic, index in sorted(history.listed_partitions - history.final.keys()):
            history.unsettled.append(f"no node serves {history.listed.get(topic)}/{index}")
        for node in self.members:
            fabric = node.fabric
            if fabric is None:
                history.unsettled.append(f"{node.name} is not up")
                continue
            commits = fabric.commits()
            for partition, batches in read_logs(node.files).items():
                history.final_logs[node.id, partition] = committed_batches(batches, commits.get(partition, 0))

    def _read_all(self, until_us: int) -> list[FinalReader]:
        readers = [
            FinalReader(self.client_network, self.history, self.trace, node.id, node.address) for node in self.members
        ]
        for reader in readers:
            reader.begin()
        while not all(reader.done for reader in readers) and self.clock.now_us < until_us:
            self.until(self.clock.now_us + POLL_US)
        return readers


def _has_majority(alive: set[NodeId], config: tuple[NodeId, ...]) -> bool:
    return not config or 2 * len(alive.intersection(config)) > len(config)
