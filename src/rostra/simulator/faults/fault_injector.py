"""Brings about the faults that a seed has drawn, and mends them: the weather, and the operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from rostra.log.journal import PATH as JOURNAL_PATH
from rostra.log.journal import known_marks
from rostra.model.batch import HEADER_BYTES, base_offset, batch_length
from rostra.model.ids import Partition
from rostra.simulator.clock import MS_US, SECOND_US, Clock
from rostra.simulator.disk.faulty_files import FaultyFiles
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import History
from rostra.simulator.network.client_network import ClientNetwork
from rostra.simulator.network.peer_network import PeerNetwork
from rostra.simulator.network.splits import BLIP_US, NetworkSplit, draw_ways
from rostra.simulator.trace import Trace
from rostra.simulator.world.fabric_observer import partition_of
from rostra.simulator.world.simulated_node import SimulatedNode

RETRY_US = 400 * MS_US
STOP_PATIENCE_US = 3 * SECOND_US


class FaultInjector:
    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        swarm: FaultPlan,
        tally: FaultCounts,
        random: Random,
        nodes: Sequence[SimulatedNode],
        network: ClientNetwork,
        mesh: PeerNetwork,
        history: History,
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._swarm = swarm
        self._tally = tally
        self._random = random
        self._nodes = nodes
        self._network = network
        self._mesh = mesh
        self._history = history
        self._healed = False
        self._with_power: dict[SimulatedNode, bool] = {}
        self._waiting: dict[SimulatedNode, None] = {}
        """Nodes that have not joined yet, or stay dead for now: nobody starts them."""
        self.retired: dict[SimulatedNode, None] = {}
        """Nodes that were removed from the cluster, and switched off for good."""
        self.victim = random.choice(nodes)
        """Whose disk is damaged; one copy of three is a minority in every group."""
        for node in nodes:
            node.stopped = self._restart_soon
            node.broke = self._mend

    def begin(self) -> None:
        self._network.calm = self._mesh.calm = False
        swarm = self._swarm
        for node in self._nodes:
            node.calm = False
            node.files.faults.sync_failure_chance = swarm.sync_fails
            node.files.faults.write_failure_chance = swarm.write_fails
        for every_us, strike in (
            (swarm.cut_every_us, self._cut),
            (swarm.pause_every_us, self._pause),
            (swarm.kill_every_us, self._kill),
            (swarm.power_every_us, self._cut_power),
            (swarm.stop_every_us, self._stop),
            (swarm.flip_every_us, self._flip),
            (swarm.full_every_us, self._fill),
            (swarm.skew_every_us, self._skew),
            (swarm.split_every_us, self._split),
            (swarm.all_power_every_us, self._cut_all_power),
        ):
            if every_us:
                self._strike_after(every_us, strike)

    def _strike_after(self, every_us: int, strike: Callable[[], None]) -> None:
        self._clock.after(int(self._random.expovariate(1 / every_us)) + 1, self._strike, every_us, strike)

    def _strike(self, every_us: int, strike: Callable[[], None]) -> None:
        if not self._healed:
            strike()
            self._strike_after(every_us, strike)

    def _someone(self) -> SimulatedNode:
        return self._random.choice(self._nodes) if len(self._nodes) > 1 else self._nodes[0]

    def heal(self, dead: Sequence[SimulatedNode] = ()) -> None:
        """From now on nothing goes wrong any more; these nodes stay dead until they are called back."""
        self._healed = True
        self._trace.note("world", "heal", said=[node.name for node in dead])
        self._network.calm = self._mesh.calm = True
        self._mesh.splits.clear()
        for node in self._nodes:
            if node in self.retired:
                continue
            self._waiting.pop(node, None)
            node.files.faults.capacity_bytes = node.files.faults.operations_left = None
            node.files.faults.sync_failure_chance = node.files.faults.write_failure_chance = 0.0
            node.skew_us = 0
            node.calm = True
            if node in dead:
                self._waiting[node] = None
                self._tally.add(Fault.LEFT_DEAD)
                if node.up:
                    self._die(node, power=self._swarm.syncs)
                continue
            if node.up and node.needs_restart:
                self._die(node, power=False)
            self._restart(node)

    def call_back(self, dead: Sequence[SimulatedNode]) -> None:
        for node in dead:
            self._waiting.pop(node, None)
            self._restart(node)

    # --- the weather -----------------------------------------------------------------------------------

    def _cut(self) -> None:
        self._network.cut_one(half_open=self._random.random() < self._swarm.half_open)

    def _pause(self) -> None:
        self._someone().pause(self._random.randint(1, self._swarm.pause_us))

    def _kill(self) -> None:
        self._end(self._someone(), power=False)

    def _cut_power(self) -> None:
        self._end(self._someone(), power=True)

    def _cut_all_power(self) -> None:
        if self._swarm.syncs and len(self._nodes) > 1:
            self._tally.add(Fault.ALL_POWER)
            for node in self._nodes:
                if node.up:
                    self.end_now(node, power=True)

    def _end(self, node: SimulatedNode, *, power: bool) -> None:
        """Now, or between two of the next disk operations."""
        if not node.up:
            return
        self._with_power[node] = power
        if self._random.random() < self._swarm.outage and not self._healed:
            node.files.faults.operations_left = self._random.choice((0, 1, 2, 5, 12))
        else:
            self.end_now(node, power=power)

    def outage(self, files: FaultyFiles) -> None:
        """The operation came at which a process was to end."""
        node = next(node for node in self._nodes if node.files is files)
        self.end_now(node, power=self._with_power.get(node, False))

    def end_now(self, node: SimulatedNode, *, power: bool) -> None:
        node.files.faults.operations_left = None
        self._die(node, power=power)
        self._restart_soon(node)

    def _die(self, node: SimulatedNode, *, power: bool) -> None:
        node.die(power=power)
        for path in node.files.bereft:
            if path.endswith(".log"):
                partition = partition_of(path)
                self._history.torn.add((partition.topic, partition.index))

    def cut_power_once(self) -> None:
        for node in self._nodes:
            if node in self.retired:
                continue
            self._die(node, power=True)
            self._clock.after(SECOND_US // 10, self._restart, node)

    def _stop(self) -> None:
        node = self._someone()
        if node.up:
            node.stop()
            self._clock.after(STOP_PATIENCE_US, self._lose_patience, node, node.incarnation)

    def _lose_patience(self, node: SimulatedNode, incarnation: int) -> None:
        if node.up and node.incarnation == incarnation:
            self.end_now(node, power=False)

    def _fill(self) -> None:
        files = self._someone().files
        files.faults.capacity_bytes = files.used_bytes + self._random.choice((0, 300, 3_000))
        self._trace.note("disk", "full")
        self._clock.after(self._random.randint(1, self._swarm.full_us), self._free, files)

    def _free(self, files: FaultyFiles) -> None:
        files.faults.capacity_bytes = None
        self._trace.note("disk", "freed")

    def _skew(self) -> None:
        self._someone().skew_us = self._random.randint(-self._swarm.skew_us, self._swarm.skew_us)

    def _split(self) -> None:
        if len(self._nodes) < 3:
            return
        shape = Fault(self._random.choice(self._swarm.splits))
        flaps = self._random.random() < self._swarm.blips
        now_us = self._clock.now_us
        last_us = self._random.choice((BLIP_US, 3 * BLIP_US, 20 * BLIP_US)) if flaps else self._swarm.split_us
        ways = draw_ways(shape, [node.id for node in self._nodes], self._random)
        until_us = now_us + (last_us if flaps else self._random.randint(BLIP_US, last_us))
        split = NetworkSplit(shape, ways, now_us, until_us, flaps=flaps)
        self._mesh.splits.append(split)
        self._trace.note("mesh", "split", shape.encode(), (shape, until_us - now_us, "flaps" if flaps else "stays"))
        self._clock.at(until_us, self._mend_split, split)

    def _mend_split(self, split: NetworkSplit) -> None:
        if split in self._mesh.splits:
            self._mesh.splits.remove(split)
            self._trace.note("mesh", "mended", split.shape.encode())

    def _flip(self) -> None:
        """One bit in bytes that the node knows to be on stable storage: anywhere else damage looks like a torn end.

        Or one in an index, which must do no harm at all: the segment beside it decides.
        """
        files = self.victim.files
        indexes = [path for path in files.paths("topics") if path.endswith(".index")]
        if indexes and self._random.random() < 0.3:
            path = self._random.choice(indexes)
            size = len(files.durable_bytes(path))
            if size:
                files.flip_bit(path, self._random.randrange(size), self._random.randrange(8))
                self._tally.add(Fault.FLIPPED)
                self._trace.note("disk", "flip", path.encode(), path)
            return
        marks = known_marks(files.durable_bytes(JOURNAL_PATH)) if JOURNAL_PATH in files.paths("") else {}
        known = [
            (path, size)
            for path in files.paths("topics")
            if path.endswith(".log") and (size := self._known_bytes(files, path, marks)) > 0
        ]
        if not known:
            return
        path, size = self._random.choice(known)
        position = self._random.randrange(size)
        files.flip_bit(path, position, self._random.randrange(8))
        partition = partition_of(path)
        self._history.flipped.add((partition.topic, partition.index))
        self._history.flipped_at.add((self.victim.id, partition))
        self._tally.add(Fault.FLIPPED)
        self._trace.note("disk", "flip", path.encode(), f"{path} at {position}")

    def _known_bytes(self, files: FaultyFiles, path: str, marks: dict[Partition, int]) -> int:
        """How many bytes of a segment lie below the known-synced mark of its partition."""
        partition = partition_of(path)
        synced = marks.get(partition, 0)
        written = files.durable_bytes(path)
        if partition.topic == 0 and len(self._nodes) == 1:
            # Without its catalogue a node has no topics to report about.
            return 0
        at = 0
        while at + HEADER_BYTES <= len(written) and written[at : at + 4] == b"RST1":
            length = batch_length(written, at)
            if base_offset(written, at) >= synced or length < HEADER_BYTES:
                break
            at += length
        return min(at, len(written))

    # --- the operator ----------------------------------------------------------------------------------

    def wait_outside(self, node: SimulatedNode) -> None:
        """It is no member yet."""
        self._waiting[node] = None

    def join(self, node: SimulatedNode) -> None:
        if node in self._waiting and not self._healed:
            del self._waiting[node]
            self._tally.add(Fault.JOINED)
            self._trace.note("world", "join", said=node.name)
            self._restart(node)

    def retire(self, node: SimulatedNode) -> None:
        """The cluster has removed it: somebody takes it away."""
        self.retired[node] = self._waiting[node] = None
        self._tally.add(Fault.REMOVED)
        self._trace.note("world", "retire", said=node.name)
        if node.up:
            node.die(power=False)

    def _restart_soon(self, node: SimulatedNode) -> None:
        self._clock.after(self._random.randint(1, self._swarm.down_us), self._restart, node)

    def _restart(self, node: SimulatedNode) -> None:
        if node.up or node in self._waiting:
            return
        node.host_up = True
        if not self._healed and self._random.random() < self._swarm.outage / 3:
            self._with_power[node] = bool(self._swarm.power_every_us) and self._random.random() < 0.5
            node.files.faults.operations_left = self._random.randrange(40)
        if not node.start():
            self._clock.after(RETRY_US, self._restart, node)

    def _mend(self, node: SimulatedNode) -> None:
        """The node said that it acknowledges nothing until it is started anew."""
        self._clock.after(self._random.randint(1, 3 * SECOND_US), self._lose_patience, node, node.incarnation)
