"""A model of a node, as far as a client can see it: in-memory logs that check producer sequences."""

from __future__ import annotations

import msgspec

from rostra.errors import (
    OffsetOutOfRange,
    ProducerFenced,
    RostraError,
    SequenceGap,
    TopicDeleted,
    TopicExists,
    TopicRecreated,
    UnknownMember,
    UnknownProducer,
    UnknownTopic,
    WatchEnded,
)
from rostra.model.batch import producer_stamp, stamp
from rostra.model.cluster import ClusterState, NodeState
from rostra.model.decode import Batch
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.model.patterns import Pattern
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
    Agreed,
    AlterTopic,
    ClientMessage,
    ClusterDescribed,
    CreateTopic,
    Credit,
    DeleteTopic,
    DescribeCluster,
    DescribeTopic,
    Ended,
    Failed,
    Goodbye,
    Hello,
    ListTopics,
    Locate,
    Located,
    NodeMessage,
    PartitionLocation,
    PartitionState,
    Ping,
    Pong,
    Publish,
    Published,
    PublisherRegistered,
    Push,
    Register,
    RemoveMember,
    Subscribe,
    Subscribed,
    Topic,
    TopicAltered,
    TopicCreated,
    TopicDescribed,
    TopicDropped,
    TopicPage,
    TopicsAppeared,
    TopicSettings,
    TopicsGone,
    TransferPartition,
    Unregister,
    Unsubscribe,
    Unsubscribed,
    Unwatch,
    Watch,
    Watched,
    Welcome,
)
from tests.unit.client.model_coordinator import GROUPS_TOPIC, PARTITIONS, ModelCoordinator

REPLICAS = 3

Reply = tuple[NodeMessage, bytes | None]


class ModelLog:
    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        self.first = 0
        self.end = 0
        self.commit = 0
        self.producers: dict[int, tuple[int, int, int, int]] = {}
        self._before: list[dict[int, tuple[int, int, int, int]]] = []
        """The producers before each batch."""

    def append(self, batch: bytes, count: int, producer: int, epoch: int, sequence: int) -> None:
        self._before.append(dict(self.producers))
        self.batches.append((self.end, self.end + count, batch))
        self.producers[producer] = (epoch, sequence + count, sequence, self.end)
        self.end += count

    def cut(self) -> None:
        """Drop what is not committed."""
        while self.batches and self.batches[-1][1] > self.commit:
            self.end, _, _ = self.batches.pop()
            self.producers = self._before.pop()

    def find_time(self, timestamp_us: int) -> int:
        """The base offset of the first committed batch with a record that is not earlier; the client skips the rest."""
        for first, following, batch in self.batches:
            if following <= self.commit and max(Batch(batch).timestamps()) >= timestamp_us:
                return first
        return self.commit

    def values(self) -> list[bytes | None]:
        return [value for _, _, batch in self.batches for value in Batch(batch).values()]


class ModelFeed:
    def __init__(self, log: ModelLog, following: int, credit: int) -> None:
        self.log = log
        self.following = following
        self.credit = credit


