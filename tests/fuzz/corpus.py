"""Valid frames of every kind, as a client or a node would send them, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from rostra.model.batch import Codec, stamp
from rostra.model.encode import encode as encode_batch
from rostra.wire import messages as m
from rostra.wire.fields import Message
from tests.unit.broker.broker_driver import partition_id
from tests.unit.wire.streams import CLIENT_KINDS, NODE_KINDS

WALL_US = 1_700_000_000_000_000
PIECES = (b"", b"a", b"value", bytes(100), b"x" * 1000)
NAMES = ("t", "u", "sensors/1", "a/b/c", "bad//name", "../x", "_own", "ü")


class Frame(NamedTuple):
    """A frame in its three parts; `framed` joins them with a right header."""

    kind: int
    meta: bytes
    payload: bytes = b""


class Corpus:
    """`topics` are ids that exist where the frames go, so that valid ones have an effect."""

    def __init__(self, rng: Random, topics: list[int], wall_us: int = WALL_US) -> None:
        self.rng = rng
        self.topics = topics
        self._wall_us = wall_us
        self._sequences: dict[int, int] = {}
        self._client = [(kind, _FROM_CLIENT.get(kind) or by_its_fields(kind)) for kind in CLIENT_KINDS]
        self._node = [(kind, _FROM_NODE.get(kind) or by_its_fields(kind)) for kind in NODE_KINDS]

    def from_client(self) -> Frame:
        kind, make = self.rng.choice(self._client)
        return self._frame(kind, make)

    def from_node(self) -> Frame:
        kind, make = self.rng.choice(self._node)
        return self._frame(kind, make)

    def publish(self) -> Frame:
        return self._frame(m.Publish, _FROM_CLIENT[m.Publish])

    def _frame(self, kind: type[Message], make: Make) -> Frame:
        payload = b""
        if kind is m.Publish:
            payload = bytes(self.batch())
        elif kind.payload:
            payload = b"".join(self.stamped() for _ in range(self.rng.randrange(1, 3)))
        return Frame(kind.kind, msgspec.msgpack.encode(make(self)), payload)

    # --- batches ---

    def batch(self) -> bytearray:
        rng = self.rng
        count = rng.choice((1, 1, 1, 2, 5, 40))
        values: list[bytes | None] = [rng.choice(PIECES) for _ in range(count)]
        shape = rng.randrange(7)
        if shape == 0:
            values[0] = None
        producer = rng.choice((0, 0, 1, 2, 3))
        sequence = 0
        if producer:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + count
        return encode_batch(
            values,
            keys=[rng.choice((None, b"k"))] * count if shape == 1 else None,
            headers=[[("name", b"content")]] * count if shape == 2 else None,
            timestamp_us=self._wall_us,
            timestamps_us=[self._wall_us - number for number in range(count)] if shape == 3 else None,
            producer=producer,
            sequence=sequence,
            codec=rng.choice((Codec.LZ4, Codec.ZSTD)) if shape >= 5 else Codec.NONE,
        )

    def stamped(self) -> bytearray:
        """A batch as an owner has placed it."""
        batch = self.batch()
        stamp(batch, partition=partition_id(self.topic()), base_offset=self.rng.randrange(1 << 40), owner_epoch=1)
        return batch

    # --- values ---

    def topic(self) -> int:
        return self.rng.choice(self.topics) if self.rng.random() < 0.9 else self.rng.getrandbits(63)

    def number(self) -> int:
        return self.rng.choice((0, 1, 2, 3, 7, 1 << 31, (1 << 63) - 1))

    def small(self) -> int:
        return self.rng.randrange(20)

    def name(self) -> str:
        return self.rng.choice(NAMES)


Make = Callable[[Corpus], tuple[Any, ...]]


def by_its_fields(kind: type[Message]) -> Make:
    """For a kind without a line below, any values that its fields accept: so a new message is fuzzed from the start."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    fields = found.fields
    return lambda corpus: tuple(_any_of(corpus, field.type) for field in fields)


