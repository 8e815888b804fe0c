"""Nodes with copies of one partition; messages, syncs and the authority's decisions happen when a test says so."""

from __future__ import annotations

from random import Random

from rostra.errors import RostraError
from rostra.fabric.api import (
    Append,
    Drop,
    Echo,
    FabricEffect,
    Now,
    Open,
    Persist,
    Read,
    Refused,
    Send,
    Trim,
    Truncate,
)
from rostra.fabric.links.messages import NodeHeartbeat, NodeHeartbeatReply
from rostra.fabric.primary_backup.authority import Answer, Decided, Proposal, Superseded, decide
from rostra.fabric.primary_backup.configuration import (
    Change,
    Configuration,
    CopyPolicy,
    first_configuration,
    next_configuration,
)
from rostra.fabric.primary_backup.hard_state import CopyHardState, unpack_copy_state
from rostra.fabric.primary_backup.messages import ConfigurationNotice, ConfigurationRequest, PartitionMessage
from rostra.fabric.primary_backup.partition_replica import PartitionReplica
from rostra.fabric.primary_backup.settings import PartitionSettings
from rostra.model.batch import ARRIVED
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import ALL_ON, Without
from rostra.simulator.primary_backup.copy_disk import CopyDisk
from rostra.simulator.primary_backup.records import SimulatedRecord, encode_record

PARTITION = Partition(TopicId(7), PartitionIndex(0))
A, B, C, D = (NodeId(number) for number in (1, 2, 3, 4))
DEFAULT_POLICY = CopyPolicy(3, 2)
STEP_US = 100_000
ROUNDS_MAX = 60


class TestNode:
    """One node and its disk. Hard state is durable at once; records are synced by `Nodes.sync`."""

    __test__ = False

    def __init__(self, nodes: Nodes, node: NodeId) -> None:
        self._nodes = nodes
        self.node = node
        self.disk = CopyDisk(PARTITION, Random(0))
        self.refusals: list[RostraError] = []
        self._tokens = iter(range(1, 1 << 30))
        self.replica = self._made()

    def _made(self) -> PartitionReplica:
        disk = self.disk
        state = unpack_copy_state(disk.hard_state) if disk.hard_state else CopyHardState()
        return PartitionReplica(
            self.node,
            PARTITION,
            disk.recovered(),
            state,
            authority=self,
            policy=self._nodes.policy,
            settings=PartitionSettings(),
            next_token=lambda: next(self._tokens),
            without=self._nodes.without,
        )

    def restart(self) -> None:
        """Crashes and starts; what was not synced is lost."""
        disk = self.disk
        disk.truncate(disk.synced, disk.generation)
        disk.generation = 0
        self.replica = self._made()
        self.replica.compacted(disk.compact_below())
        self.replica.start(self._nodes.now)
        self.carry_out()

    def propose(self, proposal: Proposal) -> None:
        self._nodes.proposals.append((self.node, proposal))

    def carry_out(self) -> None:
        for effect in self.replica.take_effects():
            self._execute(effect)

    def _execute(self, effect: FabricEffect) -> None:
        disk = self.disk
        match effect:
            case Send():
                self._nodes.messages.append((self.node, effect))
            case Append():
                base, epoch, delta, _ = ARRIVED.unpack_from(effect.batch, 8)
                stored = disk.append(effect.batch, base, base + delta + 1, epoch)
                self.replica.compacted(stored.record.compact_below)
            case Truncate():
                disk.truncate(effect.offset, effect.generation)
            case Trim():
                disk.trim(effect.first)
            case Open():
                disk.create(effect.first)
            case Drop():
                disk.drop()
            case Persist():
                disk.hard_state = effect.state
                for following in effect.then:
                    self._execute(following)
            case Echo():
                self.replica.persisted(self._nodes.now, effect.number)
                self.carry_out()
            case Read():
                batches = b"".join(one.data for one in disk.read(effect.offset, effect.end, effect.bytes_max))
                self.replica.read_done(self._nodes.now, effect.token, batches)
                self.carry_out()
            case Refused():
                self.refusals.append(effect.error)
            case _:
                pass


