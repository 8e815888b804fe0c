"""One node, pure: inputs and time in, effects out."""

from __future__ import annotations

from typing import assert_never

import msgspec

from rostra.broker.api import (
    Accept,
    Boot,
    BrokerEffect,
    BrokerInput,
    CloseConn,
    Congest,
    Conn,
    Drain,
    Listen,
    Located,
    Lose,
    Persisted,
    Receive,
    RecoveredLog,
    Reply,
    Sealed,
    Stop,
    Stopped,
    SyncBroke,
)
from rostra.broker.catalogue import Catalogue, KnownTopic
from rostra.broker.delivery import Delivery
from rostra.broker.partition import Parked, ServedPartition
from rostra.broker.producers import ProducerTable
from rostra.broker.requests import Requests
from rostra.broker.retention import Retention
from rostra.broker.sessions import Sessions
from rostra.broker.settings import BrokerSettings
from rostra.broker.tail import Tails
from rostra.errors import LimitExceeded, RostraError, TopicDeleted, Unavailable
from rostra.fabric.api import (
    Accepted,
    Append,
    Blocked,
    Committed,
    Drop,
    Fabric,
    FabricEffect,
    FabricInput,
    Note,
    Now,
    Open,
    PeerLost,
    PeerReceived,
    Persist,
    Read,
    ReadDone,
    ReadFailed,
    Ready,
    Refused,
    Send,
    Serving,
    SetTimer,
    Started,
    Sync,
    Synced,
    TimerFired,
    TopicClosed,
    TopicOpened,
    Trim,
    Truncate,
    WriteFailed,
)
from rostra.model.batch import OwnerFlag
from rostra.model.ids import ClusterId, NodeId, Partition, PartitionIndex, RandomSource
from rostra.safeguards import ALL_ON, Without
from rostra.wire.messages import Failed, Goodbye, Published, Topic, TopicSettings

SWEEP = "broker/sweep"
RETENTION = "broker/retention"
_CHECKPOINT_AT = 28
"""Where the owner's flags of a batch lie."""


class Identity(msgspec.Struct, frozen=True):
    cluster: ClusterId
    node: NodeId


