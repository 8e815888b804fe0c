"""Values shared by the inputs and effects of the fabric API."""

from __future__ import annotations

from typing import Literal

import msgspec

from rostra.model.ids import Partition, TopicId

Buffer = bytes | bytearray | memoryview
Acks = Literal["none", "owner", "all"]


class Now(msgspec.Struct, frozen=True, gc=False):
    """The time of a step: monotonic for timers, wall for timestamps."""

    mono_us: int
    wall_us: int


class Value(msgspec.Struct, frozen=True):
    """Base of all inputs and effects."""


class TopicSpec(Value, frozen=True, array_like=True):
    """A topic as the metadata describes it. `settings` is opaque here: encoded by the broker."""

    topic: TopicId
    name: str
    partitions: int
    settings: bytes


class EpochStart(Value, frozen=True, array_like=True):
    """The first offset that an owner epoch wrote: one row of a partition's epoch table."""

    epoch: int
    offset: int


class Recovered(Value, frozen=True):
    """One partition as recovered from disk. Everything below `end` is fsynced.

    `epochs` starts with the row of the epoch before `first`, taken from the last checkpoint, so that the log matching
    check works at log start. A replica with `damaged_at` neither votes, leads nor acknowledges until it is restored.
    """

    partition: Partition
    first: int
    end: int
    epochs: tuple[EpochStart, ...]
    damaged_at: int | None = None
