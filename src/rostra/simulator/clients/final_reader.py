"""Reads everything that a node owns at the end of a seed, control records included, with plain wire messages."""

from __future__ import annotations

from rostra.errors import (
    BatchRejected,
    Moved,
    OffsetOutOfRange,
    PartitionDamaged,
    RostraError,
    Unavailable,
    from_wire,
)
from rostra.model.check import check_stored
from rostra.model.decode import Batch
from rostra.model.ids import Partition, PartitionIndex, TopicId
from rostra.simulator.history import FinalPartition, History, partition_key, stored_in
from rostra.simulator.network.client_network import ClientNetwork, SimulatedConnection
from rostra.simulator.trace import Trace
from rostra.wire.frames import FROM_NODE, FrameReader, encode
from rostra.wire.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    ClientMessage,
    DescribeTopic,
    Ended,
    Failed,
    Hello,
    ListTopics,
    Locate,
    Located,
    NodeMessage,
    Ping,
    Pong,
    Push,
    Subscribe,
    TopicDescribed,
    TopicPage,
    Welcome,
)

CREDIT = 16 << 20
FRAME_BYTES_MAX = 8 << 20
PING_EVERY_US = 400_000


class FinalReader:
    """One connection to one node; `done` when all partitions it owns are read."""

    def __init__(self, network: ClientNetwork, history: History, trace: Trace, node: int, address: str) -> None:
        self.name = f"probe{node}"
        self._node = node
        self._address = address
        self._network = network
        self._history = history
        self._trace = trace
        self._reader = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        self._link: SimulatedConnection
        self._request = 0
        self._pending_topics: list[str] = []
        """Topics whose partitions are not located yet."""
        self._owned: dict[str, set[tuple[int, int]]] = {}
        """By topic, the partitions that this node owns."""
        self._listed = False
        self._partitions: dict[int, FinalPartition] = {}
        self._next: dict[int, int] = {}
        self._subscribe_requests: dict[int, int] = {}
        self.moved = False
        """A partition moved while it was read, so everything must be read again."""

    @property
    def done(self) -> bool:
        if self.moved:
            return True
        return self._listed and not self._pending_topics and all(final.complete for final in self._partitions.values())

    def begin(self) -> None:
        self._link = self._network.dial(self, 1, self._address)

    def _keep_alive(self) -> None:
        """Sends pings, because a node closes idle connections."""
        if not self.done:
            self._send(Ping(self._next_request()))
            self._network.clock.after(PING_EVERY_US, self._keep_alive)

    def _send(self, message: ClientMessage) -> None:
        self._link.up.send(encode(message))

    def _next_request(self) -> int:
        self._request += 1
        return self._request

    def opened(self, link: SimulatedConnection) -> None:
        self._send(Hello(self._next_request(), PROTOCOL_MIN, PROTOCOL_MAX))

    def received(self, link: SimulatedConnection, chunk: bytes) -> None:
        self._trace.note(self.name, "received", chunk)
        for message, payload in self._reader.feed(chunk):
            self._handle(message, payload)

    def lost(self, link: SimulatedConnection, reason: str) -> None:
        if not self.done:
            self._history.unsettled.append(f"{self.name} lost its connection: {reason}")

    def congested(self, link: SimulatedConnection) -> None:
        pass

    def drained(self, link: SimulatedConnection) -> None:
        pass

    def record_in_flight(self, link: SimulatedConnection) -> None:
        pass

    def _handle(self, message: NodeMessage, payload: bytearray | None) -> None:
        match message:
            case Welcome():
                self._keep_alive()
                self._send(ListTopics(self._next_request()))
            case TopicPage():
                self._history.listed = {topic.topic: topic.name for topic in message.topics}
                self._history.listed_by_node[self._node] = self._history.listed
                for topic in message.topics:
                    self._history.listed_partitions.update(
                        (topic.topic, index) for index in range(topic.settings.partitions)
                    )
                self._pending_topics = [topic.name for topic in message.topics]
                self._listed = True
                self._locate()
            case Located():
                self._located(message)
            case TopicDescribed():
                owned = self._owned.pop(message.topic.name)
                self._pending_topics.remove(message.topic.name)
                self._locate()
                self._subscribe(message, owned)
            case Push() if payload is not None:
                self._read(message.subscription, payload)
            case Ended():
                self._ended(message)
            case Failed():
                self._refused(message)
            case Ping():
                self._send(Pong(message.request))
            case _:
                pass

    def _locate(self) -> None:
        """Locates the topics one by one, because a node bounds the requests of a connection."""
        if self._pending_topics:
            self._send(Locate(self._next_request(), self._pending_topics[0]))

    def _located(self, located: Located) -> None:
        """Describes the topic if this node owns partitions of it."""
        name = located.topic.name
        owned = {
            partition_key(located.topic.topic, place.topic or place.partition)
            for place in located.locations
            if place.address in ("", self._address)
        }
        if owned:
            self._owned[name] = owned
            self._send(DescribeTopic(self._next_request(), name))
        else:
            self._pending_topics.remove(name)
            self._locate()

    def _subscribe(self, described: TopicDescribed, owned: set[tuple[int, int]]) -> None:
        topic = described.topic
        for state in described.partitions:
            place = partition_key(topic.topic, state.partition)
            before = self._history.final.get(place)
            if place not in owned or (before is not None and before.commit > state.commit):
                continue
            if state.state == "damaged" and self._history.per_origin and before is not None:
                # Every node has a replica: read that of another node.
                self._report_damage(topic.name, state.partition, state.end)
                continue
            final = FinalPartition(place[0], topic.name, place[1], topic.settings)
            final.first, final.commit = state.first, state.commit
            self._history.final[place] = final
            if state.state == "damaged":
                final.damaged_at = state.end
                self._report_damage(topic.name, state.partition, state.end)
            self._subscribe_partition(final)

    def _subscribe_partition(self, final: FinalPartition) -> None:
        number = len(self._partitions) + 1
        self._partitions[number] = final
        self._next[number] = final.first
        final.complete = final.first >= final.commit
        request = self._next_request()
        self._subscribe_requests[request] = number
        self._send(Subscribe(request, number, final.topic, final.partition, "offset", final.first, CREDIT))

    def _read(self, number: int, payload: bytearray) -> None:
        final = self._partitions[number]
        place = Partition(TopicId(final.topic), PartitionIndex(final.partition))
        at = 0
        while at < len(payload):
            try:
                length = check_stored(payload, at, place)
                batch = Batch(payload, at)
                found = stored_in(batch)
            except BatchRejected as rejected:
                final.served_damage = f"{rejected.reason} at offset {self._next[number]}"
                final.complete = True
                return
            if batch.base_offset != self._next[number]:
                final.served_damage = f"offset {batch.base_offset} where {self._next[number]} belongs"
            self._next[number] = batch.next_offset
            if not final.settings.compaction and len(found) != batch.next_offset - batch.base_offset:
                final.served_damage = f"{len(found)} records up to {batch.next_offset}: an unexplained gap"
            final.stored += found
            final.bytes += length
            at += length
        if self._next[number] >= final.commit:
            final.complete = True

    def _report_damage(self, name: str, partition: int, offset: int) -> None:
        self._history.reported_damage.setdefault((name, partition, offset), self._network.clock.now_us)

    def _refused(self, message: Failed) -> None:
        number = self._subscribe_requests.get(message.request)
        if number is None:
            self._history.unsettled.append(f"{self.name} was refused: {message}")
        else:
            self._subscription_ended(number, from_wire(message.code, message.carried))

    def _ended(self, message: Ended) -> None:
        self._subscription_ended(message.subscription, from_wire(message.code, message.carried))

    def _subscription_ended(self, number: int, error: RostraError) -> None:
        final = self._partitions[number]
        if isinstance(error, PartitionDamaged):
            final.damaged_at = error.offset
            self._report_damage(error.topic, error.partition, error.offset)
            final.complete = True
            # Where every node has a replica, another node resends the damaged records.
            self.moved = self._history.per_origin
        elif isinstance(error, OffsetOutOfRange):
            # Retention trimmed the log meanwhile: read again from its new start.
            self._partitions[number] = FinalPartition(0, "", 0, final.settings)
            self._partitions[number].complete = True
            final.stored.clear()
            final.first, final.bytes = error.first, 0
            self._subscribe_partition(final)
        elif isinstance(error, Moved | Unavailable):
            self.moved = True
        else:
            self._history.unsettled.append(f"{self.name}'s reading of {final.name}/{final.partition} ended: {error}")
