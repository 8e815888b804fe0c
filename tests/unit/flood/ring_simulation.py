"""Rings of machines in memory: messages and disks take a little virtual time, and nothing is above the fabric."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from typing import Any

from rostra.errors import RostraError
from rostra.fabric.api import (
    Append,
    Committed,
    Connect,
    Covered,
    Drop,
    Echo,
    FabricEffect,
    FabricInput,
    Now,
    Open,
    PartitionJoined,
    PeerIdentified,
    PeerReceived,
    Persist,
    ProducerAdmitted,
    ProducerMigrated,
    ProposeTopic,
    Read,
    ReadDone,
    Ready,
    Recovered,
    Refused,
    Send,
    Serving,
    SetTimer,
    Started,
    StopPrepared,
    Sync,
    Synced,
    TimerFired,
    TopicClosed,
    TopicOpened,
    TopicSpec,
    Trim,
)
from rostra.fabric.flood.machine import Flood
from rostra.fabric.flood.messages import FloodMessage, Records
from rostra.fabric.flood.settings import FloodSettings
from rostra.model.batch import base_offset, last_offset
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import ALL_ON, Without

HOP_US = 1_000
SYNC_US = 2_000
WALL_US = 1_700_000_000_000_000


class Log:
    def __init__(self, first: int = 0) -> None:
        self.first = first
        self.batches: list[bytes] = []
        self.synced = 0
        """How many of the batches would survive a power cut."""

    @property
    def end(self) -> int:
        return last_offset(self.batches[-1]) + 1 if self.batches else self.first

    def values(self) -> list[bytes | None]:
        return [value for batch in self.batches if not Batch(batch).is_control for value in Batch(batch).values()]


class Broker:
    """One machine with its disk and its messages."""

    def __init__(self, ring: RingSimulation, number: int, joins: tuple[str, ...]) -> None:
        self.ring = ring
        self.id = NodeId(number)
        self.joins = joins
        self.logs: dict[Partition, Log] = {}
        self.hard: dict[str, bytes] = {}
        self.life = 0
        self.up = False
        self.slow_sync_us = 0
        self.start()

    def start(self) -> None:
        self.life += 1
        self.up = True
        self.ready = self.handed_over = False
        self.machine = Flood(
            self.id,
            f"b{self.id}",
            f"p{self.id}",
            joins=self.joins,
            random=random.Random(1000 * self.id + self.life),
            settings=self.ring.settings,
            without=self.ring.without,
        )
        self.topics: dict[str, Partition] = {}
        self.joined: dict[Partition, NodeId] = {}
        self.commits: dict[Partition, int] = {}
        self.covered: dict[Partition, tuple[int, tuple[NodeId, ...]]] = {}
        self.admitted: list[ProducerAdmitted] = []
        self.departed: list[ProducerMigrated] = []
        self.refused: list[Refused] = []
        self.said: list[FabricEffect] = []
        self._met: set[NodeId] = set()
        self._timer = 0
        self._token = 0
        found = tuple(
            Recovered(partition, log.first, log.end, (), None) for partition, log in sorted(self.logs.items())
        )
        self.step(Started(dict(self.hard), found))

    def crash(self, *, power: bool = True) -> None:
        self.up = False
        self.life += 1
        if power:
            for log in self.logs.values():
                del log.batches[log.synced :]

    def step(self, given: FabricInput) -> None:
        if self.up:
            for effect in self.machine.step(Now(self.ring.now_us, WALL_US + self.ring.now_us), given):
                self._carry_out(effect)

    def _carry_out(self, effect: FabricEffect) -> None:
        ring = self.ring
        self.said.append(effect)
        match effect:
            case Send():
                if effect.peer in self._met:
                    ring.send(self, effect.peer, effect.message, b"".join(effect.payload))
            case Connect():
                if effect.peer:
                    self._met.add(effect.peer)
                else:
                    ring.after(HOP_US, self._knock, effect.address, self.life)
            case Append():
                self.logs[effect.partition].batches.append(bytes(effect.batch))
            case Sync():
                ring.after(SYNC_US + self.slow_sync_us, self._synced, effect.partition, self.life)
            case Open():
                self.logs[effect.partition] = Log(effect.first)
            case Drop():
                self.logs.pop(effect.partition, None)
            case Trim():
                log = self.logs[effect.partition]
                log.first = effect.first
            case Persist():
                self.hard[effect.key] = effect.state
                for then in effect.then:
                    self._carry_out(then)
            case Echo():
                ring.after(0, self._alive, self.life, effect)
            case Read():
                ring.after(HOP_US, self._read, effect, self.life)
            case SetTimer():
                self._timer += 1
                if effect.at_us is not None:
                    ring.after(effect.at_us - ring.now_us, self._fire, effect.timer, self._timer, self.life)
            case _:
                self._note(effect)

    def _note(self, effect: FabricEffect) -> None:
        match effect:
            case TopicOpened():
                self.topics[effect.spec.name] = Partition(effect.spec.topic, PartitionIndex(0))
            case TopicClosed():
                self.topics = {name: own for name, own in self.topics.items() if own.topic != effect.topic}
            case PartitionJoined():
                self.joined[effect.partition] = effect.origin
            case Serving():
                self.commits[effect.partition] = effect.commit
            case Committed():
                self.commits[effect.partition] = effect.offset
            case Covered():
                self.covered[effect.partition] = effect.offset, effect.view.active
            case ProducerAdmitted():
                self.admitted.append(effect)
            case ProducerMigrated():
                self.departed.append(effect)
            case Refused():
                self.refused.append(effect)
            case Ready():
                self.ready = True
            case StopPrepared():
                self.handed_over = True
            case _:
                pass

    # --- what comes back -----------------------------------------------------------------------------

    def _alive(self, life: int, given: FabricInput) -> None:
        if life == self.life:
            self.step(given)

    def _knock(self, address: str, life: int) -> None:
        if life != self.life:
            return
        found = next((one for one in self.ring.brokers.values() if f"p{one.id}" == address and one.up), None)
        if found is None or not self.ring.passes(self.id, found.id):
            self.ring.after(50_000, self._knock, address, life)
        else:
            self._met.add(found.id)
            self.step(PeerIdentified(found.id, address))

    def _synced(self, partition: Partition, life: int) -> None:
        log = self.logs.get(partition)
        if log is not None and life == self.life:
            log.synced = len(log.batches)
            self.step(Synced(partition, 0, log.end))

    def _read(self, effect: Read, life: int) -> None:
        log = self.logs.get(effect.partition)
        if log is None:
            return
        taken = [batch for batch in log.batches if effect.offset <= last_offset(batch) < effect.end]
        taken = [batch for batch in taken if base_offset(batch) < effect.end][:3]
        following = last_offset(taken[-1]) + 1 if taken else effect.offset
        self._alive(life, ReadDone(effect.token, effect.partition, b"".join(taken), following))

    def _fire(self, timer: str, number: int, life: int) -> None:
        if number == self._timer:
            self._alive(life, TimerFired(timer))

    # --- what a test does ----------------------------------------------------------------------------

    def create(self, name: str) -> Partition:
        self._token += 2
        spec = TopicSpec(TopicId(self.ring.random.getrandbits(60) + 1), name, 1, b"")
        self.step(ProposeTopic(self._token, spec, 1 << 20))
        self.ring.run(5_000)
        return self.topics[name]

    def publish(self, name: str, *values: bytes, producer: int = 0, sequence: int = 0) -> tuple[Partition, int]:
        """Each publish is a batch; its part, and the offset behind it."""
        if name not in self.topics:
            self.create(name)
        own = self.topics[name]
        offsets = self.propose(own, encode(list(values), timestamp_us=WALL_US, producer=producer, sequence=sequence))
        assert not isinstance(offsets, RostraError)
        return own, offsets[1] + 1

    def propose(self, partition: Partition, batch: bytearray) -> tuple[int, int] | RostraError:
        self.said.clear()
        now = Now(self.ring.now_us, WALL_US + self.ring.now_us)
        result, effects = self.machine.propose(now, partition, batch)
        for effect in effects:
            self._carry_out(effect)
        return result

    def read(self, name: str) -> dict[Partition, list[bytes | None]]:
        parts = self.machine.topics.by_name.get(name)
        found = {part.partition: self.logs[part.partition] for part in parts.all_partitions()} if parts else {}
        return {partition: log.values() for partition, log in sorted(found.items()) if log.values()}


class RingSimulation:
    def __init__(
        self,
        count: int,
        *,
        order: Iterable[int] | None = None,
        settings: FloodSettings | None = None,
        without: Without = ALL_ON,
        apart_us: int = 0,
    ) -> None:
        self.settings = settings or FloodSettings()
        self.without = without
        self.now_us = 1_000_000
        self.random = random.Random(count)
        self.brokers: dict[NodeId, Broker] = {}
        self.hops: dict[tuple[NodeId, Partition, int], int] = {}
        """For whom which record of a part came first over how many links."""
        self.cut: set[tuple[NodeId, NodeId]] = set()
        self.loses: Callable[[NodeId, NodeId, FloodMessage], bool] = lambda *_: False
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        numbers = list(order) if order is not None else list(range(1, count + 1))
        for number in numbers:
            joins = tuple(f"p{other}" for other in numbers if other != number)
            self.brokers[NodeId(number)] = Broker(self, number, joins if number != min(numbers) else ())
            self.run(apart_us)
        self.settle()

    def __getitem__(self, number: int) -> Broker:
        return self.brokers[NodeId(number)]

    def after(self, delay_us: int, act: Callable[..., None], *about: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self._number, act, about))

    def passes(self, sender: NodeId, receiver: NodeId) -> bool:
        return (sender, receiver) not in self.cut

    def send(self, sender: Broker, receiver: NodeId, message: Any, payload: bytes) -> None:
        if self.passes(sender.id, receiver) and not self.loses(sender.id, receiver, message):
            self.after(HOP_US, self._arrive, sender.id, receiver, message, payload, self.brokers[receiver].life)

    def _arrive(self, sender: NodeId, receiver: NodeId, message: Any, payload: bytes, life: int) -> None:
        broker = self.brokers[receiver]
        if broker.life == life and self.passes(sender, receiver):
            if isinstance(message, Records):
                self.hops.setdefault((receiver, message.partition, message.base), message.hops)
            broker.step(PeerReceived(sender, message, bytearray(payload) if payload else None))

    def run(self, duration_us: int) -> None:
        until_us = self.now_us + duration_us
        while self._events and self._events[0][0] <= until_us:
            self.now_us, _, act, about = heapq.heappop(self._events)
            act(*about)
        self.now_us = until_us

    def settle(self) -> None:
        self.run(1_300_000)

    def split(self, *sides: Iterable[int]) -> None:
        side_of = {NodeId(number): at for at, side in enumerate(sides) for number in side}
        self.cut = {(one, other) for one in side_of for other in side_of if side_of[one] != side_of[other]}

    def heal(self) -> None:
        self.cut.clear()

    def up(self) -> list[Broker]:
        return [broker for broker in self.brokers.values() if broker.up]

    def rings(self) -> dict[int, tuple[int | None, tuple[int, ...]]]:
        """For each broker its next one and its view."""
        return {
            broker.id: (broker.machine.ring.next, broker.machine.ring.view.active)
            for broker in sorted(self.up(), key=lambda broker: broker.id)
        }
