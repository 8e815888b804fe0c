"""One node, pure: inputs and time in, effects out."""

from __future__ import annotations

from typing import assert_never

import msgspec

from rostra.broker.admin_requests import AdminRequests
from rostra.broker.api import (
    Boot,
    BrokerEffect,
    BrokerInput,
    CloseConnection,
    Compacted,
    Conn,
    ConnectionAccepted,
    ConnectionCongested,
    ConnectionDrained,
    ConnectionLost,
    InspectLog,
    Listen,
    LogInspected,
    MessageReceived,
    OffsetFound,
    Persisted,
    Reply,
    SegmentsListed,
    Stop,
    Stopped,
    SyncedTogether,
    SyncFailed,
)
from rostra.broker.client_requests import PEERS, ClientRequests
from rostra.broker.groups.coordinator import Coordinator
from rostra.broker.groups.maintenance import GROUPS_TIMER
from rostra.broker.partition.compactor import Compactor
from rostra.broker.partition.delivery import CATCH_UP, Delivery
from rostra.broker.partition.retention import Retention
from rostra.broker.partition.served_partition import ParkedReply, ServedPartition
from rostra.broker.partition.tail_cache import TailCache
from rostra.broker.publish.batch_ordering import BatchOrdering
from rostra.broker.publish.ownership import LEASES, Ownership
from rostra.broker.publish.producer_migration import ProducerMigration
from rostra.broker.sessions import Session, Sessions
from rostra.broker.settings import BrokerSettings
from rostra.broker.topics.pattern_watches import PatternWatches
from rostra.broker.topics.placement import TopicPlacement
from rostra.broker.topics.topic_requests import TopicRequests
from rostra.broker.topics.topic_table import TopicTable
from rostra.errors import CorruptLog, LimitExceeded, RostraError, Unavailable
from rostra.fabric.api import (
    Accepted,
    Append,
    Arrived,
    Blocked,
    Broken,
    Committed,
    Confirmed,
    Connect,
    Covered,
    Described,
    Disconnect,
    DiskBroke,
    Drop,
    Echo,
    Fabric,
    FabricEffect,
    FabricInput,
    HeldByAll,
    KnownNodes,
    LogLine,
    Now,
    Open,
    OperationDone,
    Order,
    PartitionJoined,
    PassedOn,
    PeerLost,
    PeerMet,
    PeerReceived,
    Persist,
    PrepareStop,
    ProducerAdmitted,
    ProducerMigrated,
    Read,
    ReadDone,
    Readers,
    ReadFailed,
    Ready,
    Refused,
    Send,
    ServedElsewhere,
    Serving,
    SetTimer,
    Settled,
    StopPrepared,
    Sync,
    Synced,
    TimerFired,
    TopicChanged,
    TopicClosed,
    TopicOpened,
    Trim,
    Truncate,
    WriteFailed,
)
from rostra.model.ids import ClusterId, NodeId, Partition, RandomSource
from rostra.safeguards import ALL_ON, Without
from rostra.wire.messages import NEIGHBOURS_MAX, Failed, Goodbye, NodeMessage, Published

SWEEP = "broker/sweep"
RETENTION = "broker/retention"


class BrokerIdentity(msgspec.Struct, frozen=True):
    cluster: ClusterId
    node: NodeId


