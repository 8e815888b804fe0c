"""A simulated node with one copy of the partition: carries out the effects of its replica, with faults."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from rostra.errors import DiskFull, RostraError
from rostra.fabric.api import (
    Accepted,
    Append,
    Committed,
    Drop,
    Echo,
    FabricEffect,
    Now,
    Open,
    Persist,
    Read,
    Refused,
    Send,
    Serving,
    Trim,
    Truncate,
)
from rostra.fabric.links.messages import NodeHeartbeat, NodeHeartbeatReply
from rostra.fabric.primary_backup.authority import Answer, Proposal
from rostra.fabric.primary_backup.hard_state import CopyHardState, unpack_copy_state
from rostra.fabric.primary_backup.messages import ConfigurationNotice, ConfigurationRequest, PartitionMessage
from rostra.fabric.primary_backup.partition_replica import PartitionReplica
from rostra.fabric.primary_backup.settings import PartitionSettings
from rostra.model.batch import ARRIVED
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Without
from rostra.simulator.clock import EPOCH_US, Clock
from rostra.simulator.primary_backup.authority import Newest, SimulatedAuthority
from rostra.simulator.primary_backup.copy_disk import CopyDisk, HeldRecord, StoredBatch
from rostra.simulator.primary_backup.network import PartitionNetwork
from rostra.simulator.primary_backup.scenario import PartitionScenario
from rostra.simulator.trace import Trace

SETTINGS = PartitionSettings(
    heartbeat_ms=50, answer_ms=300, silence_ms=500, return_ms=200, return_ms_max=800, hand_over_ms=300, probe_ms=100,
    probe_ms_max=400, read_bytes=800, window_messages=16,
)  # fmt: skip
PERSIST_US_MAX = 6_000
HEARTBEAT_US = SETTINGS.heartbeat_us


class CopyObserver(Protocol):
    """What the checkers are told."""

    def appended(self, node: CopyNode, batch: StoredBatch) -> None: ...
    def committed(self, node: CopyNode, offset: int) -> None: ...
    def serving(self, node: CopyNode, serving: Serving) -> None: ...
    def dropped(self, node: CopyNode) -> None: ...
    def refused(self, node: CopyNode, error: RostraError) -> None: ...


class CopyNode:
    def __init__(
        self,
        node: NodeId,
        partition: Partition,
        *,
        clock: Clock,
        trace: Trace,
        random: Random,
        scenario: PartitionScenario,
        network: PartitionNetwork,
        authority: SimulatedAuthority,
        observer: CopyObserver,
        without: Without,
    ) -> None:
        self.node = node
        self.partition = partition
        self.disk = CopyDisk(partition, random)
        self.boot = 0
        self.replica: PartitionReplica | None = None
        self.owner_epoch = 0
        """The primary epoch in which this node orders; 0 if it does not."""
        self.checked = 0
        """Up to where its commits were compared with those of others."""
        self._clock = clock
        self._trace = trace
        self._random = random
        self._scenario = scenario
        self._network = network
        self._authority = authority
        self._observer = observer
        self._without = without
        self._syncing = False
        self._journal_us = 0
        self._token = 0
        self._source = f"node {node}"

    @property
    def runs(self) -> bool:
        return self.replica is not None

    @property
    def copy_number(self) -> int:
        """The number of its copy; of a node that is down, as its disk has it."""
        if self.replica is not None:
            return self.replica.snapshots
        return unpack_copy_state(self.disk.hard_state).number if self.disk.hard_state else 0

    def held_record(self, commit: int) -> HeldRecord:
        disk = self.disk
        found = disk.read(commit - 1, commit, 1) if disk.synced >= commit > disk.first else []
        last = found[0].identity if found and found[0].end == commit else None
        is_fit = disk.damaged_at is None and (self.replica is None or self.replica.complete)
        return HeldRecord(self.copy_number, is_fit, last)

    @property
    def _now(self) -> Now:
        return Now(self._clock.now_us, EPOCH_US + self._clock.now_us)

    # --- lives ---

    def start(self, *, founder: bool = False) -> None:
        self.boot += 1
        self._syncing = False
        self._journal_us = 0
        self.owner_epoch = 0
        self.checked = 0
        disk = self.disk
        found = disk.recovered()
        state = unpack_copy_state(disk.hard_state) if disk.hard_state else CopyHardState()
        self.replica = PartitionReplica(
            self.node,
            self.partition,
            found,
            state,
            authority=self,
            policy=self._scenario.policy,
            settings=SETTINGS,
            next_token=self._next_token,
            segment_bytes=1 << 20,
            without=self._without,
        )
        self._trace.note(self._source, "start", b"", f"boot {self.boot} {state} {found}")
        self.replica.compacted(disk.compact_below())
        self.replica.start(self._now)
        if founder:
            self._carry_out()
            self.replica.found_copy(self._now)
        self._carry_out()
        self._clock.after(self._random.randint(1, HEARTBEAT_US), self._period, self.boot)

    def crash(self) -> None:
        self.replica = None
        self.owner_epoch = 0
        lost = self.disk.crash()
        self._trace.note(self._source, "crash", b"", f"lost {lost} batches")

    def _is_life(self, boot: int) -> bool:
        """Whether what began in this life of the node still concerns it."""
        return boot == self.boot and self.replica is not None

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    # --- inputs ---

    def step(self, act: Callable[[PartitionReplica, Now], object]) -> None:
        """Gives the replica an input, if the node runs, and carries out the effects."""
        if self.replica is not None:
            act(self.replica, self._now)
            self._carry_out()

    def propose(self, proposal: Proposal) -> None:
        """The authority's port."""
        self._trace.note(self._source, "propose", b"", proposal)
        self._authority.propose(self.node, self.boot, proposal)

    def answered(self, boot: int, token: int, answer: Answer) -> None:
        if self._is_life(boot):
            self._trace.note(self._source, "answer", b"", answer)
            self.step(lambda replica, now: replica.answered(now, token, answer))

    def notified(self, newest: Newest) -> None:
        self.step(lambda replica, now: replica.newest(now, newest.configuration, newest.assigned, newest.missing))

    def publish(self, number: int, batch: bytearray) -> None:
        self.step(lambda replica, now: replica.propose(now, number, batch))

    def hand_over(self, heir: NodeId) -> None:
        self.step(lambda replica, now: replica.hand_over(now, heir))

    def advance_log_start(self, first: int) -> None:
        self.step(lambda replica, now: replica.advance_log_start(now, first))

    def find_damage(self) -> None:
        """A reader of the copy comes upon the damage."""
        self.step(lambda replica, now: replica.read_failed(now, 0, True))

    def receive(self, sender: NodeId, message: PartitionMessage, payload: bytearray | None) -> None:
        if self.replica is None:
            return
        self._trace.note(self._source, "receive", b"", f"{sender} {message}")
        replica, now = self.replica, self._now
        match message:
            case NodeHeartbeat():
                replies = (replica.heartbeat_received(now, sender, one) for one in message.partitions)
                answers = tuple(reply for reply in replies if reply is not None)
                if answers:
                    self._network.send(self.node, Send(sender, NodeHeartbeatReply(self.boot, answers)))
            case NodeHeartbeatReply():
                for reply in message.partitions:
                    replica.heartbeat_answered(now, sender, reply)
            case ConfigurationNotice():
                replica.configuration_received(now, message.configuration)
            case ConfigurationRequest():
                replica.configuration_requested(now, sender, message)
            case _:
                replica.receive(now, sender, message, payload)
        self._carry_out()

    def _period(self, boot: int) -> None:
        if not self._is_life(boot) or self.replica is None:
            return
        for peer, heartbeat in self.replica.heartbeats(self._now):
            self._network.send(self.node, Send(peer, NodeHeartbeat(self.boot, (heartbeat,))))
        self._carry_out()
        self._clock.after(HEARTBEAT_US, self._period, boot)

    # --- effects ---

    def _carry_out(self) -> None:
        assert self.replica is not None
        effects = self.replica.take_effects()
        while effects:
            for effect in effects:
                self._execute(effect)
            effects = self.replica.take_effects()

    def _execute(self, effect: FabricEffect) -> None:
        disk = self.disk
        match effect:
            case Send():
                self._network.send(self.node, effect)
            case Append():
                self._append(effect)
            case Truncate():
                disk.truncate(effect.offset, effect.generation)
                self._trace.note(self._source, "truncate", b"%d" % effect.offset, effect.offset)
            case Trim():
                disk.trim(effect.first)
            case Open():
                disk.create(effect.first)
            case Drop():
                self._trace.note(self._source, "drop")
                self._observer.dropped(self)
                disk.drop()
            case Read():
                self._clock.after(self._random.randint(100, 4_000), self._read, self.boot, disk.log_number, effect)
            case Persist():
                disk.write_state(effect.state)
                # The journal keeps the order.
                self._journal_us = max(self._journal_us, self._clock.now_us) + self._random.randint(200, PERSIST_US_MAX)
                self._clock.at(self._journal_us, self._persisted, self.boot, effect)
            case Echo():
                self.step(lambda replica, now: replica.persisted(now, effect.number))
            case Committed():
                self._trace.note(self._source, "committed", b"%d" % effect.offset, effect.offset)
                self._observer.committed(self, effect.offset)
            case Serving():
                self.owner_epoch = effect.epoch if effect.owner else 0
                self._trace.note(self._source, "serving", b"", effect)
                self._observer.serving(self, effect)
            case Refused():
                self._observer.refused(self, effect.error)
            case Accepted():
                pass
            case _:
                # Log lines, and what only a broker needs.
                pass

    def _append(self, effect: Append) -> None:
        disk = self.disk
        base, epoch, delta, _ = ARRIVED.unpack_from(effect.batch, 8)
        if disk.refuses or base != disk.end:
            # Appends that follow a refused one are refused with it.
            self._clock.after(0, self._write_refused, self.boot, disk.log_number)
            return
        stored = disk.append(effect.batch, base, base + delta + 1, epoch)
        self._trace.note(self._source, "append", b"%d %d" % (base, epoch), f"{base} epoch {epoch} {stored.record}")
        self._observer.appended(self, stored)
        self._sync_later()

    def _write_refused(self, boot: int, log_number: int) -> None:
        disk = self.disk
        if not self._is_life(boot) or log_number != disk.log_number or self.replica is None:
            return
        if self.replica.log.end > disk.end:
            self._trace.note(self._source, "refused", b"", str(DiskFull))
            disk.generation += 1
            self.step(lambda replica, now: replica.write_failed(now, disk.end, disk.generation))

    def _sync_later(self) -> None:
        if not self._syncing:
            self._syncing = True
            disk = self.disk
            delay_us = self._random.randint(500, self._scenario.sync_max_us)
            self._clock.after(delay_us, self._synced, self.boot, disk.log_number, disk.generation, disk.end)

    def _synced(self, boot: int, log_number: int, generation: int, offset: int) -> None:
        """The offset was taken before the sync began. A truncation since makes it vouch for less."""
        if not self._is_life(boot):
            return
        self._syncing = False
        disk = self.disk
        if log_number == disk.log_number:
            if generation == disk.generation:
                disk.synced = max(disk.synced, min(offset, disk.end))
            self._trace.note(self._source, "synced", b"%d" % offset, offset)
            self.step(lambda replica, now: replica.synced(now, generation, offset))
        if disk.exists and disk.synced < disk.end:
            self._sync_later()

    def _read(self, boot: int, log_number: int, effect: Read) -> None:
        disk = self.disk
        if not self._is_life(boot):
            return
        damaged = disk.damaged_at is not None
        if log_number != disk.log_number or damaged:
            self.step(lambda replica, now: replica.read_failed(now, effect.token, damaged))
            return
        batches = b"".join(one.data for one in disk.read(effect.offset, effect.end, effect.bytes_max))
        self.step(lambda replica, now: replica.read_done(now, effect.token, batches))

    def _persisted(self, boot: int, effect: Persist) -> None:
        if not self._is_life(boot):
            return
        self.disk.sync_state()
        for following in effect.then:
            self._execute(following)
