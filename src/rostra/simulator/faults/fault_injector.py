"""Injects the faults of a plan at random times, and acts as the operator: restarts, joins and removes nodes."""

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
from rostra.simulator.network.splits import BLIP_US, NetworkSplit, draw_blocked_paths
from rostra.simulator.trace import Trace
from rostra.simulator.world.fabric_observer import partition_of
from rostra.simulator.world.simulated_node import SimulatedNode

RETRY_US = 400 * MS_US
STOP_TIMEOUT_US = 3 * SECOND_US


class FaultInjector:
    """Injects faults from `begin` until `heal`."""

    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        plan: FaultPlan,
        fault_counts: FaultCounts,
        random: Random,
        nodes: Sequence[SimulatedNode],
        network: ClientNetwork,
        peer_network: PeerNetwork,
        history: History,
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._plan = plan
        self._fault_counts = fault_counts
        self._random = random
        self._nodes = nodes
        self._client_network = network
        self._peer_network = peer_network
        self._history = history
        self._healed = False
        self._loses_power: dict[SimulatedNode, bool] = {}
        self._held_down: dict[SimulatedNode, None] = {}
        """Nodes that must not be started: not joined yet, left down at healing, or removed."""
        self.retired: dict[SimulatedNode, None] = {}
        """Nodes that were removed from the cluster and shut down for good."""
        self.damaged_node = random.choice(nodes)
        """The only node whose disk gets flipped bits: one replica of three is a minority in every group."""
        for node in nodes:
            node.on_stopped = self._restart_soon
            node.on_broken = self._restart_broken

    def begin(self) -> None:
        self._client_network.fault_free = self._peer_network.fault_free = False
        plan = self._plan
        for node in self._nodes:
            node.fault_free = False
            node.files.faults.sync_failure_chance = plan.sync_fails
            node.files.faults.write_failure_chance = plan.write_fails
        for every_us, inject in (
            (plan.cut_every_us, self._cut),
            (plan.pause_every_us, self._pause),
            (plan.kill_every_us, self._kill),
            (plan.power_every_us, self._cut_power),
            (plan.stop_every_us, self._stop),
            (plan.flip_every_us, self._flip),
            (plan.full_every_us, self._fill),
            (plan.skew_every_us, self._skew),
            (plan.split_every_us, self._split),
            (plan.all_power_every_us, self._cut_all_power),
            (plan.move_every_us, self._move),
        ):
            if every_us:
                self._schedule(every_us, inject)

    def _schedule(self, every_us: int, inject: Callable[[], None]) -> None:
        self._clock.after(int(self._random.expovariate(1 / every_us)) + 1, self._inject, every_us, inject)

    def _inject(self, every_us: int, inject: Callable[[], None]) -> None:
        if not self._healed:
            inject()
            self._schedule(every_us, inject)

    def _random_node(self) -> SimulatedNode:
        return self._random.choice(self._nodes) if len(self._nodes) > 1 else self._nodes[0]

    def heal(self, dead: Sequence[SimulatedNode] = ()) -> None:
        """Ends all faults and restarts all nodes but `dead`, which stay down until `restart_nodes`."""
        self._healed = True
        self._trace.note("world", "heal", detail=[node.name for node in dead])
        self._client_network.fault_free = self._peer_network.fault_free = True
        self._peer_network.splits.clear()
        for node in self._nodes:
            if node in self.retired:
                continue
            self._held_down.pop(node, None)
            node.files.faults.capacity_bytes = node.files.faults.operations_left = None
            node.files.faults.sync_failure_chance = node.files.faults.write_failure_chance = 0.0
            node.skew_us = 0
            node.fault_free = True
            if node in dead:
                self._held_down[node] = None
                self._fault_counts.add(Fault.LEFT_DOWN)
                if node.up:
                    self._crash(node, power=self._plan.syncs)
                continue
            if node.up and node.needs_restart:
                self._crash(node, power=False)
            self._restart(node)

    def restart_nodes(self, dead: Sequence[SimulatedNode]) -> None:
        for node in dead:
            self._held_down.pop(node, None)
            self._restart(node)

    # --- faults ----------------------------------------------------------------------------------------

    def _cut(self) -> None:
        self._client_network.cut_one(half_open=self._random.random() < self._plan.half_open)

    def _move(self) -> None:
        if len(self._nodes) > 1:
            self._client_network.move_one(self._random.randint(1, self._plan.move_us))

    def _pause(self) -> None:
        self._random_node().pause(self._random.randint(1, self._plan.pause_us))

    def _kill(self) -> None:
        self._crash_soon(self._random_node(), power=False)

    def _cut_power(self) -> None:
        self._crash_soon(self._random_node(), power=True)

    def _cut_all_power(self) -> None:
        if self._plan.syncs and len(self._nodes) > 1:
            self._fault_counts.add(Fault.POWER_CUT_ALL)
            for node in self._nodes:
                if node.up:
                    self.crash_now(node, power=True)

    def _crash_soon(self, node: SimulatedNode, *, power: bool) -> None:
        """Crashes a node now, or at one of its next disk operations."""
        if not node.up:
            return
        self._loses_power[node] = power
        if self._random.random() < self._plan.crash_in_io and not self._healed:
            node.files.faults.operations_left = self._random.choice((0, 1, 2, 5, 12))
        else:
            self.crash_now(node, power=power)

    def crash_in_io(self, files: FaultyFiles) -> None:
        """Crashes the node whose disk raised `SimulatedCrash`."""
        node = next(node for node in self._nodes if node.files is files)
        self.crash_now(node, power=self._loses_power.get(node, False))

    def crash_now(self, node: SimulatedNode, *, power: bool) -> None:
        node.files.faults.operations_left = None
        self._crash(node, power=power)
        self._restart_soon(node)

    def _crash(self, node: SimulatedNode, *, power: bool) -> None:
        node.crash(power=power)
        for path in node.files.files_with_loss:
            if path.endswith(".log"):
                partition = partition_of(path)
                self._history.torn.add((partition.topic, partition.index))

    def cut_all_power(self) -> None:
        for node in self._nodes:
            if node in self.retired:
                continue
            self._crash(node, power=True)
            self._clock.after(SECOND_US // 10, self._restart, node)

    def _stop(self) -> None:
        node = self._random_node()
        if node.up:
            node.stop()
            self._clock.after(STOP_TIMEOUT_US, self._crash_if_running, node, node.incarnation)

    def _crash_if_running(self, node: SimulatedNode, incarnation: int) -> None:
        if node.up and node.incarnation == incarnation:
            self.crash_now(node, power=False)

    def _fill(self) -> None:
        files = self._random_node().files
        files.faults.capacity_bytes = files.used_bytes + self._random.choice((0, 300, 3_000))
        self._trace.note("disk", "full")
        self._clock.after(self._random.randint(1, self._plan.full_us), self._free, files)

    def _free(self, files: FaultyFiles) -> None:
        files.faults.capacity_bytes = None
        self._trace.note("disk", "freed")

    def _skew(self) -> None:
        self._random_node().skew_us = self._random.randint(-self._plan.skew_us, self._plan.skew_us)

    def _split(self) -> None:
        if len(self._nodes) < 3:
            return
        shape = Fault(self._random.choice(self._plan.splits))
        flaps = self._random.random() < self._plan.flapping
        now_us = self._clock.now_us
        length_us = self._random.choice((BLIP_US, 3 * BLIP_US, 20 * BLIP_US)) if flaps else self._plan.split_us
        paths = draw_blocked_paths(shape, [node.id for node in self._nodes], self._random)
        until_us = now_us + (length_us if flaps else self._random.randint(BLIP_US, length_us))
        split = NetworkSplit(shape, paths, now_us, until_us, flaps=flaps)
        self._peer_network.splits.append(split)
        self._trace.note("mesh", "split", shape.encode(), (shape, until_us - now_us, "flaps" if flaps else "stays"))
        self._clock.at(until_us, self._end_split, split)

    def _end_split(self, split: NetworkSplit) -> None:
        if split in self._peer_network.splits:
            self._peer_network.splits.remove(split)
            self._trace.note("mesh", "mended", split.shape.encode())

    def _flip(self) -> None:
        """Flips one bit in a log file below the known-synced offset: above it, damage looks like a torn write.

        Or one bit in an index, which must have no effect, because indexes are checked against their segments.
        """
        files = self.damaged_node.files
        indexes = [path for path in files.paths("topics") if path.endswith(".index")]
        if indexes and self._random.random() < 0.3:
            path = self._random.choice(indexes)
            size = len(files.durable_bytes(path))
            if size:
                files.flip_bit(path, self._random.randrange(size), self._random.randrange(8))
                self._fault_counts.add(Fault.FLIPPED)
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
        self._history.flipped_at.add((self.damaged_node.id, partition))
        self._fault_counts.add(Fault.FLIPPED)
        self._trace.note("disk", "flip", path.encode(), f"{path} at {position}")

    def _known_bytes(self, files: FaultyFiles, path: str, marks: dict[Partition, int]) -> int:
        """How many bytes of a segment lie below the known-synced offset of its partition."""
        partition = partition_of(path)
        synced = marks.get(partition, 0)
        written = files.durable_bytes(path)
        if partition.topic == 0 and len(self._nodes) == 1:
            # A single node without its metadata log has no topics to report damage for.
            return 0
        at = 0
        while at + HEADER_BYTES <= len(written) and written[at : at + 4] == b"RST1":
            length = batch_length(written, at)
            if base_offset(written, at) >= synced or length < HEADER_BYTES:
                break
            at += length
        return min(at, len(written))

    # --- the operator ----------------------------------------------------------------------------------

    def hold_back(self, node: SimulatedNode) -> None:
        """Keeps a node down until it joins."""
        self._held_down[node] = None

    def join(self, node: SimulatedNode) -> None:
        if node in self._held_down and not self._healed:
            del self._held_down[node]
            self._fault_counts.add(Fault.JOINED)
            self._trace.note("world", "join", detail=node.name)
            self._restart(node)

    def retire(self, node: SimulatedNode) -> None:
        """Shuts a node down for good after the cluster has removed it."""
        self.retired[node] = self._held_down[node] = None
        self._fault_counts.add(Fault.REMOVED)
        self._trace.note("world", "retire", detail=node.name)
        if node.up:
            node.crash(power=False)

    def _restart_soon(self, node: SimulatedNode) -> None:
        self._clock.after(self._random.randint(1, self._plan.down_us), self._restart, node)

    def _restart(self, node: SimulatedNode) -> None:
        if node.up or node in self._held_down:
            return
        node.host_up = True
        if not self._healed and self._random.random() < self._plan.crash_in_io / 3:
            self._loses_power[node] = bool(self._plan.power_every_us) and self._random.random() < 0.5
            node.files.faults.operations_left = self._random.randrange(40)
        if not node.start():
            self._clock.after(RETRY_US, self._restart, node)

    def _restart_broken(self, node: SimulatedNode) -> None:
        """Restarts a node whose broker refuses writes after a disk error."""
        self._clock.after(self._random.randint(1, 3 * SECOND_US), self._crash_if_running, node, node.incarnation)
