"""One node as a pure state machine: an input and the time in, an ordered list of effects out.

`Broker.step` takes one `BrokerInput` (a client message, a timer, a disk completion, a message of a peer) and returns
the `BrokerEffect`s that the driver carries out in order. It reads no clock and does no IO; `runtime` and `simulator`
are its two drivers.

The broker is the hub between three sides:

- Clients. `ClientRequests` dispatches every message to the component that answers it: publishing (`publish/`),
  subscriptions (`partition/delivery.py`), topics (`topics/`), consumer groups (`groups/`), operators (`AdminRequests`).
- The fabric, which decides where topics live and how records are replicated. The broker passes it proposals, peer
  messages and disk completions (`step_fabric`), and carries out the `FabricEffect`s that come back (`carry_out`): disk
  and network effects go to the driver unchanged, announcements (`Serving`, `Committed`, `TopicOpened` and others)
  update the components.
- The driver, for disk, network and timers.

Replies are parked until what they confirm is safe: a publish waits in its `ServedPartition` for the commit, the local
fsync or the view, depending on its acks. A request that needs the fabric's answer is stored by its component under a
token, and the effect that answers it carries the same token. Tokens of the broker are even; those of `Delivery`'s reads
are odd.

A node stops in three steps: wait until no reply is parked, let the fabric transfer ownership (`PrepareStop`), say
goodbye to clients.
"""

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
from rostra.broker.publish.batch_proposer import BatchProposer
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
    Append,
    Blocked,
    Broken,
    Committed,
    Confirmed,
    Connect,
    Covered,
    Described,
    Disconnect,
    DiskUnusable,
    Drop,
    Echo,
    Fabric,
    FabricEffect,
    FabricInput,
    ForwardDone,
    Forwarded,
    ForwardReceived,
    HeldByAll,
    KnownNodes,
    LogLine,
    Now,
    Open,
    OperationDone,
    Order,
    PartitionJoined,
    PeerIdentified,
    PeerLost,
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
    """Routes inputs to the components and the fabric's effects to the driver or the components."""

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
        self.topic_table = TopicTable()
        self.sessions = Sessions()
        self.tail_cache = TailCache(settings.tail_bytes_max)
        self.delivery = Delivery(settings, self._readers_changed)
        self.proposer = BatchProposer(self)
        self.ownership = Ownership(self)
        self.client_requests = ClientRequests(self)
        self.topic_requests = TopicRequests(self)
        self.pattern_watches = PatternWatches(self)
        self.admin_requests = AdminRequests(self)
        self.coordinator = Coordinator(self)
        self.placement = TopicPlacement(self)
        self.retention = Retention()
        self.compactor = Compactor(self)
        migrates = fabric.guarantees.order is Order.ORIGIN
        self.producer_migration = self.delivery.producer_migration = ProducerMigration(self) if migrates else None
        """Set if every node orders its own records (`Order.ORIGIN`): then producers move between partitions."""
        self.broken: RostraError | None = None
        """Why this node acknowledges nothing any more."""
        self.known_nodes: tuple[str, ...] = ()
        """Client addresses of other nodes."""
        self.stopping = False
        self._stopped = False
        self.token = 0
        self._stop_requested = False
        self._stop_prepared = False
        self.now = Now(0, 0)
        self.out: list[BrokerEffect] = []

    def step(self, now: Now, given: BrokerInput) -> list[BrokerEffect]:
        self.now = now
        self.delivery.catch_up.now_us = now.mono_us
        out: list[BrokerEffect] = []
        self.out = out
        match given:
            case PeerReceived():
                self._carry_out_short(self.fabric.step(now, given))
            case MessageReceived():
                self.client_requests.answer(given.conn, given.message, given.payload)
            case Synced():
                self._synced(given)
            case SyncedTogether():
                for one in given.syncs:
                    self._synced(one)
            case TimerFired():
                self._timer(given)
            case Persisted():
                self.carry_out(given.then)
            case PeerIdentified() | PeerLost():
                self.step_fabric(given)
            case ReadDone():
                if not self.delivery.read_done(given.token, given.batches, given.next, out):
                    self.step_fabric(given)
            case ReadFailed():
                self._read_failed(given)
            case ConnectionCongested():
                self.delivery.congest(given.conn)
            case ConnectionDrained():
                self.delivery.drain(given.conn, out)
                self.pattern_watches.drained(given.conn)
                self.coordinator.drained(given.conn)
            case ConnectionAccepted():
                self._accept(given)
            case ConnectionLost():
                self.forget(given.conn)
            case OffsetFound():
                self.delivery.offset_found(given.token, given.offset, out)
            case SegmentsListed():
                self.retention.segments_listed(self, given)
            case Compacted():
                self.compactor.done(given)
            case LogInspected():
                self.placement.log_inspected(given)
            case WriteFailed():
                self._write_failed(given)
            case SyncFailed():
                self._storage_failed(given.error)
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

    def step_fabric(self, given: FabricInput) -> None:
        self.carry_out(self.fabric.step(self.now, given))

    def carry_out(self, effects: list[FabricEffect] | tuple[FabricEffect, ...]) -> None:
        out = self.out
        for effect in effects:
            match effect:
                case Send():
                    out.append(effect)
                case Append():
                    served = self.topic_table.served.get(effect.partition)
                    if served is not None:
                        served.appended(effect.batch)
                    out.append(effect)
                case Committed():
                    self._committed(effect)
                case SetTimer() | Sync() | Persist() | Read() | LogLine() | Connect() | Disconnect():
                    # For the driver alone.
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
                    self.step_fabric(effect)
                case Truncate():
                    out.append(effect)
                    self._truncated(effect.partition, effect.offset, effect.generation, None)
                case Trim():
                    served = self.topic_table.served.get(effect.partition)
                    if served is not None:
                        served.trimmed(effect.first)
                    out.append(effect)
                case Covered():
                    self._covered(effect)
                case Serving():
                    self.placement.serving(effect)
                case ServedElsewhere():
                    self.placement.served_elsewhere(effect)
                case Blocked():
                    self.placement.blocked(effect)
                case Broken():
                    self._storage_failed(effect.error)
                case TopicOpened():
                    self.placement.topic_opened(effect)
                case TopicChanged():
                    self.placement.topic_changed(effect)
                case HeldByAll():
                    self.compactor.held_by_all(effect)
                case TopicClosed():
                    self.placement.topic_closed(effect)
                case KnownNodes():
                    self.known_nodes = effect.addresses[:NEIGHBOURS_MAX]
                case PartitionJoined():
                    self.placement.partition_joined(effect)
                case Confirmed():
                    if not self.pattern_watches.confirmed(effect.token) and not self.coordinator.confirmed(
                        effect.token
                    ):
                        self.topic_requests.confirmed(effect.token)
                case OperationDone():
                    self.admin_requests.operation_done(effect.token)
                case Described():
                    if not self.topic_requests.described(effect.token, effect.state):
                        self.admin_requests.described(effect.token, effect.state)
                case Forwarded():
                    self.client_requests.batch_forwarded(effect.token, effect.base)
                case ForwardReceived():
                    self.client_requests.batch_arrived(effect)
                case ProducerAdmitted():
                    assert self.producer_migration is not None
                    self.producer_migration.admitted(effect)
                case ProducerMigrated():
                    assert self.producer_migration is not None
                    self.producer_migration.migrated(effect)
                case StopPrepared():
                    self._stop_prepared = True
                case Ready():
                    out += [Listen(), *self._set_timers()]
                case _:
                    assert_never(effect)
        if self.placement.pending_creates:
            self.placement.answer_creates()

    def _carry_out_short(self, effects: list[FabricEffect]) -> None:
        """Fast path for inputs that occur with every record: mostly one effect or none follows."""
        if len(effects) == 1:
            (effect,) = effects
            if type(effect) is Committed:
                self._committed(effect)
                if self.placement.pending_creates:
                    self.placement.answer_creates()
                return
            if type(effect) is Send:
                self.out.append(effect)
                return
        if effects:
            self.carry_out(effects)

    def _readers_changed(self, served: ServedPartition) -> None:
        self.step_fabric(Readers(served.partition, bool(served.readers)))

    def _refused(self, effect: Refused) -> None:
        token, error = effect.token, effect.error
        for component in (self.topic_requests, self.admin_requests, self.pattern_watches, self.coordinator):
            if component.refused(token, error):
                return
        if self.producer_migration is None or not self.producer_migration.refused(token, error):
            self.client_requests.refused(token, error)

    def _synced(self, given: Synced) -> None:
        if self.broken is not None:
            return
        self._carry_out_short(self.fabric.step(self.now, given))
        served = self.topic_table.served.get(given.partition)
        if served is not None and given.generation == served.generation:
            if given.offset > served.synced:
                served.synced = given.offset
            if served.waiting_sync:
                self._release(served.durable(given.offset))

    def _committed(self, effect: Committed) -> None:
        served = self.topic_table.served.get(effect.partition)
        if served is not None:
            # Subscribers first: they wait for the record, the publisher only for the acknowledgement.
            released = served.committed(effect.offset)
            if self.producer_migration is not None:
                self.producer_migration.committed(served, self.out)
            self.delivery.committed(served, self.out)
            if released:
                self._release(released)

    def _covered(self, effect: Covered) -> None:
        served = self.topic_table.served.get(effect.partition)
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

    def request_done(self, conn: Conn) -> bool:
        """Counts one pending request less; False if the client has disconnected."""
        return conn == PEERS or self.sessions.request_done(conn)

    def over_limit(self, session: Session) -> LimitExceeded | None:
        bound = self.settings.requests_per_connection_max
        return LimitExceeded("requests_per_connection_max", bound) if session.waiting >= bound else None

    def next_token(self) -> int:
        self.token += 2
        return self.token

    def reply(self, conn: Conn, message: NodeMessage) -> None:
        if conn != PEERS:
            self.out.append(Reply(conn, message))
        elif isinstance(message, Published):
            self.step_fabric(ForwardDone(message.request, message.offset))

    def refuse(self, conn: Conn, request: int, error: RostraError) -> None:
        if conn == PEERS:
            self.step_fabric(ForwardDone(request, -1, error))
        else:
            self.out.append(Reply(conn, Failed(request, type(error).__name__, error.carried())))

    def fail(self, parked: list[ParkedReply], error: RostraError) -> None:
        for reply in parked:
            if self.request_done(reply.conn) and (reply.request or reply.message is None):
                self.refuse(reply.conn, reply.request, error)

    def _truncated(self, partition: Partition, offset: int, generation: int, error: RostraError | None) -> None:
        served = self.topic_table.served.get(partition)
        if served is not None:
            cut = served.truncated(offset, generation)
            self.fail(cut, error or Unavailable(served.topic, partition.index, "another owner's records replaced it"))
            if served.rebuilding is not None:
                self.out.append(InspectLog(partition))
            else:
                self.coordinator.state_rewound(served)

    def _write_failed(self, given: WriteFailed) -> None:
        # Only the fabric knows whether other nodes have the batch that this disk refused. If so, it gives up ownership
        # first and the publishers retry. Told that the batch failed, they would reuse its sequence for another one.
        self.step_fabric(given)
        self._truncated(given.partition, given.offset, given.generation, given.error)

    def _read_failed(self, given: ReadFailed) -> None:
        note = LogLine("error", "read failed", {"partition": str(given.partition), "error": str(given.error)})
        self.out.append(note)
        if isinstance(given.error, CorruptLog):
            # The fabric first: if other nodes have the partition intact, it redirects the readers.
            self.step_fabric(given)
            self.delivery.read_failed(given.token, given.error, self.out)
        elif not self.delivery.read_failed(given.token, given.error, self.out):
            self.step_fabric(given)

    def _storage_failed(self, error: RostraError) -> None:
        """The state of the disk is unknown: acknowledge nothing, keep serving reads."""
        if self.broken is not None:
            return
        self.broken = error
        self.out.append(LogLine("error", "acknowledging stopped", {"error": str(error)}))
        for served in self.topic_table.partitions():
            self.fail(served.take_parked(), error)
        self.topic_requests.storage_failed(error)
        self.coordinator.storage_failed(error)
        self.step_fabric(DiskUnusable(error))

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
        self.delivery.connection_lost(conn)
        session = self.sessions.get(conn)
        if session is not None:
            self.ownership.connection_lost(conn, session.heard_us)
        self.pattern_watches.connection_lost(conn)
        self.coordinator.connection_lost(conn)
        self.sessions.close(conn)

    def close_connection(self, conn: Conn, reason: str, violation: str = "") -> None:
        """Closes a connection from this side. Drops its session at once, so that later input from it is ignored."""
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
                self.close_connection(conn, "silent for three heartbeats")
            self.pattern_watches.recheck()
            self.out.append(SetTimer(SWEEP, self.now.mono_us + self.settings.heartbeat_ms * 1000))
        elif given.timer == LEASES:
            self.ownership.timer()
        elif given.timer == GROUPS_TIMER:
            self.coordinator.timer()
        elif given.timer == CATCH_UP:
            self.delivery.resume(self.out)
        elif given.timer == RETENTION:
            self.retention.check(self)
            self.compactor.start_next()
            self.out.append(SetTimer(RETENTION, self.now.mono_us + self.settings.retention_check_ms * 1000))
        else:
            self.step_fabric(given)

    def _finish(self) -> None:
        """Stops once no reply is pending: first the fabric transfers ownership, then clients get a goodbye."""
        if (
            self.client_requests.waiting()
            or (self.producer_migration is not None and self.producer_migration.waiting())
            or self.topic_requests.waiting()
            or self.admin_requests.waiting()
            or self.coordinator.waiting()
            or any(served.has_parked for served in self.topic_table.partitions())
        ):
            return
        if not self._stop_requested:
            self._stop_requested = True
            self.step_fabric(PrepareStop())
        if not self._stop_prepared:
            return
        self._stopped = True
        for conn in self.sessions.all():
            self.out += [Reply(conn, Goodbye("the node is stopping")), CloseConnection(conn, "the node is stopping")]
        self.out.append(Stopped())
