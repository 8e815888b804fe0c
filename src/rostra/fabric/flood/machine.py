"""The flood fabric of one broker: it orders its own origin partitions and stores those of all other brokers.

A publish is appended to the broker's own origin partition of the topic. Once it is on stable storage it is committed
here and forwarded to the next broker of the ring; every broker that receives new records stores them, forwards them at
once, and commits them when its own disk has them. Records end at their origin, or by the hop bound. What a broker needs
not be sent is its vector (end per origin partition); links, duplicates, catching up and healing follow from that
(`ring_link`). Acks `all` come from marks that travel round the ring behind the records (`ack_ring`). A start first asks
the others what they have of this broker's partitions (`origin_recovery`) and may begin a new incarnation. A producer
that migrates here waits for a barrier (`producer_barriers`).
"""

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
    DiskUnusable,
    Drop,
    Echo,
    FabricEffect,
    FabricInput,
    Forward,
    ForwardDone,
    Guarantees,
    HeldByAll,
    LogLine,
    Now,
    Order,
    PeerIdentified,
    PeerLost,
    PeerReceived,
    Persist,
    PrepareStop,
    Propose,
    ProposeDrop,
    ProposeLogStart,
    ProposeSettings,
    ProposeTopic,
    PublishPath,
    QueryHeldByAll,
    ReadDone,
    Readers,
    ReadFailed,
    Ready,
    Recovered,
    Refused,
    RemoveNode,
    SendToBroker,
    SetTimer,
    SplitBehaviour,
    Started,
    Survives,
    Sync,
    Synced,
    TimerFired,
    TopicScope,
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
from rostra.fabric.flood.settings import HEARTBEAT_TIMER, FloodSettings
from rostra.fabric.flood.status import status_of
from rostra.fabric.flood.topics import TOPIC, FloodTopics
from rostra.fabric.status import ClusterStatus
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
    publishes=PublishPath.HERE,
    topics=TopicScope.EACH,
    exclusive_ownership=False,
)

BOOT = "flood/boot"
UNKNOWN_PEER = NodeId(0)


