"""Drives a broker by hand: its log is a list, its disk answers when the test says so, its clock stands still.

`BrokerDriver` changes its list-backed log at once; syncs, reads and hard state wait in `pending` until `settle`, so
that a test decides what happens in between. Messages pass through the wire codec both ways.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, TypeVar, assert_never

from rostra.broker.api import (
    Boot,
    BrokerEffect,
    BrokerInput,
    CloseConnection,
    Compact,
    Compacted,
    ConnectionAccepted,
    ConnectionDrained,
    ConnectionLost,
    FindLast,
    FindTime,
    Greeted,
    InspectLog,
    Listen,
    ListSegments,
    LogInspected,
    MessageReceived,
    OffsetFound,
    Persisted,
    PushTo,
    Reply,
    RequestDrain,
    SegmentsListed,
    Stopped,
)
from rostra.broker.broker import Broker, BrokerIdentity
from rostra.broker.settings import BrokerSettings
from rostra.errors import DiskFull, RostraError, from_wire
from rostra.fabric.api import (
    Append,
    Connect,
    Disconnect,
    Drop,
    Fabric,
    LogLine,
    Now,
    Open,
    Persist,
    Read,
    ReadDone,
    ReadFailed,
    Send,
    SetTimer,
    Sync,
    Synced,
    TimerFired,
    Trim,
    Truncate,
    WriteFailed,
)
from rostra.fabric.raft.machine import Raft
from rostra.model.batch import base_offset
from rostra.model.decode import iterate
from rostra.model.encode import encode as encode_batch
from rostra.model.ids import ClusterId, NodeId, Partition, PartitionIndex, TopicId
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, FrameReader, encode
from rostra.wire.messages import (
    ClientMessage,
    CreateTopic,
    Failed,
    Hello,
    NodeMessage,
    Publish,
    Push,
    Subscribe,
    TopicCreated,
    TopicSettings,
)
from tests.unit.broker.list_log import ListLog, facts, recovered

WALL_US = 1_700_000_000_000_000
IDENTITY = BrokerIdentity(ClusterId(1), NodeId(2))
FRAME_BYTES_MAX = 64 << 20
FIRST = 1
"""The offset of a topic's first record: before it is the entry that begins its owner's term."""

M = TypeVar("M")


class BrokerDriver:
    """A broker with its list-backed disk, and its effects so far."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        *,
        fabric: Fabric | None = None,
        logs: dict[Partition, ListLog] | None = None,
        hard: dict[str, bytes] | None = None,
    ) -> None:
        fabric = fabric or Raft(IDENTITY.node, "here:1", random=random.Random(1))
        self.broker = Broker(IDENTITY, fabric, settings or BrokerSettings(), random.Random(7))
        self.logs: dict[Partition, ListLog] = logs or {}
        self.hard: dict[str, bytes] = hard or {}
        self.now = Now(1_000_000, WALL_US)
        self.pending: list[BrokerEffect] = []
        self.effects: list[BrokerEffect] = []
        """All effects not yet taken by `received` or `pushed`."""
        self.timers: dict[str, int] = {}
        self.log_lines: list[LogLine] = []
        self.greeted: set[int] = set()
        self.closed: dict[int, str] = {}
        self.listening = False
        self.stopped = False
        self.full = False
        """Whether the disk refuses appends."""
        self._requests = 0
        self._client: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT, FRAME_BYTES_MAX)
        self._node: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)

    # --- starting ---

    def start(self) -> BrokerDriver:
        self.step(
            Boot(
                dict(self.hard), tuple(recovered(partition_id, log) for partition_id, log in sorted(self.logs.items()))
            )
        )
        self.settle()
        assert self.listening
        self.effects.clear()
        return self

    def restarted(self, settings: BrokerSettings | None = None) -> BrokerDriver:
        """Starts another broker on the same logs and hard state."""
        for log in self.logs.values():
            log.generation = 0
        again = BrokerDriver(settings or self.broker.settings, logs=self.logs, hard=self.hard)
        again.now = self.now
        return again.start()

    # --- stepping ---

    def step(self, given: BrokerInput) -> list[BrokerEffect]:
        """Passes one input to the broker; applies disk changes at once, and leaves disk requests pending."""
        effects = self.broker.step(self.now, given)
        self.effects += effects
        failed: dict[Partition, WriteFailed] = {}
        for effect in effects:
            self._carry_out(effect, failed)
        for failure in failed.values():
            effects = [*effects, *self.step(failure)]
        return effects

    def _carry_out(self, effect: BrokerEffect, failed: dict[Partition, WriteFailed]) -> None:
        match effect:
            case Append():
                self._append(effect, failed)
                if effect.sync:
                    self.pending.append(Sync(effect.partition))
            case Open():
                self.logs.setdefault(effect.partition, ListLog(effect.first))
            case Drop():
                self.logs.pop(effect.partition, None)
            case Truncate():
                self.logs[effect.partition].cut(effect.offset)
            case Trim():
                self.logs[effect.partition].trim(effect.first)
            case (
                Sync()
                | Read()
                | FindLast()
                | FindTime()
                | ListSegments()
                | InspectLog()
                | Compact()
                | Persist()
                | RequestDrain()
            ):
                self.pending.append(effect)
            case SetTimer():
                if effect.at_us is not None:
                    self.timers[effect.timer] = effect.at_us
            case LogLine():
                self.log_lines.append(effect)
            case CloseConnection():
                self.closed[effect.conn] = effect.reason
            case Greeted():
                self.greeted.add(effect.conn)
            case Listen():
                self.listening = True
            case Stopped():
                self.stopped = True
            case Reply() | PushTo() | Send() | Connect() | Disconnect():
                pass
            case _:
                assert_never(effect)

    def _append(self, effect: Append, failed: dict[Partition, WriteFailed]) -> None:
        log = self.logs[effect.partition]
        if self.full:
            if effect.partition not in failed:
                log.generation += 1
                failed[effect.partition] = WriteFailed(effect.partition, log.end, log.generation, DiskFull())
            return
        assert base_offset(effect.batch) == log.end, "batches follow each other"
        log.batches.append(effect.batch)

    def settle(self) -> list[BrokerEffect]:
        """Answers disk requests until none is pending, and fires the fabric's timers that are due."""
        effects = self._settle_disk()
        while due := [name for name, at in self.timers.items() if name.startswith("raft/") and at <= self.now.mono_us]:
            for name in due:
                del self.timers[name]
                effects += self.step(TimerFired(name))
            effects += self._settle_disk()
        return effects

    def _settle_disk(self) -> list[BrokerEffect]:
        effects: list[BrokerEffect] = []
        while self.pending:
            asked, self.pending = self.pending, []
            for given in [answer for effect in asked for answer in self.answer(effect)]:
                effects += self.step(given)
        return effects

    def answer(self, effect: BrokerEffect) -> list[BrokerInput]:
        match effect:
            case Sync(partition):
                log = self.logs.get(partition)
                if log is None:
                    return []
                log.synced = list(log.batches)
                return [Synced(partition, log.generation, log.end)]
            case Persist(key, state, then):
                self.hard[key] = state
                return [Persisted(then)]
            case Read():
                try:
                    batches, following = self.logs[effect.partition].read(effect.offset, effect.end, effect.bytes_max)
                except RostraError as error:
                    return [ReadFailed(effect.token, effect.partition, error)]
                return [ReadDone(effect.token, effect.partition, batches, following)]
            case FindLast():
                return [OffsetFound(effect.token, self.logs[effect.partition].find_last(effect.count, effect.end))]
            case FindTime():
                found = self.logs[effect.partition].find_time(effect.timestamp_us, effect.end)
                return [OffsetFound(effect.token, found)]
            case RequestDrain(conn):
                return [ConnectionDrained(conn)]
            case Compact(partition):
                return [Compacted(partition, 0)]
            case InspectLog(partition):
                log = self.logs[partition]
                return [LogInspected(partition, log.generation, recovered(partition, log))]
            case ListSegments(partition):
                return [SegmentsListed(partition, tuple(facts(self.logs[partition])), 1 << 40)]
            case _:
                raise AssertionError(f"the disk has no answer to {effect}")

    def advance_ms(self, elapsed_ms: int) -> None:
        self.now = Now(self.now.mono_us + elapsed_ms * 1000, self.now.wall_us + elapsed_ms * 1000)

    # --- a client's side ---

    def connect(self, conn: int) -> int:
        self.step(ConnectionAccepted(conn))
        self.send(conn, Hello(0, 1, 1))
        self.settle()
        self.effects.clear()
        return conn

    def disconnect(self, conn: int) -> None:
        self.step(ConnectionLost(conn))

    def send(self, conn: int, message: ClientMessage, payload: bytes = b"") -> list[BrokerEffect]:
        ((received, batch),) = self._client.feed(encode(message, len(payload)) + payload)
        return self.step(MessageReceived(conn, received, batch))

    def request(self) -> int:
        self._requests += 1
        return self._requests

    def make_topic(self, conn: int, name: str = "t", **settings: Any) -> TopicId:
        self.send(conn, CreateTopic(self.request(), name, TopicSettings(**settings)))
        self.settle()
        (made,) = self.received(conn, TopicCreated)
        return TopicId(made.topic.topic)

    def publish(
        self, conn: int, topic: int, *values: bytes, acks: Any = "all", partition: int = 0, **fields: Any
    ) -> int:
        """Sends one batch; returns the request's number."""
        request = self.request()
        batch = encode_batch(list(values or (b"value",)), timestamp_us=self.now.wall_us, **fields)
        self.send(conn, Publish(request, topic, partition, acks), bytes(batch))
        return request

    def subscribe(
        self, conn: int, topic: int, number: int = 0, *, start: Any = "earliest", value: int = 0, credit: int = 1 << 20
    ) -> int:
        request = self.request()
        self.send(conn, Subscribe(request, number, topic, 0, start, value, credit))
        return request

    # --- effects ---

    def received(self, conn: int, kind: type[M]) -> list[M]:
        """Takes messages of this kind sent to the connection, in order; leaves all other effects."""
        found, rest = [], []
        for effect in self.effects:
            message = self._message(effect, conn)
            if isinstance(message, kind):
                found.append(message)
            else:
                rest.append(effect)
        self.effects = rest
        return found

    def _message(self, effect: BrokerEffect, conn: int) -> object:
        if not isinstance(effect, Reply | PushTo) or effect.conn != conn:
            return None
        payload = b"".join(effect.batches) if isinstance(effect, PushTo) else b""
        ((message, _),) = self._node.feed(encode(effect.message, len(payload)) + payload)
        return message

    def error(self, conn: int) -> RostraError:
        """The one error that the connection received, as its client would raise it."""
        (failed,) = self.received(conn, Failed)
        return from_wire(failed.code, failed.carried)

    def pushed(self, conn: int, number: int = 0) -> list[bytes | None]:
        """Values of all records pushed to a subscription since the last call, control batches left out."""
        pushes = [
            effect
            for effect in self.effects
            if isinstance(effect, PushTo)
            and effect.conn == conn
            and isinstance(effect.message, Push)
            and effect.message.subscription == number
        ]
        self.effects = [effect for effect in self.effects if effect not in pushes]
        return [value for push in pushes for value in _values(push.batches)]

    def of(self, kind: type[M]) -> list[M]:
        """Effects of one kind since `effects` was cleared."""
        return [effect for effect in self.effects if isinstance(effect, kind)]


def partition_id(topic: int, index: int = 0) -> Partition:
    return Partition(TopicId(topic), PartitionIndex(index))


def _values(batches: Iterable[bytes | bytearray | memoryview]) -> list[bytes | None]:
    whole = b"".join(batches)
    return [value for batch in iterate(whole) if not batch.header.is_control for value in batch.values()]
