"""Requests about topics: finding, making, deleting, listing, describing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from rostra.broker.api import Conn
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.topics.topic_table import KnownTopic, TopicWaiter
from rostra.errors import (
    InvalidSetting,
    InvalidTopicName,
    LimitExceeded,
    NodeStopping,
    NotOffered,
    RostraError,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from rostra.fabric.api import Confirm, Describe, ProposeDrop, ProposeSettings, ProposeTopic, TopicSpec
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
    PartitionPlace,
    PartitionState,
    PlaceJoined,
    Publish,
    Register,
    Resign,
    Subscribe,
    Topic,
    TopicAltered,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
    TopicSettings,
    Watch,
)

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

LookUp = Locate | DescribeTopic | ListTopics
OfPartition = Publish | Subscribe | Register | Resign
Doubtful = LookUp | CreateTopic | AlterTopic | DeleteTopic | OfPartition | Watch
"""What is answered only when the fabric has confirmed that what this node knows of topics is still so."""

FIXED = ("partitions", "replicas", "ownership")
"""Settings that a topic keeps for as long as it lives."""


FOR_ROSTRA = "names that begin with '_' are for Rostra itself"


class TopicRequests:
    """What waits for the fabric's word about a topic is kept here by token."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._confirming: dict[int, tuple[Conn, Doubtful]] = {}
        self._making: dict[str, list[TopicWaiter]] = {}
        self._made: dict[int, str] = {}
        self._dropping: dict[int, TopicWaiter] = {}
        self._altering: dict[int, TopicWaiter] = {}
        self._describing: dict[int, tuple[Conn, DescribeTopic]] = {}

    def waiting(self) -> bool:
        return bool(self._confirming or self._making or self._dropping or self._altering or self._describing)

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token was one of a request about topics."""
        if token in self._confirming:
            conn, message = self._confirming.pop(token)
            if isinstance(message, Watch):
                self._broker.watching.give_up(conn, message)
            self._fail_all([TopicWaiter(conn, message.request, lookup=True)], error)
        elif token in self._made:
            self._not_created(self._made.pop(token), error)
        elif token in self._dropping:
            dropping = self._dropping.pop(token)
            # Whoever asked knows the topic by its name, the fabric by its id.
            self._fail_all([dropping], UnknownTopic(dropping.name) if isinstance(error, UnknownTopic) else error)
        elif token in self._describing:
            conn, asked = self._describing.pop(token)
            self._fail_all([TopicWaiter(conn, asked.request, lookup=True)], error)
        elif token in self._altering:
            self._fail_all([self._altering.pop(token)], error)
        else:
            return False
        return True

    def broke(self, error: RostraError) -> None:
        """What would change the catalogue is refused; looking things up goes on."""
        waiting = [asked for making in self._making.values() for asked in making]
        self._fail_all([*waiting, *self._dropping.values(), *self._altering.values()], error)
        self._making.clear()
        self._dropping.clear()
        self._altering.clear()
        self._made.clear()

    def _fail_all(self, waiting: list[TopicWaiter], error: RostraError) -> None:
        for asked in waiting:
            if self._broker.answered(asked.conn):
                self._broker.refuse(asked.conn, asked.request, error)

    def _not_created(self, name: str, error: RostraError) -> None:
        """Refuses the waiting requests. Look-ups start over if another node created the topic first."""
        waiting = self._making.pop(name)
        look_ups = [asked for asked in waiting if asked.lookup and isinstance(error, TopicExists)]
        self._fail_all([asked for asked in waiting if asked not in look_ups], error)
        for asked in look_ups:
            session = self._broker.sessions.get(asked.conn)
            if self._broker.answered(asked.conn) and session is not None:
                self.look_up(asked.conn, session, Locate(asked.request, name, create=True))

    # --- looking up ---

    def look_up(self, conn: Conn, session: Session, message: LookUp) -> None:
        """Answered when the fabric has confirmed what this node knows: others may have changed it meanwhile."""
        broker = self._broker
        name = "" if isinstance(message, ListTopics) else message.name
        known = broker.catalogue.named(name)
        if isinstance(message, Locate) and known is not None and message.topic in (0, known.topic.topic):
            # Only a hint: whoever serves the partition has the last word.
            self._located(conn, message.request, known)
        else:
            self.confirm(conn, session, message, name)

    def unheard_of(self, conn: Conn, session: Session, message: OfPartition) -> None:
        """The topic's id means nothing here: perhaps others know it, and this node will in a moment."""
        if self._broker.stopping:
            self._broker.refuse(conn, message.request, NodeStopping())
        else:
            self.confirm(conn, session, message, "")

    def confirm(self, conn: Conn, session: Session, message: Doubtful, name: str) -> None:
        broker = self._broker
        error = broker.too_many(session)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        token = broker.next_token()
        self._confirming[token] = conn, message
        broker.ask_fabric(Confirm(token, name))

    def confirmed(self, token: int) -> None:
        conn, message = self._confirming.pop(token)
        session = self._broker.sessions.get(conn)
        if session is None or not self._broker.answered(conn):
            return
        match message:
            case Locate():
                self._locate(conn, session, message)
            case DescribeTopic():
                self._describe(conn, session, message)
            case ListTopics():
                topics, more = self._broker.catalogue.page(message.after, message.limit)
                self._broker.reply(conn, TopicPage(message.request, topics, more))
            case CreateTopic():
                self._create(conn, session, message)
            case DeleteTopic():
                self._delete(conn, session, message)
            case AlterTopic():
                self._alter(conn, session, message)
            case Publish() | Subscribe() | Register() | Resign():
                self._heard_of(conn, message)
            case Watch():
                self._broker.watching.begin(conn, message)
            case _:
                assert_never(message)

    def _heard_of(self, conn: Conn, message: OfPartition) -> None:
        """Refused even if the topic is known now: what the client sent behind it (further batches, an unsubscribe) may
        have been answered meanwhile, and must not be overtaken. It tries again, in order.
        """
        found = self._broker.catalogue.find(message.topic, message.partition)
        if not isinstance(found, RostraError):
            found = Unavailable(found.topic, message.partition, "this node has only just heard of the topic")
        self._broker.refuse(conn, message.request, found)

    def _locate(self, conn: Conn, session: Session, message: Locate) -> None:
        known = self._broker.catalogue.named(message.name)
        if known is not None:
            self._located(conn, message.request, known)
        elif message.create and self._broker.settings.auto_create:
            self._make(session, TopicWaiter(conn, message.request, lookup=True), message.name, TopicSettings())
        else:
            self._broker.refuse(conn, message.request, UnknownTopic(message.name))

    def _located(self, conn: Conn, request: int, known: KnownTopic) -> None:
        here = self._broker.fabric.guarantees.passes_on
        places = tuple(_place(known.topic, served, here=here) for served in known.partitions)
        roams = self._broker.roaming is not None
        if roams:
            known.followers[conn] = None
        self._broker.reply(conn, Located(request, known.topic, places, self._broker.neighbours, roams))

    def joined(self, known: KnownTopic, served: ServedPartition) -> None:
        """Whoever has asked where the topic is learns of the partition."""
        place = _place(known.topic, served, here=True)
        for conn in list(known.followers):
            if self._broker.sessions.get(conn) is None:
                del known.followers[conn]
            else:
                self._broker.reply(conn, PlaceJoined(known.topic.name, place))

    def _describe(self, conn: Conn, session: Session, message: DescribeTopic) -> None:
        """Of partitions that other nodes own, these are asked."""
        broker = self._broker
        known = broker.catalogue.named(message.name)
        if known is None:
            broker.refuse(conn, message.request, UnknownTopic(message.name))
        elif broker.roaming is not None or all(served.owner for served in known.partitions):
            self._tell_states(conn, message, known, {})
        else:
            session.waiting += 1
            token = broker.next_token()
            self._describing[token] = conn, message
            broker.ask_fabric(Describe(token))

    def described(self, token: int, state: ClusterState) -> bool:
        """True if the token was that of a question about a topic."""
        asked = self._describing.pop(token, None)
        if asked is None:
            return False
        conn, message = asked
        known = self._broker.catalogue.named(message.name)
        if not self._broker.answered(conn):
            return True
        if known is None:
            self._broker.refuse(conn, message.request, UnknownTopic(message.name))
        else:
            told = {one.partition: one for one in state.partitions if one.topic == message.name}
            self._tell_states(conn, message, known, told)
        return True

    def _tell_states(
        self, conn: Conn, message: DescribeTopic, known: KnownTopic, told: dict[int, PlacedPartition]
    ) -> None:
        states = tuple(
            _state(known.topic, served, told.get(_number(known.topic, served))) for served in known.partitions
        )
        self._broker.reply(conn, TopicDescribed(message.request, known.topic, states))

    # --- making and deleting ---

    def create(self, conn: Conn, session: Session, message: CreateTopic) -> None:
        if self._broker.catalogue.named(message.name) is not None:
            # It may have been deleted elsewhere.
            self.confirm(conn, session, message, message.name)
        else:
            self._create(conn, session, message)

    def _create(self, conn: Conn, session: Session, message: CreateTopic) -> None:
        if self._broker.catalogue.named(message.name) is not None:
            self._broker.refuse(conn, message.request, TopicExists(message.name))
        else:
            self._make(session, TopicWaiter(conn, message.request, lookup=False), message.name, message.settings)

    def _make(self, session: Session, asked: TopicWaiter, name: str, settings: TopicSettings) -> None:
        broker = self._broker
        error = self._no_topic(name) or self._not_offered(settings) or broker.too_many(session)
        if error is not None:
            self._broker.refuse(asked.conn, asked.request, error)
            return
        session.waiting += 1
        if name in self._making:
            self._making[name].append(asked)
            return
        token = broker.next_token()
        self._making[name] = [asked]
        self._made[token] = name
        topic = TopicId(random_id(broker.source))
        replicas = settings.replicas or broker.settings.replicas
        settings = msgspec.structs.replace(settings, replicas=replicas)
        spec = TopicSpec(topic, name, settings.partitions, msgspec.msgpack.encode(settings))
        broker.ask_fabric(ProposeTopic(token, spec, settings.segment_bytes, replicas))

    def _not_offered(self, settings: TopicSettings) -> RostraError | None:
        """Where every node orders records of its own, nobody knows all publishers of a topic."""
        guarantees = self._broker.fabric.guarantees
        if guarantees.exclusive_ownership or settings.ownership == "shared":
            return None
        return NotOffered(guarantees.fabric, "exclusive ownership")

    def _no_topic(self, name: str) -> RostraError | None:
        """Why no topic of this name can be made now."""
        broker = self._broker
        try:
            check_topic_name(name)
        except InvalidTopicName as error:
            return error
        if is_internal(name):
            return InvalidTopicName(name, FOR_ROSTRA)
        if len(broker.catalogue) + len(self._making) >= broker.settings.topics_max:
            return LimitExceeded("topics_max", broker.settings.topics_max)
        if broker.broken is not None:
            return broker.broken
        return NodeStopping() if broker.stopping else None

    def opened(self, token: int | None, known: KnownTopic) -> None:
        name = self._made.pop(token, None) if token is not None else None
        if name is None:
            return
        for place, asked in enumerate(self._making.pop(name)):
            if not self._broker.answered(asked.conn):
                continue
            if asked.lookup:
                self._located(asked.conn, asked.request, known)
            elif place == 0:
                self._broker.reply(asked.conn, TopicCreated(asked.request, known.topic))
            else:
                # Somebody else asked before, and only now it is certain that the topic is there.
                self._broker.refuse(asked.conn, asked.request, TopicExists(name))

    def delete(self, conn: Conn, session: Session, message: DeleteTopic) -> None:
        """Which topic has the name now is confirmed first: this node may know one that is gone, and not the next."""
        self.confirm(conn, session, message, message.name)

    def _delete(self, conn: Conn, session: Session, message: DeleteTopic) -> None:
        broker = self._broker
        known = broker.catalogue.named(message.name)
        if known is None:
            self._broker.refuse(conn, message.request, UnknownTopic(message.name))
            return
        own = InvalidTopicName(message.name, FOR_ROSTRA) if is_internal(message.name) else None
        error = own or broker.broken or broker.too_many(session)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        token = broker.next_token()
        self._dropping[token] = TopicWaiter(conn, message.request, lookup=False, name=message.name)
        broker.ask_fabric(ProposeDrop(token, TopicId(known.topic.topic)))

    # --- changing settings ---

    def alter(self, conn: Conn, session: Session, message: AlterTopic) -> None:
        """What is changed is what all know of the topic, so that is confirmed first."""
        if self._broker.stopping:
            self._broker.refuse(conn, message.request, NodeStopping())
        else:
            self.confirm(conn, session, message, message.name)

    def _alter(self, conn: Conn, session: Session, message: AlterTopic) -> None:
        broker = self._broker
        known = broker.catalogue.named(message.name)
        altered = UnknownTopic(message.name) if known is None else _altered(known.topic.settings, message.changes)
        own = InvalidTopicName(message.name, FOR_ROSTRA) if is_internal(message.name) else None
        error = own or (altered if isinstance(altered, RostraError) else broker.broken or broker.too_many(session))
        if error is not None or known is None or isinstance(altered, RostraError):
            broker.refuse(conn, message.request, error or UnknownTopic(message.name))
            return
        session.waiting += 1
        token = broker.next_token()
        self._altering[token] = TopicWaiter(conn, message.request, lookup=False)
        topic, encoded = TopicId(known.topic.topic), msgspec.msgpack.encode(altered)
        broker.ask_fabric(ProposeSettings(token, topic, encoded, altered.segment_bytes))

    def altered(self, token: int | None, topic: Topic) -> None:
        asked = self._altering.pop(token, None) if token is not None else None
        if asked is not None and self._broker.answered(asked.conn):
            self._broker.reply(asked.conn, TopicAltered(asked.request, topic))

    def closed(self, token: int | None, topic: int) -> None:
        asked = self._dropping.pop(token, None) if token is not None else None
        if asked is not None and self._broker.answered(asked.conn):
            self._broker.reply(asked.conn, TopicDropped(asked.request, topic))


