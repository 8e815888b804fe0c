"""The blocking client: sockets without a thread or an event loop, for the lowest latency from Python.

>>> with rostra.blocking.connect() as client:  # doctest: +SKIP
...     ack = client.publish("orders", b"one more")
...     for record in client.subscribe("orders", start="earliest"):
...         print(record.offset, record.value)

Nothing happens between calls: inside them heartbeats are answered, connections restored and batches sent. A lock makes
one client safe to share, but a thread that waits for records holds it; give each thread a client of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self, overload

from rostra.client.blocking.driver import BlockingDriver, now_us
from rostra.client.blocking.named_subscription import NamedSubscription
from rostra.client.blocking.producer import Producer
from rostra.client.blocking.subscription import Subscription
from rostra.client.blocking.user import User
from rostra.client.client_trace import open_trace
from rostra.client.core.core import CREDIT_BYTES
from rostra.client.core.effects import (
    Ack,
    Acknowledged,
    SinkDecision,
    SubscriptionDescription,
    SubscriptionList,
    TopicDescription,
)
from rostra.client.core.events import ClientEvent
from rostra.client.core.options import (
    DEFAULT_ADDRESS,
    LEASE_MS,
    BelowStart,
    MemberSettings,
    Options,
    ProducerSettings,
    Start,
    changed_settings,
    check_unnamed,
    parse_codec,
)
from rostra.client.core.sink_requests import SinkTask
from rostra.errors import InvalidSetting, TopicExists, UnknownGroup, UnknownTopic
from rostra.model.batch import Buffer
from rostra.model.cluster import ClusterState
from rostra.model.encode import Headers
from rostra.wire.groups import GroupSummary
from rostra.wire.messages import PUBLISHER_LEASE_MS, TOMBSTONE_MS, Acks, Ownership, Topic, TopicSettings
from rostra.wire.sinks import StagedPart


class Client:
    """A client with its connections, which are restored when lost. Made by `rostra.blocking.connect`.

    >>> client = rostra.blocking.connect("127.0.0.1:7400")  # doctest: +SKIP
    >>> client.create_topic("orders", partitions=4, if_not_exists=True)  # doctest: +SKIP
    """

    def __init__(self, driver: BlockingDriver) -> None:
        self._driver = driver

    # --- opening and closing -------------------------------------------------------------------------

    def close(self) -> None:
        """Flush open producers, for a few seconds at most, and close all connections. Subscriptions end.

        Raises `NotAcknowledged` with the number of records that were not acknowledged in time.
        """
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.exit(kind)

    @property
    def connected(self) -> bool:
        """As last heard."""
        return self._driver.core.links.pick() is not None

    # --- topics --------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        retention_ms: int = 0,
        retention_bytes: int = 0,
        replicas: int = 0,
        segment_bytes: int = 1 << 26,
        compaction: bool = False,
        tombstone_ms: int = TOMBSTONE_MS,
        ownership: Ownership = "shared",
        history_depth: int = 0,
        if_not_exists: bool = False,
    ) -> Topic:
        """Create a topic. A retention of 0 removes nothing, `replicas` 0 is the fabric's default. `history_depth` 0,
        the most that `Last(n)` gives, is the node's. With `ownership="exclusive"` only the records of the strongest
        live publisher are delivered.

        >>> client.create_topic("orders", partitions=4, retention_ms=86_400_000)  # doctest: +SKIP
        """
        settings = TopicSettings(
            partitions,
            replicas,
            retention_ms,
            retention_bytes,
            segment_bytes,
            compaction=compaction,
            tombstone_ms=tombstone_ms,
            ownership=ownership,
            history_depth=history_depth,
        )
        try:
            topic = self._driver.call(lambda call: self._driver.core.create_topic(now_us(), call, name, settings))
        except TopicExists:
            if not if_not_exists:
                raise
            described = self.describe_topic(name)
            return Topic(described.topic, described.name, described.settings)
        assert isinstance(topic, Topic)
        if self._driver.trace is not None:
            self._driver.trace.created(name)
        return topic

    def alter_topic(
        self,
        name: str,
        *,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        segment_bytes: int | None = None,
        compaction: bool | None = None,
        tombstone_ms: int | None = None,
        history_depth: int | None = None,
    ) -> Topic:
        """Change the given settings; the others stay.

        >>> client.alter_topic("orders", retention_ms=86_400_000)  # doctest: +SKIP
        """
        changes = changed_settings(
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            segment_bytes=segment_bytes,
            compaction=compaction,
            tombstone_ms=tombstone_ms,
            history_depth=history_depth,
        )
        core = self._driver.core
        topic = self._driver.call(lambda call: core.alter_topic(now_us(), call, name, changes))
        assert isinstance(topic, Topic)
        return topic

    def delete_topic(self, name: str, *, if_exists: bool = False) -> None:
        """Delete a topic with its records. Subscriptions to it end with `TopicDeleted`."""
        try:
            self._driver.call(lambda call: self._driver.core.delete_topic(now_us(), call, name))
        except UnknownTopic:
            if not if_exists:
                raise

    def list_topics(self) -> tuple[Topic, ...]:
        topics = self._driver.call(lambda call: self._driver.core.list_topics(now_us(), call))
        assert isinstance(topics, tuple)
        return topics

    def describe_topic(self, name: str) -> TopicDescription:
        """Return the settings of a topic and the extent of each partition."""
        described = self._driver.call(lambda call: self._driver.core.describe_topic(now_us(), call, name))
        assert isinstance(described, TopicDescription)
        return described

    # --- the cluster ---------------------------------------------------------------------------------

    def describe_cluster(self) -> ClusterState:
        """Return the nodes, and the owner and the replicas of every partition. Any node can answer.

        >>> state = client.describe_cluster()  # doctest: +SKIP
        >>> [node.address for node in state.nodes if not node.alive]  # doctest: +SKIP
        []
        """
        state = self._driver.call(lambda call: self._driver.core.describe_cluster(now_us(), call))
        assert isinstance(state, ClusterState)
        return state

    def remove_member(self, node: int) -> None:
        """Remove a node. Returns when the removal is agreed; its replicas are moved first, as `describe_cluster` shows.

        A node that is down can be removed, too. `QuorumAtRisk` and `CopiesAway` say why it can not.
        """
        self._driver.call(lambda call: self._driver.core.remove_member(now_us(), call, node))

    def transfer_partition(self, topic: str, partition: int, node: int) -> None:
        """Make another node, which has a complete replica, the owner of the partition."""
        self._driver.call(lambda call: self._driver.core.transfer_partition(now_us(), call, topic, partition, node))

    # --- publishing ----------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
        acks: Acks = "all",
    ) -> Ack:
        """Store one record and return where. For many records use a `producer`.

        >>> client.publish("orders", b"milk", key=b"customer-7").offset  # doctest: +SKIP
        41
        """
        driver = self._driver
        with driver.lock:
            core = driver.core
            call = driver.new_call()
            now = now_us()
            producer = core.publish(now, call, topic, value, key, headers, timestamp, partition, acks)
            if driver.trace is not None:
                driver.trace.producer_opened(producer.number, topic)
            if not core.out:
                core.end_turn(now)
            ack = driver.answer(call)
            if producer.registration is not None:
                driver.heartbeat.ensure(producer.registration.lease_ms)
        assert isinstance(ack, Ack)
        return ack

    def producer(
        self,
        topic: str,
        *,
        acks: Acks = "all",
        batch_bytes: int = 524_288,
        linger_ms: int = 0,
        window_bytes: int = 8 << 20,
        codec: str | None = None,
        partition: int | None = None,
        strength: int | None = None,
        lease_ms: int = PUBLISHER_LEASE_MS,
        on_ack: Callable[[Acknowledged], None] | None = None,
    ) -> Producer:
        """A producer for streams of records: it batches, pipelines, and makes the caller wait when its window is full.

        With a `strength` it competes with other publishers: in a topic with exclusive ownership, only the records of
        the strongest live one are delivered. One that is silent for `lease_ms` counts as dead; close it to resign.

        >>> with client.producer("orders") as producer:  # doctest: +SKIP
        ...     for line in lines:
        ...         producer.send(line)
        """
        settings = ProducerSettings(
            acks, batch_bytes, linger_ms, window_bytes, parse_codec(codec), partition, strength, lease_ms
        )
        return Producer(self._driver, topic, settings, on_ack)

    # --- subscribing ---------------------------------------------------------------------------------

    @overload
    def subscribe(
        self,
        topic: str,
        *further: str,
        start: Start = ...,
        partition: int | None = ...,
        credit_bytes: int = ...,
        below_start: BelowStart = ...,
        name: None = ...,
    ) -> Subscription: ...

    @overload
    def subscribe(
        self,
        topic: str,
        *further: str,
        start: Start = ...,
        credit_bytes: int = ...,
        name: str,
        tries: int = ...,
        dead_letter: str = ...,
        lease_ms: int = ...,
    ) -> NamedSubscription: ...

    def subscribe(
        self,
        topic: str,
        *further: str,
        start: Start = "latest",
        partition: int | None = None,
        credit_bytes: int = CREDIT_BYTES,
        below_start: BelowStart = "raise",
        name: str | None = None,
        tries: int = 0,
        dead_letter: str = "",
        lease_ms: int = LEASE_MS,
    ) -> Subscription | NamedSubscription:
        """Subscribe to the records of a topic from `start` on, in all partitions unless one is given.

        Several topics and patterns can be given; in a pattern `+` matches one level and `#` the rest. Each topic is
        delivered once, whatever matches it. A topic created later is delivered from its first record; one that is
        deleted is dropped with a `TopicGone` event. Only a subscription to one topic by name ends with its deletion.

        When retention has removed the next record, the subscription ends with `OffsetOutOfRange`; if `below_start` is
        "earliest" it continues with the first record that is left, and emits a `Skipped` event.

        >>> with client.subscribe("orders", start=rostra.Last(10)) as records:  # doctest: +SKIP
        ...     for record in records:
        ...         print(record.value)

        With a `name` it is a consumer group: the cluster stores the position, and all members share the partitions.
        `start` counts for the first member; later ones continue at the position. Each record is delivered until it is
        acknowledged or has failed `tries` times (0: without limit); then it goes to the topic `dead_letter`, if given.
        A member that is silent for `lease_ms` counts as dead; record handlers may take any time. All members must give
        the same topics, `tries` and `dead_letter`, else `SettingsDiffer`; without other members the new ones apply.

        >>> with client.subscribe("orders", name="billing") as records:  # doctest: +SKIP
        ...     for record in records:
        ...         with record:
        ...             bill(record)
        """
        if name is not None:
            if partition is not None:
                raise InvalidSetting("partition", "the members of a name share all partitions")
            settings = MemberSettings((topic, *further), start, tries, dead_letter, lease_ms, credit_bytes)
            return NamedSubscription(self._driver, name, settings)
        check_unnamed(tries, dead_letter, lease_ms)
        return Subscription(self._driver, (topic, *further), start, partition, credit_bytes, below_start)

    # --- named subscriptions -------------------------------------------------------------------------

    def list_subscriptions(self) -> tuple[GroupSummary, ...]:
        """List all named subscriptions, with the numbers of their members and partitions."""
        core = self._driver.core
        listed = self._driver.call(lambda call: core.groups.list_all(now_us(), call))
        assert isinstance(listed, SubscriptionList)
        return listed.subscriptions

    def describe_subscription(self, name: str) -> SubscriptionDescription:
        """Return the members, and the position and lag in every partition.

        >>> (client.describe_subscription("billing")).lag  # doctest: +SKIP
        0
        """
        core = self._driver.core
        described = self._driver.call(lambda call: core.groups.describe(now_us(), call, name))
        assert isinstance(described, SubscriptionDescription)
        return described

    def reset_subscription(self, name: str, start: Start, *, topic: str | None = None) -> None:
        """Set the position, in all topics or in one. There must be no members, else `GroupBusy`.

        >>> client.reset_subscription("billing", "earliest")  # doctest: +SKIP
        """
        core = self._driver.core
        self._driver.call(lambda call: core.groups.reset(now_us(), call, name, start, topic))

    def delete_subscription(self, name: str, *, if_exists: bool = False) -> None:
        """Delete the name and its positions. There must be no members, else `GroupBusy`."""
        core = self._driver.core
        try:
            self._driver.call(lambda call: core.groups.delete(now_us(), call, name))
        except UnknownGroup:
            if not if_exists:
                raise

    # --- exactly-once sinks --------------------------------------------------------------------------

    def stage(self, topic: str, partition: int, batch: Buffer, task: SinkTask) -> StagedPart:
        """Store an encoded batch invisibly, with acks `all`, as a part of the task's batch of its query."""
        part = self._driver.call(
            lambda call: self._driver.core.sinks.stage(now_us(), call, topic, partition, batch, task)
        )
        assert isinstance(part, StagedPart)
        return part

    def commit_sink(
        self, query: str, batch: int, parts: Sequence[StagedPart], *, writer: str = "", once: bool = False
    ) -> SinkDecision:
        """Publish all parts as batch `batch` of the query, or none: exactly once, however often it is called.

        The first batch of a query may have any number; then each follows the one before. A batch that was decided
        before, by whomever, stays as it was decided.
        """
        decision = self._driver.call(
            lambda call: self._driver.core.sinks.commit(now_us(), call, query, batch, parts, writer, once)
        )
        assert isinstance(decision, SinkDecision)
        return decision

    def abort_sink(self, query: str, batch: int, parts: Sequence[StagedPart]) -> None:
        """Drop staged parts, unless a commit of them has begun."""
        self._driver.call(lambda call: self._driver.core.sinks.abort(now_us(), call, query, batch, parts))

    # --- users ---------------------------------------------------------------------------------------

    def create_user(self, name: str) -> User:
        """Create a user: a queue of the records of its topics, from which it receives. `GroupExists` if it exists.

        >>> alice = client.create_user("alice")  # doctest: +SKIP
        >>> alice.subscribe("news")  # doctest: +SKIP
        """
        user = self.user(name)
        user.create()
        return user

    def user(self, name: str) -> User:
        """An existing user."""
        return User(self, self._driver, name)

    # --- events --------------------------------------------------------------------------------------

    def events(self) -> Iterator[ClientEvent]:
        """Events of the client since the last call; never waits.

        >>> for event in client.events():  # doctest: +SKIP
        ...     print(event)
        """
        events = self._driver.events
        while events:
            yield events.popleft()