class Flood:
    """`joins` are peer addresses of members to join through; without any, this broker founds a ring."""

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
        name: str = "",
    ) -> None:
        self.node = node
        self.name = name
        self.address = address
        self.peer_address = peer_address
        self.joins = joins
        self.random = random
        self.settings = settings or FloodSettings()
        self.without = without
        self.boot = 0
        """The number of this start; also the incarnation of origin partitions created by it."""
        self.now = Now(0, 0)
        self.out: list[FabricEffect] = []
        self.logs: dict[Partition, OriginLog] = {}
        self.served: dict[Partition, None] = {}
        """Partitions that were reported to the broker."""
        self.links: dict[NodeId, RingLink] = {}
        """To the next broker and, with `both_ways`, to the previous one."""
        self.ring = Ring(self)
        self.topics = FloodTopics(self)
        self.ack_ring = AckRing(self)
        self.barriers = ProducerBarriers(self)
        self.receiver = Receiver(self)
        self.recovery = OriginRecovery(self)
        self.description = RingDescription(self)
        self.departure = Departure(self)
        self.was_damaged = False
        """Whether the previous run found its own records damaged."""
        self.ready = False
        self._sync_first = Safeguard.SYNC_BEFORE_ACK not in without
        self._hops_bounded = Safeguard.HOP_BOUND not in without
        self._hard_states: dict[str, bytes] = {}
        self._recovered: tuple[Recovered, ...] = ()
        self._reads: dict[int, tuple[RingLink, Partition]] = {}
        self._token = 0
        self._numbered = 0
        self._unconfirmed: list[int] = []
        """Tokens of confirmations requested before all topics are open."""

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        self.now = now
        self.out = []
        try:
            self._dispatch(given)
        except PeerViolation as violation:
            self.out.append(LogLine("error", "peer violated the protocol", {"error": str(violation)}))
        self._finish_step()
        return self.out

    def _dispatch(self, given: FabricInput) -> None:
        match given:
            case Propose():
                self._propose(given)
            case Synced():
                self._synced(given)
            case PeerReceived():
                self._receive(given)
            case Forward():
                self._admit_producer(given)
            case ReadDone():
                link, partition = self._reads.pop(given.token, (None, given.partition))
                if link is not None:
                    link.read_done(given.token, partition, given.batches, given.next)
            case ReadFailed():
                self._read_failed(given)
            case Echo():
                self._echo(given)
            case TimerFired():
                self._tick()
            case AwaitCoverage():
                self.ack_ring.await_coverage(given.partition, given.offset)
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
            case ProposeLogStart():
                self._trim(given)
            case WriteFailed():
                self._write_failed(given)
            case PeerIdentified():
                self.ring.peer_identified(given.peer, given.address)
            case PeerLost():
                self.ring.peer_lost(given.peer)
            case Started():
                self._started(given)
            case DiskUnusable():
                self.departure.leave_ring()
            case PrepareStop():
                self.departure.stop()
            case Describe():
                self.description.request(given.token)
            case RemoveNode():
                self.departure.remove(given)
            case TransferOwnership():
                self._refuse_transfer(given)
            case Readers():
                # Every broker commits on its own; readers make no difference.
                pass
            case ForwardDone() | SendToBroker():
                raise AssertionError(f"brokers send each other records only: {given}")
            case _:
                assert_never(given)

    def _receive(self, given: PeerReceived) -> None:
        peer, message = given.peer, given.message
        if peer in self.ring.removed and not isinstance(message, RingMembers | RingHeartbeat):
            return
        match message:
            case RingHeartbeat():
                self.ring.heartbeat_received(peer, message)
            case RingMembers():
                self.ring.members_received(message)
            case RecoveryRequest():
                self.recovery.request_received(peer, message)
            case RecoveryReply():
                self.recovery.reply_received(peer, message)
            case RingStateRequest():
                self.description.request_received(peer, message)
            case RingStateReply():
                self.description.reply_received(peer, message)
            case LinkOpening() | Offer() | Records() | AckMarks() | Barrier():
                if self.ready:
                    self._receive_ring_message(peer, message, given.payload)
            case Vector() | HaveUpTo():
                self._link_reply(peer, message)
            case LeaveRing():
                self.departure.leave_requested(peer)
            case LeftRing():
                self.departure.member_left(peer)
            case _:
                raise PeerViolation("message", f"{type(message).__name__} is not a message of the flood fabric")

    def _receive_ring_message(
        self, peer: NodeId, message: LinkOpening | Offer | Records | AckMarks | Barrier, payload: bytearray | None
    ) -> None:
        match message:
            case Records():
                self.receiver.records(peer, message, payload)
            case AckMarks():
                self.ack_ring.received(message.marks)
            case Barrier():
                self.barriers.barrier_received(message)
            case LinkOpening():
                self.receiver.link_opened(peer, message)
            case Offer():
                self.receiver.offered(peer, message)
            case _:
                assert_never(message)

    def _link_reply(self, peer: NodeId, message: Vector | HaveUpTo) -> None:
        link = self.links.get(peer)
        if link is None or link.number != message.link:
            return
        if isinstance(message, Vector):
            link.vector_received(message)
        else:
            link.acknowledged(message.entries, gap=message.gap)

    def status(self) -> ClusterStatus | None:
        if not self.ready:
            return None
        return status_of(self.node, self.boot, self.ring.members.values(), self.ring.is_alive)

    def problem(self) -> str:
        return "" if self.ready else "the node has not joined the ring yet"

    # --- starting ------------------------------------------------------------------------------------

    def _started(self, given: Started) -> None:
        self._hard_states = given.hard_states
        self._recovered = given.partitions
        self.boot = int.from_bytes(given.hard_states.get(BOOT, b""), "little") + 1
        # No message leaves before the boot number is durable: otherwise two starts could share it.
        self.out.append(Persist(BOOT, self.boot.to_bytes(8, "little"), (Echo(BOOT, self.boot),)))

    def _booted(self) -> None:
        if MEMBERS in self._hard_states:
            self.ring.restore(self._hard_states[MEMBERS])
        self.topics.restore(self._hard_states)
        for found in self._recovered:
            topic = self.topics.of_partition(found.partition)
            partitions = (
                {origin_partition.partition: origin_partition for origin_partition in topic.all_partitions()}
                if topic is not None
                else {}
            )
            origin_partition = partitions.get(found.partition)
            if topic is None or topic.own is None or origin_partition is None:
                self.out += [LogLine("warning", "log without topic dropped", {"partition": str(found.partition)})]
                self.out.append(Drop(found.partition))
            else:
                log = OriginLog(origin_partition, found.first, found.end, is_origin=False, damaged_at=found.damaged_at)
                self.logs[found.partition] = log
        self.was_damaged = bool(self._hard_states.get(DAMAGED))
        self._hard_states, self._recovered = {}, ()
        self.ring.start()
        self.out += [Connect(UNKNOWN_PEER, address) for address in self.joins]
        self.out.append(SetTimer(HEARTBEAT_TIMER, self.now.mono_us + self.settings.heartbeat_ms * 1000))
        self.recovery.start()

    def finish_recovery(self, new_incarnation: bool) -> None:
        """Opens the topics after recovery, with new origin partitions for a new incarnation."""
        topics = [self.topics.by_name[name] for name in sorted(self.topics.by_name)]
        if new_incarnation:
            self.out.append(LogLine("warning", "new incarnation", {"incarnation": self.boot}))
        for topic in topics:
            if topic.own is None:
                continue
            if new_incarnation and not topic.own.local:
                self.topics.start_incarnation(topic)
                continue
            log = self.logs.get(topic.own.partition)
            if log is not None:
                log.is_origin = True
            self.topics.report(topic, None)
            if log is not None and log.damaged_at is not None and not topic.own.local:
                # Only with the safeguard disabled: reuses offsets that may be taken.
                self.receiver.restart_log(log, self.deleted_end(log.partition))
        if self.was_damaged:
            # Journalled after the new partitions, so that none of them is lost.
            self.out.append(Persist(DAMAGED, b"", ()))

    def _finish_step(self) -> None:
        """Ends a step: reports readiness, sends due marks, checks departures."""
        if self.recovery.done and not self.ready and self._is_open():
            self.ready = True
            about: dict[str, int | str] = {"partition": METADATA, "role": "broker", "incarnation": self.boot}
            self.out += [LogLine("info", "joined the ring", about), Ready()]
            self.out += [Confirmed(token) for token in self._unconfirmed]
            self._unconfirmed.clear()
            self.relink()
        self.ack_ring.flush()
        self.departure.finish_step()

    def _confirm(self, token: int) -> None:
        """Topics are local to a broker: confirmed as soon as they are all open."""
        if self.ready:
            self.out.append(Confirmed(token))
        else:
            self._unconfirmed.append(token)

    def _is_open(self) -> bool:
        return all(topic.open or topic.own is None for topic in self.topics.by_name.values())

    def _echo(self, given: Echo) -> None:
        if given.key == BOOT:
            self._booted()
        elif given.key.startswith(TOPIC):
            self.topics.persisted(given.key.removeprefix(TOPIC), given.number)

    # --- the ring ------------------------------------------------------------------------------------

    def relink(self) -> None:
        """Opens links to the current neighbours, after the view changed or a neighbour restarted."""
        if not self.ready:
            return
        following, previous = self.ring.next, self.ring.previous
        wanted = {following, previous} if self.settings.both_ways else {following}
        for peer in [peer for peer in self.links if peer not in wanted]:
            del self.links[peer]
        for peer in sorted(peer for peer in wanted if peer is not None and peer not in self.links):
            self._numbered += 1
            self.links[peer] = RingLink(self, peer, (self.boot % (1 << 31) << 32) + self._numbered)
        self.ack_ring.tick()
        self.barriers.tick(retry=True)

    def peer_restarted(self, peer: NodeId) -> None:
        if self.links.pop(peer, None) is not None:
            self.relink()

    def _tick(self) -> None:
        self.out.append(SetTimer(HEARTBEAT_TIMER, self.now.mono_us + self.settings.heartbeat_ms * 1000))
        self.ring.tick()
        self.description.tick()
        if not self.recovery.done:
            self.recovery.tick()
        if self.ready:
            for link in list(self.links.values()):
                link.tick()
            self.receiver.tick()
            self.ack_ring.tick()
            self.barriers.tick()
            self.departure.tick()

    def next_read(self, link: RingLink, partition: Partition) -> int:
        # Even tokens: the broker's reads have odd ones.
        self._token += 2
        self._reads[self._token] = link, partition
        return self._token

    def _read_failed(self, given: ReadFailed) -> None:
        link, _ = self._reads.pop(given.token, (None, given.partition))
        if link is not None:
            link.read_failed(given.token, given.partition)
        log = self.logs.get(given.partition)
        if log is not None and isinstance(given.error, CorruptLog):
            # A subscriber can read from another broker. But a failed read for a neighbour, or for the producer table,
            # would leave publishes here unanswered for ever.
            self.receiver.log_damaged(log, blocks_publishing=link is not None or not given.token)

    def _refuse_transfer(self, given: TransferOwnership) -> None:
        """Refuses a transfer: only its origin orders an origin partition."""
        log = self.logs.get(given.partition)
        error = NotAReplica(given.peer, log.origin_partition.name if log else "", given.partition.index)
        if given.token:
            self.out.append(Refused(given.token, error))

    # --- records -------------------------------------------------------------------------------------

    def _propose(self, given: Propose) -> None:
        log = self.logs.get(given.partition)
        refusal = self.departure.refusal()
        if log is None or not log.is_origin:
            self.out.append(Refused(given.token, UnknownPartition("", given.partition.index)))
        elif refusal is not None:
            self.out.append(Refused(given.token, refusal))
        elif log.damaged_at is not None:
            error = PartitionDamaged(log.origin_partition.name, given.partition.index, log.damaged_at)
            self.out.append(Refused(given.token, error))
        else:
            self._order(log, given)

    def _order(self, log: OriginLog, given: Propose) -> None:
        base, partition = log.end, log.partition
        last = stamp(
            given.batch,
            partition=partition,
            base_offset=base,
            owner_epoch=log.origin_partition.epoch,
            owner_flags=given.owner_flags,
        )
        log.end = last + 1
        log.unsynced.append((base, log.end, given.batch))
        self.out += [
            Append(partition, given.batch),
            Accepted(given.token, partition, base, last),
            Sync(partition),
        ]
        if not self._sync_first:
            self._advance(log, log.end)

    def _synced(self, given: Synced) -> None:
        log = self.logs.get(given.partition)
        if log is not None and given.generation == log.generation and given.offset > log.synced:
            self._advance(log, given.offset)

    def _advance(self, log: OriginLog, offset: int) -> None:
        """Commits what is on stable storage here, and forwards what was published here."""
        log.synced = offset
        self.out.append(Committed(log.partition, offset))
        while log.unsynced and log.unsynced[0][1] <= offset:
            base, end, batch = log.unsynced.popleft()
            self.forward(log, base, end, batch, 1, None)
        self.ack_ring.synced(log)

    def forward(
        self, log: OriginLog, base: int, end: int, batch: bytearray, hops: int, received_from: NodeId | None
    ) -> None:
        if log.origin_partition.local or (self._hops_bounded and hops > len(self.ring.members)):
            return
        for peer, link in self.links.items():
            if peer != received_from:
                link.forward(log, base, end, batch, hops)

    def _write_failed(self, given: WriteFailed) -> None:
        log = self.logs.get(given.partition)
        if log is not None:
            end = log.end
            log.truncate(given.offset, given.generation)
            if not log.is_origin:
                self.receiver.write_refused(log, end)

    def _trim(self, given: ProposeLogStart) -> None:
        """Retention is local to each broker."""
        log = self.logs.get(given.partition)
        if log is not None and log.first < given.first <= log.synced:
            log.first = given.first
            self.out.append(Trim(given.partition, given.first))

    def _held_by_all(self, partition: Partition) -> int:
        """The offset that all members have; 0 while one is down, because it would be sent records again."""
        log = self.logs.get(partition)
        if log is not None and log.origin_partition.local:
            return log.synced
        everybody = len(self.ring.view.active) == len(self.ring.members)
        return self.ack_ring.covered.get(partition, 0) if everybody else 0

    def has(self, partition: Partition, end: int) -> bool:
        """Whether this broker has an origin partition up to `end`, or had it and deleted the topic."""
        log = self.logs.get(partition)
        return (log.end if log is not None else self.deleted_end(partition)) >= end

    def deleted_end(self, partition: Partition) -> int:
        topic = self.topics.of_partition(partition)
        return topic.deleted_ends.get(partition, 0) if topic is not None else 0

    # --- topics --------------------------------------------------------------------------------------

    def _propose_topic(self, given: ProposeTopic) -> None:
        refusal = self.departure.refusal()
        if refusal is not None:
            self.out.append(Refused(given.token, refusal))
        else:
            self.topics.create(given)

    def _drop(self, given: ProposeDrop) -> None:
        topic = self.topics.by_id(given.topic)
        partitions = topic.all_partitions() if topic is not None else []
        self.topics.drop(given)
        for origin_partition in partitions:
            self.ack_ring.forget(origin_partition.partition)
            self.barriers.refuse_partition(origin_partition.partition)

    def partition_added(self, partition: Partition) -> None:
        if partition in self.logs:
            self.receiver.partition_added(partition)

    def _admit_producer(self, given: Forward) -> None:
        refusal = self.departure.refusal()
        if refusal is not None:
            self.out.append(Refused(given.token, refusal))
        else:
            self.barriers.producer_arrived(given)
