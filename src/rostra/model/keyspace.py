"""The circle of keys on which nodes and topics are placed."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import NewType

import msgspec
import xxhash

Key = NewType("Key", int)


class Keyspace(msgspec.Struct, frozen=True):
    """A circle of 2**bits keys; clockwise is the direction of rising keys."""

    bits: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 64:
            raise ValueError(f"a keyspace has 1 to 64 bits, not {self.bits}")

    @property
    def size(self) -> int:
        return 1 << self.bits

    def key_of(self, name: bytes | str) -> Key:
        """The top bits of the hash, so that a smaller circle keeps the order of a larger one."""
        spelled = name.encode() if isinstance(name, str) else name
        return Key(xxhash.xxh3_64_intdigest(spelled) >> (64 - self.bits))

    def distance(self, start: Key, end: Key) -> int:
        """Steps clockwise from start to end."""
        return (end - start) & (self.size - 1)

    def between(self, after: Key, key: Key, upto: Key) -> bool:
        """Whether key lies on the arc (after, upto]; from a key to itself is the whole circle."""
        if after == upto:
            return True
        return 0 < self.distance(after, key) <= self.distance(after, upto)

    def strictly_between(self, after: Key, key: Key, before: Key) -> bool:
        """Whether key lies on the arc (after, before), both ends excluded."""
        return key != before and self.between(after, key, before) and key != after

    def successor(self, ascending: Sequence[Key], key: Key) -> Key:
        """The first of the given keys at or clockwise after key."""
        if not ascending:
            raise ValueError("an empty circle has no successor")
        place = bisect_left(ascending, key)
        return ascending[place] if place < len(ascending) else ascending[0]

    def predecessor(self, ascending: Sequence[Key], key: Key) -> Key:
        """The last of the given keys strictly before key."""
        if not ascending:
            raise ValueError("an empty circle has no predecessor")
        return ascending[bisect_left(ascending, key) - 1]


CIRCLE = Keyspace()
"""The keyspace of a real cluster; tests and experiments make smaller ones."""
