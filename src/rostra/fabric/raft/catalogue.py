"""What the metadata group agrees on: members, topics, and which nodes hold each partition."""

from __future__ import annotations

from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from rostra.errors import BatchRejected, RostraError, TopicExists, UnknownTopic
from rostra.fabric.api import Buffer, TopicSpec
from rostra.model.batch import CHECKPOINT, read_header
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.model.layout import CONTROL

META = Partition(TopicId(0), PartitionIndex(0))
"""The catalogue is a log like any other."""

Text = Annotated[str, Meta(max_length=1024)]


class Member(msgspec.Struct, frozen=True, array_like=True):
    """`address` is for clients, `peer_address` for other nodes."""

    node: NodeId
    address: Text
    peer_address: Text


class Asker(msgspec.Struct, frozen=True, array_like=True):
    """Who waits for an entry: a node since its last start, under a token of its own."""

    node: NodeId
    boot: int
    token: int


class Made(msgspec.Struct, frozen=True, array_like=True, tag="made"):
    """`replicas` per partition, the preferred leader first."""

    spec: TopicSpec
    segment_bytes: int
    replicas: tuple[tuple[NodeId, ...], ...]
    asker: Asker


class Gone(msgspec.Struct, frozen=True, array_like=True, tag="gone"):
    topic: TopicId
    asker: Asker


class MemberJoined(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """Or is found at another address from now on."""

    member: Member


class MemberLeft(msgspec.Struct, frozen=True, array_like=True, tag="left"):
    node: NodeId


Entry = Made | Gone | MemberJoined | MemberLeft
_decoder = msgspec.msgpack.Decoder(Entry)


def entry_batch(entry: Entry, wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(entry)], timestamp_us=wall_us, control=True)


def read_catalogue_entry(batch: Buffer) -> Entry | None:
    """None for what the group wrote for itself."""
    flags = int.from_bytes(batch[60:62], "little")
    if not flags & CONTROL or read_header(batch).owner_flags & CHECKPOINT:
        return None
    try:
        (value,) = Batch(batch).values()[:1]
        entry: Entry = _decoder.decode(value or b"")
        return entry
    except (BatchRejected, msgspec.DecodeError, UnicodeDecodeError):
        return None


class Catalogue:
    """The same at every node that has applied the same entries."""

    def __init__(self) -> None:
        self.members: dict[NodeId, Member] = {}
        self.topics: dict[TopicId, Made] = {}
        self.names: dict[str, TopicId] = {}

    def apply(self, entry: Entry) -> RostraError | None:
        """Why the entry changes nothing, if it does not: it was written before another one was applied."""
        match entry:
            case Made(spec=spec):
                if spec.topic in self.topics:
                    # Said twice, as after a change of leaders.
                    return None
                if spec.name in self.names:
                    return TopicExists(spec.name)
                self.topics[spec.topic] = entry
                self.names[spec.name] = spec.topic
            case Gone(topic=topic):
                made = self.topics.pop(topic, None)
                if made is None:
                    return UnknownTopic(str(topic))
                del self.names[made.spec.name]
            case MemberJoined(member=member):
                self.members[member.node] = member
            case MemberLeft(node=node):
                self.members.pop(node, None)
            case _:
                assert_never(entry)
        return None

    def place(self, partitions: int, replicas: int) -> tuple[tuple[NodeId, ...], ...]:
        """Where a new topic goes: to the nodes that lead least, its copies to those that hold least."""
        leads = dict.fromkeys(sorted(self.members), 0)
        holds = dict(leads)
        for made in self.topics.values():
            for nodes in made.replicas:
                _count(nodes, leads, holds)
        placement: list[tuple[NodeId, ...]] = []
        for _ in range(partitions):
            first = min(leads, key=lambda node: (leads[node], holds[node], node))
            others = sorted((node for node in holds if node != first), key=lambda node: (holds[node], node))
            chosen = (first, *others[: replicas - 1])
            _count(chosen, leads, holds)
            placement.append(chosen)
        return tuple(placement)


def _count(nodes: tuple[NodeId, ...], leads: dict[NodeId, int], holds: dict[NodeId, int]) -> None:
    if nodes and nodes[0] in leads:
        leads[nodes[0]] += 1
    for node in nodes:
        if node in holds:
            holds[node] += 1
