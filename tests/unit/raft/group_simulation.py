"""Members of one group on virtual time, with a network that may delay, lose, repeat, reorder and partition.

Every message crosses its encoding. Observers see each step; they know nothing of how a group works inside beyond its
role, term, commit offset and log.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Protocol, assert_never

from rostra.errors import RostraError
from rostra.fabric.api import (
    Append,
    Blocked,
    Broken,
    Committed,
    Confirmed,
    Connect,
    Covered,
    Described,
    Disconnect,
    Drop,
    Echo,
    FabricEffect,
    Forwarded,
    ForwardReceived,
    HeldByAll,
    KnownNodes,
    LogLine,
    Open,
    OperationDone,
    PartitionJoined,
    Persist,
    ProducerAdmitted,
    ProducerMigrated,
    Read,
    Ready,
    Refused,
    Send,
    ServedElsewhere,
    Serving,
    SetTimer,
    StopPrepared,
    Sync,
    TopicChanged,
    TopicClosed,
    TopicOpened,
    Trim,
    Truncate,
)
from rostra.fabric.consensus.hard_state import GroupConfig, GroupConfigAt, HardState, key_of, unpack_hard_state
from rostra.fabric.consensus.membership import MembershipChange
from rostra.fabric.consensus.messages import TimeoutNow
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.consensus.roles import Role
from rostra.fabric.links.messages import NodeHeartbeat, NodeHeartbeatReply, PartitionHeartbeat
from rostra.fabric.links.peer_liveness import PeerLiveness
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import ALL_ON, Without
from tests.unit.raft.disk_model import DiskModel, StoredEntry
from tests.unit.raft.simulation import Simulation

SCRIPTED = RaftSettings(
    election_timeout_ms_min=10**7, election_timeout_ms_max=10**7 + 1, window_messages=1, read_bytes=1
)
"""No election timeout expires, and a follower gets one batch at a time."""
PARTITION = Partition(TopicId(7), PartitionIndex(0))


class Observer(Protocol):
    def stepped(self, member: Member, effects: list[FabricEffect]) -> None: ...


class Member:
    def __init__(self, sim: GroupSimulation, node: NodeId, voters: tuple[int, ...]) -> None:
        self.sim = sim
        self.node = node
        self.disk = DiskModel()
        self.boot = 0
        self.alive = False
        self.effects: list[FabricEffect] = []
        self.accepted: dict[int, tuple[int, int]] = {}
        self.refused: list[int] = []
        self.read_results: list[tuple[int, int | None]] = []
        self.sync_us: tuple[int, int] | None = None
        """Sync duration of this member's disk, if it differs from the others'."""
        self.disk_refuses = False
        """The writes of the next step that has any fail."""
        self.writes_refused = 0
        self._journal_us = 0
        self.lost_to_damage: list[StoredEntry] = []
        self.drops = 0
        initial = (GroupConfigAt(0, 0, GroupConfig(tuple(NodeId(n) for n in voters))),) if voters else ()
        self._initial = HardState(configs=initial)
        self.liveness = PeerLiveness(sim.settings.election_min_us)
        self.group: RaftGroup = self._make()
        self._fires_at: int | None = None

    def _make(self) -> RaftGroup:
        packed = self.disk.hard.get(key_of(PARTITION))
        return RaftGroup(
            self.node,
            self.disk.recovered(PARTITION),
            unpack_hard_state(packed) if packed is not None else self._initial,
            settings=self.sim.settings,
            random=self.sim.random_of(self.node),
            next_token=self.sim.next_token,
            without=self.sim.without,
        )

    def start(self) -> None:
        self.boot += 1
        self.alive = True
        self.group = self._make()
        self.group.promotes_learners = self.sim.promotes
        self._fires_at = None
        self.liveness = PeerLiveness(self.sim.settings.election_min_us)
        self.group.start(self.sim.now)
        self.step()
        self.sim.later(self.sim.random.randint(0, self.sim.settings.heartbeat_us), self._guard(self._tick))

    def crash(self) -> int:
        self.alive = False
        return self.disk.crash(self.sim.random)

    def _guard(self, action: Callable[..., None], *given: Any) -> Callable[[], None]:
        """Skips the action if the member crashed meanwhile."""
        boot = self.boot

        def run() -> None:
            if self.alive and self.boot == boot:
                action(*given)

        return run

    # --- inputs ---

    def set_readers(self, some: bool) -> None:
        self.group.set_readers(self.sim.now, some)
        self.step()

    def propose(self, value: bytes, token: int = 0) -> bool:
        """Whether it was accepted."""
        batch = encode([value], timestamp_us=1)
        result = self.group.propose(self.sim.now, batch)
        if isinstance(result, RostraError):
            self.refused.append(token)
        else:
            self.accepted[token] = result
        self.step()
        return not isinstance(result, RostraError)

    def receive(self, sender: NodeId, message: Any, payload: bytes) -> None:
        group, now = self.group, self.sim.now
        if isinstance(message, NodeHeartbeat):
            if self.liveness.heard(sender, message.boot, self.sim.us):
                group.peer_lost(now, sender)
            replies = tuple(
                r for beat in message.partitions if (r := group.heartbeat_received(now, sender, beat)) is not None
            )
            self.step()
            if replies:
                self.sim.send(self, sender, NodeHeartbeatReply(self.boot, replies))
        elif isinstance(message, NodeHeartbeatReply):
            for reply in message.partitions:
                group.heartbeat_answered(now, sender, reply)
            self.step()
        else:
            group.receive(now, sender, message, bytearray(payload) if payload else None)
            self.step()

    def force_election(self) -> None:
        """As if the leader had asked for it: no question before, and nobody keeps to the old leader."""
        assert self.group.role is Role.FOLLOWER
        self.group.receive(self.sim.now, self.node, TimeoutNow(PARTITION, self.group.term))
        self.step()

    def change(self, change: MembershipChange, node: int) -> RostraError | None:
        error = self.group.change_membership(self.sim.now, change, NodeId(node))
        self.step()
        return error

    def _tick(self) -> None:
        for peer in self.liveness.expire(self.sim.us):
            self.group.peer_lost(self.sim.now, peer)
        self._send_heartbeats(idle=True)
        self.sim.later(self.sim.settings.heartbeat_us, self._guard(self._tick))

    def _send_heartbeats(self, idle: bool = False) -> None:
        beats: dict[NodeId, PartitionHeartbeat] = dict(self.group.heartbeats(self.sim.now))
        self.step()
        for peer in self.sim.members.values():
            if peer is not self and (idle or peer.node in beats):
                said = (beats[peer.node],) if peer.node in beats else ()
                self.sim.send(self, peer.node, NodeHeartbeat(self.boot, said))

    # --- effects ---

    def step(self) -> list[FabricEffect]:
        effects = self.group.take_effects()
        self.effects += effects
        self.carry_out(effects)
        for observer in self.sim.observers:
            observer.stepped(self, effects)
        self.read_results += self.group.read_index.results
        self.group.read_index.results.clear()
        if self.group.wants_heartbeat:
            self.group.wants_heartbeat = False
            self.sim.later(0, self._guard(self._send_heartbeats))
        self._queue_deadline()
        return effects

    def _queue_deadline(self) -> None:
        at_us = self.group.deadline_us
        if at_us is not None and at_us != self._fires_at:
            self._fires_at = at_us
            self.sim.at(at_us, self._guard(self._fire, at_us))

    def _fire(self, at_us: int) -> None:
        if self.group.deadline_us == at_us:
            self._fires_at = None
            self.group.deadline_passed(self.sim.now)
            self.step()

    def carry_out(self, effects: list[FabricEffect] | tuple[FabricEffect, ...]) -> None:
        sim, medium = self.sim, self.disk
        refused = False
        for effect in effects:
            match effect:
                case Send():
                    sim.send(self, effect.peer, effect.message, b"".join(effect.payload))
                case Append():
                    if self.disk_refuses:
                        refused = True
                    else:
                        medium.append(effect.batch)
                    if effect.sync:
                        self._sync()
                case Sync():
                    self._sync()
                case Truncate():
                    medium.truncate(effect.offset, effect.generation)
                case Trim():
                    medium.trim(effect.first)
                case Drop():
                    medium.empty(0)
                    self.drops += 1
                case Open():
                    medium.empty(effect.first)
                case Persist():
                    # A journal is written in order.
                    self._journal_us = max(self._journal_us, sim.us + sim.random.randint(*sim.sync_us))
                    sim.at(self._journal_us, self._guard(self._persisted, effect))
                case Echo():
                    self.group.persisted(sim.now, effect.number)
                    self.step()
                case Read():
                    sim.later(sim.random.randint(50, 500), self._guard(self._read, effect))
                case Committed() | Serving() | ServedElsewhere() | LogLine():
                    pass
                case (
                    SetTimer()
                    | Refused()
                    | Blocked()
                    | Broken()
                    | Confirmed()
                    | OperationDone()
                    | Described()
                    | Covered()
                    | StopPrepared()
                    | Connect()
                    | Disconnect()
                    | KnownNodes()
                    | PartitionJoined()
                    | Forwarded()
                    | ForwardReceived()
                    | ProducerAdmitted()
                    | ProducerMigrated()
                    | Ready()
                    | HeldByAll()
                    | TopicOpened()
                    | TopicChanged()
                    | TopicClosed()
                ):
                    raise AssertionError(f"not an effect of a group: {effect}")
                case _:
                    assert_never(effect)
        if refused:
            self.disk_refuses = False
            self.writes_refused += 1
            self.group.write_failed(sim.now, medium.end, medium.generation)
            self.step()

    def _sync(self) -> None:
        sim, medium = self.sim, self.disk
        under_way = [one for one in medium.stored if not one.durable]
        ended = self._guard(self._synced, under_way, medium.generation, medium.end, medium.first)
        sim.later(sim.random.randint(*(self.sync_us or sim.sync_us)), ended)

    def _synced(self, under_way: list[Any], generation: int, end: int, first: int) -> None:
        for one in under_way:
            one.durable = True
        # A log that was dropped meanwhile is not the one that was synced.
        if any(one in self.disk.stored for one in under_way) or first == self.disk.first:
            self.group.synced(self.sim.now, generation, end)
            self.step()

    def _persisted(self, effect: Persist) -> None:
        self.disk.hard[effect.key] = effect.state
        self.carry_out(effect.then)

    def _read(self, effect: Read) -> None:
        batches = self.disk.read(effect.offset, effect.end, effect.bytes_max)
        self.group.read_done(self.sim.now, effect.token, batches)
        self.step()

    # --- state for tests ---

    @property
    def leads(self) -> bool:
        return self.alive and self.group.role is Role.LEADER

    def values(self) -> list[bytes | None]:
        batches = [Batch(one.batch) for one in self.disk.stored]
        return [value for batch in batches if not batch.header.is_control for value in batch.values()]


class GroupSimulation(Simulation):
    def __init__(
        self,
        nodes: int = 3,
        *,
        seed: int = 0,
        settings: RaftSettings | None = None,
        without: Without = ALL_ON,
        voters: tuple[int, ...] | None = None,
        start: bool = True,
    ) -> None:
        super().__init__(seed)
        self.settings = settings or RaftSettings()
        self.without = without
        self.sync_us = (300, 3_000)
        self.promotes = True
        self._token = 0
        self.observers: list[Observer] = []
        ids = tuple(range(1, nodes + 1))
        self.members = {node: Member(self, NodeId(node), voters or ids) for node in ids}
        if start:
            self.start()

    def start(self) -> None:
        for member in self.members.values():
            member.start()

    def random_of(self, node: int) -> Random:
        return Random(self.random.getrandbits(64) ^ node)

    def next_token(self) -> int:
        self._token += 2
        return self._token

    def send(self, sender: Member, receiver: NodeId, message: object, payload: bytes = b"") -> None:
        def arrive(arrived: object) -> None:
            member = self.members.get(receiver)
            if member is not None and member.alive:
                member.receive(sender.node, arrived, payload)

        self.transmit(sender.node, receiver, message, arrive)

    # --- actions and state for tests ---

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    def leader(self) -> Member | None:
        """The leader of the highest term."""
        leaders = [member for member in self.members.values() if member.leads]
        return max(leaders, key=lambda member: member.group.term, default=None)

    def elect(self, node: int | None = None) -> Member:
        """Runs until somebody leads and has committed in its term; a named node is made to, by handing over."""
        self.run_until(lambda: (leader := self.leader()) is not None and has_settled(leader))
        leader = self.leader()
        assert leader is not None
        if node is None or leader.node == node:
            return leader
        target = self.members[node]

        def handed_over() -> bool:
            now_leader = self.leader()
            if target.leads and has_settled(target):
                return True
            if now_leader is not None and now_leader is not target and now_leader.group.transfer_to is None:
                now_leader.group.transfer_leadership(self.now, target.node)
                now_leader.step()
            return False

        self.run_until(handed_over)
        return target

    def make_leader(self, node: int) -> Member:
        """By force, over and over: for scripts in which no timeout runs out by itself."""
        member = self.members[node]
        for _ in range(5):
            member.force_election()
            self.run(40)
            if member.leads:
                return member
            # A lost election: it begins anew as a follower.
            member.crash()
            member.start()
        raise AssertionError(f"seed {self.seed}: node {node} is not elected")

    def publish(self, value: bytes) -> tuple[int, int]:
        """Through the leader, until it is committed there."""
        leader = self.elect()
        assert leader.propose(value, token=99)
        base, last = leader.accepted[99]
        self.run_until(lambda: leader.group.commit > last)
        return base, last


def has_settled(member: Member) -> bool:
    group = member.group
    return group.log.epoch_at(group.commit) == group.term
