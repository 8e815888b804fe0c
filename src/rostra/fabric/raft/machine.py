"""All Raft groups of one node: one for the catalogue, one for every partition that has a copy here."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, assert_never

import msgspec

from rostra.errors import CorruptLog, PeerViolation
from rostra.fabric.api import (
    METADATA,
    Accepted,
    AcksAll,
    AwaitCoverage,
    Blocked,
    Committed,
    Confirm,
    Connect,
    Delivers,
    Describe,
    DiskBroke,
    Drop,
    Echo,
    FabricEffect,
    FabricInput,
    Guarantees,
    HeldByAll,
    LogLine,
    Now,
    Open,
    Order,
    PassOn,
    PeerLost,
    PeerMet,
    PeerReceived,
    Persist,
    PrepareStop,
    Propose,
    ProposeDrop,
    ProposeSettings,
    ProposeStart,
    ProposeTopic,
    QueryHeldByAll,
    ReadDone,
    Readers,
    ReadFailed,
    Ready,
    Recovered,
    Refused,
    RemoveNode,
    ServedElsewhere,
    Serving,
    SetTimer,
    Settled,
    SplitBehaviour,
    Started,
    Survives,
    Synced,
    TimerFired,
    TransferOwnership,
    WriteFailed,
)
from rostra.fabric.raft.cluster_description import ClusterDescription
from rostra.fabric.raft.consensus import fast_path
from rostra.fabric.raft.consensus.group_state import half_refilled
from rostra.fabric.raft.consensus.hard_state import GroupConfig, GroupConfigAt, HardState, key_of, unpack_hard_state
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.message_router import MessageRouter
from rostra.fabric.raft.messages import AlterTopicRequest, CreateTopicRequest, DropTopicRequest, RemoveNodeRequest
from rostra.fabric.raft.metadata.metadata_group import MetadataGroup
from rostra.fabric.raft.metadata.metadata_state import META, ClusterMember
from rostra.fabric.raft.metadata.placement import ReplicaPlacement
from rostra.fabric.raft.peers.deadline_queue import NEVER_US, DeadlineQueue
from rostra.fabric.raft.peers.peer_set import PeerSet
from rostra.fabric.raft.peers.removal import Removal
from rostra.fabric.raft.replicas.leader_transfer import LeaderTransfer
from rostra.fabric.raft.replicas.reassignment import ReplicaReassignment
from rostra.fabric.raft.replicas.replicas import RETIRED, Replicas
from rostra.fabric.raft.settings import BEAT, WAKE, RaftSettings
from rostra.fabric.raft.status import ClusterStatus, status_of
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import ALL_ON, Without

GUARANTEES = Guarantees(
    fabric="raft",
    order=Order.PARTITION,
    acks_all=AcksAll.MAJORITY,
    delivers=Delivers.REPLICA,
    split=SplitBehaviour.REFUSES,
    survives=Survives.MINORITY,
    groups_span_nodes=True,
    exactly_once_sink=False,
)

BOOT = "raft/boot"
META_SEGMENT_BYTES = 1 << 26
META_VOTERS_MAX = 7
SOMEBODY = NodeId(0)
FOR_THE_BROKER = (Serving, ServedElsewhere, Blocked, Committed, Accepted, Refused)
"""What is said of a partition to those above the fabric."""


class Raft:
    """A cluster is founded by the nodes named in `founders`, this one among them, or joined through addresses."""

    guarantees = GUARANTEES

    def __init__(
        self,
        node: NodeId,
        address: str,
        peer_address: str = "",
        *,
        founders: tuple[ClusterMember, ...] = (),
        join: tuple[str, ...] = (),
        random: Random,
        settings: RaftSettings | None = None,
        without: Without = ALL_ON,
    ) -> None:
        self.node = node
        self.address = address
        self.peer_address = peer_address
        self.settings = settings or RaftSettings()
        self.boot = 0
        self.now = Now(0, 0)
        self.peers = PeerSet(self)
        self.groups: dict[Partition, RaftGroup] = {}
        self._without = without
        self._random = random
        self.own = ClusterMember(node, address, peer_address)
        self.founders = founders or (() if join else (self.own,))
        self._join = join
        self._meta: MetadataGroup | None = None
        self._catalogue_group: RaftGroup | None = None
        self.meta: MetadataGroup
        """Once the node has started."""
        self.takes_part = False
        """Whether the catalogue's log is known, so that peers can be answered."""
        self.hard: dict[str, bytes] = {}
        """Hard state of groups that are not here, as far as it is worth keeping: as found, or left by a copy."""
        self._found: dict[Partition, Recovered] = {}
        self.hosting = Replicas(self)
        self.leaving = LeaderTransfer(self)
        self.placing = ReplicaPlacement(self)
        self.moving = ReplicaReassignment(self)
        self.describing = ClusterDescription(self)
        self.expulsion = Removal(self)
        self.post = MessageRouter(self)
        self.removed = False
        """This node was removed from the cluster: it takes part in nothing, and says so."""
        self.beating: dict[Partition, RaftGroup] = {}
        """Groups led here that are not silent."""
        self.resigned = 0
        """How often a group has ceased to be led here since the start."""
        self.alarms = DeadlineQueue()
        self._wakes_us: int | None = None
        self.keys: dict[str, Partition] = {}
        self._token = 0
        self._ready = False
        self._disk_refused = False
        self._electing: list[RaftGroup] = []
        """Since its start: a node with a full disk serves what it has, although it cannot begin a term."""
        self._stirred = False
        """The catalogue's group did something: perhaps something is committed."""
        self._term_found = 0
        """The catalogue's term as this start found it."""
        self._knew_commit = False
        """This start found a catalogue that was committed: it can serve what is in it before a leader is heard."""
        self.out: list[FabricEffect] = []

    def status(self) -> ClusterStatus:
        return status_of(self)

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        """Every record comes by here, several times where a node is among others: mostly there is a short way."""
        self.now = now
        if self._ready and not self.removed and self.leaving.until_us is None:
            effects = None
            if isinstance(given, PeerReceived):
                message: Any = given.message
                hear = fast_path.HEARD.get(type(message))
                if hear is not None and given.peer not in self.meta.catalogue.removed:
                    group = self.groups.get(message.partition)
                    if group is not None and group.term == message.term:
                        effects = hear(group, now, given.peer, message, given.payload)
            elif isinstance(given, Propose):
                group = self.groups.get(given.partition)
                if group is not None:
                    effects = group.propose_alone(given) if group.alone else fast_path.proposed(group, now, given)
            elif isinstance(given, Synced):
                group = self.groups.get(given.partition)
                if group is not None:
                    effects = group.synced_alone(given) if group.alone else fast_path.synced(group, now, given)
            if effects is not None:
                return effects
        return self._step_at_length(given)

    def _step_at_length(self, given: FabricInput) -> list[FabricEffect]:
        if self.removed:
            return self.expulsion.refuse(given)
        self.out = []
        try:
            self._take(given)
        except PeerViolation as violation:
            self.out.append(LogLine("error", "a peer broke the protocol", {"error": str(violation)}))
        if (
            self._stirred
            or not self._ready
            or self.leaving.until_us is not None
            or self.alarms.next_us != self._wakes_us
        ):
            self._settle()
        return self.out

    def _propose(self, given: Propose) -> None:
        group = self.groups.get(given.partition)
        if group is None:
            self.out.append(Refused(given.token, self.hosting.nowhere(given.partition)))
        else:
            group.propose(self.now, given.token, given.batch, given.owner_flags)
            self.touch(group)

    def _take(self, given: FabricInput) -> None:
        match given:
            case PeerReceived():
                self.post.receive(given)
            case Propose():
                self._propose(given)
            case Synced():
                self._for(given.partition, lambda group: group.synced(self.now, given.generation, given.offset))
            case ReadDone() | ReadFailed():
                self._read(given)
            case Echo():
                self._echo(given)
            case TimerFired():
                self._timer(given.timer)
            case ProposeTopic():
                self._ask(
                    CreateTopicRequest(
                        self.node, self.boot, given.token, given.spec, given.segment_bytes, given.replicas
                    )
                )
            case ProposeDrop():
                self._ask(DropTopicRequest(self.node, self.boot, given.token, given.topic))
            case ProposeSettings():
                ask = AlterTopicRequest(
                    self.node, self.boot, given.token, given.topic, given.settings, given.segment_bytes
                )
                self._ask(ask)
            case QueryHeldByAll():
                group = self.groups.get(given.partition)
                if group is not None and group.role is Role.LEADER:
                    self.out.append(HeldByAll(given.partition, group.replication.held_by_all()))
            case Readers():
                self._for(given.partition, lambda group: group.readers(self.now, given.some))
            case Confirm():
                self.meta.confirm(given.token)
                self.touch(self.meta.group)
            case ProposeStart():
                self._for(given.partition, lambda group: group.advance_start(self.now, given.first))
            case WriteFailed():
                self._write_failed(given)
            case PeerMet():
                self.peers.acquaintances[given.peer] = given.address
                self.peers.ask_to_join()
            case PeerLost():
                if self.peers.pairs.cut(given.peer):
                    self.peers.lost(given.peer)
            case Started():
                self._started(given)
            case DiskBroke():
                for group in list(self.groups.values()):
                    group.broke(self.now)
                    self.touch(group)
            case TransferOwnership():
                self.leaving.give_away(given)
            case RemoveNode():
                self._ask(RemoveNodeRequest(self.node, self.boot, given.token, given.node))
            case Describe():
                self.describing.ask(given.token)
            case PassOn() | Settled() | AwaitCoverage():
                raise AssertionError(f"this fabric tells clients where to go: {given}")
            case PrepareStop():
                self.leaving.hand_over()
            case _:
                assert_never(given)

    def _ask(self, ask: CreateTopicRequest | DropTopicRequest | AlterTopicRequest | RemoveNodeRequest) -> None:
        self.out += self.meta.ask(ask)
        self.touch(self.meta.group)

    # --- starting ---

    def _started(self, given: Started) -> None:
        self.hard = {key: state for key, state in given.hard.items() if state}
        self._found = {found.partition: found for found in given.partitions}
        if self.expulsion.is_remembered():
            return
        self.boot = int.from_bytes(self.hard.get(BOOT, b""), "little") + 1
        # Nobody hears of this start before its number is durable: else two starts could share it.
        self.out.append(Persist(BOOT, self.boot.to_bytes(8, "little"), (Echo(BOOT, self.boot),)))

    def _booted(self) -> None:
        config = GroupConfig(tuple(sorted(member.node for member in self.founders)))
        group = self.make_group(META, META_SEGMENT_BYTES, config if self.founders else None)
        group.keeps_commit = True
        # Everybody who asks a node about topics reads its copy.
        group.has_readers = True
        group.name = METADATA
        group.voters_max = META_VOTERS_MAX
        self._meta = self.meta = MetadataGroup(self, group)
        self._catalogue_group = group
        self._knew_commit = group.commit > group.copy.first
        self._term_found = group.term
        if self._meta.replaying:
            self.out.append(self._meta.replay_from(group.copy.first))
        else:
            self._begin()

    def _begin(self) -> None:
        """The catalogue's log is known: its group may take part."""
        self.takes_part = True
        group = self.meta.group
        group.start(self.now)
        self.touch(group)
        self.out += self.meta.apply()
        self.peers.begin()
        for address in self._join:
            self.out.append(Connect(SOMEBODY, address))
        self.out.append(SetTimer(BEAT, self.now.mono_us))

    def has_met(self, partition: Partition) -> bool:
        """Whether this node took part in the partition's group: then it voted, or has something of its log."""
        found = self._found.get(partition)
        return key_of(partition) in self.hard or (found is not None and found.end > 0)

    def make_group(
        self, partition: Partition, segment_bytes: int, config: GroupConfig | None, *, late: bool = False
    ) -> RaftGroup:
        """`late`: its group existed before. Perhaps this node was in it: then it voted, and had what it has no more."""
        packed = self.hard.pop(key_of(partition), None)
        if packed and self._ready:
            # It was here before, and perhaps led: followers that are silent would go on believing so.
            self.resigned += 1
        initial = (GroupConfigAt(0, 0, config),) if config is not None else ()
        hard = unpack_hard_state(packed) if packed else HardState(configs=initial)
        found = self._found.pop(partition, None)
        if found is None:
            self.out.append(Open(partition, segment_bytes))
        elif (first := half_refilled(hard, found)) is not None:
            self.out += [Drop(partition), Open(partition, segment_bytes, first)]
            found = Recovered(partition, first, first, ())
        if late and (found is None or not packed):
            hard = msgspec.structs.replace(hard, complete=False)
        group = RaftGroup(
            self.node,
            found or Recovered(partition, 0, 0, ()),
            hard,
            settings=self.settings,
            random=self._random,
            next_token=self._next_token,
            address_of=self.address_of,
            segment_bytes=segment_bytes,
            without=self._without,
        )
        self.groups[partition] = group
        self.keys[key_of(partition)] = partition
        return group

    def forget_group(self, partition: Partition) -> RaftGroup | None:
        group = self.groups.pop(partition, None)
        if group is not None:
            self.beating.pop(partition, None)
            self.keys.pop(key_of(partition), None)
        return group

    def _next_token(self) -> int:
        # Even tokens, and none that a replay uses: the broker's own reads have odd ones.
        self._token += 2
        return self._token

    def since_boot(self, token: int) -> int:
        """As peers see it: an answer that comes late must not be taken for one to a question after a restart."""
        return (self.boot % (1 << 22) << 40) + token

    def address_of(self, node: NodeId) -> str:
        member = self.meta.catalogue.members.get(node) if self._meta is not None else None
        if member is None:
            member = next((founder for founder in self.founders if founder.node == node), None)
        return member.address if member is not None else ""

    def _echo(self, given: Echo) -> None:
        if given.key == BOOT:
            self._booted()
            return
        if given.key.startswith(RETIRED):
            self.hosting.retired(given.key)
            return
        partition = self.keys.get(given.key)
        group = self.groups.get(partition) if partition is not None else None
        if group is not None:
            group.echo(self.now, given.number)
            self.touch(group)

    # --- groups ---

    def _for(self, partition: Partition, action: Callable[[RaftGroup], None]) -> None:
        group = self.groups.get(partition)
        if group is not None:
            action(group)
            self.touch(group)

    def touch(self, group: RaftGroup) -> None:
        """Carries on what the group did: its effects, its deadline, its heartbeats."""
        if group is self._catalogue_group:
            self._stirred = True
            if group.out:
                self.touch_meta(group.take())
        elif group.out:
            self.out += group.out
            group.out = []
        if group.role is Role.LEADER:
            if not group.led:
                group.led = True
                self.hosting.led(group)
            has_peers = bool(group.replication.peers)
            beats = has_peers and not group.quiet
            if beats is not group.beating:
                # Who has nobody to speak to needs no heartbeat either.
                self._set_beating(group, beats)
            if beats and group.wants_beat:
                self.peers.send_beats(dict.fromkeys([group]))
        elif group.led:
            group.led = False
            self._set_beating(group, False)
            self.resigned += 1
        group.find_way()
        deadline_us = group.deadline_us
        if deadline_us is not None and deadline_us < group.armed_us:
            self._arm(group, deadline_us)

    def _arm(self, group: RaftGroup, at_us: int) -> None:
        group.armed_us = at_us
        self.alarms.arm(group.partition, at_us)

    def _set_beating(self, group: RaftGroup, beats: bool) -> None:
        group.beating = beats
        if beats:
            self.beating[group.partition] = group
        else:
            self.beating.pop(group.partition, None)

    def touch_meta(self, effects: list[FabricEffect]) -> None:
        """Nobody above knows the catalogue's partition: only what the drivers do is passed on."""
        if self._meta is None:
            self.out += effects
            return
        self._meta.watch(effects)
        for effect in effects:
            if not isinstance(effect, FOR_THE_BROKER):
                self.out.append(effect)

    def _settle(self) -> None:
        """At the end of a step: what is committed in the catalogue takes effect, and the clock is set."""
        # Until it is ready, any group may be the one that was waited for.
        if (self._stirred or not self._ready) and self.takes_part:
            self._follow_meta()
            self._stirred = False
        if self.leaving.until_us is not None:
            self.leaving.finish()
        next_us = self.alarms.next_us
        if next_us is not None and next_us != self._wakes_us:
            self._wakes_us = next_us
            self.out.append(SetTimer(WAKE, next_us))

    def _follow_meta(self) -> None:
        meta = self.meta
        self.out += meta.apply()
        if meta.group.out:
            self.touch(meta.group)
        if meta.awaits_word:
            self.out += meta.confirmed()
        if meta.group.role is Role.LEADER and meta.lacks(self.founders):
            self.out += meta.enter(self.founders)
            self.touch(meta.group)
        if not self._ready or self._found:
            self._get_ready()

    def _get_ready(self) -> None:
        group = self.meta.group
        known = group.is_current and self.node in self.meta.catalogue.members and not self._elects_itself()
        restarted = self._knew_commit and (group.config.voters != (self.node,) or self._disk_refused)
        if not self._ready and (known or restarted or group.stranded):
            self._ready = True
            self.out.append(Ready())
        # The log of a topic that was made after the commit that this start found looks as if it had none. Only a term
        # that began since then says that nothing committed earlier is unknown: else copies that count would be lost.
        if self._found and known and group.term > self._term_found and self.meta.applied >= group.commit:
            for partition in sorted(self._found):
                self.out += [LogLine("warning", "log without topic dropped", {"partition": str(partition)})]
                self.out.append(Drop(partition))
            self._found.clear()

    def _elects_itself(self) -> bool:
        """Whether a group of this node alone has yet to find its commit again, which needs nobody's word."""
        if self._ready or self._disk_refused:
            return False
        # Those it waited for last time, and only when they are done with, all: there may be thousands.
        waiting = self._electing
        while waiting and not self._has_yet_to_lead(waiting[-1]):
            waiting.pop()
        if not waiting:
            waiting += [group for group in self.groups.values() if self._has_yet_to_lead(group)]
        return bool(waiting)

    def _has_yet_to_lead(self, group: RaftGroup) -> bool:
        # One whose topic was deleted meanwhile never will.
        is_here = self.groups.get(group.partition) is group
        return is_here and group.config.voters == (self.node,) and group.may_lead and not group.is_current

    def _write_failed(self, given: WriteFailed) -> None:
        self._disk_refused = True
        if given.partition == META:
            self.meta.cut(given.offset)
        self._for(given.partition, lambda group: group.write_failed(self.now, given.offset, given.generation))

    def _read(self, given: ReadDone | ReadFailed) -> None:
        group = self.groups.get(given.partition)
        if group is None:
            return
        if given.partition == META and self.meta.replaying:
            if isinstance(given, ReadFailed):
                self.out.append(LogLine("error", "catalogue damaged", {"error": str(given.error)}))
                group.doubt()
                self.meta.replaying = False
                self._begin()
                return
            more = self.meta.replayed(given.batches, given.next)
            if more is not None:
                self.out.append(more)
            else:
                self._begin()
        elif isinstance(given, ReadDone):
            group.read_done(self.now, given.token, given.batches)
            self.touch(group)
        else:
            group.read_failed(self.now, given.token, isinstance(given.error, CorruptLog))
            self.touch(group)

    # --- time ---

    def _timer(self, timer: str) -> None:
        if timer == BEAT:
            self.peers.beat()
            self.out += self.meta.remind()
            self.placing.look()
            self.meta.condense()
            self.touch(self.meta.group)
            self.moving.look()
            self.leaving.look()
            self.describing.look()
            self.hosting.spread_leaders()
            self.out.append(SetTimer(BEAT, self.now.mono_us + self.settings.heartbeat_us))
        elif timer == WAKE:
            self._wake()

    def _wake(self) -> None:
        self._wakes_us = None
        while (alarm := self.alarms.gone_off(self.now.mono_us)) is not None:
            at_us, partition = alarm
            group = self.groups.get(partition)
            if group is None or group.armed_us != at_us:
                continue
            group.armed_us = NEVER_US
            if group.deadline_us is None:
                continue
            if group.deadline_us <= self.now.mono_us:
                group.fire(self.now)
                self.touch(group)
            else:
                self._arm(group, group.deadline_us)
