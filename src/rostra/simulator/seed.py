"""One seed: a world is built, suffers, heals, and is judged."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from random import Random

import msgspec

from rostra.client.core.options import Options
from rostra.safeguards import ALL_ON, Without
from rostra.simulator.applications import Application, Keeper, Publisher, Subscriber, Visitor
from rostra.simulator.checkers import judge
from rostra.simulator.clients import Client
from rostra.simulator.clock import MS_US, SECOND_US, Clock, chance
from rostra.simulator.faults import Fault, Swarm, Tally
from rostra.simulator.files import FaultyFiles, Outage
from rostra.simulator.history import History
from rostra.simulator.links import Network
from rostra.simulator.mischief import Mischief
from rostra.simulator.node import Node, settings_for
from rostra.simulator.probe import Probe
from rostra.simulator.trace import Trace
from rostra.wire.messages import Acks, TopicSettings

CALM_US = SECOND_US
"""Nothing goes wrong before: topics are made, clients connect."""
HEAL_US = 25 * SECOND_US
CONVERGE_US = 40 * SECOND_US
END_US = 30 * SECOND_US
QUIET_US = 29 * SECOND_US
"""Publishers go on a while after healing: a seed whose faults kept them from work makes up for it."""
LOOK_EVERY_US = 100 * MS_US
OPERATIONS_MIN = 300

COUNTED = {
    "outages": Fault.OUTAGE,
    "bytes_lost": Fault.LOST_BYTES,
    "writes_torn": Fault.TORN_WRITE,
    "disk_full": Fault.FULL,
    "syncs_failed": Fault.FAILED_SYNC,
    "writes_failed": Fault.FAILED_WRITE,
}
"""What the disk counts by itself."""


class SeedResult(msgspec.Struct, frozen=True):
    seed: int
    digest: str
    violations: tuple[str, ...]
    faults: dict[Fault, int]
    operations: int
    events: int
    virtual_us: int
    cpu_s: float
    recent: tuple[str, ...] = ()
    """The last lines of the trace, where there was a violation."""


class World:
    """Everything of one seed."""

    def __init__(
        self,
        seed: int,
        without: Without = ALL_ON,
        show: Callable[[str], None] | None = None,
        swarm: Swarm | None = None,
    ) -> None:
        self.seed = seed
        self.clock = Clock()
        self.trace = Trace(self.clock, show)
        self.history = History()
        self.tally = Tally()
        self.swarm = swarm or Swarm.draw(chance(seed, "swarm"))
        self.files = FaultyFiles(chance(seed, "disk"))
        random = chance(seed, "world")
        self.node = Node(
            self.clock,
            self.trace,
            self.swarm,
            self.tally,
            self.history,
            self.files,
            settings_for(random),
            chance(seed, "node"),
            without,
        )
        self.network = Network(self.clock, self.swarm, self.tally, chance(seed, "network"), self.node)
        self.node.network = self.network
        self.mischief = Mischief(
            self.clock,
            self.trace,
            self.swarm,
            self.tally,
            chance(seed, "mischief"),
            self.node,
            self.network,
            self.files,
            self.history,
        )
        self.clients: list[Client] = []
        self.subscribers: list[Subscriber] = []
        self._people(random)

    def _client(self, name: str, random: Random) -> Client:
        options = Options(
            auto_create=False,
            connect_timeout_ms=2_000,
            call_timeout_ms=random.choice((1_000, 8_000)),
            delivery_timeout_ms=random.choice((1_500, 12_000, 60_000)),
            backoff_ms_max=random.choice((200, 1_000)),
        )
        client = Client(
            name, self.clock, self.trace, self.history, self.network, options, chance(self.seed, f"client {name}")
        )
        self.clients.append(client)
        return client

    def _people(self, random: Random) -> None:
        """Who is in this world and what they are up to."""
        names = [f"t{number}" for number in range(random.randint(2, 4))]
        settings = {
            name: TopicSettings(
                partitions=random.randint(1, 3),
                segment_bytes=4096,
                retention_bytes=random.choice((0, 0, 0, 6_000)),
                retention_ms=random.choice((0, 0, 0, 0, 8_000)),
            )
            for name in names
        }
        keeper = Keeper(self._client("keeper", random), chance(self.seed, "keeper"), names, HEAL_US, settings)
        self._begin_at(5 * MS_US, keeper)
        publishers = random.randint(2, 4)
        for number in range(publishers):
            acks: Acks = random.choice(("all", "all", "owner", "none") if number else ("all", "owner"))
            client = self._client(f"p{number}", random)
            publisher = Publisher(client, chance(self.seed, client.name), names, QUIET_US, acks, 900 // publishers)
            self._begin_at(200 * MS_US + number, publisher)
        if random.random() < 0.5:
            visits = chance(self.seed, "visits")
            visitor = Visitor(
                self._client("v", random), visits, names, HEAL_US, lambda name: self._client(name, visits)
            )
            self._begin_at(250 * MS_US, visitor)
        for number in range(random.randint(2, 3)):
            client = self._client(f"s{number}", random)
            subscriber = Subscriber(client, chance(self.seed, client.name), names, HEAL_US)
            self.subscribers.append(subscriber)
            self._begin_at(300 * MS_US + number, subscriber)

    def _begin_at(self, time_us: int, application: Application) -> None:
        self.clock.at(time_us - 4 * MS_US, application.client.start)
        self.clock.at(time_us + 200 * MS_US, application.begin)

    # --- its story -----------------------------------------------------------------------------------

    def run(self) -> None:
        clock = self.clock
        self.node.start()
        self._until(CALM_US)
        self.mischief.begin()
        self._until(HEAL_US)
        self.mischief.heal()
        self._until(END_US)
        while not self._settled() and clock.now_us < HEAL_US + CONVERGE_US:
            self._until(clock.now_us + LOOK_EVERY_US)
        self._look_around()
        if self.seed % 2 and self.swarm.syncs:
            # What was acknowledged must be there after a power cut at any time, now included.
            self.mischief.cut_power_once()
            self._until(clock.now_us + 2 * SECOND_US)
        probe = Probe(self.network, self.history, self.trace)
        probe.begin()
        until_us = clock.now_us + 10 * SECOND_US
        while not probe.done and clock.now_us < until_us:
            self._until(clock.now_us + LOOK_EVERY_US)
        if not probe.done:
            self.history.unsettled.append("the probe did not get its answers")
        for counter, fault in COUNTED.items():
            self.tally.add(fault, self.files.counters[counter])

    def _until(self, time_us: int) -> None:
        while True:
            try:
                self.clock.run_until(time_us)
                return
            except Outage:
                # Whatever the node was doing is not finished by anybody.
                self.mischief.outage()

    def _waiting(self) -> list[str]:
        return [f"{client.name}: {what}" for client in self.clients for what in client.waiting]

    def _settled(self) -> bool:
        """Nobody waits for an answer, and nobody lags."""
        return not self._waiting() and all(subscriber.at_end() for subscriber in self.subscribers)

    def _look_around(self) -> None:
        self.history.unsettled += self._waiting()
        for subscriber in self.subscribers:
            subscriber.positions()
        for link in self.network.links.values():
            link.client.watch(link)


def run_seed(seed: int, *, without: Without = ALL_ON, show: Callable[[str], None] | None = None) -> SeedResult:
    began_s = time.process_time()
    world = World(seed, without, show)
    history, clock = world.history, world.clock
    try:
        world.run()
    except Exception:
        history.escaped.append(f"running the world: {traceback.format_exc()}")
    violations = judge(history)
    if clock.now_us < END_US or history.operations < OPERATIONS_MIN:
        violations.append(f"the seed is too short: {history.operations} operations in {clock.now_us} us")
    return SeedResult(
        seed=seed,
        digest=world.trace.digest(),
        violations=tuple(violations),
        faults=world.tally.counts,
        operations=history.operations,
        events=clock.events,
        virtual_us=clock.now_us,
        cpu_s=time.process_time() - began_s,
        recent=tuple(world.trace.lines()) if violations else (),
    )
