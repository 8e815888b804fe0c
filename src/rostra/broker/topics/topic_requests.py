"""Requests about topics: locate, create, delete, alter, list, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from rostra.broker.api import Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.topics.internal_topics import RESERVED_NAME
from rostra.broker.topics.topic_table import KnownTopic, TopicWaiter
from rostra.errors import (
    InvalidSetting,
    InvalidTopicName,
    LimitExceeded,
    NodeStopping,
    RostraError,
    TopicExists,
    Unavailable,
    UnknownTopic,
    UnsupportedByFabric,
)
from rostra.fabric.api import Confirm, Delivers, Describe, ProposeDrop, ProposeSettings, ProposeTopic, TopicSpec
from rostra.model.cluster import ClusterState, PlacedPartition
from rostra.model.ids import TopicId, check_topic_name, is_internal, random_id
from rostra.wire.messages import (
    PUBLISHERS_SHOWN_MAX,
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    ListTopics,
    Locate,
    Located,
    PartitionAdded,
    PartitionLocation,
    PartitionState,
    Publish,
    Register,
    Subscribe,
    Topic,
    TopicAltered,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
    TopicSettings,
    Unregister,
    Watch,
)

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

LookUp = Locate | DescribeTopic | ListTopics
OfPartition = Publish | Subscribe | Register | Unregister
NeedsConfirm = LookUp | CreateTopic | AlterTopic | DeleteTopic | OfPartition | Watch
"""Requests answered only after the fabric has confirmed that this node's topic table is up to date."""

FIXED = ("partitions", "replicas", "ownership")
"""Settings that cannot be altered after creation."""


