"""Random operations on a broker, compared with a reference model after each.

Every operation takes numbers and maps them to what is possible at the time, so that any list of numbers is a valid run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from random import Random
from typing import Any, NamedTuple, TypeVar

from rostra.broker.api import BrokerEffect, PushTo, Reply
from rostra.broker.partition.catch_up import WINDOW_US
from rostra.broker.settings import BrokerSettings
from rostra.fabric.api import Buffer, Now
from rostra.model.batch import SUPPRESSED
from rostra.model.decode import iterate
from rostra.model.encode import encode
from rostra.safeguards import ALL_ON, Without
from rostra.simulator.disk.faulty_files import FaultyFiles
from rostra.wire.messages import (
    ClientMessage,
    Ended,
    Failed,
    Publish,
    Published,
    Push,
)
from tests.unit.broker.reference_broker import Record, ReferenceBroker, ReferencePartition
from tests.unit.broker.stored_broker_driver import StoredBrokerDriver

OPERATOR = 1
SETTINGS = BrokerSettings(
    group_partitions=1, group_segment_bytes=1 << 13, tail_bytes_max=1 << 14, catch_up_bytes_per_s=1 << 40
)
SEGMENT_BYTES = 4096
KEYS = (None, b"north", b"south", b"west")
SIZES = (0, 30, 400, 900)
PLENTY = 1 << 24

M = TypeVar("M")
TopicPartition = tuple[str, int]
"""A topic's name and a partition index."""


class SentBatch(NamedTuple):
    """A batch that is not acknowledged yet."""

    location: TopicPartition
    request: int
    producer: int
    rows: list[Record]
    """Without their offsets."""
    batch: bytes


