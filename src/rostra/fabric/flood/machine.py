"""One broker of a ring: it publishes to parts of its own, and keeps a copy of everybody's."""

from __future__ import annotations

from random import Random
from typing import assert_never

from rostra.errors import (
    CorruptLog,
    NotAReplica,
    PartitionDamaged,
    PeerViolation,
    UnknownPartition,
)
from rostra.fabric.api import (
    METADATA,
    Accepted,
    AcksAll,
    Append,
    AwaitCoverage,
    Committed,
    Confirm,
    Confirmed,
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
    SetTimer,
    Settled,
    SplitBehaviour,
    Started,
    Survives,
    Sync,
    Synced,
    TimerFired,
    TopicsAre,
    TransferOwnership,
    Trim,
    WriteFailed,
)
from rostra.fabric.flood.ack_ring import AckRing
from rostra.fabric.flood.departure import Departure
from rostra.fabric.flood.messages import (
    AckMarks,
    Barrier,
    HaveUpTo,
    LeaveRing,
    LeftRing,
    LinkOpening,
    Offer,
    Records,
    RecoveryReply,
    RecoveryRequest,
    RingHeartbeat,
    RingMembers,
    RingStateReply,
    RingStateRequest,
    Vector,
)
from rostra.fabric.flood.origin_partition import OriginLog
from rostra.fabric.flood.origin_recovery import OriginRecovery
from rostra.fabric.flood.producer_barriers import ProducerBarriers
from rostra.fabric.flood.receiver import DAMAGED, Receiver
from rostra.fabric.flood.ring import MEMBERS, Ring
from rostra.fabric.flood.ring_description import RingDescription
from rostra.fabric.flood.ring_link import RingLink
from rostra.fabric.flood.settings import BEAT, FloodSettings
from rostra.fabric.flood.topics import TOPIC, FloodTopics
from rostra.model.batch import stamp
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import ALL_ON, Safeguard, Without

GUARANTEES = Guarantees(
    fabric="flood",
    order=Order.ORIGIN,
    acks_all=AcksAll.VIEW,
    delivers=Delivers.HERE,
    split=SplitBehaviour.MERGES,
    survives=Survives.ANY,
    groups_span_nodes=False,
    exactly_once_sink=False,
    passes_on=True,
    topics=TopicsAre.EACH,
    exclusive_ownership=False,
)

BOOT = "flood/boot"
SOMEBODY = NodeId(0)


