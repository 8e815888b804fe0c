"""Answers to client messages. Adding a message to the wire means adding a `case` to `answer`."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from rostra.broker.api import Conn, Greeted, Reply
from rostra.broker.catalogue import Asked, KnownTopic
from rostra.broker.control import checkpoint_batch
from rostra.broker.partition import Parked, ServedPartition
from rostra.broker.producers import Verdict
from rostra.broker.sessions import Session
from rostra.errors import (
    BatchRejected,
    IncompatibleVersion,
    InvalidTopicName,
    LimitExceeded,
    NodeStopping,
    PeerViolation,
    RostraError,
    TopicExists,
    UnknownTopic,
)
from rostra.fabric.api import AcksAll, Note, Propose, ProposeDrop, ProposeTopic, TopicSpec
from rostra.model.batch import CHECKPOINT
from rostra.model.check import BatchLimits, check_produced
from rostra.model.ids import TopicId, check_topic_name, is_internal, random_id
from rostra.wire.frames import Violation
from rostra.wire.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    ClientMessage,
    CreateTopic,
    Credit,
    DeleteTopic,
    DescribeTopic,
    Failed,
    Goodbye,
    Hello,
    ListTopics,
    Locate,
    Located,
    NodeMessage,
    PartitionPlace,
    PartitionState,
    Ping,
    Pong,
    Publish,
    Published,
    Subscribe,
    Topic,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
    TopicSettings,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

FEATURES: tuple[str, ...] = ()


class Requests:
    """One per broker. What waits for the fabric's word is kept here by token."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        self._limits = BatchLimits(
            batch_bytes_max=settings.batch_bytes_max,
            raw_body_bytes_max=settings.batch_inflated_bytes_max,
            records_max=settings.batch_records_max,
            timestamp_ahead_us_max=settings.timestamp_ahead_max_ms * 1000,
        )
        self._token = 0
        self._making: dict[str, list[Asked]] = {}
        self._made: dict[int, str] = {}
        self._dropping: dict[int, Asked] = {}
        self._place: tuple[int, int] | RostraError | None = None

    def waiting(self) -> bool:
        return bool(self._making or self._dropping)

    def answer(self, conn: Conn, message: ClientMessage, payload: bytearray | None) -> None:
        session = self._broker.sessions.get(conn)
        if session is None:
            return
        session.heard_us = self._broker.now.mono_us
        if not session.greeted and not isinstance(message, Hello):
            self._violated(conn, Violation.NOT_GREETED, type(message).__name__)
            return
        match message:
            case Publish():
                assert payload is not None, "the dialect lets no Publish through without one"
                self._publish(conn, session, message, payload)
            case Credit():
                self._broker.delivery.credit(conn, message.subscription, message.credit, self._broker.out)
            case Ping():
                self._reply(conn, Pong(message.request))
            case Pong():
                pass
            case Subscribe():
                self._subscribe(conn, message)
            case Unsubscribe():
                self._unsubscribe(conn, message)
            case Hello():
                self._hello(conn, session, message)
            case Locate():
                self._locate(conn, session, message)
            case CreateTopic():
                self._create(conn, session, message)
            case DeleteTopic():
                self._delete(conn, session, message)
            case ListTopics():
                topics, more = self._broker.catalogue.page(message.after, message.limit)
                self._reply(conn, TopicPage(message.request, topics, more))
            case DescribeTopic():
                self._describe(conn, message)
            case Goodbye():
                self._broker.hang_up(conn, message.reason)
            case _:
                assert_never(message)

    def _reply(self, conn: Conn, message: NodeMessage) -> None:
        self._broker.out.append(Reply(conn, message))

    def _fail(self, conn: Conn, request: int, error: RostraError) -> None:
        self._reply(conn, Failed(request, type(error).__name__, error.carried()))

    def _violated(self, conn: Conn, reason: Violation, detail: str) -> None:
        error = PeerViolation(reason, detail)
        self._broker.out.append(Note("warning", "connection closed", {"conn": conn, "reason": str(error)}))
        self._fail(conn, 0, error)
        self._broker.hang_up(conn, str(error))

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
            broker.hang_up(conn, "no common protocol version")
            return
        if broker.stopping:
            self._fail(conn, message.request, NodeStopping())
            broker.hang_up(conn, "the node is stopping")
            return
        session.greeted = True
        broker.out.append(Greeted(conn))
        settings = broker.settings
        self._reply(
            conn,
            Welcome(
                message.request,
                version,
                tuple(feature for feature in FEATURES if feature in message.features),
                broker.identity.cluster,
                broker.identity.node,
                broker.fabric.guarantees.fabric,
                settings.frame_bytes_max,
                settings.batch_bytes_max,
                settings.heartbeat_ms,
            ),
        )

    # --- publishing ---

    def _publish(self, conn: Conn, session: Session, message: Publish, payload: bytearray) -> None:
        broker = self._broker
        served = broker.catalogue.find(message.topic, message.partition)
        if isinstance(served, RostraError):
            self._fail(conn, message.request, served)
            return
        error = self._refusal(session, served)
        if error is not None:
            self._fail(conn, message.request, error)
            return
        try:
            produced = check_produced(payload, limits=self._limits, now_us=broker.now.wall_us)
        except BatchRejected as rejected:
            self._fail(conn, message.request, rejected)
            return
        if produced.producer:
            verdict = served.producers.judge(
                produced.producer, produced.producer_epoch, produced.sequence, produced.count
            )
            if isinstance(verdict, RostraError):
                self._fail(conn, message.request, verdict)
                return
            if verdict[0] is Verdict.STORED:
                self._park(conn, session, served, message, verdict[1], verdict[2])
                return
        placed = self._order(served, payload)
        if isinstance(placed, RostraError):
            self._fail(conn, message.request, placed)
        else:
            self._park(conn, session, served, message, *placed)

    def _refusal(self, session: Session, served: ServedPartition) -> RostraError | None:
        broker = self._broker
        if broker.broken is not None:
            return broker.broken
        if broker.stopping:
            return NodeStopping()
        if served.blocked is not None:
            return served.blocked
        if not served.owner:
            return broker.placement.not_owner(served)
        return self._too_many(session)

    def _too_many(self, session: Session) -> LimitExceeded | None:
        bound = self._broker.settings.requests_per_connection_max
        return LimitExceeded("requests_per_connection_max", bound) if session.waiting >= bound else None

    def _order(self, served: ServedPartition, batch: bytearray) -> tuple[int, int] | RostraError:
        """Gives the batch its offsets; begins a new segment before it when the last one is full."""
        known = self._broker.catalogue.named(served.topic)
        if known is not None and served.segment_bytes >= known.topic.settings.segment_bytes:
            checkpoint = checkpoint_batch(served.producers.snapshot(), served.epochs, self._broker.now.wall_us)
            placed = self._propose(served, checkpoint, CHECKPOINT)
            if isinstance(placed, RostraError):
                return placed
        return self._propose(served, batch, 0)

    def _propose(self, served: ServedPartition, batch: bytearray, flags: int) -> tuple[int, int] | RostraError:
        self._place = None
        self._broker.ask_fabric(Propose(self._next_token(), served.partition, batch, flags))
        placed: tuple[int, int] | RostraError | None = self._place
        assert placed is not None, "a fabric answers a proposal in the same step"
        return placed

    def accepted(self, token: int, base: int, last: int) -> None:
        assert token == self._token
        self._place = (base, last)

    def refused(self, token: int, error: RostraError) -> None:
        name = self._made.pop(token, None)
        if name is not None:
            self._fail_all(self._making.pop(name), error)
            return
        dropping = self._dropping.pop(token, None)
        if dropping is not None:
            self._fail_all([dropping], error)
            return
        assert token == self._token
        self._place = error

    def _park(
        self, conn: Conn, session: Session, served: ServedPartition, message: Publish, base: int, last: int
    ) -> None:
        if message.acks == "none":
            return
        if message.acks == "owner":
            safe, waiting = served.synced, served.waiting_sync
        elif self._broker.fabric.guarantees.acks_all is AcksAll.VIEW:
            safe, waiting = served.covered, served.waiting_cover
        else:
            safe, waiting = served.commit, served.waiting_commit
        if last < safe:
            view = served.view if waiting is served.waiting_cover else ()
            self._reply(conn, Published(message.request, base, view))
            return
        session.waiting += 1
        served.park(Parked(last, conn, message.request, base), waiting)

    def _next_token(self) -> int:
        self._token += 2
        return self._token

    # --- subscribing ---

    def _subscribe(self, conn: Conn, message: Subscribe) -> None:
        broker = self._broker
        served = broker.catalogue.find(message.topic, message.partition)
        if isinstance(served, RostraError):
            self._fail(conn, message.request, served)
            return
        if broker.delivery.has(conn, message.subscription):
            self._violated(conn, Violation.OUT_OF_ORDER, f"subscription {message.subscription} exists")
            return
        elsewhere = broker.placement.no_reading(served)
        if elsewhere is not None:
            self._fail(conn, message.request, elsewhere)
            return
        bound = broker.settings.subscriptions_per_connection_max
        if broker.delivery.count(conn) >= bound:
            self._fail(conn, message.request, LimitExceeded("subscriptions_per_connection_max", bound))
            return
        error = broker.delivery.open(conn, served, message, broker.out)
        if error is not None:
            self._fail(conn, message.request, error)

    def _unsubscribe(self, conn: Conn, message: Unsubscribe) -> None:
        # The node may have ended it at the same moment: the answer is the same, nothing more is pushed.
        self._broker.delivery.close(conn, message.subscription)
        self._reply(conn, Unsubscribed(message.request, message.subscription))

    # --- topics ---

    def _locate(self, conn: Conn, session: Session, message: Locate) -> None:
        known = self._broker.catalogue.named(message.name)
        if known is not None:
            self._located(conn, message.request, known)
        elif message.create and self._broker.settings.auto_create:
            self._make(session, Asked(conn, message.request, lookup=True), message.name, TopicSettings())
        else:
            self._fail(conn, message.request, UnknownTopic(message.name))

    def _located(self, conn: Conn, request: int, known: KnownTopic) -> None:
        places = tuple(_place(known.topic, served) for served in known.partitions)
        self._reply(conn, Located(request, known.topic, places))

    def _create(self, conn: Conn, session: Session, message: CreateTopic) -> None:
        if self._broker.catalogue.named(message.name) is not None or message.name in self._making:
            self._fail(conn, message.request, TopicExists(message.name))
        else:
            self._make(session, Asked(conn, message.request, lookup=False), message.name, message.settings)

    def _make(self, session: Session, asked: Asked, name: str, settings: TopicSettings) -> None:
        broker = self._broker
        error = self._no_topic(name) or self._too_many(session)
        if error is not None:
            self._fail(asked.conn, asked.request, error)
            return
        session.waiting += 1
        if name in self._making:
            self._making[name].append(asked)
            return
        token = self._next_token()
        self._making[name] = [asked]
        self._made[token] = name
        topic = TopicId(random_id(broker.source))
        spec = TopicSpec(topic, name, settings.partitions, msgspec.msgpack.encode(settings))
        broker.ask_fabric(ProposeTopic(token, spec, settings.segment_bytes))

    def _no_topic(self, name: str) -> RostraError | None:
        """Why no topic of this name can be made now."""
        broker = self._broker
        try:
            check_topic_name(name)
        except InvalidTopicName as error:
            return error
        if is_internal(name):
            return InvalidTopicName(name, "names that begin with '_' are for Rostra itself")
        if len(broker.catalogue) + len(self._making) >= broker.settings.topics_max:
            return LimitExceeded("topics_max", broker.settings.topics_max)
        if broker.broken is not None:
            return broker.broken
        return NodeStopping() if broker.stopping else None

    def opened(self, token: int | None, known: KnownTopic) -> None:
        name = self._made.pop(token, None) if token is not None else None
        if name is None:
            return
        for asked in self._making.pop(name):
            if not self._broker.sessions.answered(asked.conn):
                continue
            if asked.lookup:
                self._located(asked.conn, asked.request, known)
            else:
                self._reply(asked.conn, TopicCreated(asked.request, known.topic))

    def _delete(self, conn: Conn, session: Session, message: DeleteTopic) -> None:
        broker = self._broker
        known = broker.catalogue.named(message.name)
        if known is None:
            self._fail(conn, message.request, UnknownTopic(message.name))
            return
        error = broker.broken or self._too_many(session)
        if error is not None:
            self._fail(conn, message.request, error)
            return
        session.waiting += 1
        token = self._next_token()
        self._dropping[token] = Asked(conn, message.request, lookup=False)
        broker.ask_fabric(ProposeDrop(token, TopicId(known.topic.topic)))

    def closed(self, token: int | None, topic: int) -> None:
        asked = self._dropping.pop(token, None) if token is not None else None
        if asked is not None and self._broker.sessions.answered(asked.conn):
            self._reply(asked.conn, TopicDropped(asked.request, topic))

    def broke(self, error: RostraError) -> None:
        waiting = [asked for making in self._making.values() for asked in making]
        self._fail_all([*waiting, *self._dropping.values()], error)
        self._making.clear()
        self._dropping.clear()
        self._made.clear()

    def _fail_all(self, waiting: list[Asked], error: RostraError) -> None:
        for asked in waiting:
            if self._broker.sessions.answered(asked.conn):
                self._fail(asked.conn, asked.request, error)

    def _describe(self, conn: Conn, message: DescribeTopic) -> None:
        known = self._broker.catalogue.named(message.name)
        if known is None:
            self._fail(conn, message.request, UnknownTopic(message.name))
            return
        states = tuple(
            PartitionState(
                served.partition.index,
                served.first,
                served.commit,
                served.end,
                served.bytes,
                served.epoch,
                "damaged" if served.blocked is not None else "serving",
            )
            for served in known.partitions
        )
        self._reply(conn, TopicDescribed(message.request, known.topic, states))


def _place(topic: Topic, served: ServedPartition) -> PartitionPlace:
    own = served.partition.topic
    return PartitionPlace(served.partition.index, served.address, served.epoch, 0 if own == topic.topic else own)
