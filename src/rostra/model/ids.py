"""Identities and counters, each with its own type, and the rule for topic names."""

import re
from typing import Annotated, NewType, Protocol, TypeVar

import msgspec

from rostra.errors import InvalidTopicName

ClusterId = NewType("ClusterId", int)
NodeId = NewType("NodeId", int)
TopicId = NewType("TopicId", int)
ProducerId = NewType("ProducerId", int)

Offset = NewType("Offset", int)
PartitionIndex = NewType("PartitionIndex", int)
Epoch = NewType("Epoch", int)
"""Fencing number of an owner."""
Generation = NewType("Generation", int)
"""Raised by each truncation of a partition."""
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)

RandomId = TypeVar("RandomId", ClusterId, NodeId, TopicId, ProducerId)

ID_BITS = 63
"""One bit short of 64, so that an id fits the signed integers of Arrow and msgpack."""
ID_MAX = (1 << ID_BITS) - 1
OFFSET_MAX = (1 << 63) - 1

TOPIC_NAME_CHARACTERS_MAX = 249
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._/-]")


class RandomSource(Protocol):
    """What `random.Random` offers; handed in, so that a seed decides every id."""

    def getrandbits(self, bits: int, /) -> int: ...


class Partition(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False, cache_hash=True):
    """One ordered part of a topic."""

    topic: Annotated[TopicId, msgspec.Meta(ge=0, le=ID_MAX)]
    index: Annotated[PartitionIndex, msgspec.Meta(ge=0, lt=1 << 32)]

    def __str__(self) -> str:
        return f"{text(self.topic)}/{self.index}"


def random_id(source: RandomSource) -> int:
    """A positive 63-bit number; zero is left free to mean "none"."""
    while True:
        drawn = source.getrandbits(ID_BITS)
        if drawn:
            return drawn


def text(identity: int) -> str:
    return f"{identity:016x}"


def parse_id(written: str) -> int:
    """The inverse of `text`; ValueError for anything `text` does not write."""
    if re.fullmatch(r"[0-7][0-9a-f]{15}", written) is None:
        raise ValueError(f"{written!r} is not an id: expected 16 hexadecimal digits")
    return int(written, 16)


def check_topic_name(name: str) -> None:
    """Refuse a name that is malformed or could leave the directory of its node."""
    if not name:
        raise InvalidTopicName(name, "it is empty")
    if len(name) > TOPIC_NAME_CHARACTERS_MAX:
        raise InvalidTopicName(name, f"it has {len(name)} characters; at most {TOPIC_NAME_CHARACTERS_MAX} are allowed")
    foreign = _NOT_IN_A_NAME.search(name)
    if foreign is not None:
        raise InvalidTopicName(name, f"{foreign[0]!r} is not one of the letters a-z A-Z, digits, '.', '_', '-', '/'")
    for level in name.split("/"):
        if not level:
            raise InvalidTopicName(name, "it has an empty level; remove the surplus '/'")
        if level in (".", ".."):
            raise InvalidTopicName(name, f"{level!r} is not allowed as a level")


def is_internal(name: str) -> bool:
    """Names that begin with an underscore belong to the system."""
    return name.startswith("_")
