"""Brings about the faults that a seed has drawn, and mends them: the weather, and the operator."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rostra.log.journal import PATH as JOURNAL_PATH
from rostra.log.journal import known_marks
from rostra.model.batch import HEADER_BYTES, base_offset, batch_length
from rostra.model.ids import Partition, PartitionIndex, TopicId, parse_id
from rostra.simulator.clock import MS_US, SECOND_US, Clock
from rostra.simulator.faults import Fault, Swarm, Tally
from rostra.simulator.files import FaultyFiles
from rostra.simulator.history import History
from rostra.simulator.links import Network
from rostra.simulator.node import Node
from rostra.simulator.trace import Trace

RETRY_US = 400 * MS_US
STOP_PATIENCE_US = 3 * SECOND_US


class Mischief:
    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        swarm: Swarm,
        tally: Tally,
        random: Random,
        node: Node,
        network: Network,
        files: FaultyFiles,
        history: History,
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._swarm = swarm
        self._tally = tally
        self._random = random
        self._node = node
        self._network = network
        self._files = files
        self._history = history
        self._healed = False
        self._with_power = False
        node.stopped = self._restart_soon
        node.broke = self._mend

    def begin(self) -> None:
        self._node.calm = self._network.calm = False
        swarm = self._swarm
        for every_us, strike in (
            (swarm.cut_every_us, self._cut),
            (swarm.pause_every_us, self._pause),
            (swarm.kill_every_us, self._kill),
            (swarm.power_every_us, self._cut_power),
            (swarm.stop_every_us, self._stop),
            (swarm.flip_every_us, self._flip),
            (swarm.full_every_us, self._fill),
            (swarm.skew_every_us, self._skew),
        ):
            if every_us:
                self._strike_after(every_us, strike)
        self._files.faults.sync_failure_chance = swarm.sync_fails
        self._files.faults.write_failure_chance = swarm.write_fails

    def _strike_after(self, every_us: int, strike: Callable[[], None]) -> None:
        self._clock.after(int(self._random.expovariate(1 / every_us)) + 1, self._strike, every_us, strike)

    def _strike(self, every_us: int, strike: Callable[[], None]) -> None:
        if not self._healed:
            strike()
            self._strike_after(every_us, strike)

    def heal(self) -> None:
        """From now on nothing goes wrong any more."""
        self._healed = True
        self._trace.note("world", "heal")
        self._files.faults.capacity_bytes = self._files.faults.operations_left = None
        self._files.faults.sync_failure_chance = self._files.faults.write_failure_chance = 0.0
        self._node.skew_us = 0
        self._node.calm = self._network.calm = True
        if self._node.up and self._node.needs_restart:
            self._kill()
        self._restart()

    # --- the weather -----------------------------------------------------------------------------------

    def _cut(self) -> None:
        self._network.cut_one(half_open=self._random.random() < self._swarm.half_open)

    def _pause(self) -> None:
        self._node.pause(self._random.randint(1, self._swarm.pause_us))

    def _kill(self) -> None:
        self._end(power=False)

    def _cut_power(self) -> None:
        self._end(power=True)

    def _end(self, *, power: bool) -> None:
        """Now, or between two of the next disk operations."""
        if not self._node.up:
            return
        self._with_power = power
        if self._random.random() < self._swarm.outage and not self._healed:
            self._files.faults.operations_left = self._random.choice((0, 1, 2, 5, 12))
        else:
            self.end_now(power=power)

    def outage(self) -> None:
        """The operation came at which the process was to end."""
        self.end_now(power=self._with_power)

    def end_now(self, *, power: bool) -> None:
        self._files.faults.operations_left = None
        self._die(power=power)
        self._restart_soon()

    def _die(self, *, power: bool) -> None:
        self._node.die(power=power)
        for path in self._files.bereft:
            if path.endswith(".log"):
                partition = _partition_of(path)
                self._history.torn.add((partition.topic, partition.index))

    def cut_power_once(self) -> None:
        self._die(power=True)
        self._clock.after(SECOND_US // 10, self._restart)

    def _stop(self) -> None:
        if self._node.up:
            self._node.stop()
            self._clock.after(STOP_PATIENCE_US, self._lose_patience, self._node.incarnation)

    def _lose_patience(self, incarnation: int) -> None:
        if self._node.up and self._node.incarnation == incarnation:
            self.end_now(power=False)

    def _fill(self) -> None:
        self._files.faults.capacity_bytes = self._files.used_bytes + self._random.choice((0, 300, 3_000))
        self._trace.note("disk", "full")
        self._clock.after(self._random.randint(1, self._swarm.full_us), self._free)

    def _free(self) -> None:
        self._files.faults.capacity_bytes = None
        self._trace.note("disk", "freed")

    def _skew(self) -> None:
        self._node.skew_us = self._random.randint(-self._swarm.skew_us, self._swarm.skew_us)

    def _flip(self) -> None:
        """One bit in bytes that the node knows to be on stable storage: anywhere else damage looks like a torn end.

        Or one in an index, which must do no harm at all: the segment beside it decides.
        """
        indexes = [path for path in self._files.paths("topics") if path.endswith(".index")]
        if indexes and self._random.random() < 0.3:
            path = self._random.choice(indexes)
            size = len(self._files.durable_bytes(path))
            if size:
                self._files.flip_bit(path, self._random.randrange(size), self._random.randrange(8))
                self._tally.add(Fault.FLIPPED)
                self._trace.note("disk", "flip", path.encode(), path)
            return
        marks = known_marks(self._files.durable_bytes(JOURNAL_PATH))
        known = [
            (path, size)
            for path in self._files.paths("topics")
            if path.endswith(".log") and (size := self._known_bytes(path, marks)) > 0
        ]
        if not known:
            return
        path, size = self._random.choice(known)
        position = self._random.randrange(size)
        self._files.flip_bit(path, position, self._random.randrange(8))
        partition = _partition_of(path)
        self._history.flipped.add((partition.topic, partition.index))
        self._tally.add(Fault.FLIPPED)
        self._trace.note("disk", "flip", path.encode(), f"{path} at {position}")

    def _known_bytes(self, path: str, marks: dict[Partition, int]) -> int:
        """How many bytes of a segment lie below the known-synced mark of its partition."""
        partition = _partition_of(path)
        synced = marks.get(partition, 0)
        written = self._files.durable_bytes(path)
        if partition.topic == 0:
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

    def _restart_soon(self) -> None:
        self._clock.after(self._random.randint(1, self._swarm.down_us), self._restart)

    def _restart(self) -> None:
        if self._node.up:
            return
        self._node.host_up = True
        if not self._healed and self._random.random() < self._swarm.outage / 3:
            self._with_power = bool(self._swarm.power_every_us) and self._random.random() < 0.5
            self._files.faults.operations_left = self._random.randrange(40)
        if not self._node.start():
            self._clock.after(RETRY_US, self._restart)

    def _mend(self) -> None:
        """The node said that it acknowledges nothing until it is started anew."""
        self._clock.after(self._random.randint(1, 3 * SECOND_US), self._lose_patience, self._node.incarnation)


def _partition_of(path: str) -> Partition:
    topic, index = path.split("/")[1].rsplit("-", 1)
    return Partition(TopicId(parse_id(topic)), PartitionIndex(int(index)))