def operation(_settled: bool = True, **bounds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks an operation; each of its arguments lies between 0 and its bound."""

    def made(act: Callable[..., None]) -> Callable[..., None]:
        @wraps(act)
        def run(self: RandomOperations, **drawn: int) -> None:
            if _settled:
                self.settle()
            act(self, **drawn)
            if _settled:
                self.settle()

        run.bounds = bounds  # type: ignore[attr-defined]
        return run

    return made


class RandomOperations:
    """Publishing; subclasses add more operations."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        source = Random(seed)
        self.driver = StoredBrokerDriver(FaultyFiles(source), SETTINGS, source, without).start()
        self.reference = ReferenceBroker()
        self.unacknowledged: list[SentBatch] = []
        self.replies: dict[int, Any] = {}
        self.pushes: dict[tuple[int, int], list[Buffer]] = {}
        self.ended: dict[tuple[int, int], Ended] = {}
        self.conns: dict[int, int] = {}
        """By producer."""
        self.members_from = 1 << 20
        """Connections from here on belong to group members, which take their own messages."""
        self.numbers = OPERATOR
        self.driver.connect(OPERATOR)

    # --- choices ---

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def topic_partitions(self) -> list[TopicPartition]:
        topics = self.reference.topics
        return [(name, index) for name in sorted(topics) for index in range(len(topics[name].partitions))]

    def choose_partition(self, drawn: int) -> TopicPartition:
        candidates = self.topic_partitions()
        return candidates[drawn % len(candidates)]

    def partition(self, location: TopicPartition) -> ReferencePartition:
        return self.reference.topics[location[0]].partitions[location[1]]

    def topic_id(self, location: TopicPartition) -> int:
        return self.reference.topics[location[0]].topic

    def conn(self, producer: int) -> int:
        if producer not in self.conns:
            self.conns[producer] = self.driver.connect(self.next_number())
        return self.conns[producer]

    # --- messages ---

    def wait_for_throttle(self) -> None:
        """As long as a reader that fell behind may be throttled."""
        self.advance(self.driver.now.mono_us + WINDOW_US)

    def advance(self, to_us: int) -> None:
        later_us = max(to_us - self.driver.now.mono_us, 0)
        self.driver.now = Now(self.driver.now.mono_us + later_us, self.driver.now.wall_us + later_us)

    def settle(self) -> None:
        self.driver.settle()
        self.receive()

    def ask(self, message: ClientMessage, expected: type[M], conn: int = OPERATOR) -> M:
        answer = self.answer(message, conn)
        assert isinstance(answer, expected), answer
        return answer

    def answer(self, message: Any, conn: int = OPERATOR) -> Any:
        self.driver.send(conn, message)
        self.driver.settle()
        self.receive()
        return self.replies.pop(message.request)

    def receive(self) -> None:
        """Takes in all messages but those for group members."""
        kept: list[BrokerEffect] = []
        for effect in self.driver.effects:
            if isinstance(effect, PushTo) and isinstance(effect.message, Push):
                self.pushes.setdefault((effect.conn, effect.message.subscription), []).extend(effect.batches)
            elif isinstance(effect, Reply) and effect.conn >= self.members_from:
                kept.append(effect)
            elif isinstance(effect, Reply) and isinstance(effect.message, Ended):
                self.ended[effect.conn, effect.message.subscription] = effect.message
            elif isinstance(effect, Reply) and hasattr(effect.message, "request"):
                self.replies[effect.message.request] = effect.message
        self.driver.effects = kept
        while self.unacknowledged and self.unacknowledged[0].request in self.replies:
            sent = self.unacknowledged.pop(0)
            self.acknowledged(sent, self.replies.pop(sent.request))
        self.check_pushes()
        assert all(conn == OPERATOR for conn, _ in self.pushes), "nothing is pushed after a subscription ended"

    def acknowledged(self, sent: SentBatch, answer: Any) -> None:
        assert isinstance(answer, Published), answer
        records = [row._replace(offset=answer.offset + at) for at, row in enumerate(sent.rows)]
        self.stored(sent.location, records)

    def stored(self, location: TopicPartition, records: list[Record]) -> None:
        self.partition(location).append(records)

    def check_pushes(self) -> None:
        """Checks what each subscription received."""

    # --- publishing ---

    @operation(_settled=False, location=9, producer=2, count=2, key=3, size=3, late_ms=3000, batches=7, settles=2)
    def publish(
        self, *, location: int, producer: int, count: int, key: int, size: int, late_ms: int, batches: int, settles: int
    ) -> None:
        for _ in range(batches + 1):
            self.send(self.choose_partition(location), producer + 1, count + 1, key, size, late_ms)
        if settles:
            self.settle()

    def send(self, location: TopicPartition, producer: int, count: int, key: int, size: int, late_ms: int) -> None:
        partition, stamp_us = self.partition(location), self.driver.now.wall_us - late_ms * 1000
        known = partition.producers.get(producer)
        epoch, sequence = (known.epoch, known.expected) if known is not None else (0, 0)
        keys = [KEYS[(key + at) % len(KEYS)] if key else None for at in range(count)]
        values = [self._value(one, size) for one in keys]
        batch = encode(values, keys=keys, timestamp_us=stamp_us, producer=producer, producer_epoch=epoch,
                       sequence=sequence)  # fmt: skip
        conn, request = self.conn(producer), self.driver.request()
        refusal, delivered = self.expected_outcome(location, producer)
        self.driver.send(conn, Publish(request, self.topic_id(location), location[1], "all"), bytes(batch))
        if refusal:
            self.receive()
            assert self.replies.pop(request).code == refusal
            return
        partition.send(producer, epoch, sequence, count)
        rows = [Record(0, one, value, stamp_us, delivered) for one, value in zip(keys, values, strict=True)]
        self.unacknowledged.append(SentBatch(location, request, producer, rows, bytes(batch)))

    def expected_outcome(self, location: TopicPartition, producer: int) -> tuple[str, bool]:
        """Why a batch of the producer is refused, and whether it is delivered."""
        return "", True

    def heard(self, producer: int) -> None:
        """A message arrives on the producer's connection."""

    def _value(self, key: bytes | None, size: int) -> bytes | None:
        if key is not None and not SIZES[size]:
            return None
        return str(self.next_number()).encode().ljust(SIZES[size], b".")

    @operation(location=9, producer=2, which=9, again=1)
    def repeat(self, *, location: int, producer: int, which: int, again: int) -> None:
        """A repeated batch is stored once and gets the same answer."""
        where = self.choose_partition(location)
        partition, name = self.partition(where), producer + 1
        known = partition.producers.get(name)
        if known is None or not known.sent:
            return
        sequence = sorted(known.sent)[-1 - which % min(len(known.sent), 60)]
        count = known.sent[sequence]
        assert partition.check(name, known.epoch, sequence, count) == "stored"
        answer = self._numbered(where, name, known.epoch, sequence, count, bool(again))
        assert isinstance(answer, Published) and answer.offset >= 0

    @operation(location=9, producer=2, ahead=4, epoch=2)
    def publish_wrong_sequence(self, *, location: int, producer: int, ahead: int, epoch: int) -> None:
        """Sequence gaps and old epochs are refused."""
        where, name = self.choose_partition(location), producer + 1
        partition = self.partition(where)
        known = partition.producers.get(name)
        wrong = (known.epoch + epoch - 1, known.expected + ahead) if known is not None else (epoch, ahead)
        if wrong[0] < 0 or (known is not None and not known.sent):
            return
        verdict = partition.check(name, *wrong, 1)
        if verdict not in ("new", "stored"):
            answer = self._numbered(where, name, *wrong, 1, False)
            assert isinstance(answer, Failed) and answer.code == verdict

    def _numbered(
        self, location: TopicPartition, producer: int, epoch: int, sequence: int, count: int, again: bool
    ) -> Any:
        batch = encode([b"?"] * count, timestamp_us=self.driver.now.wall_us, producer=producer, producer_epoch=epoch,
                       sequence=sequence)  # fmt: skip
        request = self.driver.request()
        self.heard(producer)
        self.driver.send(
            self.conn(producer), Publish(request, self.topic_id(location), location[1], "all", again), bytes(batch)
        )
        self.settle()
        return self.replies.pop(request)


def records_of(batches: list[Buffer], start: int) -> list[Record]:
    """The records of pushed batches, suppressed ones included."""
    found: list[Record] = []
    for batch in iterate(b"".join(batches)):
        if not batch.header.is_control:
            delivered = not batch.header.owner_flags & SUPPRESSED
            columns = batch.offsets(), batch.keys(), batch.values(), batch.timestamps()
            found += [Record(*row, delivered) for row in zip(*columns, strict=True) if row[0] >= start]
    return found
