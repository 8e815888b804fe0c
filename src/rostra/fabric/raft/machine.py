"""All Raft groups of one node: one for the catalogue, one for every partition that has a copy here."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import assert_never

import msgspec

from rostra.errors import CorruptLog, Moved, PeerViolation, RostraError, Unavailable, UnknownPartition
from rostra.fabric.api import (
    Accepted,
    AcksAll,
    Broke,
    Committed,
    Confirm,
    Delivers,
    Drop,
    Echo,
    Elsewhere,
    FabricEffect,
    FabricInput,
    GiveAway,
    Guarantees,
    HandedOver,
    HandOver,
    Meet,
    Note,
    Now,
    Open,
    Order,
    PeerLost,
    PeerMet,
    PeerReceived,
    Persist,
    Propose,
    ProposeDrop,
    ProposeStart,
    ProposeTopic,
    ReadDone,
    ReadFailed,
    Ready,
    Recovered,
    Refused,
    Serving,
    SetTimer,
    Split,
    Started,
    Synced,
    TimerFired,
    TopicClosed,
    TopicOpened,
    WriteFailed,
)
from rostra.fabric.raft.alarms import Alarms
from rostra.fabric.raft.catalogue import META, Made, Member
from rostra.fabric.raft.group import Group
from rostra.fabric.raft.hard import Config, ConfigAt, Hard, key_of, unpack_hard
from rostra.fabric.raft.messages import (
    Answered,
    DropTopic,
    Entries,
    EntriesRefused,
    EntriesReply,
    Heartbeat,
    HeartbeatReply,
    Join,
    Joined,
    MakeTopic,
    ReadAsk,
    ReadTold,
    Refill,
    TimeoutNow,
    VoteAsk,
    VoteReply,
)
from rostra.fabric.raft.metadata import Metadata
from rostra.fabric.raft.peers import Peers
from rostra.fabric.raft.roles import Role
from rostra.fabric.raft.settings import RaftSettings
from rostra.fabric.raft.status import ClusterStatus, status_of
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import ALL_ON, Without

GUARANTEES = Guarantees(
    fabric="raft",
    order=Order.PARTITION,
    acks_all=AcksAll.MAJORITY,
    delivers=Delivers.REPLICA,
    split=Split.REFUSES,
    crashes_survived="any minority at once; all, by restarting",
    groups_span_nodes=True,
    exactly_once_sink=False,
)

BOOT = "raft/boot"
BEAT = "raft/beat"
WAKE = "raft/wake"
META_SEGMENT_BYTES = 1 << 26
META_VOTERS_MAX = 7
EARLY_MAX = 1024
SOMEBODY = NodeId(0)

GroupMessage = VoteAsk | VoteReply | Entries | EntriesReply | EntriesRefused | Refill | TimeoutNow | ReadAsk | ReadTold


class Raft:
    """A cluster is founded by the nodes named in `founders`, this one among them, or joined through addresses."""

    guarantees = GUARANTEES

    def __init__(
        self,
        node: NodeId,
        address: str,
        peer_address: str = "",
        *,
        founders: tuple[Member, ...] = (),
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
        self.peers = Peers(self)
        self.groups: dict[Partition, Group] = {}
        self._without = without
        self._random = random
        self.own = Member(node, address, peer_address)
        self.founders = founders or (() if join else (self.own,))
        self._join = join
        self._meta: Metadata | None = None
        self._hard: dict[str, bytes] = {}
        self._found: dict[Partition, Recovered] = {}
        self._opened: dict[TopicId, Made] = {}
        self.beating: dict[Partition, Group] = {}
        """Groups led here that are not silent."""
        self._alarms = Alarms()
        self._wakes_us: int | None = None
        self._early: list[tuple[NodeId, GroupMessage, bytearray | None]] = []
        """For groups that this node has not heard of yet."""
        self._keys: dict[str, Partition] = {}
        self._token = 0
        self._spreads_us = 0
        self._routes: dict[Partition, str] = {}
        """Where partitions without a copy here were last said to be."""
        self._ready = False
        self._knew_commit = False
        """This start found a catalogue that was committed: it can serve what is in it before a leader is heard."""
        self._handing_over_until_us: int | None = None
        self.out: list[FabricEffect] = []

    @property
    def meta(self) -> Metadata:
        assert self._meta is not None, "the node has started"
        return self._meta

    @property
    def takes_part(self) -> bool:
        """Whether the catalogue's log is known, so that peers can be answered."""
        return self._meta is not None and not self._meta.replaying

    def status(self) -> ClusterStatus:
        return status_of(self)

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        self.now = now
        self.out = []
        try:
            self._take(given)
        except PeerViolation as violation:
            self.out.append(Note("error", "a peer broke the protocol", {"error": str(violation)}))
        self._settle()
        return self.out

    def _take(self, given: FabricInput) -> None:
        match given:
            case Propose():
                self._propose(given)
            case Synced():
                group = self.groups.get(given.partition)
                if group is not None:
                    group.synced(self.now, given.generation, given.offset)
                    self.touch(group)
            case PeerReceived():
                self._received(given)
            case ReadDone() | ReadFailed():
                self._read(given)
            case Echo():
                self._echo(given)
            case TimerFired():
                self._timer(given.timer)
            case ProposeTopic():
                self._ask(MakeTopic(self.node, self.boot, given.token, given.spec, given.segment_bytes, given.replicas))
            case ProposeDrop():
                self._ask(DropTopic(self.node, self.boot, given.token, given.topic))
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
            case Broke():
                for group in list(self.groups.values()):
                    group.broke(self.now)
                    self.touch(group)
            case GiveAway():
                self._give_away(given)
            case HandOver():
                self._hand_over()
            case _:
                assert_never(given)

    def _ask(self, ask: MakeTopic | DropTopic) -> None:
        self.out += self.meta.ask(ask)
        self.touch(self.meta.group)

    # --- starting ---

    def _started(self, given: Started) -> None:
        self._hard = {key: state for key, state in given.hard.items() if state}
        self._found = {found.partition: found for found in given.partitions}
        self.boot = int.from_bytes(self._hard.get(BOOT, b""), "little") + 1
        # Nobody hears of this start before its number is durable: else two starts could share it.
        self.out.append(Persist(BOOT, self.boot.to_bytes(8, "little"), (Echo(BOOT, self.boot),)))

    def _booted(self) -> None:
        config = Config(tuple(sorted(member.node for member in self.founders)))
        group = self._make_group(META, META_SEGMENT_BYTES, config if self.founders else None)
        group.keeps_commit = True
        group.voters_max = META_VOTERS_MAX
        self._meta = Metadata(self, group)
        self._knew_commit = group.commit > 0
        if self._meta.replaying:
            self.out.append(self._meta.replay_from(group.copy.first))
        else:
            self._begin()

    def _begin(self) -> None:
        """The catalogue's log is known: its group may take part."""
        group = self.meta.group
        group.start(self.now)
        self.touch(group)
        self.out += self.meta.apply()
        self.peers.meet_all()
        for address in self._join:
            self.out.append(Meet(SOMEBODY, address))
        self.out.append(SetTimer(BEAT, self.now.mono_us))

    def _make_group(self, partition: Partition, segment_bytes: int, config: Config | None) -> Group:
        packed = self._hard.pop(key_of(partition), None)
        initial = (ConfigAt(0, 0, config),) if config is not None else ()
        found = self._found.pop(partition, None)
        if found is None:
            self.out.append(Open(partition, segment_bytes))
        group = Group(
            self.node,
            found or Recovered(partition, 0, 0, ()),
            unpack_hard(packed) if packed else Hard(configs=initial),
            settings=self.settings,
            random=self._random,
            next_token=self._next_token,
            address_of=self.address_of,
            segment_bytes=segment_bytes,
            without=self._without,
        )
        self.groups[partition] = group
        self._keys[key_of(partition)] = partition
        return group

    def _next_token(self) -> int:
        # Even tokens, and none that a replay uses: the broker's own reads have odd ones.
        self._token += 2
        return self._token

    def address_of(self, node: NodeId) -> str:
        member = self.meta.catalogue.members.get(node) if self._meta is not None else None
        if member is None:
            member = next((founder for founder in self.founders if founder.node == node), None)
        return member.address if member is not None else ""

    def _echo(self, given: Echo) -> None:
        if given.key == BOOT:
            self._booted()
            return
        partition = self._keys.get(given.key)
        group = self.groups.get(partition) if partition is not None else None
        if group is not None:
            group.echo(self.now, given.number)
            self.touch(group)

    # --- groups ---

    def _for(self, partition: Partition, action: Callable[[Group], None]) -> None:
        group = self.groups.get(partition)
        if group is not None:
            action(group)
            self.touch(group)

    def touch(self, group: Group) -> None:
        """Carries on what the group did: its effects, its deadline, its heartbeats."""
        effects = group.take()
        if group.partition == META:
            self.touch_meta(effects)
        else:
            self.out += effects
        if group.role is Role.LEADER and not group.quiet:
            self.beating[group.partition] = group
            if group.wants_beat:
                self.peers.send_beats(dict.fromkeys([group]))
        else:
            self.beating.pop(group.partition, None)
        self._alarms.arm(group.partition, group.deadline_us)

    def touch_meta(self, effects: list[FabricEffect]) -> None:
        """Nobody above knows the catalogue's partition: only what the drivers do is passed on."""
        if self._meta is None:
            self.out += effects
            return
        self._meta.watch(effects)
        for effect in effects:
            if not isinstance(effect, Serving | Elsewhere | Committed | Accepted | Refused):
                self.out.append(effect)

    def _settle(self) -> None:
        """At the end of a step: what is committed in the catalogue takes effect, and the clock is set."""
        if self._meta is not None and not self._meta.replaying:
            self.out += self._meta.apply()
            self.out += self._meta.confirmed()
            if self._meta.lacks(self.founders):
                self.out += self._meta.enter(self.founders)
                self.touch(self._meta.group)
            self._get_ready()
            self._finish_handing_over()
        if self._alarms.next_us not in (None, self._wakes_us):
            self._wakes_us = self._alarms.next_us
            self.out.append(SetTimer(WAKE, self._wakes_us))

    def _get_ready(self) -> None:
        group = self.meta.group
        known = group.is_current and self.node in self.meta.catalogue.members
        restarted = self._knew_commit and group.config.voters != (self.node,)
        if not self._ready and (known or restarted):
            self._ready = True
            self.out.append(Ready())
        if self._found and known and self.meta.applied >= group.commit:
            for partition in sorted(self._found):
                self.out += [Note("warning", "log without topic dropped", {"partition": str(partition)})]
                self.out.append(Drop(partition))
            self._found.clear()

    def _write_failed(self, given: WriteFailed) -> None:
        if given.partition == META:
            self.meta.cut(given.offset)
        self._for(given.partition, lambda group: group.write_failed(self.now, given.offset, given.generation))

    def _read(self, given: ReadDone | ReadFailed) -> None:
        group = self.groups.get(given.partition)
        if group is None:
            return
        if given.partition == META and self.meta.replaying:
            if isinstance(given, ReadFailed):
                self.out.append(Note("error", "catalogue damaged", {"error": str(given.error)}))
                group.hard = msgspec.structs.replace(group.hard, complete=False)
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

    def _propose(self, given: Propose) -> None:
        group = self.groups.get(given.partition)
        if group is None:
            self.out.append(Refused(given.token, self._nowhere(given.partition)))
            return
        group.propose(self.now, given.token, given.batch, given.owner_flags)
        self.touch(group)

    def _nowhere(self, partition: Partition) -> RostraError:
        made = self._opened.get(partition.topic)
        if made is None or partition.index >= len(made.replicas):
            return UnknownPartition("", partition.index)
        address = self._somewhere(made.replicas[partition.index])
        return Moved(address, 0) if address else Unavailable(made.spec.name, partition.index, "no copy is reachable")

    # --- the catalogue's word ---

    def follow_catalogue(self, answered: dict[TopicId, int]) -> list[FabricEffect]:
        """Topics that are new here; links to members that are. `answered` are the tokens that wait for a topic."""
        before, self.out = self.out, []
        self.peers.meet_all()
        for topic in [topic for topic in self._opened if topic not in self.meta.catalogue.topics]:
            self.out += [*self.close_topic(topic), TopicClosed(None, topic)]
        for topic, made in self.meta.catalogue.topics.items():
            if topic not in self._opened:
                self._open_topic(answered.get(topic), made)
        effects, self.out = self.out, before
        return effects

    def _open_topic(self, token: int | None, made: Made) -> None:
        self._opened[made.spec.topic] = made
        self.out.append(TopicOpened(token, made.spec))
        for index, replicas in enumerate(made.replicas):
            partition = Partition(made.spec.topic, PartitionIndex(index))
            if self.node not in replicas:
                self._route(partition, replicas)
                continue
            group = self._make_group(partition, made.segment_bytes, Config(tuple(sorted(replicas))))
            group.name = made.spec.name
            group.start(self.now)
            if group.term == 0 and replicas[0] == self.node:
                # The preferred leader of a new partition need not wait for a silence.
                group.deadline_us = self.now.mono_us
            self.touch(group)
            early, self._early = self._early, []
            for peer, message, payload in early:
                self._pass(peer, message, payload)

    def _route(self, partition: Partition, replicas: tuple[NodeId, ...]) -> None:
        address = self._somewhere(replicas)
        if self._routes.get(partition) != address:
            self._routes[partition] = address
            self.out.append(Elsewhere(partition, 0, address))

    def reroute(self) -> None:
        """Nodes came or went: what has no copy here may be better asked for elsewhere."""
        for partition in list(self._routes):
            self._route(partition, self._opened[partition.topic].replicas[partition.index])

    def _somewhere(self, replicas: tuple[NodeId, ...]) -> str:
        there = [node for node in replicas if self.peers.pairs.is_there(node)] or list(replicas)
        return self.address_of(there[0]) if there else ""

    def close_topic(self, topic: TopicId) -> list[FabricEffect]:
        made = self._opened.pop(topic, None)
        effects: list[FabricEffect] = []
        for index in range(made.spec.partitions if made is not None else 0):
            partition = Partition(topic, PartitionIndex(index))
            self._routes.pop(partition, None)
            if self.groups.pop(partition, None) is not None:
                self.beating.pop(partition, None)
                self._alarms.forget(partition)
                self._keys.pop(key_of(partition), None)
                effects += [Drop(partition), Persist(key_of(partition), b"")]
        return effects

    # --- messages ---

    def _received(self, given: PeerReceived) -> None:
        peer, message = given.peer, given.message
        if not self.takes_part:
            return
        match message:
            case Heartbeat():
                self.peers.heartbeat(peer, message)
            case HeartbeatReply():
                self._answered(peer, message)
            case Entries() | EntriesReply() | EntriesRefused() | VoteAsk() | VoteReply():
                self._pass(peer, message, given.payload)
            case Refill() | TimeoutNow() | ReadAsk() | ReadTold():
                self._pass(peer, message, None)
            case MakeTopic() | DropTopic():
                self.out += self.meta.asked(message)
                self.touch(self.meta.group)
            case Answered():
                self.out += self.meta.refused(message)
            case Join():
                self.out += self.meta.joining(message)
                self.touch(self.meta.group)
            case Joined():
                self.peers.acquaintances[message.leader] = message.leader_address
                if message.leader not in self.peers.links:
                    self.peers.links[message.leader] = message.leader_address
                    self.out.append(Meet(message.leader, message.leader_address))
            case _:
                raise PeerViolation("message", f"{type(message).__name__} is none of a Raft peer's")

    def _answered(self, peer: NodeId, message: HeartbeatReply) -> None:
        for reply in message.beats:
            group = self.groups.get(reply.partition)
            if group is not None:
                group.answered(self.now, peer, reply)
                self.touch(group)

    def _pass(self, peer: NodeId, message: GroupMessage, payload: bytearray | None) -> None:
        group = self.groups.get(message.partition)
        if group is not None:
            group.receive(self.now, peer, message, payload)
            self.touch(group)
        elif len(self._early) < EARLY_MAX and isinstance(message, VoteAsk):
            # The peer has applied a new topic before us.
            self._early.append((peer, message, payload))

    # --- time ---

    def _timer(self, timer: str) -> None:
        if timer == BEAT:
            self.peers.beat()
            self.out += self.meta.remind()
            self.touch(self.meta.group)
            self._spread_leaders()
            self.out.append(SetTimer(BEAT, self.now.mono_us + self.settings.heartbeat_us))
        elif timer == WAKE:
            self._wake()

    def _wake(self) -> None:
        self._wakes_us = None
        while (partition := self._alarms.gone_off(self.now.mono_us)) is not None:
            group = self.groups.get(partition)
            if group is None or group.deadline_us is None:
                continue
            if group.deadline_us <= self.now.mono_us:
                group.fire(self.now)
                self.touch(group)
            else:
                self._alarms.arm(partition, group.deadline_us)

    def _spread_leaders(self) -> None:
        """What is led here only because its preferred leader was away goes back to it.

        Seldom: while it is handed over nobody takes proposals, and the preferred leader may be unable to lead.
        """
        if self.now.mono_us < self._spreads_us or self._handing_over_until_us is not None:
            return
        self._spreads_us = self.now.mono_us + self.settings.spread_ms * 1000
        for partition, group in list(self.groups.items()):
            made = self._opened.get(partition.topic)
            if made is None or group.role is not Role.LEADER or not group.is_current:
                continue
            preferred = made.replicas[partition.index][0]
            progress = group.replication.peers.get(preferred)
            if progress is not None and self.peers.pairs.is_there(preferred) and progress.match == group.copy.end:
                group.transfer(self.now, preferred)
                self.touch(group)

    # --- leaving ---

    def _give_away(self, given: GiveAway) -> None:
        group = self.groups.get(given.partition)
        error = group.transfer(self.now, given.peer) if group is not None else self._nowhere(given.partition)
        if error is not None:
            about: dict[str, int | str] = {"partition": str(given.partition), "error": str(error)}
            self.out.append(Note("warning", "not given away", about))
        if group is not None:
            self.touch(group)

    def _hand_over(self) -> None:
        self._handing_over_until_us = self.now.mono_us + 2 * self.settings.election_us
        for group in list(self.groups.values()):
            if group.role is Role.LEADER:
                heirs = [
                    (progress.match, peer)
                    for peer, progress in group.replication.peers.items()
                    if peer in group.config.voters and self.peers.pairs.is_there(peer)
                ]
                if heirs:
                    group.transfer(self.now, max(heirs)[1])
                    self.touch(group)

    def _finish_handing_over(self) -> None:
        until_us = self._handing_over_until_us
        if until_us is None:
            return
        giving = any(group.transfer_to is not None for group in self.groups.values())
        if not giving or self.now.mono_us >= until_us:
            self._handing_over_until_us = 1 << 62
            if until_us < 1 << 62:
                self.out.append(HandedOver())