def connect(
    *addresses: str,
    name: str = "rostra-python",
    auto_create: bool = True,
    connect_timeout_ms: int = 5_000,
    call_timeout_ms: int = 30_000,
    delivery_timeout_ms: int = 120_000,
    backoff_ms: int = 50,
    backoff_ms_max: int = 2_000,
    busy_poll_ms: int = 0,
    trace: str | None = None,
    on_event: Callable[[ClientEvent], None] | None = None,
) -> Client:
    """Connect to the cluster through any of the addresses, by default 127.0.0.1:7400; the nodes name the others.

    With `busy_poll_ms` a waiting call polls the socket for that long before it sleeps, which lowers the latency at the
    cost of a CPU core. It pays if records come more often than that.

    With `trace` the client writes a trace into that directory, for `rostra pipeline audit`.

    >>> with rostra.blocking.connect("10.0.0.1:7400", "10.0.0.2:7400") as client:  # doctest: +SKIP
    ...     client.publish("orders", b"one more")
    """
    options = Options(
        addresses or (DEFAULT_ADDRESS,),
        name,
        auto_create,
        connect_timeout_ms,
        call_timeout_ms,
        delivery_timeout_ms,
        backoff_ms,
        backoff_ms_max,
        busy_poll_ms,
    )
    driver = BlockingDriver(options, on_event, open_trace(trace))
    driver.start()
    return Client(driver)