class Broker:
    """Routes inputs to its parts and the fabric's effects to the drivers or back to its parts."""

    def __init__(
        self,
        identity: BrokerIdentity,
        fabric: Fabric,
        settings: BrokerSettings,
        source: RandomSource,
        without: Without = ALL_ON,
    ) -> None:
        self.identity = identity
        self.fabric = fabric
        self.settings = settings
        self.source = source
        self.without = without
        self.catalogue = TopicTable()
        self.sessions = Sessions()
        self.tails = TailCache(settings.tail_bytes_max)
        self.delivery = Delivery(settings, self._read_now)
        self.ordering = BatchOrdering(self)
        self.ownership = Ownership(self)
        self.requests = ClientRequests(self)
        self.topics = TopicRequests(self)
        self.watching = PatternWatches(self)
        self.administration = AdminRequests(self)
        self.coordinator = Coordinator(self)
        self.placement = TopicPlacement(self)
        self.retention = Retention()
        self.compactor = Compactor(self)
        roams = fabric.guarantees.order is Order.ORIGIN
        self.roaming = self.delivery.roaming = ProducerMigration(self) if roams else None
        """Where every node orders records of its own: of producers that come from another."""
        self.broken: RostraError | None = None
        """Why nothing is acknowledged any more."""
        self.neighbours: tuple[str, ...] = ()
        """Where clients find other nodes."""
        self.stopping = False
        self._stopped = False
        self.token = 0
        self._handing_over = False
        self._handed_over = False
        self.now = Now(0, 0)
        self.out: list[BrokerEffect] = []

    def step(self, now: Now, given: BrokerInput) -> list[BrokerEffect]:
        self.now = now
        self.delivery.catch_up.now_us = now.mono_us
        out: list[BrokerEffect] = []
        self.out = out
        match given:
            case PeerReceived():
                self._happened(self.fabric.step(now, given))
            case MessageReceived():
                self.requests.answer(given.conn, given.message, given.payload)
            case Synced():
                self._synced(given)
            case SyncedTogether():
                for one in given.syncs:
                    self._synced(one)
            case TimerFired():
                self._timer(given)
            case Persisted():
                self.carry_out(given.then)
            case PeerMet() | PeerLost():
                self.ask_fabric(given)
            case ReadDone():
                if not self.delivery.read_done(given.token, given.batches, given.next, out):
                    self.ask_fabric(given)
            case ReadFailed():
                self._read_failed(given)
            case ConnectionCongested():
                self.delivery.congest(given.conn)
            case ConnectionDrained():
                self.delivery.drain(given.conn, out)
                self.watching.drained(given.conn)
                self.coordinator.drained(given.conn)
            case ConnectionAccepted():
                self._accept(given)
            case ConnectionLost():
                self.forget(given.conn)
            case OffsetFound():
                self.delivery.located(given.token, given.offset, out)
            case SegmentsListed():
                self.retention.sealed(self, given)
            case Compacted():
                self.compactor.done(given)
            case LogInspected():
                self.placement.recalled(given)
            case WriteFailed():
                self._write_failed(given)
            case SyncFailed():
                self._broke(given.error)
            case Boot():
                self.placement.boot(given)
            case Stop():
                self.stopping = True
            case _:
                assert_never(given)
        if self.stopping and not self._stopped:
            self._finish()
        return out

    # --- the fabric ---

    def ask_fabric(self, given: FabricInput) -> None:
        self.carry_out(self.fabric.step(self.now, given))

    def carry_out(self, effects: list[FabricEffect] | tuple[FabricEffect, ...]) -> None:
        out = self.out
        for effect in effects:
            match effect:
                case Send():
                    out.append(effect)
                case Append():
                    served = self.catalogue.served.get(effect.partition)
                    if served is not None:
                        served.appended(effect.batch)
                    out.append(effect)
                case Accepted():
                    self.ordering.accepted(effect.token, effect.base, effect.last)
                case Committed():
                    self._committed(effect)
                case SetTimer() | Sync() | Persist() | Read() | LogLine() | Connect() | Disconnect():
                    # What a fabric wants of its driver and the broker has no part in.
                    out.append(effect)
                case Open():
                    self.placement.opened(effect)
                    out.append(effect)
                case Drop():
                    self.placement.dropped(effect)
                    out.append(effect)
                case Refused():
                    self._refused(effect)
                case Echo():
                    self.ask_fabric(effect)
                case Truncate():
                    out.append(effect)
                    self._truncated(effect.partition, effect.offset, effect.generation, None)
                case Trim():
                    served = self.catalogue.served.get(effect.partition)
                    if served is not None:
                        served.trimmed(effect.first)
                    out.append(effect)
                case Covered():
                    self._covered(effect)
                case Serving():
                    self.placement.serving(effect)
                case ServedElsewhere():
                    self.placement.elsewhere(effect)
                case Blocked():
                    self.placement.blocked(effect)
                case Broken():
                    self._broke(effect.error)
                case TopicOpened():
                    self.placement.topic_opened(effect)
                case TopicChanged():
                    self.placement.topic_changed(effect)
                case HeldByAll():
                    self.compactor.held(effect)
                case TopicClosed():
                    self.placement.topic_closed(effect)
                case KnownNodes():
                    self.neighbours = effect.addresses[:NEIGHBOURS_MAX]
                case PartitionJoined():
                    self.placement.joined(effect)
                case Confirmed():
                    if not self.watching.confirmed(effect.token) and not self.coordinator.confirmed(effect.token):
                        self.topics.confirmed(effect.token)
                case OperationDone():
                    self.administration.agreed(effect.token)
                case Described():
                    if not self.topics.described(effect.token, effect.state):
                        self.administration.described(effect.token, effect.state)
                case PassedOn():
                    self.requests.passed_on(effect.token, effect.base)
                case Arrived():
                    self.requests.arrived(effect)
                case ProducerAdmitted():
                    assert self.roaming is not None
                    self.roaming.admitted(effect)
                case ProducerMigrated():
                    assert self.roaming is not None
                    self.roaming.departed(effect)
                case StopPrepared():
                    self._handed_over = True
                case Ready():
                    out += [Listen(), *self._set_timers()]
                case _:
                    assert_never(effect)
        if self.placement.opened_now:
            self.placement.answer_openers()

    def _happened(self, effects: list[FabricEffect]) -> None:
        """At a disk or a peer, with every record: mostly it is one thing that follows, or nothing."""
        if len(effects) == 1:
            (effect,) = effects
            if type(effect) is Committed:
                self._committed(effect)
                if self.placement.opened_now:
                    self.placement.answer_openers()
                return
            if type(effect) is Send:
                self.out.append(effect)
                return
        if effects:
            self.carry_out(effects)

    def _read_now(self, served: ServedPartition) -> None:
        self.ask_fabric(Readers(served.partition, bool(served.readers)))

    def _refused(self, effect: Refused) -> None:
        token, error = effect.token, effect.error
        for part in (self.topics, self.administration, self.watching, self.coordinator):
            if part.refused(token, error):
                return
        if self.roaming is None or not self.roaming.refused(token, error):
            self.requests.refused(token, error)

    def _synced(self, given: Synced) -> None:
        if self.broken is not None:
            return
        self._happened(self.fabric.step(self.now, given))
        served = self.catalogue.served.get(given.partition)
        if served is not None and given.generation == served.generation:
            if given.offset > served.synced:
                served.synced = given.offset
            if served.waiting_sync:
                self._release(served.durable(given.offset))

    def _committed(self, effect: Committed) -> None:
        served = self.catalogue.served.get(effect.partition)
        if served is not None:
            # Subscribers first: they wait for the record, the publisher only for the word.
            released = served.committed(effect.offset)
            if self.roaming is not None:
                self.roaming.committed(served, self.out)
            self.delivery.committed(served, self.out)
            if released:
                self._release(released)

    def _covered(self, effect: Covered) -> None:
        served = self.catalogue.served.get(effect.partition)
        if served is not None:
            self._release(served.cover(effect.offset, effect.view.active), effect.view.active)

    def _release(self, replies: list[ParkedReply], view: tuple[int, ...] = ()) -> None:
        for parked in replies:
            session = self.sessions.by_conn.get(parked.conn)
            if session is not None:
                session.waiting -= 1
                answer = parked.message or Published(parked.request, parked.base, view)
                self.out.append(Reply(parked.conn, answer))
            elif parked.conn == PEERS:
                self.reply(PEERS, parked.message or Published(parked.request, parked.base, view))

    def answered(self, conn: Conn) -> bool:
        """One answer fewer to wait for; False if whoever asked has gone meanwhile."""
        return conn == PEERS or self.sessions.answered(conn)

    def too_many(self, session: Session) -> LimitExceeded | None:
        bound = self.settings.requests_per_connection_max
        return LimitExceeded("requests_per_connection_max", bound) if session.waiting >= bound else None

    def next_token(self) -> int:
        self.token += 2
        return self.token

    def reply(self, conn: Conn, message: NodeMessage) -> None:
        if conn != PEERS:
            self.out.append(Reply(conn, message))
        elif isinstance(message, Published):
            self.ask_fabric(Settled(message.request, message.offset))

    def refuse(self, conn: Conn, request: int, error: RostraError) -> None:
        if conn == PEERS:
            self.ask_fabric(Settled(request, -1, error))
        else:
            self.out.append(Reply(conn, Failed(request, type(error).__name__, error.carried())))

    def fail(self, parked: list[ParkedReply], error: RostraError) -> None:
        for reply in parked:
            if self.answered(reply.conn) and (reply.request or reply.message is None):
                self.refuse(reply.conn, reply.request, error)

    def _truncated(self, partition: Partition, offset: int, generation: int, error: RostraError | None) -> None:
        served = self.catalogue.served.get(partition)
        if served is not None:
            cut = served.truncated(offset, generation)
            self.fail(cut, error or Unavailable(served.topic, partition.index, "another owner's records replaced it"))
            if served.unsure is not None:
                self.out.append(InspectLog(partition))
            else:
                self.coordinator.follow(served)

    def _write_failed(self, given: WriteFailed) -> None:
        # Whether others may have what this disk refused, only the fabric knows: then it turns the askers away first,
        # and they ask again. Told that it failed, they would use its place in the sequence for something else.
        self.ask_fabric(given)
        self._truncated(given.partition, given.offset, given.generation, given.error)

    def _read_failed(self, given: ReadFailed) -> None:
        note = LogLine("error", "read failed", {"partition": str(given.partition), "error": str(given.error)})
        self.out.append(note)
        if isinstance(given.error, CorruptLog):
            # The fabric first, whoever read: if others have the partition whole, it sends the readers there.
            self.ask_fabric(given)
            self.delivery.read_failed(given.token, given.error, self.out)
        elif not self.delivery.read_failed(given.token, given.error, self.out):
            self.ask_fabric(given)

    def _broke(self, error: RostraError) -> None:
        """Nobody knows any more what the disk has: acknowledge nothing, go on serving reads."""
        if self.broken is not None:
            return
        self.broken = error
        self.out.append(LogLine("error", "acknowledging stopped", {"error": str(error)}))
        for served in self.catalogue.partitions():
            self.fail(served.give_up(), error)
        self.topics.broke(error)
        self.coordinator.broke(error)
        self.ask_fabric(DiskBroke(error))

    # --- connections and time ---

    def _accept(self, given: ConnectionAccepted) -> None:
        if len(self.sessions) >= self.settings.connections_max:
            error = LimitExceeded("connections_max", self.settings.connections_max)
            self.out += [
                Reply(given.conn, Failed(0, type(error).__name__, error.carried())),
                CloseConnection(given.conn, str(error)),
            ]
            return
        self.sessions.open(given.conn, self.now.mono_us)

    def forget(self, conn: Conn) -> None:
        self.delivery.lose(conn)
        session = self.sessions.get(conn)
        if session is not None:
            self.ownership.lost(conn, session.heard_us)
        self.watching.lose(conn)
        self.coordinator.lose(conn)
        self.sessions.close(conn)

    def hang_up(self, conn: Conn, reason: str, violation: str = "") -> None:
        """Closes a connection from this side. Forgotten at once: what it sent meanwhile is not listened to."""
        self.forget(conn)
        self.out.append(CloseConnection(conn, reason, violation))

    def _set_timers(self) -> list[BrokerEffect]:
        return [
            SetTimer(SWEEP, self.now.mono_us + self.settings.heartbeat_ms * 1000),
            SetTimer(RETENTION, self.now.mono_us + self.settings.retention_check_ms * 1000),
        ]

    def _timer(self, given: TimerFired) -> None:
        if given.timer == SWEEP:
            silent = self.sessions.silent_since(self.now.mono_us - 3 * self.settings.heartbeat_ms * 1000)
            for conn in silent:
                self.hang_up(conn, "silent for three heartbeats")
            self.watching.doubt()
            self.out.append(SetTimer(SWEEP, self.now.mono_us + self.settings.heartbeat_ms * 1000))
        elif given.timer == LEASES:
            self.ownership.fired()
        elif given.timer == GROUPS_TIMER:
            self.coordinator.timer()
        elif given.timer == CATCH_UP:
            self.delivery.resume(self.out)
        elif given.timer == RETENTION:
            self.retention.survey(self)
            self.compactor.look()
            self.out.append(SetTimer(RETENTION, self.now.mono_us + self.settings.retention_check_ms * 1000))
        else:
            self.ask_fabric(given)

    def _finish(self) -> None:
        """Once nobody waits for an acknowledgement, give away what is owned here, then say goodbye."""
        if (
            self.requests.waiting()
            or (self.roaming is not None and self.roaming.waiting())
            or self.topics.waiting()
            or self.administration.waiting()
            or self.coordinator.waiting()
            or any(served.awaited for served in self.catalogue.partitions())
        ):
            return
        if not self._handing_over:
            self._handing_over = True
            self.ask_fabric(PrepareStop())
        if not self._handed_over:
            return
        self._stopped = True
        for conn in self.sessions.all():
            self.out += [Reply(conn, Goodbye("the node is stopping")), CloseConnection(conn, "the node is stopping")]
        self.out.append(Stopped())