def _state(topic: Topic, served: ServedPartition, told: PlacedPartition | None) -> PartitionState:
    """`told` is what the best informed say of it; its bytes and publishers are known only where there is a copy."""
    index, publishers = _number(topic, served), served.publishers.shown(PUBLISHERS_SHOWN_MAX)
    state = "damaged" if served.blocked is not None else "serving"
    if served.owner or told is None:
        ends = served.first, served.commit, served.end
        return PartitionState(index, *ends, served.bytes, served.epoch, state, publishers)
    state = state if told.owner else "without owner"
    return PartitionState(index, told.first, told.commit, told.end, served.bytes, told.epoch, state, publishers)


def _altered(settings: TopicSettings, changes: dict[str, int | str]) -> TopicSettings | RostraError:
    fields = msgspec.structs.asdict(settings)
    for name, value in changes.items():
        if name not in fields:
            return InvalidSetting(name, "this node knows no such setting of a topic")
        if name in FIXED and value != fields[name]:
            return InvalidSetting(name, "a topic keeps it for as long as it lives; make another one")
        fields[name] = bool(value) if isinstance(fields[name], bool) else value
    try:
        return msgspec.convert(list(fields.values()), TopicSettings)
    except msgspec.ValidationError as error:
        return InvalidSetting(", ".join(changes), str(error))


def _number(topic: Topic, served: ServedPartition) -> int:
    own = served.partition.topic
    return served.partition.index if own == topic.topic else own


def _place(topic: Topic, served: ServedPartition, *, here: bool) -> PartitionPlace:
    """`here`: this node takes whatever it is given, and passes it on."""
    own = served.partition.topic
    known = here or served.owner or bool(served.address)
    return PartitionPlace(served.partition.index, served.address, served.epoch, 0 if own == topic.topic else own, known)