class ModelWatch:
    """`told` has the ids of the topics that the client was last informed of."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = [Pattern.parse(pattern) for pattern in patterns]
        self.told: dict[int, None] = {}

    def matching(self, topics: dict[str, Topic]) -> list[Topic]:
        return [topics[name] for name in sorted(topics) if any(pattern.matches(name) for pattern in self.patterns)]

    def changes(self, number: int, topics: dict[str, Topic]) -> list[NodeMessage]:
        there = {topic.topic: topic for topic in self.matching(topics)}
        said: list[NodeMessage] = []
        gone = tuple(topic for topic in self.told if topic not in there)
        if gone:
            said.append(TopicsGone(number, gone))
        said += [TopicsAppeared(number, (topic,)) for known, topic in there.items() if known not in self.told]
        self.told = dict.fromkeys(there)
        return said


class ModelNode:
    """Answers of one node to any number of connections; `refuse` makes it answer publishes with an error."""

    def __init__(self, number: int = 1) -> None:
        self.number = number
        self.topics: dict[str, Topic] = {}
        self.logs: dict[tuple[int, int], ModelLog] = {}
        self.feeds: dict[int, dict[int, ModelFeed]] = {}
        self.watchers: dict[int, dict[int, ModelWatch]] = {}
        self.last_topic = 0
        self.refuse: RostraError | None = None
        self.refuse_watch: RostraError | None = None
        self.forgot = False
        """Whether producer state was lost; then a repeated first batch may be stored."""
        self.heartbeat_ms = 1000
        self.batch_bytes_max = 1 << 20
        self.page = 1000
        self.features: tuple[str, ...] = ()
        self.credits: list[int] = []
        self.subscribes: list[Subscribe] = []
        self.coordinator = ModelCoordinator(lambda: list(self.topics.values()))
        self.publishers: dict[tuple[int, int], dict[int, int]] = {}
        """By topic and partition, the strength of each publisher."""
        self.registers: list[Register] = []
        self.pings = 0

    def log(self, name: str, partition: int = 0) -> ModelLog:
        return self.logs[self.topics[name].topic, partition]

    def lost(self, conn: int) -> None:
        self.feeds.pop(conn, None)
        self.watchers.pop(conn, None)
        self.coordinator.lost(conn)

    def received(self, conn: int, message: ClientMessage, payload: bytearray | None) -> list[Reply]:
        """The answers on the same connection; pushes to others are fetched with `pushes`."""
        try:
            return [(reply, None) for reply in self._answer(conn, message, payload)]
        except RostraError as error:
            return [(Failed(message.request, type(error).__name__, error.carried()), None)]  # type: ignore[union-attr]

    def _answer(self, conn: int, message: ClientMessage, payload: bytearray | None) -> list[NodeMessage]:
        match message:
            case Hello():
                limits = (1 << 26, self.batch_bytes_max, self.heartbeat_ms)
                return [Welcome(message.request, 1, self.features, 7, self.number, "raft", *limits)]
            case Ping():
                self.pings += 1
                return [Pong(message.request)]
            case Locate(name="_groups"):
                topic = Topic(GROUPS_TOPIC, message.name, TopicSettings(PARTITIONS))
                return [
                    Located(message.request, topic, tuple(self.partition_place(topic, p) for p in range(PARTITIONS)))
                ]
            case Locate():
                if message.name not in self.topics and message.create:
                    self._create(message.name, TopicSettings())
                topic = self._topic(message.name)
                places = tuple(self.partition_place(topic, p) for p in range(topic.settings.partitions))
                return [Located(message.request, topic, places)]
            case CreateTopic():
                if message.name in self.topics:
                    raise TopicExists(message.name)
                # Settings left to the node are decided by it and reported.
                replicas = message.settings.replicas or REPLICAS
                settings = msgspec.structs.replace(message.settings, replicas=replicas)
                return [TopicCreated(message.request, self._create(message.name, settings))]
            case AlterTopic():
                topic = self._topic(message.name)
                changed = msgspec.structs.replace(topic.settings, **message.changes)
                self.topics[message.name] = msgspec.structs.replace(topic, settings=changed)
                return [TopicAltered(message.request, self.topics[message.name])]
            case DeleteTopic():
                topic = self._topic(message.name)
                del self.topics[message.name]
                return [TopicDropped(message.request, topic.topic)]
            case ListTopics():
                names = [name for name in sorted(self.topics) if name > message.after]
                shown = tuple(self.topics[name] for name in names[: self.page])
                return [TopicPage(message.request, shown, len(names) > self.page)]
            case DescribeTopic():
                topic = self._topic(message.name)
                states = tuple(
                    PartitionState(p, 0, log.end, log.end, 0, 1, "ok")
                    for p in range(topic.settings.partitions)
                    for log in [self.logs[topic.topic, p]]
                )
                return [TopicDescribed(message.request, topic, states)]
            case Publish():
                assert payload is not None
                return self._publish(conn, message, payload)
            case Subscribe():
                return [self._subscribe(conn, message)]
            case Credit():
                self.credits.append(message.credit)
                feed = self.feeds.get(conn, {}).get(message.subscription)
                if feed is not None:
                    feed.credit += message.credit
                return []
            case Unsubscribe():
                self.feeds.get(conn, {}).pop(message.subscription, None)
                return [Unsubscribed(message.request, message.subscription)]
            case DescribeCluster():
                state = ClusterState("raft", (NodeState(NodeId(1), "", "", True, True, False, 0, 0),), ())
                return [ClusterDescribed(message.request, state, False)]
            case RemoveMember():
                raise UnknownMember(str(message.node))
            case TransferPartition():
                self._topic(message.name)
                return [Agreed(message.request)]
            case Register():
                return [self._register(message)]
            case Unregister():
                return [self._resign(message)]
            case Watch():
                return [self._watch(conn, message)]
            case Unwatch():
                self.watchers.get(conn, {}).pop(message.watch, None)
                return [Agreed(message.request)]
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
                return self.coordinator.answer(conn, message)
            case Goodbye() | Pong():
                return []

    def _watch(self, conn: int, message: Watch) -> Watched:
        if self.refuse_watch is not None:
            raise self.refuse_watch
        watchers = self.watchers.setdefault(conn, {})
        if not message.after:
            watchers[message.watch] = ModelWatch(message.patterns)
            watchers[message.watch].changes(message.watch, self.topics)
        elif message.watch not in watchers:
            raise WatchEnded("there is no such watch")
        there = [topic for topic in watchers[message.watch].matching(self.topics) if topic.name > message.after]
        after = there[self.page - 1].name if len(there) > self.page else ""
        return Watched(message.request, message.watch, tuple(there[: self.page]), after)

    def partition_place(self, topic: Topic, partition: int) -> PartitionLocation:
        return PartitionLocation(partition, "", 1)

    def _publish(self, conn: int, message: Publish, payload: bytearray) -> list[NodeMessage]:
        offset, _ = self._store(message, payload)
        log = self.logs[message.topic, message.partition]
        log.commit = log.end
        return [] if message.acks == "none" else [Published(message.request, offset)]

    def _register(self, message: Register) -> PublisherRegistered:
        self._named(message.topic)
        if self.refuse is not None:
            raise self.refuse
        self.registers.append(message)
        book = self.publishers.setdefault((message.topic, message.partition), {})
        book[message.publisher] = message.strength
        return PublisherRegistered(message.request, min(book, key=lambda one: (-book[one], one)))

    def _resign(self, message: Unregister) -> Agreed:
        self._named(message.topic)
        self.publishers.get((message.topic, message.partition), {}).pop(message.publisher, None)
        return Agreed(message.request)

    def _topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise UnknownTopic(name)
        return self.topics[name]

    def _create(self, name: str, settings: TopicSettings) -> Topic:
        self.last_topic += 1
        topic = self.topics[name] = Topic(self.last_topic, name, settings)
        for partition in range(settings.partitions):
            self.logs[topic.topic, partition] = ModelLog()
        return topic

    def _named(self, topic: int) -> str:
        for name, known in self.topics.items():
            if known.topic == topic:
                return name
        raise TopicRecreated("of that id")

    def _store(self, message: Publish, batch: bytearray, owner_epoch: int = 1) -> tuple[int, int]:
        """The offset of a batch if it is still known, and an offset below which the log holds it."""
        self._named(message.topic)
        if self.refuse is not None:
            raise self.refuse
        log = self.logs[message.topic, message.partition]
        producer, epoch, sequence, count = producer_stamp(batch)
        known = log.producers.get(producer)
        if known is None or epoch > known[0]:
            if sequence or (message.again and self.forgot and known is None):
                raise UnknownProducer(producer)
        else:
            known_epoch, following, last, offset = known
            if epoch < known_epoch:
                raise ProducerFenced(producer, known_epoch)
            if sequence < following:
                return (offset, log.end) if sequence == last else (-1, offset)
            if sequence > following:
                raise SequenceGap(producer, following, sequence)
        partition = Partition(TopicId(message.topic), PartitionIndex(message.partition))
        stamped = bytearray(batch)
        stamp(stamped, partition=partition, base_offset=log.end, owner_epoch=owner_epoch)
        log.append(bytes(stamped), count, producer, epoch, sequence)
        return log.end - count, log.end

    def _subscribe(self, conn: int, message: Subscribe) -> Subscribed:
        self.subscribes.append(message)
        name = self._named(message.topic)
        log = self.logs[message.topic, message.partition]
        commit = log.commit
        last = max(commit - message.value, log.first)
        starts = {"earliest": log.first, "latest": commit, "offset": message.value, "last": last}
        following = log.find_time(message.value) if message.start == "time" else starts[message.start]
        if not log.first <= following <= log.end:
            raise OffsetOutOfRange(name, message.partition, following, log.first, log.end)
        self.feeds.setdefault(conn, {})[message.subscription] = ModelFeed(log, following, message.credit)
        return Subscribed(message.request, message.subscription, following, commit)

    def pushes(self, conn: int) -> list[Reply]:
        """What is due to the subscriptions of a connection, within their credit."""
        due: list[Reply] = [(said, None) for said in self.coordinator.pushes(conn)]
        for number, watcher in self.watchers.get(conn, {}).items():
            due += [(said, None) for said in watcher.changes(number, self.topics)]
        for number, feed in self.feeds.get(conn, {}).items():
            for _, following, batch in feed.log.batches:
                if feed.following < following <= feed.log.commit and feed.credit > 0:
                    due.append((Push(number, feed.log.commit), batch))
                    feed.following = following
                    feed.credit -= len(batch)
        return due

    def end_feeds(self, conn: int) -> list[Reply]:
        """End every subscription of the connection because the topic was deleted."""
        gone = TopicDeleted("t")
        ended = [Ended(number, "TopicDeleted", gone.carried()) for number in self.feeds.pop(conn, {})]
        return [(message, None) for message in ended]
