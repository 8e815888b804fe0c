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
    RostraError,
    UnknownPartition,
)
from rostra.fabric.api import (
    METADATA,
    UNKNOWN_PEER,
    AcksAll,
    Append,
    AwaitCoverage,
    BatchOffsets,
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
from rostra.fabric.flood.context import FloodContext
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
from rostra.fabric.flood.ring_description import RingDescription, status_of
from rostra.fabric.flood.ring_links import RingLinks
from rostra.fabric.flood.settings import HEARTBEAT_TIMER, FloodSettings
from rostra.fabric.flood.topics import TOPIC, FloodTopics
from rostra.fabric.status import REMOVED, ClusterStatus
from rostra.model.batch import stamp
from rostra.model.ids import NodeId, Partition, text
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
        self.settings = settings or FloodSettings()
        self.context = context = FloodContext(node, address, peer_address, name, random, self.settings, without)
        self._joins = joins
        self.logs = context.logs
        self.ring = Ring(context)
        self.topics = FloodTopics(context)
        self.ring_links = RingLinks(context, self.ring)
        self.links = self.ring_links.by_peer
        self.ack_ring = AckRing(context, self.ring)
        self.barriers = ProducerBarriers(context, self.ring, self.topics)
        self.receiver = Receiver(context, self.ring, self.topics, self.ring_links, self.ack_ring, self.barriers)
        self.recovery = OriginRecovery(context, self.ring, self.topics, bool(joins))
        self.description = RingDescription(context, self.ring, self.ack_ring, self.ring_links)
        self.departure = Departure(context, self.ring, self.ack_ring, self.ring_links)
        self.ring.peer_restarted = self._peer_restarted
        self.ring.view_changed = self._relink
        self.topics.partition_added = self._partition_added
        self.recovery.finished = self._finish_recovery
        self.ready = False
        self._sync_first = Safeguard.SYNC_BEFORE_ACK not in without
        self._hard_states: dict[str, bytes] = {}
        self._recovered: tuple[Recovered, ...] = ()
        self._unconfirmed: list[int] = []
        """Tokens of confirmations requested before all topics are open."""

    @property
    def boot(self) -> int:
        return self.context.boot

    def propose(
        self, now: Now, partition: Partition, batch: bytearray, owner_flags: int = 0
    ) -> tuple[BatchOffsets | RostraError, list[FabricEffect]]:
        self.context.begin_step(now)
        result = self._order(partition, batch, owner_flags)
        self._finish_step()
        return result, self.context.out

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        self.context.begin_step(now)
        try:
            self._dispatch(given)
        except PeerViolation as violation:
            self.context.out.append(LogLine("error", "peer violated the protocol", {"error": str(violation)}))
        self._finish_step()
        return self.context.out

    def _dispatch(self, given: FabricInput) -> None:
        match given:
            case Synced():
                self._synced(given)
            case PeerReceived():
                self._receive(given)
            case Forward():
                self._admit_producer(given)
            case ReadDone():
                self.ring_links.read_done(given.token, given.batches, given.next)
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
                self.context.out.append(HeldByAll(given.partition, self._held_by_all(given.partition)))
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
            case ForwardDone():
                raise AssertionError(f"no publish is forwarded to another broker to be ordered: {given}")
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
        if self.ring.is_removed:
            return REMOVED
        return "" if self.ready else "the node has not joined the ring yet"

    # --- starting ------------------------------------------------------------------------------------

    def _started(self, given: Started) -> None:
        self._hard_states = given.hard_states
        self._recovered = given.partitions
        self.context.start(given.hard_states, BOOT)

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
                self.context.out += [
                    LogLine("warning", "log without topic dropped", {"partition": str(found.partition)})
                ]
                self.context.out.append(Drop(found.partition))
            else:
                log = OriginLog(origin_partition, found.first, found.end, is_origin=False, damaged_at=found.damaged_at)
                self.logs[found.partition] = log
        self.recovery.was_damaged = bool(self._hard_states.get(DAMAGED))
        self._hard_states, self._recovered = {}, ()
        self.ring.start()
        self.context.out += [Connect(UNKNOWN_PEER, address) for address in self._joins]
        self.context.out.append(SetTimer(HEARTBEAT_TIMER, self.context.now.mono_us + self.settings.heartbeat_ms * 1000))
        self.recovery.start()

    def _finish_recovery(self, new_incarnation: bool) -> None:
        """Opens the topics after recovery, with new origin partitions for a new incarnation."""
        topics = [self.topics.by_name[name] for name in sorted(self.topics.by_name)]
        if new_incarnation:
            self.context.out.append(LogLine("warning", "new incarnation", {"incarnation": self.boot}))
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
                self.receiver.restart_log(log, self.topics.deleted_end(log.partition))
        if self.recovery.was_damaged:
            # Journalled after the new partitions, so that none of them is lost.
            self.context.out.append(Persist(DAMAGED, b"", ()))

    def _finish_step(self) -> None:
        """Ends a step: reports readiness, sends due marks, checks departures."""
        if self.recovery.done and not self.ready and self._is_open():
            self.ready = True
            about: dict[str, int | str] = {"partition": METADATA, "role": "broker", "incarnation": self.boot}
            self.context.out += [LogLine("info", "joined the ring", about), Ready()]
            self.context.out += [Confirmed(token) for token in self._unconfirmed]
            self._unconfirmed.clear()
            self._relink()
        self.ack_ring.flush()
        self.departure.finish_step()

    def _confirm(self, token: int) -> None:
        """Topics are local to a broker: confirmed as soon as they are all open."""
        if self.ready:
            self.context.out.append(Confirmed(token))
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

    def _relink(self) -> None:
        """The view changed, or a neighbour restarted."""
        if self.ready:
            self.ring_links.update()
            self.ack_ring.tick()
            self.barriers.tick(retry=True)

    def _peer_restarted(self, peer: NodeId) -> None:
        if self.ring_links.close(peer):
            self._relink()

    def _tick(self) -> None:
        self.context.out.append(SetTimer(HEARTBEAT_TIMER, self.context.now.mono_us + self.settings.heartbeat_ms * 1000))
        self.ring.tick()
        self.description.tick()
        if not self.recovery.done:
            self.recovery.tick()
        if self.ready:
            self.ring_links.tick()
            self.receiver.tick()
            self.ack_ring.tick()
            self.barriers.tick()
            self.departure.tick()

    def _read_failed(self, given: ReadFailed) -> None:
        for_link = self.ring_links.read_failed(given.token)
        log = self.logs.get(given.partition)
        if log is not None and isinstance(given.error, CorruptLog):
            # A subscriber can read from another broker. But a failed read for a neighbour, or for the producer table,
            # would leave publishes here unanswered for ever.
            self.receiver.log_damaged(log, blocks_publishing=for_link or not given.token)

    def _refuse_transfer(self, given: TransferOwnership) -> None:
        """Refuses a transfer: only its origin orders an origin partition."""
        log = self.logs.get(given.partition)
        member = self.ring.members.get(given.peer)
        shown = text(given.peer) if member is None else member.name or member.address
        error = NotAReplica(shown, log.origin_partition.name if log else "", given.partition.index)
        if given.token:
            self.context.out.append(Refused(given.token, error))

    # --- records -------------------------------------------------------------------------------------

    def _order(self, partition: Partition, batch: bytearray, owner_flags: int) -> BatchOffsets | RostraError:
        log = self.logs.get(partition)
        refusal = self.departure.refusal()
        if log is None or not log.is_origin:
            return UnknownPartition("", partition.index)
        if refusal is not None:
            return refusal
        if log.damaged_at is not None:
            return PartitionDamaged(log.origin_partition.name, partition.index, log.damaged_at)
        base, epoch = log.end, log.origin_partition.epoch
        last = stamp(batch, partition=partition, base_offset=base, owner_epoch=epoch, owner_flags=owner_flags)
        log.end = last + 1
        log.unsynced.append((base, log.end, batch))
        self.context.out += [Append(partition, batch), Sync(partition)]
        if not self._sync_first:
            self._advance(log, log.end)
        return base, last

    def _synced(self, given: Synced) -> None:
        log = self.logs.get(given.partition)
        if log is not None and given.generation == log.generation and given.offset > log.synced:
            self._advance(log, given.offset)

    def _advance(self, log: OriginLog, offset: int) -> None:
        """Commits what is on stable storage here, and forwards what was published here."""
        log.synced = offset
        self.context.out.append(Committed(log.partition, offset))
        while log.unsynced and log.unsynced[0][1] <= offset:
            base, end, batch = log.unsynced.popleft()
            self.ring_links.forward(log, base, end, batch, 1, None)
        self.ack_ring.synced(log)

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
            self.context.out.append(Trim(given.partition, given.first))

    def _held_by_all(self, partition: Partition) -> int:
        """The offset that all members have; 0 while one is down, because it would be sent records again."""
        log = self.logs.get(partition)
        if log is not None and log.origin_partition.local:
            return log.synced
        everybody = len(self.ring.view.active) == len(self.ring.members)
        return self.ack_ring.covered.get(partition, 0) if everybody else 0

    # --- topics --------------------------------------------------------------------------------------

    def _propose_topic(self, given: ProposeTopic) -> None:
        refusal = self.departure.refusal()
        if refusal is not None:
            self.context.out.append(Refused(given.token, refusal))
        else:
            self.topics.create(given)

    def _drop(self, given: ProposeDrop) -> None:
        topic = self.topics.by_id(given.topic)
        partitions = topic.all_partitions() if topic is not None else []
        self.topics.drop(given)
        for origin_partition in partitions:
            self.ack_ring.forget(origin_partition.partition)
            self.barriers.refuse_partition(origin_partition.partition)

    def _partition_added(self, partition: Partition) -> None:
        if partition in self.logs:
            self.receiver.partition_added(partition)

    def _admit_producer(self, given: Forward) -> None:
        refusal = self.departure.refusal()
        if refusal is not None:
            self.context.out.append(Refused(given.token, refusal))
        else:
            self.barriers.producer_arrived(given)
