"""A member of a ring as others know it."""

from __future__ import annotations

import msgspec

from rostra.model.ids import NodeId
from rostra.model.keyspace import Key


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One life of one node at one place of the ring. After a restart, or under a new key, it is another member."""

    key: Key
    node: NodeId
    boot: int = 1
    address: str = ""
    """Where it is reached; never read by the overlay."""

    def __str__(self) -> str:
        return f"{self.key:x}@{self.node}.{self.boot}"
