"""A part of a topic: what one incarnation of one broker has published to it."""

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
    """What every broker knows of it. `epoch` is the origin's incarnation, under which all of its batches stand."""

    partition: Partition
    name: Annotated[str, Meta(max_length=NAME_MAX)]
    origin: Node
    epoch: Count
    segment_bytes: Count
    settings: Annotated[bytes, Meta(max_length=SETTINGS_BYTES_MAX)]

    @property
    def local(self) -> bool:
        """Kept by its broker for itself, as the names of subscriptions are: it goes to nobody."""
        return is_internal(self.name)

    def spec(self) -> TopicSpec:
        """As the topic that has this part for its own is known to the broker above."""
        return TopicSpec(self.partition.topic, self.name, 1, self.settings)


class VectorEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One component of a vector: below `end`, all of the part is there. `owns`: it is ordered there, too."""

    partition: Partition
    end: Count
    is_origin: bool = False


class OriginLog:
    """This broker's log of a part. Where it is the origin, `recent` waits for the fsync before it is passed on."""

    __slots__ = ("damaged_at", "end", "first", "generation", "is_origin", "origin_partition", "synced", "unsynced")

    def __init__(
        self, origin_partition: OriginPartition, first: int, end: int, *, is_origin: bool, damaged_at: int | None = None
    ) -> None:
        self.origin_partition = origin_partition
        self.is_origin = is_origin
        """Whether this incarnation orders it."""
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
        """Its component of this broker's vector."""
        return VectorEntry(self.partition, self.end, self.is_origin)

    @property
    def sendable(self) -> int:
        """Below this every broker may have it: the origin has it on stable storage."""
        return self.synced if self.is_origin else self.end

    def reset(self, first: int) -> None:
        self.first = self.end = self.synced = first
        self.generation = 0
        self.damaged_at = None
        self.unsynced.clear()

    def truncate(self, offset: int, generation: int) -> None:
        """The disk refused what was to stand at `offset` and above."""
        self.end = offset
        self.synced = min(self.synced, offset)
        self.generation = generation
        while self.unsynced and self.unsynced[-1][1] > offset:
            self.unsynced.pop()
