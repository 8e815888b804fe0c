"""An origin partition: what one incarnation of one broker has published to a topic."""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec
from msgspec import Meta

from rostra.fabric.api import TopicSpec
from rostra.model.ids import ID_MAX, NodeId, Partition, is_internal

NAME_MAX = 1024
SETTINGS_BYTES_MAX = 1 << 16

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Node = Annotated[NodeId, Meta(ge=0, le=ID_MAX)]


class OriginPartition(msgspec.Struct, frozen=True, array_like=True):
    """The description every broker has. `epoch` is the origin's incarnation, stamped on all its batches."""

    partition: Partition
    name: Annotated[str, Meta(max_length=NAME_MAX)]
    origin: Node
    epoch: Count
    segment_bytes: Count
    settings: Annotated[bytes, Meta(max_length=SETTINGS_BYTES_MAX)]

    @property
    def local(self) -> bool:
        """Whether it is internal (consumer groups) and never forwarded."""
        return is_internal(self.name)

    def spec(self) -> TopicSpec:
        """The topic whose own partition at this broker this is, as reported to the broker."""
        return TopicSpec(self.partition.topic, self.name, 1, self.settings)


class VectorEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One component of a vector: everything below `end` is stored. `is_origin`: that broker also orders it."""

    partition: Partition
    end: Count
    is_origin: bool = False


class OriginLog:
    """This broker's log of an origin partition. At the origin, `unsynced` batches wait for fsync to be forwarded."""

    __slots__ = ("damaged_at", "end", "first", "generation", "is_origin", "origin_partition", "synced", "unsynced")

    def __init__(
        self, origin_partition: OriginPartition, first: int, end: int, *, is_origin: bool, damaged_at: int | None = None
    ) -> None:
        self.origin_partition = origin_partition
        self.is_origin = is_origin
        """Whether this broker, in this incarnation, orders it."""
        self.first = first
        self.end = end
        self.synced = end
        self.generation = 0
        self.damaged_at = damaged_at
        self.unsynced: deque[tuple[int, int, bytearray]] = deque()

    @property
    def partition(self) -> Partition:
        return self.origin_partition.partition

    def vector_entry(self) -> VectorEntry:
        """The log's component of this broker's vector."""
        return VectorEntry(self.partition, self.end, self.is_origin)

    @property
    def sendable(self) -> int:
        """The end of what may be forwarded: at the origin only what is on stable storage."""
        return self.synced if self.is_origin else self.end

    def reset(self, first: int) -> None:
        self.first = self.end = self.synced = first
        self.generation = 0
        self.damaged_at = None
        self.unsynced.clear()

    def truncate(self, offset: int, generation: int) -> None:
        """Truncates the log: the disk refused the appends at `offset` and above."""
        self.end = offset
        self.synced = min(self.synced, offset)
        self.generation = generation
        while self.unsynced and self.unsynced[-1][1] > offset:
            self.unsynced.pop()