class Broker:
    """Routes inputs to its parts and the fabric's effects to the drivers or back to its parts."""

    def __init__(
        self,
        identity: Identity,
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
        self.catalogue = Catalogue()
        self.sessions = Sessions()
        self.tails = Tails(settings.tail_bytes_max)
        self.delivery = Delivery(settings)
        self.requests = Requests(self)
        self.retention = Retention()
        self.broken: RostraError | None = None
        """Why nothing is acknowledged any more."""
        self.stopping = False
        self._stopped = False
        self._logs: dict[Partition, RecoveredLog] = {}
        self._opened: list[tuple[int | None, KnownTopic]] = []
        self.now = Now(0, 0)
        self.out: list[BrokerEffect] = []

    def step(self, now: Now, given: BrokerInput) -> list[BrokerEffect]:
        self.now = now
        out: list[BrokerEffect] = []
        self.out = out
        match given:
            case Receive():
                self.requests.answer(given.conn, given.message, given.payload)
            case Synced():
                self._synced(given)
            case ReadDone():
                if not self.delivery.read_done(given.token, given.batches, given.next, out):
                    self.ask_fabric(given)
            case ReadFailed():
                self._read_failed(given)
            case Congest():
                self.delivery.congest(given.conn)
            case Drain():
                self.delivery.drain(given.conn, out)
            case Accept():
                self._accept(given)
            case Lose():
                self.forget(given.conn)
            case Located():
                self.delivery.located(given.token, given.offset, out)
            case Sealed():
                self.retention.sealed(self, given)
            case WriteFailed():
                self._write_failed(given)
            case SyncBroke():
                self._broke(given.error)
            case TimerFired():
                self._timer(given)
            case Persisted():
                self._carry_out(given.then)
            case PeerReceived() | PeerLost():
                self.ask_fabric(given)
            case Boot():
                self._boot(given)
            case Stop():
                self.stopping = True
            case _:
                assert_never(given)
        if self.stopping and not self._stopped:
            self._finish()
        return out

    # --- the fabric ---

    def ask_fabric(self, given: FabricInput) -> None:
        self._carry_out(self.fabric.step(self.now, given))

    def _carry_out(self, effects: list[FabricEffect] | tuple[FabricEffect, ...]) -> None:
        for effect in effects:
            match effect:
                case Append():
                    self._appended(effect)
                case Accepted():
                    self._accepted(effect)
                case Committed():
                    self._committed(effect)
                case Sync() | Read() | Send() | SetTimer() | Note() | Open() | Drop() | Persist():
                    self.out.append(effect)
                case Refused():
                    self._refused(effect)
                case Truncate():
                    self._truncated(effect.partition, effect.offset, effect.generation, None)
                    self.out.append(effect)
                case Trim():
                    served = self.catalogue.served(effect.partition)
                    if served is not None:
                        served.first = effect.first
                    self.out.append(effect)
                case Serving():
                    self._serving(effect)
                case Blocked():
                    self._blocked(effect)
                case TopicOpened():
                    self._topic_opened(effect)
                case TopicClosed():
                    self._topic_closed(effect)
                case Ready():
                    self.out += [Listen(), *self._set_timers()]
                case _:
                    assert_never(effect)
        if self._opened:
            # Only now: the answer says where the new topic's partitions are served.
            opened, self._opened = self._opened, []
            for token, known in opened:
                self.requests.opened(token, known)

    def _appended(self, effect: Append) -> None:
        served = self.catalogue.served(effect.partition)
        if served is not None:
            rolls = bool(effect.batch[_CHECKPOINT_AT] & OwnerFlag.CHECKPOINT)
            served.appended(effect.batch, rolls=rolls)
        self.out.append(effect)

    def _accepted(self, effect: Accepted) -> None:
        self.requests.accepted(effect.token, effect.base, effect.last)

    def _refused(self, effect: Refused) -> None:
        self.requests.refused(effect.token, effect.error)

    def _synced(self, given: Synced) -> None:
        if self.broken is not None:
            return
        self.ask_fabric(given)
        served = self.catalogue.served(given.partition)
        if served is not None and given.generation == served.generation:
            self._release(served.durable(given.offset))

    def _committed(self, effect: Committed) -> None:
        served = self.catalogue.served(effect.partition)
        if served is not None:
            self._release(served.committed(effect.offset))
            self.delivery.committed(served, self.out)

    def _release(self, replies: list[Parked]) -> None:
        for parked in replies:
            if self.sessions.answered(parked.conn):
                self.out.append(Reply(parked.conn, Published(parked.request, parked.base)))

    def fail(self, parked: list[Parked], error: RostraError) -> None:
        for reply in parked:
            if self.sessions.answered(reply.conn):
                self.out.append(Reply(reply.conn, Failed(reply.request, type(error).__name__, error.carried())))

    def _truncated(self, partition: Partition, offset: int, generation: int, error: RostraError | None) -> None:
        served = self.catalogue.served(partition)
        if served is not None:
            cut = served.truncated(offset, generation)
            self.fail(cut, error or Unavailable(served.topic, partition.index, "another owner's records replaced it"))

    def _write_failed(self, given: WriteFailed) -> None:
        self._truncated(given.partition, given.offset, given.generation, given.error)
        self.ask_fabric(given)

    def _read_failed(self, given: ReadFailed) -> None:
        note = Note("error", "read failed", {"partition": str(given.partition), "error": str(given.error)})
        self.out.append(note)
        if not self.delivery.read_failed(given.token, given.error, self.out):
            self.ask_fabric(given)

    def _broke(self, error: RostraError) -> None:
        """After a failed fsync nobody knows what the disk has: acknowledge nothing, go on serving reads."""
        if self.broken is not None:
            return
        self.broken = error
        self.out.append(Note("error", "acknowledging stopped", {"error": str(error)}))
        for served in self.catalogue.partitions():
            self.fail([*served.waiting_commit, *served.waiting_sync], error)
            served.waiting_commit.clear()
            served.waiting_sync.clear()
        self.requests.broke(error)

    # --- topics ---

    def _boot(self, given: Boot) -> None:
        self._logs = {recovered.log.partition: recovered for recovered in given.logs}
        self.ask_fabric(Started(given.hard, tuple(recovered.log for recovered in given.logs)))

    def _topic_opened(self, effect: TopicOpened) -> None:
        spec = effect.spec
        settings = msgspec.msgpack.decode(spec.settings, type=TopicSettings)
        partitions = [
            ServedPartition(
                Partition(spec.topic, PartitionIndex(index)),
                spec.name,
                ProducerTable(self.settings.producers_per_partition_max, self.without),
                self.tails,
            )
            for index in range(spec.partitions)
        ]
        known = KnownTopic(Topic(spec.topic, spec.name, settings), partitions)
        self.catalogue.add(known)
        self._opened.append((effect.token, known))

    def _serving(self, effect: Serving) -> None:
        served = self.catalogue.served(effect.partition)
        if served is None:
            return
        served.epoch, served.owner = effect.epoch, effect.owner
        served.first, served.end, served.commit = effect.first, effect.end, effect.commit
        served.synced = effect.end
        served.tail.next = effect.end
        recovered = self._logs.pop(effect.partition, None)
        if recovered is not None:
            served.bytes, served.segment_bytes = recovered.bytes, recovered.segment_bytes
            served.rebuild(recovered.checkpoint, recovered.stamps)
            served.producers.commit(effect.commit)

    def _blocked(self, effect: Blocked) -> None:
        served = self.catalogue.served(effect.partition)
        if served is not None:
            served.blocked = effect.error
            self.out.append(Note("error", "partition blocked", {"topic": served.topic, "error": str(effect.error)}))

    def _topic_closed(self, effect: TopicClosed) -> None:
        known = self.catalogue.drop(effect.topic)
        if known is not None:
            error = TopicDeleted(known.topic.name)
            for served in known.partitions:
                self.fail(served.close(), error)
                for reader in list(served.readers.values()):
                    self.delivery.end(reader, error, self.out)
        self.requests.closed(effect.token, effect.topic)

    # --- connections and time ---

    def _accept(self, given: Accept) -> None:
        if len(self.sessions) >= self.settings.connections_max:
            error = LimitExceeded("connections_max", self.settings.connections_max)
            self.out += [
                Reply(given.conn, Failed(0, type(error).__name__, error.carried())),
                CloseConn(given.conn, str(error)),
            ]
            return
        self.sessions.open(given.conn, self.now.mono_us)

    def forget(self, conn: Conn) -> None:
        self.delivery.lose(conn)
        self.sessions.close(conn)

    def hang_up(self, conn: Conn, reason: str) -> None:
        """Closes a connection from this side. Forgotten at once: what it sent meanwhile is not listened to."""
        self.forget(conn)
        self.out.append(CloseConn(conn, reason))

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
            self.out.append(SetTimer(SWEEP, self.now.mono_us + self.settings.heartbeat_ms * 1000))
        elif given.timer == RETENTION:
            self.retention.survey(self)
            self.out.append(SetTimer(RETENTION, self.now.mono_us + self.settings.retention_check_ms * 1000))
        else:
            self.ask_fabric(given)

    def _finish(self) -> None:
        """Once nobody waits for an acknowledgement, say goodbye."""
        if self.requests.waiting() or any(
            served.waiting_commit or served.waiting_sync for served in self.catalogue.partitions()
        ):
            return
        self._stopped = True
        for conn in self.sessions.all():
            self.out += [Reply(conn, Goodbye("the node is stopping")), CloseConn(conn, "the node is stopping")]
        self.out.append(Stopped())