class Nodes:
    """Nodes A to D. The first configuration names the first `members` of them; A is its primary."""

    def __init__(self, members: int = 3, *, policy: CopyPolicy = DEFAULT_POLICY, without: Without = ALL_ON) -> None:
        self.policy = policy
        self.without = without
        self.time_us = 0
        self.messages: list[tuple[NodeId, Send]] = []
        self.proposals: list[tuple[NodeId, Proposal]] = []
        self.answers: list[tuple[NodeId, int, Answer]] = []
        self.assigned: tuple[NodeId, ...] = (A, B, C)[: policy.replicas]
        self.missing: set[NodeId] = set()
        founders = (A, B, C)[:members]
        self.configuration = first_configuration(founders, policy.replicas)
        self._number = 0
        self.all = {node: TestNode(self, node) for node in (A, B, C, D)}
        for node, one in self.all.items():
            one.replica.start(self.now)
            if node in founders:
                one.replica.found_copy(self.now)
            one.carry_out()
        self.tell(A, B, C, D)

    def __getitem__(self, node: NodeId) -> PartitionReplica:
        return self.all[node].replica

    @property
    def now(self) -> Now:
        return Now(self.time_us, self.time_us)

    # --- records ---

    def publish(self, at: NodeId, key: str = "", *, tombstone: bool = False, compact_below: int = 0) -> int:
        """Returns the number of the record."""
        self._number += 1
        record = SimulatedRecord(self._number, key, tombstone, compact_below)
        one = self.all[at]
        one.replica.propose(self.now, self._number, encode_record(record))
        one.carry_out()
        return self._number

    def numbers(self, node: NodeId) -> list[int]:
        """The numbers of the records that a node's log holds."""
        return [one.record.number for one in self.all[node].disk.batches if one.record.number]

    def committed(self, node: NodeId) -> list[int]:
        commit = self[node].commit
        return [one.record.number for one in self.all[node].disk.batches if one.record.number and one.end <= commit]

    # --- disks and messages ---

    def sync(self, *nodes: NodeId) -> None:
        for node in nodes:
            one = self.all[node]
            one.disk.synced = one.disk.end
            one.replica.synced(self.now, one.replica.log.generation, one.disk.end)
            one.carry_out()

    def deliver(self, *, to: tuple[NodeId, ...], sender: NodeId | None = None) -> int:
        """Delivers what is under way now to some nodes; the rest stays under way."""
        chosen = [row for row in self.messages if row[1].peer in to and sender in (None, row[0])]
        self.messages = [row for row in self.messages if row not in chosen]
        for origin, send in chosen:
            assert isinstance(send.message, PartitionMessage)
            payload = bytearray(b"".join(send.payload)) if send.payload else None
            self._receive(send.peer, origin, send.message, payload)
        return len(chosen)

    def _receive(self, at: NodeId, sender: NodeId, message: PartitionMessage, payload: bytearray | None) -> None:
        one = self.all[at]
        match message:
            case NodeHeartbeat():
                for heartbeat in message.partitions:
                    reply = one.replica.heartbeat_received(self.now, sender, heartbeat)
                    if reply is not None:
                        self.messages.append((at, Send(sender, NodeHeartbeatReply(1, (reply,)))))
            case NodeHeartbeatReply():
                for reply in message.partitions:
                    one.replica.heartbeat_answered(self.now, sender, reply)
            case ConfigurationNotice():
                one.replica.configuration_received(self.now, message.configuration)
            case ConfigurationRequest():
                one.replica.configuration_requested(self.now, sender, message)
            case _:
                one.replica.receive(self.now, sender, message, payload)
        one.carry_out()

    def period(self, *nodes: NodeId) -> None:
        """Time passes, and these nodes send their heartbeats."""
        self.time_us += STEP_US
        for node in nodes:
            one = self.all[node]
            for peer, heartbeat in one.replica.heartbeats(self.now):
                self.messages.append((node, Send(peer, NodeHeartbeat(1, (heartbeat,)))))
            one.carry_out()

    def exchange(self, *nodes: NodeId) -> None:
        """These nodes talk, and sync their disks, until each has said what it has to say; others hear nothing."""
        for _ in range(ROUNDS_MAX):
            self.period(*nodes)
            while self.deliver(to=nodes):
                self.sync(*nodes)
            self.messages = [row for row in self.messages if row[0] not in nodes]

    def settle(self, *nodes: NodeId) -> None:
        """Like `exchange`, and the authority decides and answers at once."""
        for _ in range(8):
            self.exchange(*nodes)
            while self.proposals:
                self.decide()
            self.answer_all()
            self.tell(*nodes)
        self.exchange(*nodes)

    # --- the authority ---

    def decide(self) -> None:
        """Decides the oldest proposal that is under way; its answer is under way then."""
        node, proposal = self.proposals.pop(0)
        answer = decide(self.configuration, proposal.expected_version, proposal.change, self.policy, self.missing)
        if isinstance(answer, Decided):
            self.configuration = answer.configuration
        assert isinstance(answer, Decided | Superseded)
        self.answers.append((node, proposal.token, answer))

    def answer(self, node: NodeId, token: int, answer: Answer) -> None:
        one = self.all[node]
        one.replica.answered(self.now, token, answer)
        one.carry_out()

    def answer_all(self) -> None:
        while self.answers:
            self.answer(*self.answers.pop(0))

    def enter(self, change: Change) -> Configuration:
        """A change that others have proposed, or that follows from the authority's own state."""
        self.configuration = next_configuration(self.configuration, change, self.policy, self.missing, self.without)
        return self.configuration

    def tell(self, *nodes: NodeId) -> None:
        for node in nodes:
            one = self.all[node]
            one.replica.newest(self.now, self.configuration, self.assigned, self.missing)
            one.carry_out()