class TopicRequests:
    """Requests wait here, by token, for the fabric's answer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._confirming: dict[int, tuple[Conn, NeedsConfirm]] = {}
        self._creating: dict[str, list[TopicWaiter]] = {}
        self._create_tokens: dict[int, str] = {}
        self._dropping: dict[int, TopicWaiter] = {}
        self._altering: dict[int, TopicWaiter] = {}
        self._describing: dict[int, tuple[Conn, DescribeTopic]] = {}

    def waiting(self) -> bool:
        return bool(self._confirming or self._creating or self._dropping or self._altering or self._describing)

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token belongs to a request about topics."""
        if token in self._confirming:
            conn, message = self._confirming.pop(token)
            if isinstance(message, Watch):
                self._broker.pattern_watches.cancel(conn, message)
            self._fail_all([TopicWaiter(conn, message.request, lookup=True)], error)
        elif token in self._create_tokens:
            self._not_created(self._create_tokens.pop(token), error)
        elif token in self._dropping:
            dropping = self._dropping.pop(token)
            # The client knows the topic by its name, the fabric by its id.
            self._fail_all([dropping], UnknownTopic(dropping.name) if isinstance(error, UnknownTopic) else error)
        elif token in self._describing:
            conn, waiter = self._describing.pop(token)
            self._fail_all([TopicWaiter(conn, waiter.request, lookup=True)], error)
        elif token in self._altering:
            self._fail_all([self._altering.pop(token)], error)
        else:
            return False
        return True

    def storage_failed(self, error: RostraError) -> None:
        """Fails requests that would change the topic table; lookups go on."""
        waiting = [waiter for making in self._creating.values() for waiter in making]
        self._fail_all([*waiting, *self._dropping.values(), *self._altering.values()], error)
        self._creating.clear()
        self._dropping.clear()
        self._altering.clear()
        self._create_tokens.clear()

    def _fail_all(self, waiting: list[TopicWaiter], error: RostraError) -> None:
        for waiter in waiting:
            if self._broker.request_done(waiter.conn):
                self._broker.refuse(waiter.conn, waiter.request, error)

    def _not_created(self, name: str, error: RostraError) -> None:
        """Refuses the waiting requests. Look-ups start over if another node created the topic first."""
        waiting = self._creating.pop(name)
        look_ups = [waiter for waiter in waiting if waiter.lookup and isinstance(error, TopicExists)]
        self._fail_all([waiter for waiter in waiting if waiter not in look_ups], error)
        for waiter in look_ups:
            session = self._broker.sessions.get(waiter.conn)
            if self._broker.request_done(waiter.conn) and session is not None:
                self.look_up(waiter.conn, session, Locate(waiter.request, name, create=True))

    # --- lookups ---

    def look_up(self, conn: Conn, session: Session, message: LookUp) -> None:
        """Answers when the fabric has confirmed this node's topic table: other nodes may have changed it."""
        broker = self._broker
        name = "" if isinstance(message, ListTopics) else message.name
        known = broker.topic_table.by_name(name)
        if isinstance(message, Locate) and known is not None and message.topic in (0, known.topic.topic):
            # Only a hint: the node that serves the partition checks again.
            self._located(conn, message.request, known)
        else:
            self.confirm(conn, session, message, name)

    def unknown_topic(self, conn: Conn, session: Session, message: OfPartition) -> None:
        """The topic's id is unknown here: it may be so new that only other nodes know it."""
        if self._broker.stopping:
            self._broker.refuse(conn, message.request, NodeStopping())
        else:
            self.confirm(conn, session, message, "")

    def confirm(self, conn: Conn, session: Session, message: NeedsConfirm, name: str) -> None:
        broker = self._broker
        error = broker.over_limit(session)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        token = broker.next_token()
        self._confirming[token] = conn, message
        broker.step_fabric(Confirm(token, name))

    def confirmed(self, token: int) -> None:
        conn, message = self._confirming.pop(token)
        session = self._broker.sessions.get(conn)
        if session is None or not self._broker.request_done(conn):
            return
        match message:
            case Locate():
                self._locate(conn, session, message)
            case DescribeTopic():
                self._describe(conn, session, message)
            case ListTopics():
                topics, more = self._broker.topic_table.page(message.after, message.limit)
                self._broker.reply(conn, TopicPage(message.request, topics, more))
            case CreateTopic():
                self._create(conn, session, message)
            case DeleteTopic():
                self._delete(conn, session, message)
            case AlterTopic():
                self._alter(conn, session, message)
            case Publish() | Subscribe() | Register() | Unregister():
                self._refuse_unknown(conn, message)
            case Watch():
                self._broker.pattern_watches.start(conn, message)
            case _:
                assert_never(message)

    def _refuse_unknown(self, conn: Conn, message: OfPartition) -> None:
        """Refuses even if the topic is known now: later messages of the client (further batches, an unsubscribe) may
        have been answered meanwhile and must not be overtaken. The client retries in order."""
        found = self._broker.topic_table.find(message.topic, message.partition)
        if not isinstance(found, RostraError):
            found = Unavailable(found.topic, message.partition, "this node has just learned of the topic")
        self._broker.refuse(conn, message.request, found)

    def _locate(self, conn: Conn, session: Session, message: Locate) -> None:
        known = self._broker.topic_table.by_name(message.name)
        if known is not None:
            self._located(conn, message.request, known)
        elif message.create and self._broker.settings.auto_create:
            self._propose_create(
                session, TopicWaiter(conn, message.request, lookup=True), message.name, TopicSettings()
            )
        else:
            self._broker.refuse(conn, message.request, UnknownTopic(message.name))

    def _located(self, conn: Conn, request: int, known: KnownTopic) -> None:
        here = self._broker.fabric.guarantees.delivers is Delivers.HERE
        places = tuple(_location(known.topic, served, here=here) for served in known.partitions)
        migrates = self._broker.producer_migration is not None
        if migrates:
            known.listeners[conn] = None
        self._broker.reply(conn, Located(request, known.topic, places, self._broker.known_nodes, migrates))

    def joined(self, known: KnownTopic, served: ServedPartition) -> None:
        """Notifies clients that have located the topic of the new partition."""
        place = _location(known.topic, served, here=True)
        for conn in list(known.listeners):
            if self._broker.sessions.get(conn) is None:
                del known.listeners[conn]
            else:
                self._broker.reply(conn, PartitionAdded(known.topic.name, place))

    def _describe(self, conn: Conn, session: Session, message: DescribeTopic) -> None:
        """Of partitions that other nodes own, these are waiter."""
        broker = self._broker
        known = broker.topic_table.by_name(message.name)
        if known is None:
            broker.refuse(conn, message.request, UnknownTopic(message.name))
        elif broker.producer_migration is not None or all(served.owner for served in known.partitions):
            self._reply_states(conn, message, known, {})
        else:
            session.waiting += 1
            token = broker.next_token()
            self._describing[token] = conn, message
            broker.step_fabric(Describe(token))

    def described(self, token: int, state: ClusterState) -> bool:
        """True if the token was that of a question about a topic."""
        waiter = self._describing.pop(token, None)
        if waiter is None:
            return False
        conn, message = waiter
        known = self._broker.topic_table.by_name(message.name)
        if not self._broker.request_done(conn):
            return True
        if known is None:
            self._broker.refuse(conn, message.request, UnknownTopic(message.name))
        else:
            described = {one.partition: one for one in state.partitions if one.topic == message.name}
            self._reply_states(conn, message, known, described)
        return True

    def _reply_states(
        self, conn: Conn, message: DescribeTopic, known: KnownTopic, described: dict[int, PlacedPartition]
    ) -> None:
        states = tuple(
            _state(known.topic, served, described.get(_partition_number(known.topic, served)))
            for served in known.partitions
        )
        self._broker.reply(conn, TopicDescribed(message.request, known.topic, states))

    # --- creating and deleting ---

    def create(self, conn: Conn, session: Session, message: CreateTopic) -> None:
        if self._broker.topic_table.by_name(message.name) is not None:
            # It may have been deleted at another node.
            self.confirm(conn, session, message, message.name)
        else:
            self._create(conn, session, message)

    def _create(self, conn: Conn, session: Session, message: CreateTopic) -> None:
        if self._broker.topic_table.by_name(message.name) is not None:
            self._broker.refuse(conn, message.request, TopicExists(message.name))
        else:
            self._propose_create(
                session, TopicWaiter(conn, message.request, lookup=False), message.name, message.settings
            )

    def _propose_create(self, session: Session, waiter: TopicWaiter, name: str, settings: TopicSettings) -> None:
        broker = self._broker
        error = self._create_error(name) or self._not_offered(settings) or broker.over_limit(session)
        if error is not None:
            self._broker.refuse(waiter.conn, waiter.request, error)
            return
        session.waiting += 1
        if name in self._creating:
            self._creating[name].append(waiter)
            return
        token = broker.next_token()
        self._creating[name] = [waiter]
        self._create_tokens[token] = name
        topic = TopicId(random_id(broker.source))
        replicas = settings.replicas or broker.settings.replicas
        settings = msgspec.structs.replace(settings, replicas=replicas)
        spec = TopicSpec(topic, name, settings.partitions, msgspec.msgpack.encode(settings))
        broker.step_fabric(ProposeTopic(token, spec, settings.segment_bytes, replicas))

    def _not_offered(self, settings: TopicSettings) -> RostraError | None:
        """Where every node orders its own records, no node knows all publishers of a topic."""
        guarantees = self._broker.fabric.guarantees
        if guarantees.exclusive_ownership or settings.ownership == "shared":
            return None
        return UnsupportedByFabric(guarantees.fabric, "exclusive ownership")

    def _create_error(self, name: str) -> RostraError | None:
        """Why no topic of this name can be created now."""
        broker = self._broker
        try:
            check_topic_name(name)
        except InvalidTopicName as error:
            return error
        if is_internal(name):
            return InvalidTopicName(name, RESERVED_NAME)
        if len(broker.topic_table) + len(self._creating) >= broker.settings.topics_max:
            return LimitExceeded("topics_max", broker.settings.topics_max)
        if broker.broken is not None:
            return broker.broken
        return NodeStopping() if broker.stopping else None

    def opened(self, token: int | None, known: KnownTopic) -> None:
        name = self._create_tokens.pop(token, None) if token is not None else None
        if name is None:
            return
        for index, waiter in enumerate(self._creating.pop(name)):
            if not self._broker.request_done(waiter.conn):
                continue
            if waiter.lookup:
                self._located(waiter.conn, waiter.request, known)
            elif index == 0:
                self._broker.reply(waiter.conn, TopicCreated(waiter.request, known.topic))
            else:
                # Another client created it first; TopicExists waits until the topic exists.
                self._broker.refuse(waiter.conn, waiter.request, TopicExists(name))

    def delete(self, conn: Conn, session: Session, message: DeleteTopic) -> None:
        """Confirms first which topic has the name now: this node's table may be stale."""
        self.confirm(conn, session, message, message.name)

    def _delete(self, conn: Conn, session: Session, message: DeleteTopic) -> None:
        broker = self._broker
        known = broker.topic_table.by_name(message.name)
        if known is None:
            self._broker.refuse(conn, message.request, UnknownTopic(message.name))
            return
        own = InvalidTopicName(message.name, RESERVED_NAME) if is_internal(message.name) else None
        error = own or broker.broken or broker.over_limit(session)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        token = broker.next_token()
        self._dropping[token] = TopicWaiter(conn, message.request, lookup=False, name=message.name)
        broker.step_fabric(ProposeDrop(token, TopicId(known.topic.topic)))

    # --- changing settings ---

    def alter(self, conn: Conn, session: Session, message: AlterTopic) -> None:
        """Confirms the current settings first, since the change applies to these."""
        if self._broker.stopping:
            self._broker.refuse(conn, message.request, NodeStopping())
        else:
            self.confirm(conn, session, message, message.name)

    def _alter(self, conn: Conn, session: Session, message: AlterTopic) -> None:
        broker = self._broker
        known = broker.topic_table.by_name(message.name)
        altered = UnknownTopic(message.name) if known is None else _altered(known.topic.settings, message.changes)
        own = InvalidTopicName(message.name, RESERVED_NAME) if is_internal(message.name) else None
        error = own or (altered if isinstance(altered, RostraError) else broker.broken or broker.over_limit(session))
        if error is not None or known is None or isinstance(altered, RostraError):
            broker.refuse(conn, message.request, error or UnknownTopic(message.name))
            return
        session.waiting += 1
        token = broker.next_token()
        self._altering[token] = TopicWaiter(conn, message.request, lookup=False)
        topic, encoded = TopicId(known.topic.topic), msgspec.msgpack.encode(altered)
        broker.step_fabric(ProposeSettings(token, topic, encoded, altered.segment_bytes))

    def altered(self, token: int | None, topic: Topic) -> None:
        waiter = self._altering.pop(token, None) if token is not None else None
        if waiter is not None and self._broker.request_done(waiter.conn):
            self._broker.reply(waiter.conn, TopicAltered(waiter.request, topic))

    def closed(self, token: int | None, topic: int) -> None:
        waiter = self._dropping.pop(token, None) if token is not None else None
        if waiter is not None and self._broker.request_done(waiter.conn):
            self._broker.reply(waiter.conn, TopicDropped(waiter.request, topic))


