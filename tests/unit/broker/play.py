"""A broker that is asked for anything in any order, and the reference beside it: whatever one says, the other must.

Every move takes numbers and makes of them what is possible at the moment, so that any list of numbers is a play.
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
from tests.unit.broker.reference import Part, Record, Reference
from tests.unit.broker.stored_desk import StoredDesk

OPERATOR = 1
SETTINGS = BrokerSettings(
    group_partitions=1, group_segment_bytes=1 << 13, tail_bytes_max=1 << 14, catch_up_bytes_per_s=1 << 40
)
SEGMENT_BYTES = 4096
KEYS = (None, b"north", b"south", b"west")
SIZES = (0, 30, 400, 900)
PLENTY = 1 << 24

M = TypeVar("M")
Place = tuple[str, int]
"""A topic's name and a partition of it."""


class Sent(NamedTuple):
    """A batch that nobody has acknowledged yet."""

    place: Place
    request: int
    producer: int
    rows: list[Record]
    """Without their offsets."""
    batch: bytes


def move(_settled: bool = True, **bounds: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A move of the play; each of its numbers lies between 0 and its bound."""

    def made(act: Callable[..., None]) -> Callable[..., None]:
        @wraps(act)
        def run(self: Play, **drawn: int) -> None:
            if _settled:
                self.settle()
            act(self, **drawn)
            if _settled:
                self.settle()

        run.bounds = bounds  # type: ignore[attr-defined]
        return run

    return made


class Play:
    """Publishing; more moves are in the classes that build on it."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        source = Random(seed)
        self.desk = StoredDesk(FaultyFiles(source), SETTINGS, source, without).start()
        self.reference = Reference()
        self.doubts: list[Sent] = []
        self.replies: dict[int, Any] = {}
        self.pushes: dict[tuple[int, int], list[Buffer]] = {}
        self.ended: dict[tuple[int, int], Ended] = {}
        self.conns: dict[int, int] = {}
        """By producer."""
        self.members_from = 1 << 20
        """Connections from here on belong to members, who listen for themselves."""
        self.numbers = OPERATOR
        self.desk.connect(OPERATOR)

    # --- what is there to choose from ---

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def places(self) -> list[Place]:
        topics = self.reference.topics
        return [(name, index) for name in sorted(topics) for index in range(len(topics[name].parts))]

    def place(self, drawn: int) -> Place:
        places = self.places()
        return places[drawn % len(places)]

    def part(self, place: Place) -> Part:
        return self.reference.topics[place[0]].parts[place[1]]

    def topic_id(self, place: Place) -> int:
        return self.reference.topics[place[0]].topic

    def conn(self, producer: int) -> int:
        if producer not in self.conns:
            self.conns[producer] = self.desk.connect(self.next_number())
        return self.conns[producer]

    # --- talking to the broker ---

    def moment(self) -> None:
        """As long as a reader who fell behind may have to wait for its share of the disk."""
        self.advance(self.desk.now.mono_us + WINDOW_US)

    def advance(self, to_us: int) -> None:
        later_us = max(to_us - self.desk.now.mono_us, 0)
        self.desk.now = Now(self.desk.now.mono_us + later_us, self.desk.now.wall_us + later_us)

    def settle(self) -> None:
        self.desk.settle()
        self.listen()

    def ask(self, message: ClientMessage, expected: type[M], conn: int = OPERATOR) -> M:
        answer = self.answer(message, conn)
        assert isinstance(answer, expected), answer
        return answer

    def answer(self, message: Any, conn: int = OPERATOR) -> Any:
        self.desk.say(conn, message)
        self.desk.settle()
        self.listen()
        return self.replies.pop(message.request)

    def listen(self) -> None:
        """Takes in what was said, but for what is said to members."""
        kept: list[BrokerEffect] = []
        for effect in self.desk.effects:
            if isinstance(effect, PushTo) and isinstance(effect.message, Push):
                self.pushes.setdefault((effect.conn, effect.message.subscription), []).extend(effect.batches)
            elif isinstance(effect, Reply) and effect.conn >= self.members_from:
                kept.append(effect)
            elif isinstance(effect, Reply) and isinstance(effect.message, Ended):
                self.ended[effect.conn, effect.message.subscription] = effect.message
            elif isinstance(effect, Reply) and hasattr(effect.message, "request"):
                self.replies[effect.message.request] = effect.message
        self.desk.effects = kept
        while self.doubts and self.doubts[0].request in self.replies:
            sent = self.doubts.pop(0)
            self.acknowledged(sent, self.replies.pop(sent.request))
        self.follow_all()
        assert all(conn == OPERATOR for conn, _ in self.pushes), "nothing is pushed to whom it ended for"

    def acknowledged(self, sent: Sent, answer: Any) -> None:
        assert isinstance(answer, Published), answer
        records = [row._replace(offset=answer.offset + at) for at, row in enumerate(sent.rows)]
        self.stored(sent.place, records)

    def stored(self, place: Place, records: list[Record]) -> None:
        self.part(place).append(records)

    def follow_all(self) -> None:
        """Whoever has subscribed takes in what was pushed."""

    # --- publishing ---

    @move(_settled=False, place=9, producer=2, count=2, key=3, size=3, late_ms=3000, batches=7, settles=2)
    def publish(
        self, *, place: int, producer: int, count: int, key: int, size: int, late_ms: int, batches: int, settles: int
    ) -> None:
        for _ in range(batches + 1):
            self.send(self.place(place), producer + 1, count + 1, key, size, late_ms)
        if settles:
            self.settle()

    def send(self, place: Place, producer: int, count: int, key: int, size: int, late_ms: int) -> None:
        part, stamp_us = self.part(place), self.desk.now.wall_us - late_ms * 1000
        known = part.producers.get(producer)
        epoch, sequence = (known.epoch, known.expected) if known is not None else (0, 0)
        keys = [KEYS[(key + at) % len(KEYS)] if key else None for at in range(count)]
        values = [self._value(one, size) for one in keys]
        batch = encode(values, keys=keys, timestamp_us=stamp_us, producer=producer, producer_epoch=epoch,
                       sequence=sequence)  # fmt: skip
        conn, request = self.conn(producer), self.desk.request()
        refusal, delivered = self.judged(place, producer)
        self.desk.say(conn, Publish(request, self.topic_id(place), place[1], "all"), bytes(batch))
        if refusal:
            self.listen()
            assert self.replies.pop(request).code == refusal
            return
        part.send(producer, epoch, sequence, count)
        rows = [Record(0, one, value, stamp_us, delivered) for one, value in zip(keys, values, strict=True)]
        self.doubts.append(Sent(place, request, producer, rows, bytes(batch)))

    def judged(self, place: Place, producer: int) -> tuple[str, bool]:
        """Why a batch of the producer is refused, and whether it is delivered."""
        return "", True

    def heard(self, producer: int) -> None:
        """Something comes on the producer's connection."""

    def _value(self, key: bytes | None, size: int) -> bytes | None:
        if key is not None and not SIZES[size]:
            return None
        return str(self.next_number()).encode().ljust(SIZES[size], b".")

    @move(place=9, producer=2, which=9, again=1)
    def repeat(self, *, place: int, producer: int, which: int, again: int) -> None:
        """A batch comes again: it is stored once, and its answer is the same."""
        where = self.place(place)
        part, name = self.part(where), producer + 1
        known = part.producers.get(name)
        if known is None or not known.sent:
            return
        sequence = sorted(known.sent)[-1 - which % min(len(known.sent), 60)]
        count = known.sent[sequence]
        assert part.judge(name, known.epoch, sequence, count) == "stored"
        answer = self._numbered(where, name, known.epoch, sequence, count, bool(again))
        assert isinstance(answer, Published) and answer.offset >= 0

    @move(place=9, producer=2, ahead=4, epoch=2)
    def misnumber(self, *, place: int, producer: int, ahead: int, epoch: int) -> None:
        """Numbers that leave something out, or come from before a new beginning, are refused."""
        where, name = self.place(place), producer + 1
        part = self.part(where)
        known = part.producers.get(name)
        wrong = (known.epoch + epoch - 1, known.expected + ahead) if known is not None else (epoch, ahead)
        if wrong[0] < 0 or (known is not None and not known.sent):
            return
        verdict = part.judge(name, *wrong, 1)
        if verdict not in ("new", "stored"):
            answer = self._numbered(where, name, *wrong, 1, False)
            assert isinstance(answer, Failed) and answer.code == verdict

    def _numbered(self, place: Place, producer: int, epoch: int, sequence: int, count: int, again: bool) -> Any:
        batch = encode([b"?"] * count, timestamp_us=self.desk.now.wall_us, producer=producer, producer_epoch=epoch,
                       sequence=sequence)  # fmt: skip
        request = self.desk.request()
        self.heard(producer)
        self.desk.say(self.conn(producer), Publish(request, self.topic_id(place), place[1], "all", again), bytes(batch))
        self.settle()
        return self.replies.pop(request)


def records_of(batches: list[Buffer], start: int) -> list[Record]:
    """As a client takes them from pushes; those that are not delivered too."""
    found: list[Record] = []
    for batch in iterate(b"".join(batches)):
        if not batch.header.is_control:
            delivered = not batch.header.owner_flags & SUPPRESSED
            columns = batch.offsets(), batch.keys(), batch.values(), batch.timestamps()
            found += [Record(*row, delivered) for row in zip(*columns, strict=True) if row[0] >= start]
    return found