def _any_of(corpus: Corpus, found: inspect.Type) -> Any:
    match found:
        case inspect.IntType():
            return min(max(corpus.number(), found.ge or 0), found.le or 2**63 - 1)
        case inspect.StrType():
            return corpus.name()
        case inspect.BytesType():
            return corpus.rng.choice(PIECES)
        case inspect.BoolType():
            return corpus.rng.random() < 0.5
        case inspect.LiteralType():
            return corpus.rng.choice(found.values)
        case inspect.VarTupleType():
            return tuple(_any_of(corpus, found.item_type) for _ in range(corpus.rng.randrange(3)))
        case inspect.DictType():
            return {_any_of(corpus, found.key_type): _any_of(corpus, found.value_type)}
        case inspect.UnionType():
            return _any_of(corpus, corpus.rng.choice(found.types))
        case inspect.StructType():
            return tuple(_any_of(corpus, field.type) for field in found.fields)
        case _:
            raise NotImplementedError(f"no way to draw a {found}")


PATTERNS = ("#", "+", "a/#", "+/b", "t", "a//", "b#", "_groups/#", "x" * 300)
_TOPIC = (1, "t", (1, 1, 0, 0, 1 << 20))

_FROM_CLIENT: dict[type[Message], Make] = {
    m.Hello: lambda c: (c.number(), 1, 1, (), "fuzz"),
    m.Ping: lambda c: (c.number(),),
    m.Pong: lambda c: (c.number(),),
    m.Locate: lambda c: (c.number(), c.name(), c.rng.random() < 0.3),
    m.CreateTopic: lambda c: (c.number(), c.name(), (1, 1, 0, 0, 1 << 20)),
    m.DeleteTopic: lambda c: (c.number(), c.rng.choice(NAMES[1:])),
    m.ListTopics: lambda c: (c.number(), c.name(), c.rng.randrange(1, 1000)),
    m.DescribeTopic: lambda c: (c.number(), c.name()),
    m.Publish: lambda c: (c.number(), c.topic(), 0, c.rng.choice(("none", "owner", "all"))),
    m.Subscribe: lambda c: (
        c.number(),
        c.small(),
        c.topic(),
        0,
        c.rng.choice(("earliest", "latest", "offset", "last", "time")),
        c.small(),
        c.rng.choice((0, 100, 100_000)),
    ),
    m.Credit: lambda c: (c.small(), c.number()),
    m.Unsubscribe: lambda c: (c.number(), c.small()),
    m.Watch: lambda c: (c.number(), c.small(), c.rng.sample(PATTERNS, 2), c.rng.choice(("", "", c.name()))),
    m.Unwatch: lambda c: (c.number(), c.small()),
    m.Goodbye: lambda c: ("bye",),
}

_FROM_NODE: dict[type[Message], Make] = {
    m.Welcome: lambda c: (c.number(), 1, (), 1, 2, "raft", 1 << 20, 1 << 20, 5000),
    m.Ping: lambda c: (c.number(),),
    m.Pong: lambda c: (c.number(),),
    m.Located: lambda c: (c.number(), _TOPIC, ((0, "", 1),)),
    m.TopicCreated: lambda c: (c.number(), _TOPIC),
    m.TopicDropped: lambda c: (c.number(), 1),
    m.TopicPage: lambda c: (c.number(), (_TOPIC,) * 3, False),
    m.TopicDescribed: lambda c: (c.number(), _TOPIC, ((0, 0, 5, 5, 100, 1, "serving"),)),
    m.Published: lambda c: (c.number(), c.small() - 1),
    m.Subscribed: lambda c: (c.number(), c.small(), c.small(), c.small()),
    m.Push: lambda c: (c.small(), c.number()),
    m.Unsubscribed: lambda c: (c.number(), c.small()),
    m.Ended: lambda c: (c.small(), "TopicDeleted", {"topic": "t"}),
    m.Failed: lambda c: (c.number(), "UnknownProducer", {"producer": c.small()}),
    m.Watched: lambda c: (c.number(), c.small(), (_TOPIC,) * 2, ""),
    m.TopicsAppeared: lambda c: (c.small(), (_TOPIC,)),
    m.TopicsGone: lambda c: (c.small(), (1, 2)),
    m.Goodbye: lambda c: ("bye",),
}