def _state(topic: Topic, served: ServedPartition, described: PlacedPartition | None) -> PartitionState:
    """`described` is the owner's report; bytes and publishers are known only where there is a copy."""
    index, publishers = _partition_number(topic, served), served.publishers.ranked(PUBLISHERS_SHOWN_MAX)
    state = "damaged" if served.blocked is not None else "serving"
    if served.owner or described is None:
        ends = served.first, served.commit, served.end
        return PartitionState(index, *ends, served.bytes, served.epoch, state, publishers)
    state = state if described.owner else "without owner"
    return PartitionState(
        index, described.first, described.commit, described.end, served.bytes, described.epoch, state, publishers
    )


def _altered(settings: TopicSettings, changes: dict[str, int | str]) -> TopicSettings | RostraError:
    fields = msgspec.structs.asdict(settings)
    for name, value in changes.items():
        if name not in fields:
            return InvalidSetting(name, "this node knows no such setting of a topic")
        if name in FIXED and value != fields[name]:
            return InvalidSetting(name, "it cannot be changed; create another topic")
        fields[name] = bool(value) if isinstance(fields[name], bool) else value
    try:
        return msgspec.convert(list(fields.values()), TopicSettings)
    except msgspec.ValidationError as error:
        return InvalidSetting(", ".join(changes), str(error))


def _partition_number(topic: Topic, served: ServedPartition) -> int:
    own = served.partition.topic
    return served.partition.index if own == topic.topic else own


def _location(topic: Topic, served: ServedPartition, *, here: bool) -> PartitionLocation:
    """`here`: this node delivers what any node owns; then the owner's address is named beside."""
    own = served.partition.topic
    known = here or served.owner or bool(served.address)
    return PartitionLocation(
        served.partition.index,
        "" if here else served.address,
        served.epoch,
        0 if own == topic.topic else own,
        known,
        served.address if here else "",
    )
