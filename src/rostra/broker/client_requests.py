"""Dispatches client messages. A new message on the wire needs a `case` in `answer`, and what ARCHITECTURE.md lists.

Connections, publishing and subscribing are handled here; other messages go to the components of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, assert_never

from rostra.broker.api import Conn, Greeted
from rostra.broker.partition.served_partition import ParkedReply, ServedPartition
from rostra.broker.publish.producer_table import Stored
from rostra.broker.sessions import Session
from rostra.broker.topics.topic_requests import RESERVED_NAME, OfPartition
from rostra.errors import (
    BatchRejected,
    IncompatibleVersion,
    InvalidTopicName,
    LimitExceeded,
    NodeStopping,
    PeerViolation,
    RostraError,
    SequenceGap,
    Unavailable,
    UnknownProducer,
    UnknownTopic,
)
from rostra.fabric.api import AcksAll, Forward, ForwardReceived, LogLine, PublishPath
from rostra.model.check import BatchLimits, check_produced
from rostra.safeguards import Safeguard
from rostra.wire.features import in_common
from rostra.wire.frames import Violation
from rostra.wire.groups import (
    CommitPositions,
    DeleteGroup,
    DescribeGroup,
    FindCoordinator,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    MemberHeartbeat,
    Released,
    ResetGroup,
)
from rostra.wire.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Acks,
    AlterTopic,
    ClientMessage,
    CreateTopic,
    Credit,
    DeleteTopic,
    DescribeCluster,
    DescribeTopic,
    Goodbye,
    Hello,
    ListTopics,
    Locate,
    NodeMessage,
    Ping,
    Pong,
    Publish,
    Published,
    Register,
    RemoveMember,
    Subscribe,
    TransferPartition,
    Unregister,
    Unsubscribe,
    Unsubscribed,
    Unwatch,
    Watch,
    Welcome,
)

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

PEERS: Conn = -1
"""Stands for the connection of a publish forwarded by another node; the reply goes back through the fabric."""


class ForwardedRequest(NamedTuple):
    """A publish that was forwarded to another node."""

    conn: Conn
    request: int
    acks: Acks
    served: ServedPartition


class ClientRequests:
    """One per broker. Forwarded publishes wait here, by token, for the fabric's answer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self._waiting_max = settings.requests_per_connection_max
        self._limits = BatchLimits(
            batch_bytes_max=settings.batch_bytes_max,
            raw_body_bytes_max=settings.batch_inflated_bytes_max,
            records_max=settings.batch_records_max,
            timestamp_ahead_us_max=settings.timestamp_ahead_max_ms * 1000,
        )
        self._forwarded: dict[int, ForwardedRequest] = {}
        self._acks_by_view = broker.fabric.guarantees.acks_all is AcksAll.VIEW
        self._publishes = broker.fabric.guarantees.publishes

    def waiting(self) -> bool:
        return bool(self._forwarded)

    def answer(self, conn: Conn, message: ClientMessage, payload: bytearray | None) -> None:
        broker = self._broker
        session = broker.sessions.by_conn.get(conn)
        if session is None:
            return
        session.heard_us = broker.now.mono_us
        if not session.greeted and not isinstance(message, Hello):
            self._violated(conn, Violation.NOT_GREETED, type(message).__name__)
            return
        match message:
            case Publish():
                assert payload is not None, "the dialect lets no Publish through without one"
                self.publish(conn, session, message, payload)
            case Credit():
                self._broker.delivery.credit(conn, message.subscription, message.credit, self._broker.out)
            case Ping():
                self._reply(conn, Pong(message.request))
            case Pong():
                pass
            case Subscribe():
                self._subscribe(conn, session, message)
            case Unsubscribe():
                self._unsubscribe(conn, message)
            case Hello():
                self._hello(conn, session, message)
            case Register():
                self._broker.ownership.register(conn, session, message)
            case Unregister():
                self._broker.ownership.resign(conn, session, message)
            case Locate() | DescribeTopic() | ListTopics():
                self._broker.topic_requests.look_up(conn, session, message)
            case CreateTopic():
                self._broker.topic_requests.create(conn, session, message)
            case DeleteTopic():
                self._broker.topic_requests.delete(conn, session, message)
            case AlterTopic():
                self._broker.topic_requests.alter(conn, session, message)
            case DescribeCluster() | RemoveMember() | TransferPartition():
                self._broker.admin_requests.answer(conn, session, message)
            case Watch():
                self._broker.pattern_watches.watch(conn, session, message)
            case Unwatch():
                self._broker.pattern_watches.unwatch(conn, message)
            case (
                FindCoordinator()
                | JoinGroup()
                | Released()
                | CommitPositions()
                | MemberHeartbeat()
                | LeaveGroup()
                | ListGroups()
                | DescribeGroup()
                | ResetGroup()
                | DeleteGroup()
            ):
                self._broker.coordinator.answer(conn, session, message)
            case Goodbye():
                self._broker.close_connection(conn, message.reason)
            case _:
                assert_never(message)

    def _reply(self, conn: Conn, message: NodeMessage) -> None:
        self._broker.reply(conn, message)

    def _fail(self, conn: Conn, request: int, error: RostraError) -> None:
        self._broker.refuse(conn, request, error)

    def _violated(self, conn: Conn, reason: Violation, detail: str) -> None:
        error = PeerViolation(reason, detail)
        self._broker.out.append(LogLine("warning", "connection closed", {"conn": conn, "reason": str(error)}))
        self._fail(conn, 0, error)
        self._broker.close_connection(conn, str(error), violation=reason)

    # --- connections ---

    def _hello(self, conn: Conn, session: Session, message: Hello) -> None:
        broker = self._broker
        if session.greeted:
            self._violated(conn, Violation.OUT_OF_ORDER, "Hello came twice")
            return
        version = min(message.version_max, PROTOCOL_MAX)
        if version < max(message.version_min, PROTOCOL_MIN):
            ours, theirs = f"{PROTOCOL_MIN}-{PROTOCOL_MAX}", f"{message.version_min}-{message.version_max}"
            self._fail(conn, message.request, IncompatibleVersion(ours, theirs))
            broker.close_connection(conn, "no common protocol version")
            return
        if broker.stopping:
            self._fail(conn, message.request, NodeStopping())
            broker.close_connection(conn, "the node is stopping")
            return
        session.greeted = True
        broker.out.append(Greeted(conn))
        settings = broker.settings
        self._reply(
            conn,
            Welcome(
                message.request,
                version,
                in_common(message.features),
                broker.identity.cluster,
                broker.identity.node,
                broker.fabric.guarantees.fabric,
                settings.frame_bytes_max,
                settings.batch_bytes_max,
                settings.heartbeat_ms,
            ),
        )

    # --- publishing ---

    def publish(self, conn: Conn, session: Session, message: Publish, payload: bytearray) -> None:
        broker = self._broker
        served = broker.topic_table.find(message.topic, message.partition)
        if isinstance(served, RostraError):
            self.not_found(conn, session, message, served)
            return
        if (
            session.waiting >= self._waiting_max
            or served.blocked is not None
            or served.internal
            or broker.stopping
            or broker.broken is not None
        ):
            self._fail(conn, message.request, self._refusal(served))
            return
        if not served.owner:
            self._forward(conn, session, served, message, payload)
            return
        try:
            producer, epoch, sequence, count = check_produced(payload, limits=self._limits, now_us=broker.now.wall_us)
        except BatchRejected as rejected:
            self._fail(conn, message.request, rejected)
            return
        if producer:
            if broker.producer_migration is not None and broker.producer_migration.defers(
                conn, served, message, payload
            ):
                return
            stored = served.producers.check(producer, epoch, sequence, count, message.again)
            if stored is not None:
                self._repeated(conn, session, served, message, payload, stored)
                return
        if served.segment_bytes >= served.segment_bytes_max:
            broker.proposer.roll(served)
        flags = 0
        if served.exclusive:
            flags_or_error = broker.ownership.owner_flags(conn, served, producer)
            if isinstance(flags_or_error, RostraError):
                self._fail(conn, message.request, flags_or_error)
                return
            flags = flags_or_error
        placed = broker.proposer.propose(served, payload, flags)
        if isinstance(placed, RostraError):
            self._fail(conn, message.request, placed)
        else:
            self._park(conn, session, served, message, *placed)

    def _repeated(
        self,
        conn: Conn,
        session: Session,
        served: ServedPartition,
        message: Publish,
        batch: bytearray,
        stored: Stored | RostraError,
    ) -> None:
        """The batch is in the log already and is answered when that is safe, or its sequence is not the next one."""
        broker = self._broker
        if isinstance(stored, RostraError):
            self._fail(conn, message.request, stored)
            return
        base, last = stored
        if Safeguard.PARKED_DUPLICATES in broker.without and message.acks != "none":
            self._reply(conn, Published(message.request, base))
            return
        if base < 0 and broker.producer_migration is not None:
            moved_to = broker.producer_migration.stored_elsewhere(served, batch)
            if moved_to is not None:
                served, last = moved_to
        self._park(conn, session, served, message, base, last)

    def not_found(self, conn: Conn, session: Session, message: OfPartition, error: RostraError) -> None:
        if isinstance(error, UnknownTopic) and conn != PEERS:
            self._broker.topic_requests.unknown_topic(conn, session, message)
        else:
            self._fail(conn, message.request, error)

    def _refusal(self, served: ServedPartition) -> RostraError:
        """Why a publish is refused, the most serious reason first."""
        broker = self._broker
        if served.internal:
            return InvalidTopicName(served.topic, RESERVED_NAME)
        if broker.broken is not None:
            return broker.broken
        if broker.stopping:
            return NodeStopping()
        return served.blocked or LimitExceeded("requests_per_connection_max", self._waiting_max)

    def refused(self, token: int, error: RostraError) -> None:
        forwarded = self._forwarded.pop(token, None)
        if forwarded is not None:
            if self._broker.request_done(forwarded.conn):
                self._fail(forwarded.conn, forwarded.request, self._refusal_of_forwarded(forwarded.served, error))
            return
        assert self._broker.broken is not None, "pending requests failed when the disk did"

    # --- forwarding between nodes ---

    def _forward(
        self, conn: Conn, session: Session, served: ServedPartition, message: Publish, batch: bytearray
    ) -> None:
        """Another node owns the partition: the fabric forwards the batch, or the client is redirected."""
        broker = self._broker
        if conn == PEERS or self._publishes is PublishPath.OWNER:
            # A batch that was forwarded once and finds no owner goes back: its sender knows better where to retry.
            self._fail(conn, message.request, broker.placement.not_owner(served))
            return
        token = broker.next_token()
        session.waiting += 1
        self._forwarded[token] = ForwardedRequest(conn, message.request, message.acks, served)
        broker.step_fabric(Forward(token, served.partition, batch, message.acks, again=message.again))

    def batch_forwarded(self, token: int, base: int) -> None:
        forwarded = self._forwarded.pop(token)
        if self._broker.request_done(forwarded.conn) and forwarded.acks != "none":
            served = forwarded.served
            named = self._publishes is PublishPath.PASSED_ONCE and served.address
            owner = (served.address, served.epoch) if named else ("", 0)
            self._reply(forwarded.conn, Published(forwarded.request, base, (), *owner))

    def _refusal_of_forwarded(self, served: ServedPartition, error: RostraError) -> RostraError:
        """A client that is sent to the owner after the first answer resends there what was passed on here.

        So one batch may come by either path, and a gap only means that an earlier one is still on the other. The
        client must not begin a new producer epoch for it: its batches would be stored twice.
        """
        if self._publishes is PublishPath.PASSED_ONCE and isinstance(error, SequenceGap | UnknownProducer):
            return Unavailable(served.topic, served.partition.index, "an earlier batch has not reached its owner")
        return error

    def batch_arrived(self, effect: ForwardReceived) -> None:
        """A peer forwarded a publish to this node: it is checked and ordered like any other."""
        partition = effect.partition
        message = Publish(effect.token, partition.topic, partition.index, effect.acks, effect.again)
        self.publish(PEERS, Session(self._broker.now.mono_us), message, effect.batch)

    def _park(
        self, conn: Conn, session: Session, served: ServedPartition, message: Publish, base: int, last: int
    ) -> None:
        if message.acks == "none":
            if conn == PEERS:
                self._reply(conn, Published(message.request, base))
            return
        if message.acks == "owner":
            safe, waiting = served.synced, served.waiting_sync
        elif self._acks_by_view:
            safe, waiting = served.covered, served.waiting_cover
        else:
            safe, waiting = served.commit, served.waiting_commit
        if last < safe:
            view = served.view if waiting is served.waiting_cover else ()
            self._reply(conn, Published(message.request, base, view))
            return
        session.waiting += 1
        parked = ParkedReply(last, conn, message.request, base)
        if waiting and waiting[-1].last > last:
            served.park_in_order(parked, waiting)
        else:
            waiting.append(parked)

    # --- subscribing ---

    def _subscribe(self, conn: Conn, session: Session, message: Subscribe) -> None:
        broker = self._broker
        served = broker.topic_table.find(message.topic, message.partition)
        if isinstance(served, RostraError):
            self.not_found(conn, session, message, served)
            return
        if broker.delivery.has(conn, message.subscription):
            self._violated(conn, Violation.OUT_OF_ORDER, f"subscription {message.subscription} exists")
            return
        moved_to = broker.placement.read_error(served)
        if moved_to is not None:
            self._fail(conn, message.request, moved_to)
            return
        if served.commit_is_stale and served.blocked is None and message.start in ("latest", "last"):
            # A start relative to a stale commit offset would deliver records that were delivered long ago.
            unknown = Unavailable(served.topic, served.partition.index, "its commit offset is not known yet")
            self._fail(conn, message.request, unknown)
            return
        bound = broker.settings.subscriptions_per_connection_max
        if broker.delivery.count(conn) >= bound:
            self._fail(conn, message.request, LimitExceeded("subscriptions_per_connection_max", bound))
            return
        error = broker.delivery.open(conn, served, message, broker.out)
        if error is not None:
            self._fail(conn, message.request, error)

    def _unsubscribe(self, conn: Conn, message: Unsubscribe) -> None:
        # The node may just have ended it: the answer is the same, nothing more is pushed.
        self._broker.delivery.close(conn, message.subscription)
        self._reply(conn, Unsubscribed(message.request, message.subscription))