class Flood:
    """`joins` are addresses of brokers that may know the others; without any, this one begins a ring."""

    guarantees = GUARANTEES

    def __init__(
        self,
        node: NodeId,
        address: str,
        peer_address: str = "",
        *,
        joins: tuple[str, ...] = (),
        random: Random,
        settings: FloodSettings | None = None,
        without: Without = ALL_ON,
    ) -> None:
        self.node = node
        self.address = address
        self.peer_address = peer_address
        self.joins = joins
        self.random = random
        self.settings = settings or FloodSettings()
        self.without = without
        self.boot = 0
        """Counts the starts; also the incarnation under which this start draws new parts."""
        self.now = Now(0, 0)
        self.out: list[FabricEffect] = []
        self.copies: dict[Partition, OriginLog] = {}
        self.shown: dict[Partition, None] = {}
        """What the broker above knows of."""
        self.links: dict[NodeId, RingLink] = {}
        """To the next broker, and if records go both ways to the previous one."""
        self.ring = Ring(self)
        self.topics = FloodTopics(self)
        self.circle = AckRing(self)
        self.barriers = ProducerBarriers(self)
        self.receiving = Receiver(self)
        self.awakening = OriginRecovery(self)
        self.describing = RingDescription(self)
        self.retiring = Departure(self)
        self.was_damaged = False
        """Whether the start before has found its own records damaged."""
        self.ready = False
        self._sync_first = Safeguard.SYNC_BEFORE_ACK not in without
        self._hops_bounded = Safeguard.HOP_BOUND not in without
        self._hard: dict[str, bytes] = {}
        self._found: tuple[Recovered, ...] = ()
        self._reads: dict[int, tuple[RingLink, Partition]] = {}
        self._token = 0
        self._numbered = 0
        self._unconfirmed: list[int] = []
        """Who wants to know all topics, before they are open."""

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        self.now = now
        self.out = []
        try:
            self._take(given)
        except PeerViolation as violation:
            self.out.append(LogLine("error", "a peer broke the protocol", {"error": str(violation)}))
        self._settle()
        return self.out

    def _take(self, given: FabricInput) -> None:
        match given:
            case Propose():
                self._propose(given)
            case Synced():
                self._synced(given)
            case PeerReceived():
                self._receive(given)
            case PassOn():
                self._pass_on(given)
            case ReadDone():
                link, partition = self._reads.pop(given.token, (None, given.partition))
                if link is not None:
                    link.read_done(given.token, partition, given.batches, given.next)
            case ReadFailed():
                self._read_failed(given)
            case Echo():
                self._echo(given)
            case TimerFired():
                self._beat()
            case AwaitCoverage():
                self.circle.vouch(given.partition, given.offset)
            case ProposeTopic():
                self._propose_topic(given)
            case ProposeDrop():
                self._drop(given)
            case ProposeSettings():
                self.topics.alter(given)
            case QueryHeldByAll():
                self.out.append(HeldByAll(given.partition, self._held_by_all(given.partition)))
            case Confirm():
                self._confirm(given.token)
            case ProposeStart():
                self._trim(given)
            case WriteFailed():
                self._write_failed(given)
            case PeerMet():
                self.ring.met(given.peer, given.address)
            case PeerLost():
                self.ring.lost(given.peer)
            case Started():
                self._started(given)
            case DiskBroke():
                self.retiring.leave_ring()
            case PrepareStop():
                self.retiring.stop()
            case Describe():
                self.describing.ask(given.token)
            case RemoveNode():
                self.retiring.remove(given)
            case TransferOwnership():
                self._keep(given)
            case Readers():
                # Whatever goes round is told to everybody.
                pass
            case Settled():
                raise AssertionError(f"no publish travels to another broker to be ordered: {given}")
            case _:
                assert_never(given)

    def _receive(self, given: PeerReceived) -> None:
        peer, message = given.peer, given.message
        if peer in self.ring.removed and not isinstance(message, RingMembers | RingHeartbeat):
            return
        match message:
            case RingHeartbeat():
                self.ring.heard(peer, message)
            case RingMembers():
                self.ring.told(message)
            case RecoveryRequest():
                self.awakening.asked(peer, message)
            case RecoveryReply():
                self.awakening.told(peer, message)
            case RingStateRequest():
                self.describing.asked(peer, message)
            case RingStateReply():
                self.describing.told(peer, message)
            case LinkOpening() | Offer() | Records() | AckMarks() | Barrier():
                if self.ready:
                    self._along_the_ring(peer, message, given.payload)
            case Vector() | HaveUpTo():
                self._answered(peer, message)
            case LeaveRing():
                self.retiring.asked(peer)
            case LeftRing():
                self.retiring.retired(peer)
            case _:
                raise PeerViolation("message", f"{type(message).__name__} is none of a ring's")

    def _along_the_ring(
        self, peer: NodeId, message: LinkOpening | Offer | Records | AckMarks | Barrier, payload: bytearray | None
    ) -> None:
        match message:
            case Records():
                self.receiving.records(peer, message, payload)
            case AckMarks():
                self.circle.received(message.marks)
            case Barrier():
                self.barriers.received(message)
            case LinkOpening():
                self.receiving.opening(peer, message)
            case Offer():
                self.receiving.offered(peer, message)
            case _:
                assert_never(message)

    def _answered(self, peer: NodeId, message: Vector | HaveUpTo) -> None:
        link = self.links.get(peer)
        if link is None or link.number != message.link:
            return
        if isinstance(message, Vector):
            link.told(message)
        else:
            link.took(message.entries, gap=message.gap)

    # --- starting ------------------------------------------------------------------------------------

    def _started(self, given: Started) -> None:
        self._hard = given.hard
        self._found = given.partitions
        self.boot = int.from_bytes(given.hard.get(BOOT, b""), "little") + 1
        # Nobody hears of this start before its number is durable: else two starts could share it.
        self.out.append(Persist(BOOT, self.boot.to_bytes(8, "little"), (Echo(BOOT, self.boot),)))

    def _booted(self) -> None:
        if MEMBERS in self._hard:
            self.ring.recall(self._hard[MEMBERS])
        self.topics.recall(self._hard)
        for found in self._found:
            topic = self.topics.of_part(found.partition)
            parts = {part.partition: part for part in topic.everything()} if topic is not None else {}
            part = parts.get(found.partition)
            if topic is None or topic.own is None or part is None:
                self.out += [LogLine("warning", "log without topic dropped", {"partition": str(found.partition)})]
                self.out.append(Drop(found.partition))
            else:
                copy = OriginLog(part, found.first, found.end, own=False, damaged_at=found.damaged_at)
                self.copies[found.partition] = copy
        self.was_damaged = bool(self._hard.get(DAMAGED))
        self._hard, self._found = {}, ()
        self.ring.begin()
        self.out += [Connect(SOMEBODY, address) for address in self.joins]
        self.out.append(SetTimer(BEAT, self.now.mono_us + self.settings.heartbeat_ms * 1000))
        self.awakening.begin()

    def awake(self, renews: bool) -> None:
        """What the others have is known: the topics are opened, with new parts for a new incarnation."""
        topics = [self.topics.named[name] for name in sorted(self.topics.named)]
        if renews:
            self.out.append(LogLine("warning", "new incarnation", {"incarnation": self.boot}))
        for topic in topics:
            if topic.own is None:
                continue
            if renews and not topic.own.local:
                self.topics.renew(topic)
                continue
            copy = self.copies.get(topic.own.partition)
            if copy is not None:
                copy.own = True
            self.topics.show(topic, None)
            if copy is not None and copy.damaged_at is not None and not topic.own.local:
                # Only without the safeguard: whoever gives offsets again that it cannot know to be free.
                self.receiving.begin_anew(copy, self.floor(copy.partition))
        if self.was_damaged:
            # After the new parts in the journal, so that none of them is forgotten.
            self.out.append(Persist(DAMAGED, b"", ()))

    def _settle(self) -> None:
        """At the end of a step."""
        if self.awakening.over and not self.ready and self._is_open():
            self.ready = True
            about: dict[str, int | str] = {"partition": METADATA, "role": "broker", "incarnation": self.boot}
            self.out += [LogLine("info", "in the ring", about), Ready()]
            self.out += [Confirmed(token) for token in self._unconfirmed]
            self._unconfirmed.clear()
            self.relink()
        self.circle.pass_on()
        self.retiring.look()

    def _confirm(self, token: int) -> None:
        """This broker knows its own topics; there are no others here."""
        if self.ready:
            self.out.append(Confirmed(token))
        else:
            self._unconfirmed.append(token)

    def _is_open(self) -> bool:
        return all(topic.open or topic.own is None for topic in self.topics.named.values())

    def _echo(self, given: Echo) -> None:
        if given.key == BOOT:
            self._booted()
        elif given.key.startswith(TOPIC):
            self.topics.written(given.key.removeprefix(TOPIC), given.number)

    # --- the ring ------------------------------------------------------------------------------------

    def relink(self) -> None:
        """The view has changed, or a neighbour was started anew: the ring closes again."""
        if not self.ready:
            return
        following, previous = self.ring.next, self.ring.previous
        wanted = {following, previous} if self.settings.both_ways else {following}
        for peer in [peer for peer in self.links if peer not in wanted]:
            del self.links[peer]
        for peer in sorted(peer for peer in wanted if peer is not None and peer not in self.links):
            self._numbered += 1
            self.links[peer] = RingLink(self, peer, (self.boot % (1 << 31) << 32) + self._numbered)
        self.circle.beat()
        self.barriers.look(again=True)

    def restarted(self, peer: NodeId) -> None:
        if self.links.pop(peer, None) is not None:
            self.relink()

    def _beat(self) -> None:
        self.out.append(SetTimer(BEAT, self.now.mono_us + self.settings.heartbeat_ms * 1000))
        self.ring.beat()
        self.describing.look()
        if not self.awakening.over:
            self.awakening.look()
        if self.ready:
            for link in list(self.links.values()):
                link.beat()
            self.receiving.beat()
            self.circle.beat()
            self.barriers.look()
            self.retiring.beat()

    def next_read(self, link: RingLink, partition: Partition) -> int:
        # Even tokens: the broker's own reads have odd ones.
        self._token += 2
        self._reads[self._token] = link, partition
        return self._token

    def _read_failed(self, given: ReadFailed) -> None:
        link, _ = self._reads.pop(given.token, (None, given.partition))
        if link is not None:
            link.read_failed(given.token, given.partition)
        copy = self.copies.get(given.partition)
        if copy is not None and isinstance(given.error, CorruptLog):
            # What a subscriber alone asks for is asked elsewhere then. But without the others, or the table of
            # producers, nobody who publishes here would ever get an answer.
            self.receiving.broken(copy, matters=link is not None or not given.token)

    def _keep(self, given: TransferOwnership) -> None:
        """Nobody but its origin orders a part."""
        copy = self.copies.get(given.partition)
        error = NotAReplica(given.peer, copy.part.name if copy else "", given.partition.index)
        if given.token:
            self.out.append(Refused(given.token, error))

    # --- records -------------------------------------------------------------------------------------

    def _propose(self, given: Propose) -> None:
        copy = self.copies.get(given.partition)
        refusal = self.retiring.refusal()
        if copy is None or not copy.own:
            self.out.append(Refused(given.token, UnknownPartition("", given.partition.index)))
        elif refusal is not None:
            self.out.append(Refused(given.token, refusal))
        elif copy.damaged_at is not None:
            error = PartitionDamaged(copy.part.name, given.partition.index, copy.damaged_at)
            self.out.append(Refused(given.token, error))
        else:
            self._order(copy, given)

    def _order(self, copy: OriginLog, given: Propose) -> None:
        base, partition = copy.end, copy.partition
        last = stamp(
            given.batch,
            partition=partition,
            base_offset=base,
            owner_epoch=copy.part.epoch,
            owner_flags=given.owner_flags,
        )
        copy.end = last + 1
        copy.recent.append((base, copy.end, given.batch))
        self.out += [
            Append(partition, given.batch),
            Accepted(given.token, partition, base, last),
            Sync(partition),
        ]
        if not self._sync_first:
            self._advance(copy, copy.end)

    def _synced(self, given: Synced) -> None:
        copy = self.copies.get(given.partition)
        if copy is not None and given.generation == copy.generation and given.offset > copy.synced:
            self._advance(copy, given.offset)

    def _advance(self, copy: OriginLog, offset: int) -> None:
        """On stable storage here: shown, and if it was published here it may leave now."""
        copy.synced = offset
        self.out.append(Committed(copy.partition, offset))
        while copy.recent and copy.recent[0][1] <= offset:
            base, end, batch = copy.recent.popleft()
            self.pass_on(copy, base, end, batch, 1, None)
        self.circle.synced(copy)

    def pass_on(
        self, copy: OriginLog, base: int, end: int, batch: bytearray, hops: int, came_from: NodeId | None
    ) -> None:
        if copy.part.local or (self._hops_bounded and hops > len(self.ring.members)):
            return
        for peer, link in self.links.items():
            if peer != came_from:
                link.pass_on(copy, base, end, batch, hops)

    def _write_failed(self, given: WriteFailed) -> None:
        copy = self.copies.get(given.partition)
        if copy is not None:
            end = copy.end
            copy.cut(given.offset, given.generation)
            if not copy.own:
                self.receiving.refused_by_disk(copy, end)

    def _trim(self, given: ProposeStart) -> None:
        """Each copy's retention is its broker's own."""
        copy = self.copies.get(given.partition)
        if copy is not None and copy.first < given.first <= copy.synced:
            copy.first = given.first
            self.out.append(Trim(given.partition, given.first))

    def _held_by_all(self, partition: Partition) -> int:
        """Whoever is away would be sent it again."""
        copy = self.copies.get(partition)
        if copy is not None and copy.part.local:
            return copy.synced
        everybody = len(self.ring.view.active) == len(self.ring.members)
        return self.circle.covered.get(partition, 0) if everybody else 0

    def has(self, partition: Partition, end: int) -> bool:
        """Whether this broker has so much of a part, or had it and deleted the topic."""
        copy = self.copies.get(partition)
        return (copy.end if copy is not None else self.floor(partition)) >= end

    def floor(self, partition: Partition) -> int:
        topic = self.topics.of_part(partition)
        return topic.floors.get(partition, 0) if topic is not None else 0

    # --- topics --------------------------------------------------------------------------------------

    def _propose_topic(self, given: ProposeTopic) -> None:
        refusal = self.retiring.refusal()
        if refusal is not None:
            self.out.append(Refused(given.token, refusal))
        else:
            self.topics.propose(given)

    def _drop(self, given: ProposeDrop) -> None:
        topic = self.topics.named_by(given.topic)
        parts = topic.everything() if topic is not None else []
        self.topics.drop(given)
        for part in parts:
            self.circle.forget(part.partition)
            self.barriers.give_up(part.partition)

    def taken_in(self, partition: Partition) -> None:
        if partition in self.copies:
            self.receiving.taken_in(partition)

    def _pass_on(self, given: PassOn) -> None:
        refusal = self.retiring.refusal()
        if refusal is not None:
            self.out.append(Refused(given.token, refusal))
        else:
            self.barriers.arrive(given)
